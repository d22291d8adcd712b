"""The Python peers themselves, driven by a pyzmq PUSH socket."""

import socket

import pytest
import zmq


@pytest.fixture
def push():
    context = zmq.Context()
    context.linger = 0

    def connect(endpoint):
        pusher = context.socket(zmq.PUSH)
        pusher.immediate = True
        pusher.sndtimeo = 5000
        pusher.connect(endpoint)
        return pusher

    yield connect
    context.destroy(linger=0)


def visit(port):
    stream = socket.create_connection(("127.0.0.1", port), timeout=2)
    stream.settimeout(0.3)
    return stream


def test_a_peer_receives_byte_for_byte_and_counts(peer, push, tmp_path):
    log = tmp_path / "log"
    receiver = peer("--keep", "--key-frame", 0, "--log", log)
    pusher = push(receiver.endpoint)
    sent = [[b"room-1", b"", b"a\0b\n"], [b"room-2", b"x" * 70000], [b"room-1"]]
    for message in sent:
        pusher.send_multipart(message)
    receiver.expect(len(sent))
    assert receiver.messages() == sent
    report = receiver.report()
    assert (report["messages"], report["frames"]) == (3, 6)
    assert report["keys"] == {b"room-1".hex(): 2, b"room-2".hex(): 1}
    assert log.stat().st_size == report["bytes"] + 4 * (3 + 6)


def test_a_peer_stops_pauses_and_ends_in_order(peer, push):
    receiver = peer("--paused", "--delay-ms", 1)
    pusher = push(receiver.endpoint)
    for _ in range(20):
        pusher.send(b"x")
    assert receiver.report()["messages"] == 0
    receiver.stop()
    receiver.cont()
    receiver.resume()
    receiver.expect(20)
    receiver.pause()
    pusher.send(b"y")
    receiver.resume()
    receiver.expect(21)
    assert receiver.terminate()["messages"] == 21


def test_a_killed_peer_is_gone_and_its_port_is_free(peer):
    receiver = peer()
    receiver.kill()
    with pytest.raises(ConnectionRefusedError):
        visit(receiver.port)
    assert peer(bind=receiver.endpoint).port == receiver.port


def test_wrong_peers_do_what_they_are_named_for(wrong_peer, wait_until):
    mute = wrong_peer("mute")
    stream = visit(mute.port)
    stream.sendall(b"hello")
    wait_until("five bytes have arrived", lambda: mute.report()["bytes"] == 5)
    with pytest.raises(TimeoutError):
        stream.recv(1)
    assert mute.connections == 1
    assert visit(wrong_peer("http").port).recv(8) == b"HTTP/1.1"
    assert visit(wrong_peer("close").port).recv(8) == b""
    with pytest.raises(ConnectionResetError):
        visit(wrong_peer("reset").port).recv(8)
    with pytest.raises(ConnectionRefusedError):
        visit(wrong_peer("refuse").port)
