"""Classes whose help() is short."""


class Brief(type):
    """A class whose help() shows its docstring and the methods that have one, not what every exception or tuple has."""

    def __dir__(cls):
        ours = [vars(base) for base in cls.__mro__ if base.__module__ != "builtins"]
        found = {name: value for names in reversed(ours) for name, value in names.items()}
        return sorted(name for name, value in found.items() if callable(value) and value.__doc__ and name[0] != "_")


def brief(kind):
    """The NamedTuple class again, as a Brief one of the package."""
    names = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return Brief(kind.__name__, kind.__bases__, names | {"__module__": __package__})
