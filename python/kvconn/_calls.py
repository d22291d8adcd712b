"""Calls of C functions: their errors, their results when a signal handler raises, and their waits.

Python runs signal handlers on the main thread, between two of its own instructions and never inside C. Hence two rules.

*What C wrote decides.* A handler that raises right after a foreign call hides what the call returned. So C writes every
result to memory that belongs to a `Call`, and the exception gets the call as its attribute `kvconn_call`. (Python 3.10
also runs handlers when a Python function has returned and before its caller has the value. A result that is hidden
there is lost. Buffers stay pinned all the same.)

*A wait lets handlers run.* On the main thread, a call that may wait longer than SLICE_MS runs on a thread of its own,
and the main thread waits for that thread in Python. The C call keeps its whole timeout: it returns what it would have
returned on the main thread, at the same moment. Slices of the C call would not: a sender would lose its place in the
queue with each, and C would judge STALLED by the timeout of the slice. Handlers run on no other thread, so other
threads call C directly.

Sends and polls first make an attempt that keeps the GIL (`_attempts`). What follows here is for all other calls, and for
what an attempt could not do.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from typing import Any

from . import _buffers, _check, _ffi
from ._brief import Brief
from ._errors import STATUSES as STATUSES
from ._errors import Error as Error
from ._errors import as_error as as_error
from ._errors import lib as lib

STALE, TIMEOUT, STALLED, PARTIAL = -2, -4, -5, -16

# ---- Calls -----------------------------------------------------------------------------------------------------------

SLICE_MS = 200  # the longest that the main thread is inside C, or waits without looking for signals
UNFINISHED = 1  # in a status that C has not written: it writes 0 or a negative number, as the last thing

_main = threading.main_thread().ident
_interrupted: dict[Call, None] = {}  # calls whose result was not taken, in order; the next call of the same kind gives it out


def _in_child() -> None:
    global _main
    _main = get_ident()
    _interrupted.clear()


os.register_at_fork(after_in_child=_in_child)


def goes_aside(timeout_ms: int) -> bool:
    """Whether a call with this timeout runs on a thread of its own. At the interpreter's end there are no new threads.
    """
    long = timeout_ms > SLICE_MS or timeout_ms == _ffi.DEFAULT_TIMEOUT
    return long and get_ident() == _main and not sys.is_finalizing()


def _unwritten() -> _ffi.kvconn_error_t:
    error = _ffi.kvconn_error_t()
    error.status = UNFINISHED
    return error


class Call(metaclass=Brief):
    """One call of a C function. An exception that a signal handler raised during the call has it as `kvconn_call`.

    The call is over or goes on until its own timeout; `result()` gives what it returned. A copy or a pickle of it knows
    the result if the call was over by then.
    """

    # What the call is. name: the C function. head, tail: its parameters before and behind the timeout. read: makes the
    # result of what C wrote; it runs again when a handler has interrupted it. conn: the connection whose released
    # buffers to unpin afterwards. ends: what to do when C reads its parameters no more; may be done twice. again: what
    # names the later call that gives out this result if it was not taken. partial: PARTIAL is a result. Where it
    # stands. first: the error of an attempt before this one. last: no other attempt follows. aside: it runs on a thread
    # of its own. cancelled: it has not begun, and never will. taken: `result` gave it out. settled: `value` is made.
    # broken: what kept it from calling C.
    __slots__ = (
        *("name", "error", "head", "tail", "read", "conn", "ends", "again", "partial"),
        *("first", "last", "aside", "cancelled", "taken", "settled", "value", "broken", "_turn", "_over"),
    )

    # In `about`: conn, ends, again, partial. help() shows this line.
    def __init__(self, name: str, head: Any = (), tail: Any = (), read: Any = None, **about: Any) -> None:
        self.name, self.tail = name, tail
        self.head: Any = head
        self.read: Callable[[Error | None], Any] | None = read
        self.conn: int | None = about.pop("conn", None)
        self.ends: list[Callable[[], object]] = about.pop("ends", None) or []
        self.again: object = about.pop("again", None)
        self.partial: bool = about.pop("partial", False)
        assert not about, about
        self.last = self.aside = self.cancelled = self.taken = self.settled = False
        self.first: _ffi.kvconn_error_t | None = None
        self.broken: BaseException | None = None
        self.value: Any = None
        self._turn: Any = None
        self._over: Any = None
        self.error = _unwritten()

    @property
    def has_not_begun(self) -> bool:
        return not self.aside and self.error.status == UNFINISHED

    def done(self) -> bool:
        """Whether the call is over."""
        return self.error.status != UNFINISHED or self.broken is not None

    def result(self, timeout_ms: float | None = None) -> Any:
        """What the call returned; raises what it raised. Waits until it is over; the built-in TimeoutError when
        timeout_ms comes first."""
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while not self.done():
            left = SLICE_MS / 1000 if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.name} is not over")
            self._wait(min(left, SLICE_MS / 1000))
        self._settle()
        failure = self._failure()
        self.taken = True
        if failure is None:
            return self.value
        try:
            raise failure
        finally:
            del failure  # the exception would be part of a cycle

    def __reduce__(self) -> tuple[Any, ...]:
        done = self.done()
        if done:
            self._settle()
        return CopiedCall, (self.name, done, self.value, self._failure() if done else None)

    def _must_wait(self) -> bool:
        """Whether an attempt without waiting has failed for want of time; prepares the next one."""
        return self.error.status in (TIMEOUT, STALLED)

    def _invoke(self, timeout_ms: int | None) -> None:
        waits = () if timeout_ms is None else (timeout_ms,)
        try:
            getattr(lib, self.name)(*self.head, *waits, *self.tail, byref(self.error))
        finally:
            if self.last:
                self._drop_input()

    def _drop_input(self) -> None:
        """C reads nothing of what it was given any more."""
        self.head = None
        while self.ends:
            self.ends[-1]()
            self.ends.pop()

    def _settle(self) -> None:
        """Makes the result from what C wrote. Can be done twice."""
        if not self.settled:
            if self.broken is not None:
                raise self.broken
            if self.read is not None and (self.error.status == 0 or self.error.status == PARTIAL and self.partial):
                self.value = self.read(as_error(self.error) if self.error.status else None)
            self.settled = True

    def _failure(self) -> Error | None:
        """The exception to raise, or None."""
        if self.error.status == 0 or self.error.status == PARTIAL and self.partial:
            return None
        return as_error(self.error)

    def _wait(self, seconds: float) -> bool:
        """Waits for the thread of its own; false when the time is over first."""
        if self._over.acquire(True, seconds):
            self._over.release()
            return True
        return False

    def _run_aside(self, timeout_ms: int | None) -> None:
        self._turn, self._over = allocate_lock(), allocate_lock()
        self._over.acquire()
        process = os.getpid()
        try:
            self.aside = True
            try:
                start_new_thread(self._on_its_thread, (timeout_ms,))
            except RuntimeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # out of a signal handler
                self.aside = False  # there is no thread to be had: without handlers, then
                self._invoke(timeout_ms)
                return
            while not self._wait(SLICE_MS / 1000):
                if os.getpid() != process:
                    self._forked()
                    return
        except BaseException:
            if self._turn.acquire(False):
                self.aside = False  # it has not begun, and never will
            raise

    def _on_its_thread(self, timeout_ms: int | None) -> None:
        if not self._turn.acquire(False):
            return
        try:
            self._invoke(timeout_ms)
        except BaseException as error:
            self.broken = error
        finally:
            self._over.release()

    def _forked(self) -> None:
        """A signal handler has forked, and this is the child: its parent has the call."""
        self.error.message = b"the process was forked during the call"
        self.error.os_errno = errno.ESTALE
        self.error.status = STALE


class CopiedCall:
    """A copied or pickled `Call`: it knows the result if the call was over by then."""

    def __init__(self, name: str, done: bool, value: Any, failure: Error | None) -> None:
        self.name, self._done, self._value, self._failure = name, done, value, failure

    def done(self) -> bool:
        return self._done

    def result(self, timeout_ms: float | None = None) -> Any:
        if not self._done:
            raise RuntimeError(f"{self.name} was not over when this copy was made")
        if self._failure is not None:
            raise self._failure
        return self._value


def note(call: Call) -> None:
    """The result of this call, which a signal handler's exception has hidden, is given out by the next of its kind."""
    _interrupted[call] = None


