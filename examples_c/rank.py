"""One prefill rank of the demo: an ordinary pyzmq PULL socket that knows nothing of kvconn.

    rank.py ENDPOINT LOG

Prints the endpoint it is bound to. Like a busy rank it reads messages between steps of 10 ms, so that some always wait
in its queue. It writes each message to LOG at once, 24 bytes each, so that the record survives a kill: the connection
and the sequence that the engine has stamped on the message, and the room.

SIGTERM drains it: it half-closes its connections, finishes a long step, reads until its senders have closed too, and
exits with status 0.
"""

import contextlib
import os
import signal
import socket
import struct
import sys
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

STEP_SECONDS = 0.010
QUEUE_MESSAGES = 64  # small, so that messages that it does not read soon wait at their sender
QUEUE_BYTES = 128 * 1024
LAST_STEP_SECONDS = 0.400
BIND_SECONDS = 5.0


class Rank:
    def __init__(self, endpoint, log):
        self.out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.pull = zmq.Context().socket(zmq.PULL)
        self.pull.rcvhwm = QUEUE_MESSAGES
        self.pull.rcvbuf = QUEUE_BYTES
        self.monitor = self.pull.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.senders = set()  # their descriptors
        self.bind(endpoint)
        print(self.pull.last_endpoint.decode().rstrip("\0"), flush=True)

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
            time.sleep(STEP_SECONDS)
            while self.monitor.poll(0):
                event = recv_monitor_message(self.monitor)
                change = self.senders.add if event["event"] == zmq.EVENT_ACCEPTED else self.senders.discard
                change(event["value"])
            while not until() and self.pull.poll(0):
                self.take()

    def take(self):
        frames = self.pull.recv_multipart()
        assert len(frames) == 10, f"a message of {len(frames)} frames"
        conn, sequence = struct.unpack("=QQ", frames[9])
        room = int(frames[0])
        # Every frame belongs to this room: no two messages were mixed.
        assert frames[5] == struct.pack("=128Q", *range(room * 128, room * 128 + 128)), f"the pages of room {room}"
        os.write(self.out, struct.pack("=QQQ", conn, sequence, room))

    def drain(self):
        """Ends without loss. Closing the socket under load would drop what libzmq and the kernel still hold, although
        the kernel has acknowledged it. So only our own direction is closed: the senders see a FIN and close. (Once both
        sides have closed, a libzmq whose queue is full reads no more and drops the last messages. At the FIN these were
        not acknowledged.)
        """
        for descriptor in self.senders:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as tcp:
                tcp.shutdown(socket.SHUT_WR)
        time.sleep(LAST_STEP_SECONDS)
        self.serve(until=lambda: not self.senders)
        while self.pull.poll(10 * STEP_SECONDS * 1000):
            self.take()


def main(endpoint, log):
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append("to leave"))
    rank = Rank(endpoint, log)
    rank.serve(until=lambda: asked)
    rank.drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
