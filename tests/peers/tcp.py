#!/usr/bin/env python3
"""What may sit at an endpoint instead of a PULL socket: a plain TCP listener for tests.

It reports on standard output, one JSON object a line: first {"event": "bound", "endpoint": …}. Line `report` on
standard input answers {"event": "report", "connections": …, "bytes": …, "open": …}; `quit`, the end of standard input
and SIGTERM end it. The process dies with its parent.
"""

import argparse
import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import sys

PR_SET_PDEATHSIG = 1
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
MODES = {
    "mute": "accept and read, say nothing",
    "http": "speak first, as an HTTP server",
    "ssh": "speak first, as an SSH server",
    "reset": "accept, then RST",
    "close": "accept, then FIN",
    "refuse": "bind without listening: connections are refused, and nobody else gets the port",
}


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def main():
    modes = "; ".join(f"{mode}: {text}" for mode, text in MODES.items())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=modes)
    parser.add_argument("--mode", choices=MODES, default="mute")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    if options.mode != "refuse":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((options.host, options.port))
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    if options.mode != "refuse":
        listener.listen(128)
        selector.register(listener, selectors.EVENT_READ)
    host = f"[{options.host}]" if ":" in options.host else options.host
    say("bound", endpoint=f"tcp://{host}:{listener.getsockname()[1]}", pid=os.getpid())

    banner = {"http": HTTP, "ssh": b"SSH-2.0-OpenSSH_9.2\r\n"}.get(options.mode, b"")
    connections = total = 0
    streams = set()
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                words = os.read(0, 65536)
                if not words or b"quit" in words:
                    return
                for _ in range(words.count(b"report")):
                    say("report", connections=connections, bytes=total, open=len(streams))
            elif key.fileobj is listener:
                stream, _ = listener.accept()
                connections += 1
                if options.mode == "reset":
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if options.mode in ("reset", "close"):
                    stream.close()
                    continue
                stream.setblocking(False)
                stream.sendall(banner)
                streams.add(stream)
                selector.register(stream, selectors.EVENT_READ)
            else:
                try:
                    block = key.fileobj.recv(65536)
                except ConnectionError:
                    block = b""
                total += len(block)
                if not block:
                    selector.unregister(key.fileobj)
                    streams.discard(key.fileobj)
                    key.fileobj.close()


if __name__ == "__main__":
    main()
