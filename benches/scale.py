#!/usr/bin/env python3
"""scale.py LIBRARY...: what thousands of connections cost: descriptors, memory, traffic, ending them, a flood of dials.

A library is a libkvconn.so, or a libzmq.so: that is raw libzmq with kvconn's options, for the measurements that say so.

Each measurement runs in a process of its own. Several libraries take turns, so that a load on the machine meets all of
them. The peers are PULL sockets of pyzmq in other processes. Times of the processor are those of single threads of this
process, so they do not contain the peers.
"""

import argparse
import ctypes
import glob
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEER = """
import resource, sys, zmq
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
context = zmq.Context()
pull = context.socket(zmq.PULL)
pull.backlog = 4096
pull.rcvbuf = int(sys.argv[1])
print(pull.bind_to_random_port("tcp://0.0.0.0"), flush=True)
while pull.recv():
    pass
"""
LONG = 60


def ffi():
    """The declarations of the Python package, without loading its library."""
    spec = importlib.util.spec_from_file_location("ffi", ROOT / "python/kvconn/_ffi.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FFI = ffi()


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name, (returns, takes) in FFI.FUNCTIONS.items():
            function = getattr(self.c, name, None)  # an older library lacks some
            if function:
                function.restype, function.argtypes = returns, takes

    def call(self, name, *arguments):
        error = FFI.kvconn_error_t()
        error.struct_size = ctypes.sizeof(error)
        status = getattr(self.c, name)(*arguments, ctypes.byref(error))
        return status, error.message.decode() if status else ""

    def check(self, name, *arguments):
        status, text = self.call(name, *arguments)
        assert status == 0, f"{name}: {status} {text}"

    def connect(self, endpoint, wait_ms):
        conn = ctypes.c_uint64()
        return self.call("kvconn_connect", 0, endpoint.encode(), None, wait_ms, ctypes.byref(conn)), conn.value

    def next_event(self):
        event = FFI.kvconn_event_t()
        event.struct_size = ctypes.sizeof(event)
        self.check("kvconn_next_event", 0, 0, ctypes.byref(event))
        return event

    def connect_all(self, endpoints, wait_ms=0):
        conns = []
        for endpoint in endpoints:
            (status, text), conn = self.connect(endpoint, wait_ms)
            assert status == 0, f"{endpoint}: {status} {text}"
            conns.append(conn)
        for conn in conns:
            self.wait_state(conn, FFI.STATE_READY)
        return conns

    def sender(self):
        """A function that sends one frame without waiting."""
        frame, sequence = FFI.kvconn_frame_t(), ctypes.byref(ctypes.c_uint64())

        def send(conn, data):
            frame.data, frame.size = ctypes.cast(data, ctypes.c_void_p).value, len(data)
            return self.c.kvconn_send(conn, ctypes.byref(frame), 1, 0, sequence, None) == 0

        return send

    def state(self, conn):
        info = FFI.kvconn_connection_info_t()
        info.struct_size = ctypes.sizeof(info)
        self.check("kvconn_connection_info", conn, ctypes.byref(info))
        return info

    def wait_state(self, conn, state):
        deadline = time.monotonic() + LONG
        while True:
            info = self.state(conn)
            if info.state == state:
                return
            assert time.monotonic() < deadline, f"connection in state {info.state}: {info.message}"
            time.sleep(0.002)


class Raw:
    """Raw libzmq with the options that kvconn sets."""

    PUSH, MAX_SOCKETS, EVENTS, POLLOUT, DONTWAIT = 8, 2, 15, 2, 1
    OPTIONS = {17: 0, 39: 1, 18: -1, 42: 1, 102: 65536}  # LINGER, IMMEDIATE, RECONNECT_IVL, IPV6, OUT_BATCH_SIZE

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.zmq_ctx_new.restype = self.c.zmq_socket.restype = ctypes.c_void_p
        self.c.zmq_send.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
        self.context = ctypes.c_void_p(self.c.zmq_ctx_new())
        self.c.zmq_ctx_set(self.context, self.MAX_SOCKETS, 30000)

    def connect_all(self, endpoints, _=0):
        sockets = []
        for endpoint in endpoints:
            socket = ctypes.c_void_p(self.c.zmq_socket(self.context, self.PUSH))
            for option, value in self.OPTIONS.items():
                self.c.zmq_setsockopt(socket, option, ctypes.byref(ctypes.c_int(value)), ctypes.c_size_t(4))
            assert self.c.zmq_connect(socket, endpoint.encode()) == 0
            sockets.append(socket)
        deadline = time.monotonic() + LONG
        events, size = ctypes.c_int(), ctypes.c_size_t(4)
        for socket in sockets:
            while True:
                self.c.zmq_getsockopt(socket, self.EVENTS, ctypes.byref(events), ctypes.byref(size))
                if events.value & self.POLLOUT:
                    break
                assert time.monotonic() < deadline
                time.sleep(0.002)
        return sockets

    def sender(self):
        return lambda socket, data: self.c.zmq_send(socket, data, len(data), self.DONTWAIT) == len(data)


class Peers:
    """Processes that accept any number of connections, at any address of loopback."""

    def __init__(self, count=1, receive_buffer=-1):
        start = [sys.executable, "-c", PEER, str(receive_buffer)]
        self.processes = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(count)]
        self.ports = [int(process.stdout.readline()) for process in self.processes]

    def endpoints(self, count):
        for number in range(count):
            port = self.ports[number % len(self.ports)]
            yield f"tcp://127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}:{port}"

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


