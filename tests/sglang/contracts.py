"""What the adapter must get right, each as a story over the unmodified SGLang: `contracts.py NAME`. Silent when it holds."""

import gc
import inspect
import os
import pathlib
import sys
import tempfile
import threading
import time

from engine import Decode, HERE, Peer, Prefill, WrongPeer, conn, free_port, prefill_side, timed, until_blocked
from engine import wait_until_true, zmq

import kvconn

Receiver, Manager = conn.CommonKVReceiver, conn.CommonKVManager


def _adapter(**options):
    from kvconn.integrations import sglang

    sglang.install(**options)
    return sglang


def _life_of(sglang, server):
    return kvconn.Node(sglang.this.life(server.address))


def _error_of(function, *arguments):
    error = timed(function, *arguments)[1]
    assert isinstance(error, zmq.ZMQError) and isinstance(error, kvconn.Error), error
    return error


def errors_are_those_of_pyzmq():
    _adapter()
    prefill = prefill_side()
    gone = f"tcp://127.0.0.1:{free_port()}"
    for kind in (kvconn.ConnectFailed, kvconn.Backoff):
        error = _error_of(prefill._send_multipart_locked, gone, [b"x"])
        assert isinstance(error, kind) and error.errno == zmq.EHOSTUNREACH and not isinstance(error, zmq.Again)
    prefill.send_kv_status_message(targets=[("127.0.0.1", free_port())], bootstrap_room=1, status=4)  # only logs


def the_send_timeout_is_sglangs():
    os.environ["SGLANG_DISAGGREGATION_ZMQ_SEND_TIMEOUT"] = "3"
    _adapter()
    rank, prefill = Peer("--rcvhwm", 1, "--rcvbuf", 4096), prefill_side()
    prefill._send_multipart_locked(rank.endpoint, [b"x"])
    rank.stop()
    thread, results = until_blocked(lambda: prefill._send_multipart_locked(rank.endpoint, [b"x" * 20_000]))
    thread.join(10)
    waited = time.monotonic() - until_blocked.began  # patience counts from the last byte acknowledged, just before
    assert isinstance(results[-1], zmq.Again) and 1.8 < waited < 3.6, (results[-1], waited)
    assert isinstance(_error_of(prefill._connect(rank.endpoint).send_multipart, [b"x"], zmq.NOBLOCK), zmq.Again)


def sockets_come_with_locks():
    _adapter()
    rank, decode, server = Peer("--keep"), Decode(), Prefill()
    socket, lock = Receiver._connect(rank.endpoint)
    with lock:
        socket.send_multipart([b"a", b"b"])
    socket.send(b"c")
    prefill_side()._connect(rank.endpoint, is_ipv6=False).send_multipart((b"d",))
    rank.expect(4 - 1)
    assert sorted(rank.messages()) == [[b"a", b"b"], [b"c"], [b"d"]]
    receiver = decode.request(server.address)
    socket, lock = receiver._connect_to_bootstrap_server(receiver.bootstrap_infos[0])
    with lock:
        socket.send_multipart([b"ABORT", b"1"])
    wait_until_true("it has arrived", lambda: server.report()["aborts"] == 1)


def metadata_follow_their_registration():
    """What was registered with one life is not sent to the next, not even an abort."""
    sglang = _adapter()
    server, decode = Prefill(None, "--silent"), Decode()
    old = decode.request(server.address)
    infos = old.bootstrap_infos
    server.kill()
    successor = server.again()
    decode.wait(old, "Failed")
    new = None

    def served():
        nonlocal new
        new = decode.request(successor.address)
        return decode.status(new) != "Failed"

    wait_until_true("the successor serves", served)
    decode.wait(new, "Success")
    socket, _ = Receiver._connect_to_bootstrap_server(infos[0])
    assert isinstance(_error_of(socket.send_multipart, [b"1", b"old"]), (kvconn.PeerLost, kvconn.NodeFailed))
    old.abort()
    time.sleep(0.3)
    report = successor.report()
    assert (report["registrations"], report["unregistered"], report["aborts"]) == (1, 0, 0), report
    assert str(infos[0]) != str(new.bootstrap_infos[0]), "SGLang tells lives apart by this text"
    assert infos[0]["rank_port"] == new.bootstrap_infos[0]["rank_port"]
    assert _life_of(sglang, successor).info()["endpoints"] == 1


