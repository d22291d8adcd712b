"""A forked child that never calls kvconn: what the header says of the descriptors it holds."""

import os
import signal
import subprocess
import sys

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from conftest import ROOT

PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
import kvconn

kvconn.connect(sys.argv[1], wait_ms=5000)
child = os.fork()
if child == 0:
    if sys.argv[2] == "closes":
        os.closerange(3, 65536)
    os.write(1, b"forked\\n")
    signal.pause()
os.write(1, b"%d\\n" % child)  # whole, because two processes write here
signal.pause()
"""


@pytest.mark.parametrize("closes", [True, False])
def test_the_peer_sees_the_parents_death_only_when_no_child_holds_its_descriptors(lib, closes):
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        monitor = pull.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        arguments = [f"tcp://127.0.0.1:{port}", "closes" if closes else "keeps", ROOT / "python"]
        parent = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)
        lines = sorted(parent.stdout.readline() for _ in range(2))
        assert lines[1] == "forked\n"
        child = int(lines[0])
        try:
            parent.kill()
            parent.wait()
            assert bool(monitor.poll(10_000 if closes else 500)) == closes
        finally:
            os.kill(child, signal.SIGKILL)
        assert monitor.poll(10_000), "the last holder is gone"
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
        parent.stdout.close()
        pull.disable_monitor()
