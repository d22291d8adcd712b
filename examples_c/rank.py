"""One prefill rank of the demo: an ordinary pyzmq PULL socket that knows nothing of kvconn.

    rank.py ENDPOINT LOG

Prints the endpoint it is bound to. Like a busy rank it takes messages between steps of 10 ms, so that some always wait in
its queue. What it has received stands in LOG at once, 24 bytes a message, whatever happens to the process: the connection
and the sequence that the engine has stamped on the message, and the room.
"""

import os
import struct
import sys
import time

import zmq

STEP_SECONDS = 0.010
BIND_SECONDS = 5.0


def bind(socket, endpoint):
    """Binds; a port that its killed owner has just left may need a moment."""
    deadline = time.monotonic() + BIND_SECONDS
    while True:
        try:
            return socket.bind(endpoint)
        except zmq.ZMQError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def main(endpoint, log):
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    socket = zmq.Context().socket(zmq.PULL)
    bind(socket, endpoint)
    print(socket.last_endpoint.decode().rstrip("\0"), flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # it ends with its parent
        time.sleep(STEP_SECONDS)
        while socket.poll(0):
            frames = socket.recv_multipart()
            assert len(frames) == 10, f"a message of {len(frames)} frames"
            conn, sequence = struct.unpack("=QQ", frames[9])
            room = int(frames[0])
            # Every frame is of this room: nothing was mixed up on the way.
            assert frames[5] == struct.pack("=128Q", *range(room * 128, room * 128 + 128)), f"the pages of room {room}"
            os.write(out, struct.pack("=QQQ", conn, sequence, room))


if __name__ == "__main__":
    main(*sys.argv[1:])
