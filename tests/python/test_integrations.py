"""Sockets for code that was written for pyzmq, and the sketches of docs/integrations.md, against real PULL peers."""

import re
import threading
import time
from socket import create_server

import pytest
import zmq
import zmq.asyncio

from conftest import ROOT, wait_until_true
from sharing import fill, kv, manager  # noqa: F401: fixtures are found by name


@pytest.fixture
def sockets(kv):
    import kvconn.integrations.pyzmq

    return kvconn.integrations.pyzmq


@pytest.fixture
def sketches(sockets):
    """The names that the document's Python blocks define."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "integrations.md").read_text(), re.S):
        exec(block, names)
    return names


def make_zmq_socket(ctx, path, socket_type, bind=None, identity=None, linger=None):
    """As an engine makes its sockets: PUSH connects, PULL binds."""
    socket = ctx.socket(socket_type)
    (socket.bind if socket_type == zmq.PULL else socket.connect)(path)
    return socket


def send_until_accepted(socket, message):
    """For a rank that is just back: its address may still be in backoff."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.send(message)
        except zmq.ZMQError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_push_socket_is_used_like_pyzmqs(kv, sockets, peer, manager):
    receiver = peer("--keep")
    with sockets.PushSocket(receiver.endpoint, manager=manager) as socket:
        assert socket.send(b"a") is None
        assert socket.send_multipart((b"b", bytearray(b"c"), memoryview(b"d")), copy=False) is None
        assert socket.send_multipart([b"e"], copy=False, track=True).done
        socket.setsockopt(zmq.LINGER, 5000)
        socket.setsockopt(zmq.RCVHWM, 1)  # ignored
    assert kv.connections(manager) == []
    receiver.expect(3)
    assert receiver.messages() == [[b"a"], [b"b", b"c", b"d"], [b"e"]]
    socket.send(b"dials again")
    receiver.expect(4)
    socket.close(linger=0)
    socket.close()


def test_errors_and_timeouts(kv, sockets, peer, manager):
    receiver = peer("--rcvhwm", 1, "--rcvbuf", 4096)
    socket = sockets.PushSocket(receiver.endpoint, options={"send_hwm": 5}, manager=manager)
    socket.send(b"x")
    conn = kv.find(receiver.endpoint, manager)
    bound = sockets.ConnectionSocket(conn, timeout_ms=100)
    receiver.stop()
    fill(kv, conn)
    for each in (lambda: bound.send(b"x" * 100_000), lambda: socket.send(b"x", zmq.NOBLOCK)):
        with pytest.raises(zmq.Again):
            each()
    socket.setsockopt(zmq.SNDTIMEO, 300)
    receiver.cont()
    socket.send(b"x")
    receiver.kill()
    with pytest.raises(zmq.ZMQError) as lost:
        for _ in range(2000):
            bound.send(b"x")
            time.sleep(0.005)
    assert isinstance(lost.value, kv.PeerLost) and lost.value.errno == zmq.EHOSTUNREACH
    with pytest.raises(zmq.ZMQError):
        socket.send(b"x")
    bound.close()



def test_a_push_socket_whose_dial_has_not_begun_does_not_go_on_without_its_options(kv, sockets, manager, monkeypatch):
    with create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(kv.Timeout) as timed_out:
            kv.connect(endpoint, None, 1, manager)
        error = timed_out.value
        assert error.conn
        kv.disconnect(error.conn)

        def connect(*_):
            raise error

        monkeypatch.setattr(kv, "connect", connect)
        sockets.PushSocket(endpoint, options={"send_hwm": 5}, manager=manager).close()  # the dial goes on
        error.conn = 0
        with pytest.raises(zmq.Again):
            sockets.PushSocket(endpoint, options={"send_hwm": 5}, manager=manager)


def test_a_bound_socket_stays_with_its_life(kv, sockets, rank, manager):
    receiver = rank()
    conn = kv.connect(receiver.endpoint, None, 5000, manager)
    bound = sockets.ConnectionSocket(conn)
    loose = sockets.PushSocket(receiver.endpoint, manager=manager)
    bound.send(b"registration")
    receiver.wait_for(1)
    receiver.restart()
    wait_until_true("the loss is seen", lambda: kv.connection_info(conn)["ended_by"])
    send_until_accepted(loose, b"status")
    with pytest.raises(zmq.ZMQError):
        bound.send(b"metadata")
    receiver.wait_for(2)
    assert receiver.messages() == [[b"registration"], [b"status"]]


def test_endpoints(sockets):
    assert sockets.tcp("10.0.0.7", 5557) == "tcp://10.0.0.7:5557"
    assert sockets.tcp("fe80::1", "5557") == sockets.tcp("[fe80::1]", 5557) == "tcp://[fe80::1]:5557"


def test_the_sketch_for_vllm(kv, sockets, sketches, peer):
    """The output thread of an engine core: it reuses its buffers, and its last message arrives before the close."""
    make, front_end = sketches["pushing_over_kvconn"](make_zmq_socket), peer("--keep")
    with zmq.Context() as ctx:
        with make(ctx, "ipc://@kvconn-sketch", zmq.PULL) as pull:
            assert isinstance(pull, zmq.Socket)
        buffer = bytearray(b"0")
        with make(ctx, front_end.endpoint, zmq.PUSH, linger=4000) as socket:
            assert isinstance(socket, sockets.PushSocket)
            for number in range(100):
                buffer[:] = b"%d" % number
                assert socket.send_multipart([b"outputs", buffer], copy=False, track=True).done
            socket.send(b"ENGINE_CORE_DEAD")
        front_end.expect(101)
        messages = front_end.messages()
        assert messages[:-1] == [[b"outputs", b"%d" % number] for number in range(100)]
        assert messages[-1] == [b"ENGINE_CORE_DEAD"]
        front_end.kill()
        with pytest.raises(zmq.ZMQError):
            make(ctx, front_end.endpoint, zmq.PUSH, linger=4000).send(b"outputs")


def test_the_sketch_for_lmcache(kv, sockets, sketches, peer):
    def get_zmq_socket(context, socket_path, protocol, role, bind_or_connect):
        socket = context.socket(role)
        getattr(socket, bind_or_connect)(f"{protocol}://{socket_path}")
        return socket

    get, controller = sketches["connecting_over_kvconn"](get_zmq_socket), peer("--keep")
    path = f"127.0.0.1:{controller.port}"
    with zmq.Context() as context:
        socket = get(context, path, "tcp", zmq.PUSH, "connect")
        assert isinstance(socket, sockets.PushSocket)
        threads = [threading.Thread(target=socket.send, args=(b"report",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        controller.expect(8)
        controller.kill()
        again = peer("--keep", bind=f"tcp://127.0.0.1:{controller.port}")
        send_until_accepted(socket, b"after")
        again.expect(1)
        assert again.messages() == [[b"after"]]
        with get(context, "127.0.0.1:*", "tcp", zmq.PULL, "bind") as pull:
            assert isinstance(pull, zmq.Socket)
    with zmq.asyncio.Context() as context, get(context, path, "tcp", zmq.PUSH, "connect") as socket:
        assert isinstance(socket, zmq.asyncio.Socket)
        socket.linger = 0
