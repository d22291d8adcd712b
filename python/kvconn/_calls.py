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
"""

import errno
import os
import sys
import textwrap
import threading
import time
from _thread import allocate_lock, get_ident, start_new_thread
from ctypes import byref, c_size_t, c_void_p

from . import _buffers, _check, _ffi
from ._brief import Brief

lib = _ffi.load()

# ---- Errors ----------------------------------------------------------------------------------------------------------


class Error(Exception, metaclass=Brief):
    """A call has failed. It pickles and copies with all fields:

    status          the number, such as -8
    name            its C name, such as "KVCONN_PEER_LOST"
    message         one line for people: what happened, and with what
    endpoint        the endpoint that it is about, or ""
    conn            the connection that it is about, or 0
    os_errno        the operating system's errno, else that of the status (docs/status.md)
    scope           how far it reaches: SCOPE_CALL, SCOPE_PEER, SCOPE_NODE or SCOPE_PROCESS
    retriable       whether the same call can succeed later without a change
    retry_after_ms  milliseconds until the endpoint may be dialled again; 0 if unknown, or now
    kvconn_call     only if a signal handler raised it: the Call that it has interrupted
    """

    def __init__(self, error):
        self.status = error.status
        self.name = lib.kvconn_status_name(error.status).decode()
        self.os_errno = error.os_errno
        self.scope = error.scope
        self.retriable = bool(error.retriable)
        self.retry_after_ms = error.retry_after_ms
        self.conn = error.conn
        self.endpoint = error.endpoint.decode()
        self.message = error.message.decode()
        super().__init__(f"{self.name}: {self.message}" + (f" [{self.endpoint}]" if self.endpoint else ""))

    def __reduce__(self):
        return _error_again, (type(self), self.args, self.__dict__)


def _error_again(kind, arguments, fields):
    """A copy of an error, from its pickled parts."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


def _exceptions():
    """One exception for each status but OK, from the library's own table: {-8: PeerLost, …}."""
    made = {}
    while True:
        status = -1 - len(made)
        name = lib.kvconn_status_name(status).decode()
        if not name.startswith("KVCONN_"):
            return made
        short = name.removeprefix("KVCONN_").title().replace("_", "")
        about = {"__doc__": lib.kvconn_strerror(status).decode(), "__module__": __package__}
        made[status] = Brief(short, (Error,), about)


Error.__module__ = __package__
STATUSES = _exceptions()
if Error.__doc__:  # python -OO drops it
    lines = [f"{kind.__name__} ({status}): {kind.__doc__}" for status, kind in STATUSES.items()]
    lines = [textwrap.fill(line, 116, subsequent_indent="    ") for line in lines]
    Error.__doc__ = "\n".join([textwrap.dedent("    " + Error.__doc__), "Its subclasses:", "", *lines])

STALE, TIMEOUT, STALLED, PARTIAL = -2, -4, -5, -16


def _error(given):
    return STATUSES.get(given.status, Error)(given)


# ---- Calls -----------------------------------------------------------------------------------------------------------

SLICE_MS = 200  # the longest that the main thread is inside C, or waits without looking for signals
UNFINISHED = 1  # in a status that C has not written: it writes 0 or a negative number, as the last thing

_main = threading.main_thread().ident
_interrupted = {}  # calls whose result was not taken, in order; the next call of the same kind gives it out


def _in_child():
    global _main
    _main = get_ident()
    _interrupted.clear()


os.register_at_fork(after_in_child=_in_child)


def goes_aside(timeout_ms):
    """Whether a call with this timeout runs on a thread of its own. At the interpreter's end there are no new threads.
    """
    long = timeout_ms > SLICE_MS or timeout_ms == _ffi.DEFAULT_TIMEOUT
    return long and get_ident() == _main and not sys.is_finalizing()