def descriptors():
    # Linux 6.2 and later know the number. Listing thousands every few milliseconds would keep a processor busy.
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))


def resident_kib():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def threads_cpu_ms(name):
    """Of all threads of this process with that name."""
    total = 0
    for task in glob.glob("/proc/self/task/*"):
        if pathlib.Path(task, "comm").read_text().startswith(name):
            total += int(pathlib.Path(task, "schedstat").read_text().split()[0])
    return total / 1e6


def others():
    """CPU time in ms of this process's threads but this one, and how often they have gone to sleep."""
    cpu, sleeps = 0, 0
    for task in glob.glob("/proc/self/task/*"):
        if int(task.rsplit("/", 1)[1]) != threading.get_native_id():
            cpu += int(pathlib.Path(task, "schedstat").read_text().split()[0])
            sleeps += int(pathlib.Path(task, "status").read_text().split("voluntary_ctxt_switches:")[1].split()[0])
    return cpu / 1e6, sleeps


def watcher_sleeps():
    """How often the watcher has gone to sleep: one more for each time it is woken."""
    for task in glob.glob("/proc/self/task/*"):
        if pathlib.Path(task, "comm").read_text().startswith("kvconn-watcher"):
            return int(pathlib.Path(task, "status").read_text().split("voluntary_ctxt_switches:")[1].split()[0])
    return 0


def wait(condition):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + LONG, "it takes too long"
        time.sleep(0.002)


def wait_descriptors(most):
    wait(lambda: descriptors() <= most)


# ---- The measurements ------------------------------------------------------------------------------------------------


def rest(library, count):
    """Connections without traffic."""
    peers = Peers()
    first, *others = peers.endpoints(count + 1)
    library.connect_all([first])
    before = descriptors(), resident_kib()
    library.connect_all(others)
    after = descriptors(), resident_kib()
    watcher = threads_cpu_ms("kvconn-watcher")
    time.sleep(2)
    idle = (threads_cpu_ms("kvconn-watcher") - watcher) / 2000
    peers.kill()
    return {
        "descriptors per connection": (after[0] - before[0]) / count,
        "KiB per connection": (after[1] - before[1]) / count,
        "watcher idle, % of a core": 100 * idle,
    }


def capacity(library, _):
    """How many connections become READY within the limit of descriptors. The last dials find none left."""
    peers = Peers(3)
    conns = []
    for endpoint in peers.endpoints(40000):
        (status, _), conn = library.connect(endpoint, 0)
        if status:
            break
        conns.append(conn)
        if len(conns) % 200 == 0:
            wait(lambda: library.state(conn).state != FFI.STATE_CONNECTING)
    wait(lambda: all(library.state(conn).state != FFI.STATE_CONNECTING for conn in conns))
    ready = sum(library.state(conn).state == FFI.STATE_READY for conn in conns)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    peers.kill()
    return {f"connections in {limit} descriptors": ready}


def node(library, count):
    """All endpoints of a node fail at once."""
    peers = Peers()
    endpoints = list(peers.endpoints(count + 1))
    library.connect_all([endpoints.pop()])
    before = descriptors()
    node, opened = ctypes.c_uint64(), ctypes.c_int32()
    library.check("kvconn_node_open", 0, b"node", ctypes.byref(node), ctypes.byref(opened))
    texts = (ctypes.c_char_p * count)(*(endpoint.encode() for endpoint in endpoints))
    library.check("kvconn_node_add_endpoints", node, texts, count, None)
    library.connect_all(endpoints)
    reaper = threads_cpu_ms("ZMQbg/Reaper")
    begun, cpu = time.monotonic(), time.thread_time()
    library.check("kvconn_handle_failure", node, b"benchmark", None)
    call = time.monotonic() - begun, time.thread_time() - cpu
    wait_descriptors(before)
    back = time.monotonic() - begun
    reaper = threads_cpu_ms("ZMQbg/Reaper") - reaper
    peers.kill()
    return {
        "handle_failure, ms": 1000 * call[0],
        "handle_failure, CPU ms": 1000 * call[1],
        "descriptors back, s": back,
        "reaper, CPU ms": reaper,
    }


def unread(library, count):
    """Nobody reads events while all peers die."""
    peers = Peers()
    conns = library.connect_all(peers.endpoints(count))
    peers.kill()
    for conn in conns:
        library.wait_state(conn, FFI.STATE_ENDED)
    ended = set()
    while (event := library.next_event()).kind != FFI.EVENT_NONE:
        if event.kind == FFI.EVENT_PEER_LOST:
            ended.add(event.conn)
    return {"endings lost": len(set(conns) - ended)}