def the_life_begins_before_the_question():
    """A life that fails while SGLang asks for the ranks refuses the answer."""
    sglang = _adapter()
    server, decode = Prefill(), Decode()
    real = conn._get_bootstrap_session

    class Session:
        def get(self, url, timeout):
            answer = real(server.address).get(url, timeout=timeout)
            _life_of(sglang, server).fail("meanwhile")
            return answer

    conn._get_bootstrap_session = lambda address: Session()
    assert decode.status(decode.request(server.address)) == "Failed"
    conn._get_bootstrap_session = real
    time.sleep(0.2)
    assert server.report()["registrations"] == 0 and decode.manager.connection_pool == {}
    decode.wait(decode.request(server.address), "Success")


def a_room_is_tracked_once_it_is_in_the_pool():
    """A life that fails between the registration and that moment fails the room, and the pool forgets it."""
    sglang = _adapter()
    server, decode = Prefill(None, "--silent"), Decode()
    register = Receiver._register_kv_args

    def then_fail(self):
        done = register(self)
        sglang.this.failed(_life_of(sglang, server).fail("meanwhile"))
        return done

    Receiver._register_kv_args = then_fail
    receiver = decode.receiver(server.address)
    assert decode.status(receiver) == "Failed" and decode.manager.connection_pool == {}
    Receiver._register_kv_args = register
    assert decode.status(decode.request(server.address)) == "WaitingForInput"


def a_late_report_takes_nothing_from_the_successor():
    """Pool entries, tables and rooms belong to a life, not to an address."""
    sglang = _adapter()
    server, decode = Prefill(None, "--silent"), Decode()
    first = decode.request(server.address)
    failure = _life_of(sglang, server).fail("restarted")
    second = decode.receiver(server.address)  # finds the pool entry of the ended life
    decode.wait(second, "Failed")
    third = decode.request(server.address)
    sglang.this.failed(failure)
    assert [decode.status(each) for each in (first, second, third)] == ["Failed", "Failed", "WaitingForInput"]
    assert server.address in decode.manager.prefill_info_table and len(decode.manager.connection_pool) == 1
    assert "restarted" in decode.manager.failure_records[first.bootstrap_room]


def rooms_are_forgotten():
    """A room that is cleared, or whose receiver is garbage, is tracked no more."""
    sglang = _adapter()
    server, decode = Prefill(), Decode()
    receivers = [decode.request(server.address) for _ in range(3)]
    for receiver in receivers:
        decode.wait(receiver, "Success")
    assert _life_of(sglang, server).info()["requests"] == 3
    receivers[0].clear()
    assert _life_of(sglang, server).info()["requests"] == 2
    del receiver, receivers
    gc.collect()
    assert _life_of(sglang, server).info()["requests"] == 0
    manager = sglang.this.kv_managers
    assert len(manager) == 1


def only_the_heartbeat_of_this_life_counts():
    """SGLang's heartbeat fails a life that is older than a probe, and spares a younger one."""
    sglang = _adapter()
    server, decode = Prefill(None, "--silent"), Decode()
    receiver = decode.request(server.address)
    decode.manager._handle_node_failure(server.address)
    assert decode.status(receiver) == "WaitingForInput"
    life = _life_of(sglang, server)
    wait_until_true("the life is older", lambda: life.info()["age_ms"] > 5100, 20)
    decode.manager._handle_node_failure(server.address)
    assert decode.status(receiver) == "Failed" and server.address not in decode.manager.prefill_info_table
    assert "no heartbeat" in decode.manager.failure_records[receiver.bootstrap_room]
    waiting = Receiver(decode.manager, server.address, 5)  # in no life: as SGLang does it
    decode.manager._handle_node_failure(server.address)
    assert decode.status(waiting) == "Failed"


def a_fork_begins_anew():
    sglang = _adapter()
    server, decode = Prefill(), Decode()
    decode.wait(decode.request(server.address), "Success")
    child = os.fork()
    if child == 0:
        sglang.install()
        own = Decode()
        own.wait(own.request(server.address), "Success")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    decode.wait(decode.request(server.address), "Success")
    report = server.report()
    assert (report["registrations"], report["unregistered"]) == (2, 0), report


def a_change_of_role():
    """Everything is closed; both roles work again afterwards."""
    sglang = _adapter()
    server, decode, rank, prefill = Prefill(), Decode(), Peer(), prefill_side()
    decode.wait(decode.request(server.address), "Success")
    prefill._send_multipart_locked(rank.endpoint, [b"1"])
    Receiver.close_all_sockets()
    assert sglang.this.manager.connections() == []
    for each in prefill._socket_cache.values():  # as the backends' teardown does
        each.close(linger=0)
    prefill._send_multipart_locked(rank.endpoint, [b"2"])
    rank.expect(2)
    again = Decode()
    again.wait(again.request(server.address), "Success")


