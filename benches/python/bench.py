#!/usr/bin/env python3
"""bench.py SINK JSON [ROUNDS]: what a send from Python costs, against pyzmq's `with lock: socket.send_multipart(frames)`.

SINK is the program made from sink.c, a PULL peer that reads and drops. Two measurements:

CPU   time of the sending thread (CLOCK_THREAD_CPUTIME_ID) for one message. The ways to send take turns within each round,
      so that a load on the machine meets all of them; the ratios are medians over the rounds.
wait  wall time of one send while another Python thread computes. A thread that gives up the GIL gets it back after
      sys.getswitchinterval(), 5 ms. Only an idle machine gives the right numbers here.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import threading
import time

import zmq

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import kvconn  # noqa: E402
from kvconn import _attempts, _messages  # noqa: E402

SHAPES = [(1, 64), (3, 40), (12, 43), (10, 200), (25, 100)]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 31
MESSAGES, WARM_UP = 1000, 200
BUSY_SENDS = 200 * ROUNDS // 31
HWM = 100_000

LOOP = """
def loop(count, frames, clock):
    begun = clock()
    for _ in range(count):
        {statement}
    return (clock() - begun) / count / 1000
"""


def loop_of(statement, **names):
    """A loop with the statement in its body: a function call around it would be part of the result."""
    exec(LOOP.format(statement=statement), names)
    return names["loop"]


class Sink:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = f"tcp://127.0.0.1:{int(self.process.stdout.readline())}"

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


class Ways:
    """The ways to send one message: {name: statement's loop}."""

    def __init__(self, endpoint, context):
        self.conn = kvconn.connect(endpoint, {"send_hwm": HWM}, wait_ms=5000)
        self.socket = context.socket(zmq.PUSH)
        self.socket.setsockopt(zmq.SNDHWM, HWM)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)
        names = {"conn": self.conn, "send": kvconn.send, "socket": self.socket, "lock": threading.Lock()}
        kvconn_loop = loop_of("send(conn, frames)", **names)
        self.loops = {"pyzmq": loop_of("with lock: socket.send_multipart(frames)", **names)}
        if _attempts._fast is not None:
            self.loops["extension"] = kvconn_loop
        self.loops["ctypes"] = kvconn_loop

    def run(self, name, count, frames, clock):
        if name != "pyzmq":
            _messages._attempt_send = _attempts._fast.send if name == "extension" else _attempts._send
        return self.loops[name](count, frames, clock)

    def drain(self):
        """What is queued has left the process, so that one way's I/O is not the next one's."""
        kvconn.flush(self.conn, timeout_ms=10_000)
        time.sleep(0.005)


def measure_cpu(ways, count, size):
    """{way: [µs a message, for each round]}."""
    frames, found = [bytes(size)] * count, {name: [] for name in ways.loops}
    for number in range(ROUNDS):
        order = list(ways.loops)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            ways.run(name, WARM_UP, frames, time.thread_time_ns)
            found[name].append(ways.run(name, MESSAGES, frames, time.thread_time_ns))
            ways.drain()
    return found


def measure_waits(ways):
    """{way: [µs for each send]} with one busy thread beside it."""
    frames, found, stop = [bytes(64)], {name: [] for name in ways.loops}, False

    def compute():
        while not stop:
            sum(range(100))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(BUSY_SENDS):
            for name in ways.loops:
                time.sleep(0.0005)  # the send begins with the GIL just taken
                found[name].append(ways.run(name, 1, frames, time.perf_counter_ns))
    finally:
        stop = True
        thread.join()
    return found


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def keep_memory():
    """Begins again with a malloc that gives nothing back to the kernel. Otherwise every round, which begins with an empty queue,
    would pay for getting the memory again, and the smaller the costs of a send the more."""
    wanted = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_TOP_PAD_": str(64 << 20)}
    if not wanted.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)


def main():
    keep_memory()
    sink, context = Sink(sys.argv[1]), zmq.Context()
    ways = Ways(sink.endpoint, context)
    ours = [name for name in ways.loops if name != "pyzmq"]
    result = {
        "python": platform.python_version(),
        "pyzmq": zmq.__version__,
        "kvconn": kvconn.__version__,
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "cpu": [],
        "busy": {},
    }
    print(f"Python {result['python']}, pyzmq {zmq.__version__}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    print(f"\n{'CPU of the sending thread, µs':30} {'pyzmq':>8} " + " ".join(f"{name:>10} {'ratio':>6}" for name in ours))
    for count, size in SHAPES:
        found = measure_cpu(ways, count, size)
        medians = {name: statistics.median(rounds) for name, rounds in found.items()}
        ratios = {n: statistics.median(z / k for z, k in zip(found["pyzmq"], found[n])) for n in ours}
        least = {name: min(rounds) for name, rounds in found.items()}
        result["cpu"].append({"frames": count, "bytes": size, "us": medians, "least_us": least, "pyzmq_over": ratios})
        cells = " ".join(f"{medians[name]:10.2f} {ratios[name]:6.1f}" for name in ours)
        print(f"{f'{count} × {size} bytes':30} {medians['pyzmq']:8.2f} {cells}", flush=True)
    print(f"\n{'one busy thread beside it, ms':30} {'median':>8} {'p99':>10}")
    for name, waits in measure_waits(ways).items():
        found = {"median_ms": statistics.median(waits) / 1000, "p99_ms": percentile(waits, 0.99) / 1000}
        result["busy"][name] = found
        print(f"{name:30} {found['median_ms']:8.3f} {found['p99_ms']:10.3f}", flush=True)
    pathlib.Path(sys.argv[2]).write_text(json.dumps(result, indent=2) + "\n")
    ways.socket.close(0)
    kvconn.disconnect(ways.conn)
    context.term()
    sink.close()


if __name__ == "__main__":
    main()
