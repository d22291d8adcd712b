#!/usr/bin/env python3
"""A PULL peer for tests: an ordinary libzmq socket that knows nothing of kvconn.

It reports on standard output, one JSON object a line, and obeys lines on standard input:

    report                 {"event": "report", "messages": …, "frames": …, "bytes": …, "sha256": …, "keys": {…}, …}
    expect N TIMEOUT_MS    {"event": "expected", "reached": true|false, "messages": …} when N have arrived in all
    messages               {"event": "messages", "messages": [[hex, …], …]} (with --keep)
    pause, resume          stop and go on reading; each answers {"event": "paused"|"resumed"}
    close                  close the socket, live on; answers {"event": "closed"}
    quit                   close and exit 0; so does the end of standard input

SIGTERM: read what has arrived, close, exit 0. The process dies with its parent.
"""

import argparse
import ctypes
import hashlib
import json
import os
import signal
import struct
import sys
import time

import zmq

PR_SET_PDEATHSIG = 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bind", action="append", help="endpoint; may be repeated (tcp://127.0.0.1:0)")
    parser.add_argument("--log", metavar="FILE", help="append each message: its frames' number and lengths, then bytes")
    parser.add_argument("--keep", action="store_true", help="keep all messages for the command `messages`")
    parser.add_argument("--key-frame", type=int, metavar="N", help="count messages by the bytes of frame N")
    parser.add_argument("--delay-ms", type=float, default=0, help="wait after each message: a slow reader")
    parser.add_argument("--rcvhwm", type=int, default=1000)
    parser.add_argument("--rcvbuf", type=int, default=-1)
    parser.add_argument("--stop-after", type=int, metavar="N", help="read no more after N messages")
    parser.add_argument("--paused", action="store_true", help="begin without reading")
    parser.add_argument("--curve-secret", metavar="Z85", help="be a CURVE server with this secret key")
    return parser.parse_args()


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def die_with_parent():
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


class Lines:
    """Lines of standard input, without ever blocking on half a line."""

    def __init__(self):
        self.rest = b""

    def read(self):
        """The whole lines that are there; None at the end of input."""
        block = os.read(0, 65536)
        if not block:
            return None
        *lines, self.rest = (self.rest + block).split(b"\n")
        return [line.decode() for line in lines]


class Pull:
    def __init__(self, options):
        self.options = options
        self.paused = options.paused
        self.terminated = False
        self.messages = self.frames = self.bytes = 0
        self.digest = hashlib.sha256()
        self.keys = {}
        self.kept = []
        self.expected = []  # (messages, deadline)
        self.next_read = 0.0
        self.log = open(options.log, "ab") if options.log else None
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PULL)
        self.socket.linger = 0
        self.socket.ipv6 = True
        self.socket.rcvhwm = options.rcvhwm
        if options.rcvbuf > 0:
            self.socket.rcvbuf = options.rcvbuf
        if options.curve_secret:
            self.socket.curve_server = True
            self.socket.curve_secretkey = options.curve_secret.encode()
        for endpoint in options.bind or ["tcp://127.0.0.1:0"]:
            self.socket.bind(endpoint)
            say("bound", endpoint=self.socket.last_endpoint.decode().rstrip("\0"), pid=os.getpid())

    def reads(self):
        done = self.options.stop_after is not None and self.messages >= self.options.stop_after
        return self.socket is not None and not self.paused and not done

    def run(self):
        lines = Lines()
        while not self.terminated:
            poller = zmq.Poller()
            poller.register(0, zmq.POLLIN)
            now = time.monotonic()
            due = now >= self.next_read
            if self.reads() and due:
                poller.register(self.socket, zmq.POLLIN)
            # Python handles a signal when poll returns, so it returns ten times a second.
            waits = [100.0] + [(deadline - now) * 1000 for _, deadline in self.expected]
            if self.reads() and not due:
                waits.append((self.next_read - now) * 1000)
            ready = dict(poller.poll(max(0, min(waits))))
            if self.socket in ready:
                self.read_messages()
            self.answer_expectations()
            if 0 in ready:
                commands = lines.read()
                if commands is None:
                    return
                for command in commands:
                    self.obey(command.split())
        if self.reads():
            while self.read_one():
                pass
        say("terminated", **self.totals())

    def read_messages(self):
        burst = 1 if self.options.delay_ms else 256
        for _ in range(burst):
            if not self.reads() or not self.read_one():
                break
        self.next_read = time.monotonic() + self.options.delay_ms / 1000

    def read_one(self):
        try:
            frames = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return False
        lengths = struct.pack(f"<I{len(frames)}I", len(frames), *map(len, frames))
        body = b"".join(frames)
        self.messages += 1
        self.frames += len(frames)
        self.bytes += len(body)
        self.digest.update(lengths)
        self.digest.update(body)
        if self.options.key_frame is not None:
            key = frames[self.options.key_frame].hex() if self.options.key_frame < len(frames) else ""
            self.keys[key] = self.keys.get(key, 0) + 1
        if self.options.keep:
            self.kept.append([frame.hex() for frame in frames])
        if self.log:
            self.log.write(lengths + body)
            self.log.flush()
        return True

    def totals(self):
        return {
            "messages": self.messages,
            "frames": self.frames,
            "bytes": self.bytes,
            "sha256": self.digest.hexdigest(),
            "keys": self.keys,
        }

    def answer_expectations(self):
        now = time.monotonic()
        for count, deadline in list(self.expected):
            if self.messages >= count or now >= deadline:
                self.expected.remove((count, deadline))
                say("expected", reached=self.messages >= count, messages=self.messages)

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def obey(self, words):
        match words:
            case ["report"]:
                say("report", **self.totals())
            case ["expect", count, timeout]:
                self.expected.append((int(count), time.monotonic() + float(timeout) / 1000))
                self.answer_expectations()
            case ["messages"]:
                say("messages", messages=self.kept)
            case ["pause"]:
                self.paused = True
                say("paused")
            case ["resume"]:
                self.paused = False
                say("resumed")
            case ["close"]:
                self.close()
                say("closed")
            case ["quit"]:
                self.close()
                say("quit", **self.totals())
                sys.exit(0)
            case _:
                say("error", text=f"unknown command: {' '.join(words)}")


def main():
    die_with_parent()
    pull = Pull(arguments())

    def terminate(*_):
        pull.terminated = True

    signal.signal(signal.SIGTERM, terminate)
    pull.run()
    pull.close()
    pull.context.term()


if __name__ == "__main__":
    main()