def flood(library, count):
    """A dial that the caller waits for, behind dials that nobody waits for."""
    peers, idle = Peers(), Peers()
    first, bystander, *others = peers.endpoints(count + 2)
    (target,) = idle.endpoints(1)
    library.connect_all([first, bystander])
    begun = time.monotonic()
    for endpoint in others:
        library.connect(endpoint, 0)
    flooded = time.monotonic()
    (status, text), _ = library.connect(target, 30000)
    assert status == 0, text
    waited = time.monotonic()
    library.connect_all(others)
    ready = time.monotonic()
    peers.kill(), idle.kill()
    return {
        "µs per dial call": 1e6 * (flooded - begun) / count,
        "waited dial, ms": 1000 * (waited - flooded),
        "all READY, s": ready - begun,
    }


def stalled(library, count):
    """No peer reads, and something is in flight on all connections."""
    peers = Peers(receive_buffer=4096)
    conns = library.connect_all(peers.endpoints(count))
    while library.next_event().kind != FFI.EVENT_NONE:
        pass  # READY
    for process in peers.processes:
        process.send_signal(19)
    data = ctypes.create_string_buffer(1 << 16)
    frame = (FFI.kvconn_frame_t * 1)(FFI.kvconn_frame_t(ctypes.addressof(data), len(data)))
    sequence = ctypes.c_uint64()
    for conn in conns:
        library.check("kvconn_send", conn, frame, 1, 0, ctypes.byref(sequence))
    time.sleep(12)
    before, sleeps, begun = threads_cpu_ms("kvconn-watcher"), watcher_sleeps(), time.monotonic()
    time.sleep(5)
    seconds = time.monotonic() - begun
    used, sleeps = (threads_cpu_ms("kvconn-watcher") - before) / 1000 / seconds, (watcher_sleeps() - sleeps) / seconds
    peers.kill()
    stalled = 0
    while (event := library.next_event()).kind != FFI.EVENT_NONE:
        stalled += event.kind == FFI.EVENT_STALLED
    return {"watcher, % of a core": 100 * used, "watcher, wake-ups/s": sleeps, "STALLED events": stalled}


def traffic(library, count, each=5, seconds=10):
    """A few messages each second on every connection, evenly."""
    peers = Peers()
    conns = library.connect_all(peers.endpoints(count))
    send, data = library.sender(), b"x" * 64
    batch, step = count * each // 100, 0.01
    sent = 0
    for conn in conns:
        assert send(conn, data)
    time.sleep(1)
    (cpu, _), watcher, sleeps, begun = others(), threads_cpu_ms("kvconn-watcher"), watcher_sleeps(), time.monotonic()
    while (now := time.monotonic() - begun) < seconds:
        for _ in range(min(int(now / step + 1) * batch - sent, 10 * batch)):
            assert send(conns[sent % count], data)
            sent += 1
        time.sleep(max(0, begun + int(now / step + 1) * step - time.monotonic()))
    seconds = time.monotonic() - begun
    cpu, watcher, sleeps = others()[0] - cpu, threads_cpu_ms("kvconn-watcher") - watcher, watcher_sleeps() - sleeps
    peers.kill()
    return {
        "messages/s": sent / seconds,
        "all threads but the sender, % of a core": cpu / 10 / seconds,
        "watcher, % of a core": watcher / 10 / seconds,
        "watcher, wake-ups/s": sleeps / seconds,
    }


MEASUREMENTS = {
    "rest": (rest, 1000, {}),
    "rest, acknowledgement off": (rest, 1000, {"KVCONN_ACKNOWLEDGEMENT": "off"}),
    "capacity": (capacity, 0, {"KVCONN_MAX_ENDPOINTS": "100000"}),
    "a node of 1000 fails": (node, 1000, {}),
    "a node of 3000 fails": (node, 3000, {}),
    "3000 peers die, events unread": (unread, 3000, {}),
    "a flood of 2500 dials": (flood, 2500, {}),
    "3000 stalled": (stalled, 3000, {}),
    "3000 with 5 messages/s each": (traffic, 3000, {}),
}


def run_one(path, name):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    measure, count, environment = MEASUREMENTS[name]
    os.environ.update(environment)
    raw = pathlib.Path(path).name.startswith("libzmq")
    if raw and measure not in (rest, traffic):
        sys.exit("raw libzmq has nothing to compare")
    print(json.dumps(measure((Raw if raw else Library)(path), count)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="measurements whose name contains this")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return run_one(given.libraries[0], given.one)
    for name in MEASUREMENTS:
        if given.only and given.only not in name:
            continue
        results = {path: [] for path in given.libraries}
        for _ in range(given.rounds):
            for path in given.libraries:
                command = [sys.executable, __file__, path, "--one", name]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
                if done.returncode == 0:
                    results[path].append(json.loads(done.stdout))
        print(f"\n{name} (median, least and most of {given.rounds} rounds)")
        for path, rounds in results.items():
            print(f"  {path}")
            for key in rounds[0] if rounds else ():
                values = [result[key] for result in rounds]
                print(f"    {key}: {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})", flush=True)


if __name__ == "__main__":
    main()
