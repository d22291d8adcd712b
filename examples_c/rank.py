"""One prefill rank of the demo: an ordinary pyzmq PULL socket that knows nothing of kvconn.

    rank.py --record FILE [--rcvhwm N] [--rcvbuf BYTES] [--step-ms N] [--last-step-ms N] ENDPOINT

It does what the program kvconn-peer does with these options (`kvconn-peer --help`), which the demo uses where there is
no pyzmq. It prints the endpoint it is bound to. Like a busy rank it reads messages between steps of computing, so that
some always wait in its queue. It appends each message to FILE at once, so that the record survives a kill: the number
of its frames, the size of each, then the frames.

SIGTERM drains it: it half-closes its connections, finishes a last step, reads until its senders have closed too, and
exits with status 0.
"""

import argparse
import contextlib
import os
import signal
import socket
import struct
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

BIND_SECONDS = 5.0
QUIET_MS = 100  # when the senders have closed: how long the queue must stay empty


class Rank:
    def __init__(self, options):
        self.options = options
        self.record = os.open(options.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.pull = zmq.Context().socket(zmq.PULL)
        self.pull.rcvhwm = options.rcvhwm
        self.pull.rcvbuf = options.rcvbuf
        self.monitor = self.pull.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.senders = set()  # their descriptors
        self.bind(options.endpoint)
        print("bound", self.pull.last_endpoint.decode().rstrip("\0"), flush=True)

    def bind(self, endpoint):
        """Binds. The port of a process that was just killed may need a moment."""
        deadline = time.monotonic() + BIND_SECONDS
        while True:
            try:
                return self.pull.bind(endpoint)
            except zmq.ZMQError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def serve(self, until):
        """Reads messages between steps. Ends when its parent ends."""
        parent = os.getppid()
        while not until() and os.getppid() == parent:
            time.sleep(self.options.step_ms / 1000)
            while self.monitor.poll(0):
                event = recv_monitor_message(self.monitor)
                change = self.senders.add if event["event"] == zmq.EVENT_ACCEPTED else self.senders.discard
                change(event["value"])
            while not until() and self.pull.poll(0):
                self.take()

    def take(self):
        frames = self.pull.recv_multipart()
        sizes = struct.pack(f"={len(frames) + 1}I", len(frames), *map(len, frames))
        os.write(self.record, sizes + b"".join(frames))

    def drain(self):
        """Ends without loss. Closing the socket under load would drop what libzmq and the kernel still hold, although
        the kernel has acknowledged it. So only our own direction is closed: the senders see a FIN and close.

        Once both sides have closed, a libzmq whose queue is full reads no more and drops what the kernel still holds.
        Here this was not acknowledged at the FIN, because the senders' backlog is larger than the kernel's buffer. A
        rank that must get everything has no bound on its queue (rcvhwm 0).
        """
        for descriptor in self.senders:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as tcp:
                tcp.shutdown(socket.SHUT_WR)
        time.sleep(self.options.last_step_ms / 1000)
        self.serve(until=lambda: not self.senders)
        while self.pull.poll(QUIET_MS):
            self.take()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", required=True)
    parser.add_argument("--rcvhwm", type=int, default=1000)
    parser.add_argument("--rcvbuf", type=int, default=-1)
    parser.add_argument("--step-ms", type=int, default=0)
    parser.add_argument("--last-step-ms", type=int, default=0)
    parser.add_argument("endpoint")
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append("to leave"))
    rank = Rank(parser.parse_args())
    rank.serve(until=lambda: asked)
    rank.drain()


if __name__ == "__main__":
    main()
