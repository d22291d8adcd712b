"""Classes whose help() is short."""

from typing import Any, TypeVar

_T = TypeVar("_T")


class Brief(type):
    """A class whose help() shows its docstring and what has one, not what every exception, tuple or object has."""

    def __dir__(cls) -> list[str]:
        ours = [vars(base) for base in cls.__mro__ if base.__module__ != "builtins"]
        found = {name: value for names in reversed(ours) for name, value in names.items()}
        shown = {name for name, value in found.items() if callable(value) or isinstance(value, property)}
        return sorted(name for name in shown if found[name].__doc__ and name[0] != "_")


def brief(kind: type[_T]) -> type[_T]:
    """The NamedTuple class again, as a Brief one of the package."""
    names = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    made: Any = Brief(kind.__name__, kind.__bases__, names | {"__module__": __package__})
    again: type[_T] = made
    return again