def is_left_over() -> bool:
    """Whether any result waits for the next call of its kind."""
    return bool(_interrupted)


def _left_over(again: object, timeout_ms: int | None) -> Call | None:
    """An earlier call of that kind whose result was not taken; it is over, or the time is."""
    until = time.monotonic() + (timeout_ms or 0) / 1000
    for call in tuple(_interrupted):
        if call.again != again:
            continue
        while not call.done():
            left = until - time.monotonic()
            if left <= 0:
                return call
            call._wait(min(left, SLICE_MS / 1000))
        call._settle()
        wanted = call.value is not None and not call.taken
        # Python handles no signal from here on: there is no call between the question, the removal and the return.
        if call in _interrupted:
            del _interrupted[call]
            if wanted:
                return call
    return None


def run(call: Call, timeout_ms: int | None = None, first_without_waiting: bool = False, waits: bool = False) -> Any:
    """Makes the call, and returns its result or raises its error.

    first_without_waiting: on the main thread, try with timeout 0 first: a thread costs more than most calls take.
    waits: it has no timeout, and may wait all the same.
    """
    if _interrupted and call.again is not None:
        earlier = _left_over(call.again, timeout_ms)
        if earlier is not None:
            return earlier.value
    try:
        aside = goes_aside(timeout_ms) if timeout_ms is not None else waits and goes_aside(_ffi.DEFAULT_TIMEOUT)
        if not aside:
            call.last = True
            call._invoke(timeout_ms)
        elif not first_without_waiting:
            call.last = True
            call._run_aside(timeout_ms)
        else:
            call._invoke(0)
            if call._must_wait():
                call.first, call.error = call.error, _unwritten()
                call.last = True
                call._run_aside(timeout_ms)
            else:
                call.last = True
                call._drop_input()
        call._settle()
        failure = call._failure()
        if pins:
            pins.sweep(call.conn)
    except BaseException as exception:
        # Python handles no signal before the last of these lines: only a call, a function's start and a loop let it.
        call.last = True
        if call.first is not None and not call.aside and call.error.status == UNFINISHED:
            call.error = call.first  # the second attempt never began
        if call.aside or call.error.status != UNFINISHED:
            exception.__dict__["kvconn_call"] = call
            if call.again is not None and call.error.status >= 0:
                _interrupted[call] = None
        else:
            call.cancelled = True
        if not call.aside:
            call._drop_input()
        raise
    # Nor here.
    if failure is None:
        return call.value
    try:
        raise failure
    finally:
        del failure  # the exception would be part of a cycle


