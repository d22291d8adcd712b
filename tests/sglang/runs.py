"""Longer stories over the unmodified SGLang: `runs.py NAME stock|kvconn|watch` prints a JSON line of what happened."""

import json
import os
import socket
import sys
import tempfile
import threading
import time

from engine import Decode, Prefill, WrongPeer, conn, free_port, wait_until_true


def restarts(who, count="15"):
    """A prefill server restarts under requests, on its ports. Requests go on all the time."""
    log, decode = tempfile.NamedTemporaryFile(), Decode()
    server, pending, ended, stop = Prefill(None, "--log", log.name), {}, {"Success": 0, "Failed": 0}, threading.Event()
    served, longest = threading.Event(), [0.0]

    def poll():
        for room, receiver in list(pending.items()):
            status = decode.status(receiver)
            if status in ended:
                ended[status] += 1
                del pending[room]
                if status == "Success":
                    served.set()
                    receiver.clear()
                else:
                    try:
                        receiver.failure_exception()
                    except conn.KVTransferError:
                        pass

    def scheduler():
        while not stop.is_set():
            begun = time.monotonic()
            receiver = decode.request(server.address)
            longest[0] = max(longest[0], time.monotonic() - begun)
            pending[receiver.bootstrap_room] = receiver
            poll()
            time.sleep(0.003)

    thread = threading.Thread(target=scheduler, daemon=True)
    thread.start()
    outages = []
    for _ in range(int(count)):
        served.clear()
        served.wait(3)
        time.sleep(0.3)
        server.kill()
        server.close_pipes()
        server = server.again("--log", log.name)
        begun = time.monotonic()
        served.clear()
        outages.append(time.monotonic() - begun if served.wait(3) else None)
    stop.set()
    thread.join(30)
    deadline = time.monotonic() + 10
    while pending and time.monotonic() < deadline:
        poll()
        time.sleep(0.05)
    return {
        "restarts": int(count),
        **ended,
        "limbo": len(pending),
        "before registration": sum(1 for _ in open(log.name)),
        "longest outage": max(outages) if None not in outages else None,
        "longest stall": longest[0],
        "tracked": _tracked(server.address) if who != "stock" else None,
        "pool": len(decode.manager.connection_pool),
    }


def _tracked(address):
    from kvconn.integrations import sglang

    life = sglang.this.life(address)
    return sglang.kvconn.node_info(life)["requests"] if life else 0


def _silent(port):
    server, decode, stalls = Prefill(None, "--elsewhere", port), Decode(), []
    for _ in range(20):
        begun = time.monotonic()
        decode.wait(decode.request(server.address), "Failed", 0)
        stalls.append(time.monotonic() - begun)
    return {"sum": sum(stalls), "longest": max(stalls), "over 0.1 s": sum(each > 0.1 for each in stalls)}


def mute_host(who):
    """A rank's host accepts TCP and says nothing: 20 requests, one after another."""
    return _silent(WrongPeer("mute", free_port()).port)


def silent_host(who):
    """Packets to a rank's host vanish (its backlog is full): 20 requests, one after another."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen(0)
        fill = [socket.socket() for _ in range(4)]
        for each in fill:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        time.sleep(0.2)
        return _silent(listener.getsockname()[1])


def stopped_prefill(who):
    """A prefill server is stopped (SIGSTOP) with a request in flight: when is the request failed?"""
    server, decode = Prefill(None, "--silent"), Decode()
    decode.manager._start_heartbeat_checker_thread()
    receiver = decode.request(server.address)
    wait_until_true("the request has arrived", lambda: server.report()["rooms"])
    server.stop()
    begun = time.monotonic()
    decode.wait(receiver, "Failed", 40)
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "reason": decode.manager.failure_records[receiver.bootstrap_room]}


def main(name, who, *more):
    if who != "stock":
        from kvconn.integrations import sglang

        sglang.install(health_watch=who == "watch")
    print(json.dumps(globals()[name](who, *more)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
