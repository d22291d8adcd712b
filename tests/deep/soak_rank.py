"""A rank of a soak run: a pyzmq PULL socket that checks each message, and counts in a file that survives its kill.

    soak_rank.py ENDPOINT PLACE FILE

FILE has a record of 8 numbers for each connection: the connection, how many messages arrived, the last count of each of
its 4 senders, how many were wrong (out of order, repeated, damaged), how many were meant for another endpoint.
"""

import argparse
import contextlib
import mmap
import os
import pathlib
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples_c"))
import rank  # noqa: E402

RECORD = struct.Struct("=8Q")
RECORDS = 4096
HEAD = struct.Struct("=6Q")
BODY = bytes((i * 7 + i // 256) & 255 for i in range(65536))


class SoakRank(rank.Rank):
    def __init__(self, endpoint, place, path):
        self.place = place
        with open(path, "wb+") as file:
            file.truncate(RECORD.size * RECORDS)
            self.file = mmap.mmap(file.fileno(), RECORD.size * RECORDS)
        self.records = {}  # connection -> (offset, record)
        # A small queue: messages that the rank does not read soon wait at their sender.
        super().__init__(argparse.Namespace(
            endpoint=endpoint, record="/dev/null", rcvhwm=64, rcvbuf=128 * 1024, step_ms=10, last_step_ms=0
        ))

    def take(self):
        frames = self.pull.recv_multipart()
        wrong = len(frames) != 2 or len(frames[0]) != HEAD.size
        conn, sender, count, place, size, offset = HEAD.unpack(frames[0]) if not wrong else (0,) * 6
        at, record = self.records.get(conn) or self.new_record(conn)
        record[1] += 1
        if wrong or count != record[2 + sender] + 1 or frames[1] != BODY[offset : offset + size]:
            record[6] += 1
        record[2 + sender] = count
        if place != self.place:
            record[7] += 1
        RECORD.pack_into(self.file, at, *record)

    def drain(self):
        """As a rank leaves, but its port is closed first: the engine dials again at once."""
        self.pull.unbind(self.pull.last_endpoint)
        while True:
            while self.monitor.poll(0):
                event = rank.recv_monitor_message(self.monitor)
                change = self.senders.add if event["event"] == rank.zmq.EVENT_ACCEPTED else self.senders.discard
                change(event["value"])
            for descriptor in self.senders:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as tcp:
                    tcp.shutdown(socket.SHUT_WR)
            took = False
            for _ in range(1000):
                if not self.pull.poll(0 if took else 20):
                    break
                self.take()
                took = True
            if not self.senders and not took:
                return

    def new_record(self, conn):
        entry = (len(self.records) * RECORD.size, [conn, 0, 0, 0, 0, 0, 0, 0])
        self.records[conn] = entry
        return entry


def main(endpoint, place, path):
    asked = []
    rank.signal.signal(rank.signal.SIGTERM, lambda *_: asked.append("to leave"))
    one = SoakRank(endpoint, int(place), path)
    one.serve(until=lambda: asked)
    one.drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
