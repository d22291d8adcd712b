"""Known faults of the unmodified SGLang, each as a scenario: `faults.py NAME stock|kvconn` prints a JSON line.

`ok` is whether the right thing happened, `measured` is what happened. A scenario that aborts the process prints nothing.
"""

import json
import os
import socket
import sys
import threading
import time

from engine import Decode, Manager, Peer, Prefill, WrongPeer, conn, descriptors, free_port, prefill_side  # noqa: F401
from engine import timed, until_blocked, wait_until_true, zmq

BIG = b"x" * 100_000


def abort_on_replace():
    """A decode rank is stopped; a worker waits in a send to it; the rank is killed; another worker sends to it. 8 times."""
    prefill, ended = prefill_side(), []
    for _ in range(8):
        rank = Peer("--rcvhwm", 1, "--rcvbuf", 4096)
        prefill._send_multipart_locked(rank.endpoint, [b"first"])
        rank.stop()
        thread, results = until_blocked(lambda: prefill._send_multipart_locked(rank.endpoint, [BIG]))
        rank.kill()
        time.sleep(0.1)
        timed(prefill._connect, rank.endpoint)
        thread.join(5)
        ended.append("waits on" if thread.is_alive() else type(results[-1]).__name__)
    return set(ended) == {"PeerLost"}, f"lives; the blocked sends: {', '.join(sorted(set(ended)))}"


def cleanup_waits():
    """A prefill rank is stopped and its queue full; five threads wait in a send; the heartbeat disconnects it."""
    rank = Peer("--rcvhwm", 1, "--rcvbuf", 4096)

    def send():
        socket, lock = conn.CommonKVReceiver._connect(rank.endpoint)
        with lock:
            socket.send_multipart([BIG])

    send()
    rank.stop()
    until_blocked(send)
    time.sleep(1.5)
    for _ in range(5):
        threading.Thread(target=timed, args=(send,), daemon=True).start()
    time.sleep(0.05)
    seconds, _ = timed(conn.CommonKVReceiver.disconnect_endpoint, rank.endpoint)
    return seconds < 0.1, f"{seconds:.3f} s"


def accepted_into_nothing():
    """25 statuses to a decode rank that is not there yet; then it starts."""
    prefill, port, accepted = prefill_side(), free_port(), 0
    for number in range(25):
        result = timed(prefill._send_multipart_locked, f"tcp://127.0.0.1:{port}", [b"%d" % number])[1]
        accepted += not isinstance(result, Exception)
    rank = Peer(bind=f"tcp://127.0.0.1:{port}")
    time.sleep(2.5)
    timed(prefill._send_multipart_locked, f"tcp://127.0.0.1:{port}", [b"after"])
    time.sleep(1)
    arrived = rank.report()["messages"]
    return accepted == 0 and arrived == 1, f"{accepted} of 25 accepted; {arrived} of the 26 arrived"


def stopped_peer():
    """A decode rank is stopped and its queue full: how long does a status to it stop the worker?"""
    rank, prefill = Peer("--rcvhwm", 1, "--rcvbuf", 4096), prefill_side()
    prefill._send_multipart_locked(rank.endpoint, [b"first"])
    rank.stop()
    until_blocked(lambda: prefill._send_multipart_locked(rank.endpoint, [BIG]))[0].join(60)
    first = time.monotonic() - until_blocked.began
    return first < 1.3, f"{first:.1f} s"


def redial():
    """A prefill server is killed; another program listens on its rank's port."""
    server, decode = Prefill(), Decode()
    decode.wait(decode.request(server.address), "Success")
    server.kill()
    other = WrongPeer("mute", server.port)
    time.sleep(3)
    return other.connections == 0, f"{other.connections} connections in 3 s"


def redial_after_failure():
    """The same after SGLang has handled the failure; then a request is aborted."""
    server, decode = Prefill(None, "--silent"), Decode()
    receiver = decode.request(server.address)
    server.kill()
    time.sleep(0.2)
    decode.manager._handle_node_failure(server.address)
    decode.wait(receiver, "Failed")
    other = WrongPeer("mute", server.port)
    receiver.abort()
    time.sleep(1.5)
    return other.connections == 0, f"{other.connections} connections"