def get(name: str, kind: Any, *head: Any, **about: Any) -> Any:
    """Makes a call whose one out-parameter comes last before the error; returns that."""
    out = kind()
    return run(Call(name, head, (byref(out),), lambda _: out.value, **about))


def fields(struct: Any) -> dict[str, Any]:
    """A struct as a dict: texts decoded, without its size."""
    values = {name: getattr(struct, name) for name, _ in struct._fields_[1:]}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def array_of(function: str, kind: Any, owner: int) -> list[Any]:
    """An array whose length may grow between asking and copying."""
    count = c_size_t(0)
    while True:
        array = (kind * count.value)()
        run(Call(function, (owner, array, len(array), byref(count))))
        if count.value <= len(array):
            found: list[Any] = array[: count.value]
            return found


# ---- Options, and buffers that C reads in place ----------------------------------------------------------------------


class Options(c_void_p):
    """A dict of options as kvconn_options_t, for one call, which frees it; None stays NULL."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        if options is None:
            return
        pairs, error = _check.options(options), _ffi.kvconn_error_t()
        self.value = lib.kvconn_options_new()
        try:
            for name, value in pairs:
                if lib.kvconn_options_set(self, name, value, byref(error)) != 0:
                    raise as_error(error)
        except BaseException:
            self.free()
            raise

    def free(self) -> None:
        options, self.value = self.value, None
        lib.kvconn_options_free(options)


def _released(conn: int, sequence: int) -> bool:
    """Whether the buffers up to this message are the caller's. A connection is remembered while one of them is not."""
    return lib.kvconn_wait_released(conn, sequence, 0, None) in (0, STALE)


pins = _buffers.Pins(_released)
