"""CURVE through the C functions, against pyzmq, which brings a libzmq of its own."""

import errno

import pytest
import zmq

from sharing import kv, manager  # noqa: F401: fixtures are found by name


def keys():
    """A public and a secret key."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def options(server, client):
    return {"curve_server_key": server[0], "curve_public_key": client[0], "curve_secret_key": client[1]}


@pytest.mark.parametrize("server", ["pyzmq", "kvconn-peer"])
def test_messages_arrive_byte_for_byte(kv, manager, peer, rank, server):
    if server == "pyzmq":
        public, secret = keys()
        receiver = peer("--keep", f"--curve-secret={secret}")
    else:
        receiver = rank(curve=True)
        public = receiver.public_key
    conn = kv.connect(receiver.endpoint, options([public], keys()), wait_ms=5000, manager=manager)
    messages = [[b""], [b"a\0b", b"", b"x" * 300], [b"s" * 512 * 1024, b"end"]]
    for message in messages:
        kv.send(conn, message)
    (receiver.expect if server == "pyzmq" else receiver.wait_for)(len(messages))
    assert receiver.messages() == messages


def test_keys_are_taken_as_pyzmq_makes_them(kv, manager, peer):
    server, client = ([key.encode() for key in pair] for pair in (keys(), keys()))
    receiver = peer(f"--curve-secret={server[1].decode()}")
    kv.connect(receiver.endpoint, options(server, client), wait_ms=5000, manager=manager)


@pytest.mark.parametrize("value", [b"\xff" * 40, b"hidden\xe9"])
def test_bytes_that_are_not_ascii_are_refused_and_not_shown(kv, manager, value):
    with pytest.raises(ValueError, match="curve_secret_key: bytes must be ASCII") as caught:
        kv.connect("tcp://127.0.0.1:9", {"curve_secret_key": value}, manager=manager)
    assert "hidden" not in str(caught.value) and "xff" not in str(caught.value)


@pytest.mark.parametrize("given", [3000, "send_hwm", [("send_hwm", 1)]])
def test_options_that_are_no_dict_are_refused(kv, manager, given):
    for call in (
        lambda: kv.connect("tcp://127.0.0.1:9", given, manager=manager),
        lambda: kv.configure(given, manager=manager),
    ):
        with pytest.raises(TypeError, match="options must be a dict"):
            call()


def test_a_lost_connection_is_never_dialled_plain(kv, manager, peer):
    server, client = keys(), keys()
    kv.configure({"backoff_ms": 1, "backoff_max_ms": 1}, manager=manager)
    receiver = peer(f"--curve-secret={server[1]}")
    endpoint = f"tcp://127.0.0.1:{receiver.port}"
    kv.connect(endpoint, options(server, client), wait_ms=5000, manager=manager)
    receiver.kill()
    plain = peer("--keep", bind=endpoint)
    failures = 0
    while failures < 5:
        with pytest.raises(kv.Error) as caught:
            kv.send_to(endpoint, [b"secret"], manager=manager)
        failures += caught.value.os_errno == errno.EACCES
    assert plain.report()["messages"] == 0


def test_require_curve(kv, manager, rank):
    mute = rank(kind="mute")
    kv.configure({"require_curve": 1}, manager=manager)
    for call in (
        lambda: kv.connect(mute.endpoint, wait_ms=1000, manager=manager),
        lambda: kv.send_to(mute.endpoint, [b"secret"], manager=manager),
    ):
        with pytest.raises(kv.Error, match="require_curve"):
            call()
    assert mute.report().accepted == 0


def test_no_error_repeats_a_key(kv, manager):
    server, client = keys(), keys()
    mixed_up = dict(options(server, client), curve_public_key=client[1], curve_secret_key=client[0])
    bad = [mixed_up] + [dict(options(server, client), **{name: client[1] + "x"}) for name in mixed_up]
    for settings in bad:
        with pytest.raises(kv.Error) as caught:
            kv.connect("tcp://127.0.0.1:9", settings, manager=manager)
        text = f"{caught.value} {caught.value!r}"
        assert "curve_" in text and client[1][:12] not in text and client[1][12:24] not in text, text