def _unwritten():
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

    def __init__(self, name, head=(), tail=(), read=None, conn=None, ends=None, again=None, partial=False):
        self.name, self.head, self.tail, self.read = name, head, tail, read
        self.conn, self.ends, self.again, self.partial = conn, ends or [], again, partial
        self.last = self.aside = self.cancelled = self.taken = self.settled = False
        self.first = self.value = self.broken = self._turn = self._over = None
        self.error = _unwritten()

    @property
    def has_not_begun(self):
        return not self.aside and self.error.status == UNFINISHED

    def done(self):
        """Whether the call is over."""
        return self.error.status != UNFINISHED or self.broken is not None

    def result(self, timeout_ms=None):
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

    def __reduce__(self):
        done = self.done()
        if done:
            self._settle()
        return CopiedCall, (self.name, done, self.value, self._failure() if done else None)

    def _must_wait(self):
        """Whether an attempt without waiting has failed for want of time; prepares the next one."""
        return self.error.status in (TIMEOUT, STALLED)

    def _invoke(self, timeout_ms):
        waits = () if timeout_ms is None else (timeout_ms,)
        try:
            getattr(lib, self.name)(*self.head, *waits, *self.tail, byref(self.error))
        finally:
            if self.last:
                self._drop_input()

    def _drop_input(self):
        """C reads nothing of what it was given any more."""
        self.head = None
        while self.ends:
            self.ends[-1]()
            self.ends.pop()

    def _settle(self):
        """Makes the result from what C wrote. Can be done twice."""
        if not self.settled:
            if self.broken is not None:
                raise self.broken
            if self.read is not None and (self.error.status == 0 or self.error.status == PARTIAL and self.partial):
                self.value = self.read(_error(self.error) if self.error.status else None)
            self.settled = True

    def _failure(self):
        """The exception to raise, or None."""
        if self.error.status == 0 or self.error.status == PARTIAL and self.partial:
            return None
        return _error(self.error)

    def _wait(self, seconds):
        """Waits for the thread of its own; false when the time is over first."""
        if self._over.acquire(True, seconds):
            self._over.release()
            return True
        return False

    def _run_aside(self, timeout_ms):
        self._turn, self._over = allocate_lock(), allocate_lock()
        self._over.acquire()
        process = os.getpid()
        try:
            self.aside = True
            try:
                start_new_thread(self._on_its_thread, (timeout_ms,))
            except RuntimeError as error:
                if error.__traceback__.tb_next is not None:
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

    def _on_its_thread(self, timeout_ms):
        if not self._turn.acquire(False):
            return
        try:
            self._invoke(timeout_ms)
        except BaseException as error:
            self.broken = error
        finally:
            self._over.release()

    def _forked(self):
        """A signal handler has forked, and this is the child: its parent has the call."""
        self.error.message = b"the process was forked during the call"
        self.error.os_errno = errno.ESTALE
        self.error.status = STALE


class CopiedCall:
    """A copied or pickled `Call`: it knows the result if the call was over by then."""

    def __init__(self, name, done, value, failure):
        self.name, self._done, self._value, self._failure = name, done, value, failure

    def done(self):
        return self._done

    def result(self, timeout_ms=None):
        if not self._done:
            raise RuntimeError(f"{self.name} was not over when this copy was made")
        if self._failure is not None:
            raise self._failure
        return self._value


def _left_over(again, timeout_ms):
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


def run(call, timeout_ms=None, first_without_waiting=False, waits=False):
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


def get(name, kind, *head, **about):
    """Makes a call whose one out-parameter comes last before the error; returns that."""
    out = kind()
    return run(Call(name, head, (byref(out),), lambda _: out.value, **about))


def fields(struct):
    """A struct as a dict: texts decoded, without its size."""
    values = {name: getattr(struct, name) for name, _ in struct._fields_[1:]}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def array_of(function, kind, owner):
    """An array whose length may grow between asking and copying."""
    count = c_size_t(0)
    while True:
        array = (kind * count.value)()
        run(Call(function, (owner, array, len(array), byref(count))))
        if count.value <= len(array):
            return array[: count.value]


# ---- Options, and buffers that C reads in place ----------------------------------------------------------------------


class Options(c_void_p):
    """A dict of options as kvconn_options_t, for one call, which frees it; None stays NULL."""

    def __init__(self, options):
        super().__init__()
        if options is None:
            return
        pairs, error = _check.options(options), _ffi.kvconn_error_t()
        self.value = lib.kvconn_options_new()
        try:
            for name, value in pairs:
                if lib.kvconn_options_set(self, name, value, byref(error)) != 0:
                    raise _error(error)
        except BaseException:
            self.free()
            raise

    def free(self):
        options, self.value = self.value, None
        lib.kvconn_options_free(options)


def _released(conn, sequence):
    """Whether the buffers up to this message are the caller's. A connection is remembered while one of them is not."""
    return lib.kvconn_wait_released(conn, sequence, 0, None) in (0, STALE)


pins = _buffers.Pins(_released)
