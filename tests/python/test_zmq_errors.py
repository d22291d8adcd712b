"""kvconn.zmq: the exceptions for code that knows only pyzmq."""

import copy
import errno
import pickle
import subprocess
import sys
import textwrap

import pytest
import zmq

from conftest import ROOT
from sharing import fill, kv, manager  # noqa: F401: fixtures are found by name


@pytest.fixture
def kz(kv):
    import kvconn.zmq

    return kvconn.zmq


def made(kv, status):
    from kvconn import _ffi

    given = _ffi.kvconn_error_t()
    given.status, given.os_errno, given.scope, given.retriable, given.retry_after_ms = status, 111, 2, 1, 250
    given.conn, given.endpoint, given.message = 2**64 - 1, b"tcp://127.0.0.1:9", b"why"
    return kv.STATUSES.get(status, kv.Error)(given)


def test_each_exception_is_both(kv, kz):
    for status, kind in kv.STATUSES.items():
        error = made(kv, status)
        both = kz.zmq_error(error)
        assert type(both) is getattr(kz, kind.__name__) and both.__class__.__doc__
        assert isinstance(both, kind) and isinstance(both, zmq.ZMQError) and isinstance(both, kz.Error)
        assert both.errno == kz.ERRNO[status] and both.errno > 0
        assert str(both) == both.strerror == str(error)
        assert {name: vars(both)[name] for name in vars(error)} == vars(error)
        assert kz.zmq_error(both) is both
        for copied in (copy.copy(both), copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
            assert type(copied) is type(both) and vars(copied) == vars(both) and repr(copied) == repr(both)
        from kvconn import _ffi

        given = _ffi.kvconn_error_t()
        given.status = status
        assert type(both)(given).errno == both.errno
    assert type(kz.zmq_error(made(kv, -77))) is kz.Error
    assert set(kz.__all__) >= {kind.__name__ for kind in kv.STATUSES.values()}


def test_only_a_slow_peer_is_again(kv, kz):
    """Code for pyzmq tries again after zmq.Again: with a dead peer that would be a tight loop."""
    again = {name for name in dir(kz) if isinstance(kind := getattr(kz, name), type) and issubclass(kind, zmq.Again)}
    assert again == {"Timeout", "Stalled"}
    for kind in kv.STATUSES.values():
        both = kz.zmq_error(made(kv, next(status for status, each in kv.STATUSES.items() if each is kind)))
        assert (both.errno == zmq.EAGAIN) == isinstance(both, zmq.Again)
    assert issubclass(kz.Shutdown, zmq.ContextTerminated) and kz.ERRNO[-13] == zmq.ETERM


def test_a_block_raises_what_pyzmq_raises(kv, kz, manager, peer):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    conn = kv.connect(receiver.endpoint, {"send_hwm": 5}, 5000, manager)
    receiver.stop()
    fill(kv, conn)
    with pytest.raises(zmq.Again) as caught:
        with kz.as_zmq_errors():
            kv.send(conn, [b"x"], 0)
    assert caught.value.conn == conn and isinstance(caught.value, (kv.Timeout, kv.Stalled))
    assert caught.value.__suppress_context__
    kv.disconnect(conn)
    with pytest.raises(zmq.ZMQError) as caught:
        with kz.as_zmq_errors():
            kv.send(conn, [b"x"], 0)
    assert caught.value.errno == zmq.ENOTSOCK and isinstance(caught.value, kv.Disconnected)
    gone = peer()
    gone.kill()
    for kind in (kv.ConnectFailed, kv.Backoff):
        with pytest.raises(zmq.ZMQError) as caught:
            with kz.as_zmq_errors():
                kv.send_to(gone.endpoint, [b"x"], 5000, manager)
        assert isinstance(caught.value, kind)
        assert (caught.value.errno, caught.value.os_errno) == (zmq.EHOSTUNREACH, errno.ECONNREFUSED)
    with pytest.raises(ZeroDivisionError):
        with kz.as_zmq_errors():
            raise ZeroDivisionError
    with kz.as_zmq_errors():
        pass


def test_without_pyzmq_only_this_module_cannot_be_imported(lib):
    script = """
    import sys
    sys.path.insert(0, sys.argv[1])
    sys.modules["zmq"] = None
    import kvconn
    try:
        import kvconn.zmq
    except ImportError as error:
        print(error)
    kvconn.shutdown()
    """
    run = [sys.executable, "-c", textwrap.dedent(script), ROOT / "python"]
    result = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert result.stdout == "kvconn.zmq needs pyzmq (pip install pyzmq); the rest of kvconn does not\n", result.stderr
