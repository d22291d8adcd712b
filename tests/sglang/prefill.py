#!/usr/bin/env python3
"""A prefill server for tests: SGLang's own bootstrap server, and PULL ranks that know nothing of kvconn.

A rank does what SGLang's prefill does with the messages of a decode server: a registration (first frame "None") makes
its session known; metadata of a known session are answered with Success, those of an unknown one are counted.

Standard input and output are as of tests/peers/pull.py: `report`, and the end of input ends it.
"""

import argparse
import contextlib
import os
import pathlib
import random
import socket
import sys
import threading
import time

import requests
import zmq

sys.path[:0] = [str(pathlib.Path(__file__).parents[1] / "peers"), str(pathlib.Path(__file__).parent)]
from pull import Lines, die_with_parent, say  # noqa: E402

import real  # noqa: E402


class Rank(threading.Thread):
    def __init__(self, context, options, port):
        super().__init__(daemon=True)
        self.context, self.options = context, options
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, options.rcvhwm)
        if options.rcvbuf:
            self.socket.setsockopt(zmq.RCVBUF, options.rcvbuf)
        # Below the ephemeral ports: its successor needs the same one, and no connection must get it meanwhile.
        self.port = port or self.socket.bind_to_random_port("tcp://127.0.0.1", 10_000, 32_768, 1000)
        if port:
            self.socket.bind(f"tcp://127.0.0.1:{port}")
        self.sessions, self.answers = set(), {}
        self.registrations = self.metadata = self.unregistered = self.aborts = 0
        self.rooms = []

    def run(self):
        while True:
            kind, *rest = self.socket.recv_multipart()
            if kind == b"None":
                self.registrations += 1
                self.sessions.add(rest[0])
            elif kind == b"ABORT":
                self.aborts += 1
            elif rest[0] in self.sessions:
                self.metadata += 1
                self.rooms.append(int(kind))
                if not self.options.silent:
                    self.answer(kind, *rest[1:3])
            else:
                self.unregistered += 1
                if self.options.log:  # at once: the process may be killed
                    with open(self.options.log, "ab") as log:
                        log.write(kind + b"\n")

    def answer(self, room, host, port):
        socket = self.answers.get((host, port))
        if socket is None:
            socket = self.answers[host, port] = self.context.socket(zmq.PUSH)
            socket.connect(f"tcp://{host.decode()}:{port.decode()}")
        socket.send_multipart([room, b"4", b"0"])


def unused_port():
    """A port for the HTTP server, from below the ephemeral ones."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, default=0)
    parser.add_argument("--rank-port", type=int, default=0)
    parser.add_argument("--silent", action="store_true", help="answers no metadata: every room stays in flight")
    parser.add_argument("--elsewhere", type=int, default=0, help="names this port as the rank's, where another program is")
    parser.add_argument("--log", help="appends the room of each message of an unknown session to this file")
    parser.add_argument("--rcvhwm", type=int, default=1000)
    parser.add_argument("--rcvbuf", type=int, default=0)
    options = parser.parse_args()
    die_with_parent()
    options.http = options.http or unused_port()
    conn = real.load(options.http)
    rank = Rank(zmq.Context(), options, options.rank_port)
    rank.start()
    conn.CommonKVBootstrapServer("127.0.0.1", options.http)
    row = dict.fromkeys(["attn_tp_size", "attn_cp_size", "attn_dp_size", "pp_size", "system_dp_size"], 1)
    row |= dict.fromkeys(["attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "system_dp_rank"], 0)
    row |= {"rank_ip": "127.0.0.1", "rank_port": options.elsewhere or rank.port, "page_size": 1, "kv_cache_dtype": "auto"}
    deadline = time.monotonic() + 20
    while True:
        try:
            assert requests.put(f"http://127.0.0.1:{options.http}/route", json=row, timeout=5).status_code == 200
            break
        except requests.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    say("bound", endpoint=f"tcp://127.0.0.1:{rank.port}")
    lines = Lines()
    while (commands := lines.read()) is not None:
        for command in commands:
            names = "registrations", "metadata", "unregistered", "aborts", "rooms"
            say("report", http=options.http, **{name: getattr(rank, name) for name in names})
    os._exit(0)


if __name__ == "__main__":
    main()