def neighbour():
    """Two prefill servers, …:P and …:Pn; the first fails."""
    while True:
        port = free_port() // 10
        if port < 1025:
            continue
        try:
            for each in (port, port * 10 + 8):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
            break
        except OSError:
            continue
    first, second, decode = Prefill(port), Prefill(port * 10 + 8), Decode()
    for server in (first, second):
        decode.wait(decode.request(server.address), "Success")
    first.kill()
    time.sleep(0.3)
    decode.manager._handle_node_failure(first.address)
    decode.wait(decode.request(second.address), "Success")
    report = second.report()
    return report["registrations"] == 1, f"the neighbour was registered {report['registrations']} times"


def predecessors_queue():
    """A prefill server is stopped with metadata in the queue, and killed; its successor takes the port."""
    server, decode = Prefill(None, "--silent", "--rcvhwm", 1, "--rcvbuf", 4096), Decode()
    decode.request(server.address)
    wait_until_true("the first request has arrived", lambda: server.report()["metadata"] == 1)
    server.stop()
    for _ in range(60):
        decode.request(server.address, 250_000)
        if decode.manager.failure_records:
            break
    server.kill()
    successor = server.again()
    time.sleep(2)
    report = successor.report()
    old = report["unregistered"] + report["metadata"]
    return old == 0, f"{old} messages of the old queue; registered: {report['registrations']}"


def late_report():
    """A prefill server restarts, a request runs on the successor; then the heartbeat reports the old one's death."""
    server, decode = Prefill(None, "--silent"), Decode()
    decode.request(server.address)
    server.kill()
    successor = server.again("--silent")
    deadline = time.monotonic() + 5
    while True:
        receiver = decode.request(server.address)
        if decode.status(receiver) != "Failed" or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    decode.manager._handle_node_failure(server.address)
    time.sleep(0.5)
    status, served = decode.status(receiver), receiver.bootstrap_room in successor.report()["rooms"]
    return status == "WaitingForInput" and served, f"the successor's request: {status}"


def back_in_service():
    """A prefill server restarts within one heartbeat, on its ports: when is the next request served?"""
    server, decode = Prefill(), Decode()
    decode.wait(decode.request(server.address), "Success")
    server.kill()
    successor, begun, lost = server.again(), time.monotonic(), []
    while time.monotonic() - begun < 10:
        receiver = decode.request(server.address)
        end = time.monotonic() + 0.2
        while time.monotonic() < end and decode.status(receiver) not in ("Success", "Failed"):
            time.sleep(0.002)
        if decode.status(receiver) == "Success":
            return True, f"{time.monotonic() - begun:.1f} s"
        lost.append(decode.status(receiver) not in ("Success", "Failed"))
        time.sleep(0.1)
    return False, f"not in 10 s; {sum(lost)} requests without an end; {successor.report()['unregistered']} unregistered"


def many_peers():
    """80 decode ranks come and go, one after another."""
    prefill, before = prefill_side(), descriptors()
    for _ in range(80):
        with_pipe = Peer()
        prefill._send_multipart_locked(with_pipe.endpoint, [b"status"])
        with_pipe.kill()
        with_pipe.close_pipes()
    time.sleep(1)
    return descriptors() - before < 40, f"{descriptors() - before} descriptors more"


SCENARIOS = [
    abort_on_replace, cleanup_waits, accepted_into_nothing, stopped_peer, redial, redial_after_failure, neighbour,
    predecessors_queue, late_report, back_in_service, many_peers,
]  # fmt: skip


def main(name, who):
    if who == "kvconn":
        from kvconn.integrations import sglang

        sglang.install()
    scenario = next(each for each in SCENARIOS if each.__name__ == name)
    ok, measured = scenario()
    print(json.dumps({"ok": ok, "measured": measured}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
