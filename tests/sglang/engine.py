"""What the scenarios share: a decode and a prefill side made of SGLang's own classes, with real peers."""

import contextlib
import os
import pathlib
import random
import socket
import sys
import threading
import time
import types

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parents[1] / "python")]

import numpy as np  # noqa: E402
import zmq  # noqa: E402

import real  # noqa: E402
from conftest import Peer, Process, WrongPeer, wait_until_true  # noqa: E402,F401

conn = real.load()
STATUS = {0: "Failed", 1: "Bootstrapping", 2: "WaitingForInput", 3: "Transferring", 4: "Success"}
SERVER_ARGS = types.SimpleNamespace(enable_pd_role_switch=False)


class Manager(conn.CommonKVManager):
    """A KV manager with messages like Mooncake's; everything else is SGLang's."""

    def register_to_bootstrap(self):
        pass

    def _me(self):
        return [self.local_ip.encode(), str(self.rank_port).encode(), str(id(self)).encode()]

    def build_receiver_registration_message(self):
        return [b"None", self._me()[2]]

    def build_receiver_metadata_message(self, *, bootstrap_room, kv_indices, **_):
        host, port, session = self._me()
        return [str(bootstrap_room).encode(), session, host, port, kv_indices.tobytes()]


class Decode:
    """The decode side: a KV manager, its thread for statuses, and requests as a scheduler makes them."""

    def __init__(self):
        self.manager = Manager(real.kv_args(), real.DisaggregationMode.DECODE, SERVER_ARGS)
        self.room = random.randrange(2**40)
        threading.Thread(target=self._statuses, daemon=True).start()

    def _statuses(self):
        while True:
            room, status, rank = map(int, self.manager.server_socket.recv_multipart())
            self.manager.apply_prefill_status(bootstrap_room=room, status=status, prefill_rank=rank)

    def receiver(self, address):
        """A receiver after init; its room is WaitingForInput, or Failed."""
        self.room += 1
        self.manager.try_ensure_parallel_info(address)
        receiver = conn.CommonKVReceiver(self.manager, address, self.room)
        receiver.init(0)
        return receiver

    def request(self, address, indices=16):
        """A receiver that has sent its metadata."""
        receiver = self.receiver(address)
        if receiver.conclude_state is None:
            receiver.send_metadata(np.zeros(indices, np.int32))
        return receiver

    def status(self, receiver):
        return STATUS[receiver.poll()]

    def wait(self, receiver, status, seconds=10):
        wait_until_true(f"the room is {status}", lambda: self.status(receiver) == status, seconds)


def prefill_side():
    """The prefill side, which sends statuses to decode ranks."""
    return Manager(real.kv_args(), real.DisaggregationMode.PREFILL, SERVER_ARGS)


class Prefill(Process):
    """A prefill server in its own process (prefill.py)."""

    def __init__(self, http=None, *arguments):
        super().__init__(HERE / "prefill.py", "--http", http or 0, *arguments)
        self.http = self.report()["http"]
        self.address = f"127.0.0.1:{self.http}"

    def again(self, *arguments):
        """Its successor: another process on the same ports."""
        return Prefill(self.http, "--rank-port", self.port, *arguments)


def free_port(below=32768):
    """A port that no connection gets by chance: it lies below the ephemeral ones."""
    while True:
        port = random.randrange(10_000, below)
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return port
        except OSError:
            continue


def timed(function, *arguments):
    """(seconds, result or zmq.ZMQError)."""
    begun = time.monotonic()
    try:
        result = function(*arguments)
    except zmq.ZMQError as error:
        result = error
    return time.monotonic() - begun, result


def until_blocked(send, seconds=60):
    """Sends from a thread until a send takes longer than 0.3 s; returns the thread and a list of its results."""
    results, began = [], [time.monotonic()]

    def run():
        for _ in range(100_000):
            began[0] = until_blocked.began = time.monotonic()
            results.append(timed(send)[1])
            if isinstance(results[-1], Exception):
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until_true("a send blocks", lambda: time.monotonic() - began[0] > 0.3 or not thread.is_alive(), seconds)
    return thread, results


def descriptors():
    return len(os.listdir("/proc/self/fd"))
