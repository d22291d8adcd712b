#!/usr/bin/env python3
"""A ZeroMQ socket of any type, which is never read: socket_of_type.py TYPE [--curve-secret Z85] [--refuse-clients].

It says {"event": "bound", "endpoint": …} on standard output and lives until its standard input ends.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import tempfile

import zmq
import zmq.auth.thread

PR_SET_PDEATHSIG = 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("type")
    parser.add_argument("--curve-secret")
    parser.add_argument("--refuse-clients", action="store_true", help="ZAP with an empty list of keys")
    given = parser.parse_args()
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
    with zmq.Context() as context, tempfile.TemporaryDirectory() as no_keys:
        context.linger = 0
        guard = zmq.auth.thread.ThreadAuthenticator(context)
        if given.refuse_clients:
            guard.start()
            guard.configure_curve(domain="*", location=no_keys)
        with context.socket(getattr(zmq, given.type)) as socket:
            if given.curve_secret:
                socket.curve_server = True
                socket.curve_secretkey = given.curve_secret.encode()
                socket.curve_publickey = zmq.curve_public(given.curve_secret.encode())
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            print(json.dumps({"event": "bound", "endpoint": f"tcp://127.0.0.1:{port}"}), flush=True)
            sys.stdin.read()
        if given.refuse_clients:
            guard.stop()


if __name__ == "__main__":
    main()