def disconnect_endpoint_fences():
    _adapter()
    server, decode = Prefill(None, "--silent"), Decode()
    receiver = decode.request(server.address)
    endpoint = f"tcp://127.0.0.1:{server.port}"
    Receiver.disconnect_endpoint(endpoint)
    Receiver.disconnect_endpoint("tcp://127.0.0.1:1")  # never seen
    socket, _ = receiver._connect_to_bootstrap_server(receiver.bootstrap_infos[0])
    assert isinstance(_error_of(socket.send_multipart, [b"x"]), kvconn.Disconnected)
    receiver.invalidate_cached_bootstrap_infos()
    assert decode.status(decode.request(server.address)) == "WaitingForInput"


def installing_twice_is_installing_once():
    sglang = _adapter()
    before = Receiver._connect_to_bootstrap_server.__func__, Manager._connect, sglang.this
    _adapter()
    assert before == (Receiver._connect_to_bootstrap_server.__func__, Manager._connect, sglang.this)
    assert Manager._send_multipart_locked.__name__ == "_send_multipart_locked"
    assert list(inspect.signature(Receiver.disconnect_endpoint).parameters) == ["endpoint"]
    assert sum(thread.name == "kvconn-sglang" for thread in threading.enumerate()) == 1


def _older(*missing):
    for name in missing:
        for kind in (Receiver, Manager):
            if name in vars(kind):
                delattr(kind, name)
    sglang = _adapter()
    for name in missing:
        assert name not in vars(Receiver) and name not in vars(Manager), name
    server, decode = Prefill(), Decode()
    receiver = decode.request(server.address)
    decode.wait(receiver, "Success")
    receiver.clear()
    server.kill()
    wait_until_true("the life has ended", lambda: sglang.this.life(server.address) == 0)
    return decode


def older_without_locked_sends():
    _older("_send_multipart_locked")
    rank = Peer()
    prefill_side()._connect(rank.endpoint).send_multipart([b"x"])
    rank.expect(1)


def older_without_disconnecting():
    _older("disconnect_endpoint", "close_all_sockets", "_handle_node_failure")


def older_without_clear():
    conn.BaseKVReceiver.clear = lambda self: None
    _older("clear")


def older_tables():
    """Before the tables had today's names."""
    sglang = _adapter()
    server, decode = Prefill(None, "--silent"), Decode()
    receiver = decode.request(server.address)
    del decode.manager.heartbeat_failures, decode.manager.prefill_info_table
    server.kill()
    decode.wait(receiver, "Failed")
    assert sglang.this.life(server.address) == 0


def older_one_step():
    """When __init__ did what init does today."""
    two, one = Receiver.init, Receiver.__init__

    def both(self, mgr, address, room):
        one(self, mgr, address, room)
        two(self, 0)

    Receiver.__init__ = both
    del Receiver.init
    sglang = _adapter()
    server, decode = Prefill(None, "--silent"), Decode()
    decode.manager.try_ensure_parallel_info(server.address)
    receiver = Receiver(decode.manager, server.address, 17)
    assert _life_of(sglang, server).info()["requests"] == 1
    server.kill()
    decode.wait(receiver, "Failed")


def sglang_loads_the_plugin():
    """By SGLang's own loader, from the entry points of python/pyproject.toml, only when SGLANG_PLUGINS names it."""
    text = (HERE.parents[1] / "python" / "pyproject.toml").read_text()
    table = text.split('[project.entry-points."sglang.srt.plugins"]\n')[1].split("\n\n")[0].replace('"', "")
    with tempfile.TemporaryDirectory() as folder:
        info = pathlib.Path(folder) / "kvconn-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvconn\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{table}\n")
        sys.path.insert(0, folder)
        from sglang.srt import plugins

        stock = Manager._connect
        for names, changed, watched in ((None, False, None), ("other", False, None), ("kvconn_health_watch", True, True)):
            if names:
                os.environ["SGLANG_PLUGINS"] = names
            plugins._plugins_loaded = False
            plugins.load_plugins()
            assert (Manager._connect is not stock) == changed, names
        from kvconn.integrations import sglang

        assert sglang.this.watch is not None
        server, decode = Prefill(), Decode()
        decode.wait(decode.request(server.address), "Success")
        assert sglang.this.watch.nodes == [sglang.this.life(server.address)]


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    os._exit(0)
