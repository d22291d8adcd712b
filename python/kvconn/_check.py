"""Checks of what a caller passes, before C sees it: ctypes would cut an integer to its C type without a word.

Each raises TypeError or ValueError that names the parameter, and returns the value as C takes it.
"""

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

UINT64 = 2**64 - 1
INT64 = 2**63 - 1
INT32 = 2**31 - 1


def integer(name: str, value: Any, least: int, most: int, is_id: bool = False) -> int:
    """An integer: an int, or an object that is one (has __index__). No float, no flag, no UUID.

    A Connection, Node or Manager is an id and no other number.
    """
    if isinstance(value, bool) or (not is_id and stands_for_id(value)):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    try:
        given = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not least <= given <= most:
        shown = given if given.bit_length() <= 256 else f"an integer of {given.bit_length()} bits"
        raise ValueError(f"{name} is {shown}; it must be {least} to {most}")
    return given


def stands_for_id(value: Any) -> bool:
    """Whether this is a Connection, Node or Manager."""
    return getattr(type(value), "_stands_for_id", False) is True


def uint64(name: str, value: Any) -> int:
    """An id: a number, or the object over it."""
    if type(value) is int and 0 <= value <= UINT64:
        return value
    return integer(name, value, 0, UINT64, is_id=True)


def number(name: str, value: Any) -> int:
    """A request or a sequence."""
    if type(value) is int and 0 <= value <= UINT64:
        return value
    return integer(name, value, 0, UINT64)


def manager(value: Any) -> int:
    """The id of a manager."""
    return uint64("manager", value)


def timeout(name: str, value: Any) -> int:
    """Milliseconds. C refuses what is below -1."""
    if type(value) is int and -1 <= value <= INT64:
        return value
    return integer(name, value, -INT64 - 1, INT64)


def milliseconds(name: str, value: Any) -> int:
    """Seconds, as the objects take them, in milliseconds, rounded up; None is the configured default."""
    if value is None:
        return -1
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds (an int or a float) or None, not {type(value).__name__}")
    if not 0 <= value <= INT64 // 1000:  # NaN is neither
        raise ValueError(f"{name} is {value} seconds; it must be 0 to {INT64 // 1000}")
    return math.ceil(value * 1000)


def int32(name: str, value: Any) -> int:
    """An int of C."""
    return integer(name, value, -INT32 - 1, INT32)


def flag(name: str, value: Any) -> bool:
    """A bool, or an integer as C takes it: 0 is false."""
    if isinstance(value, int):
        return bool(value)
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's, which is no int
        return bool(value)
    raise TypeError(f"{name} must be a bool, not {type(value).__name__}")


def text(name: str, value: Any) -> bytes:
    """A text as C takes it. C would read one with a NUL only up to there."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{name} contains a NUL character")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not Unicode text: {error.reason}") from None


def texts(name: str, values: Any) -> list[bytes]:
    """A list of texts."""
    if isinstance(values, (str, bytes)):
        kind = type(values).__name__
        raise TypeError(f"{name} must be a list of str, not {kind}: write [endpoint] for a single one")
    return [text(f"{name}[{place}]", value) for place, value in enumerate(iterated(name, values, "str"))]


def iterated(name: str, values: Any, of: str) -> Iterator[Any]:
    """An iterator over what must be a list of something."""
    try:
        return iter(values)
    except TypeError:
        raise TypeError(f"{name} must be a list of {of}, not {type(values).__name__}") from None


def option(name: str, value: Any) -> bytes:
    """An option's value as text: numbers and flags by themselves, CURVE keys of pyzmq from bytes."""
    if isinstance(value, bytes):
        if not value.isascii():
            raise ValueError(f"option {name}: bytes must be ASCII")  # decode() would show it, and it may be a key
        value = value.decode("ascii")
    elif not isinstance(value, str):
        try:
            if stands_for_id(value):
                raise TypeError
            value = str(int(value) if isinstance(value, bool) else operator.index(value))
        except TypeError:
            kind = type(value).__name__
            raise TypeError(f"option {name} must be an integer, a bool, a str or bytes, not {kind}") from None
    return text(f"option {name}", value)


def options(values: Any) -> list[tuple[bytes, bytes]]:
    """A dict of options as pairs of texts."""
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        given = f"not {kind}; timeouts have names: wait_ms=3000"
        raise TypeError(f'options must be a dict such as {{"send_hwm": 100}}, {given}')
    return [(text("an option's name", name), option(name, value)) for name, value in values.items()]
