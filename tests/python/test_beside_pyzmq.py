"""Scenario 33: kvconn and pyzmq, each with its own libzmq, in one process, whichever comes first and however visible."""

import subprocess
import sys

import pytest

from conftest import ROOT

PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[3])
order, mode = sys.argv[1:3]
sys.setdlopenflags(os.RTLD_NOW | (os.RTLD_GLOBAL if mode == "global" else os.RTLD_LOCAL))

def load_kvconn():
    import ctypes
    from kvconn import _ffi
    # The first load decides how visible its symbols are.
    _ffi.load(mode=ctypes.RTLD_GLOBAL if mode == "global" else ctypes.RTLD_LOCAL)
    import kvconn
    return kvconn

if order == "pyzmq first":
    import zmq
    kvconn = load_kvconn()
else:
    kvconn = load_kvconn()
    import zmq

# pyzmq's libzmq is the released one, without the draft API; kvconn's own has it.
assert not zmq.has("draft") and kvconn.has("out_batch")
assert zmq.has("curve") and kvconn.has("curve")

context = zmq.Context()
pull = context.socket(zmq.PULL)
endpoint = "tcp://127.0.0.1:%d" % pull.bind_to_random_port("tcp://127.0.0.1")
push = context.socket(zmq.PUSH)
push.connect(endpoint)
conn = kvconn.connect(endpoint, wait_ms=5000)
for n in range(1000):
    kvconn.send(conn, [b"kvconn", b"%d" % n])
    push.send_multipart([b"pyzmq", b"%d" % n])
received = {b"kvconn": [], b"pyzmq": []}
for _ in range(2000):
    assert pull.poll(5000)
    sender, n = pull.recv_multipart()
    received[sender].append(int(n))
assert received == {b"kvconn": list(range(1000)), b"pyzmq": list(range(1000))}
context.destroy(linger=0)
try:
    for _ in range(5000):
        kvconn.send(conn, [b"x"])
    raise SystemExit("the peer is gone, and sends succeed")
except kvconn.PeerLost:
    pass
print(zmq.zmq_version())
"""


@pytest.mark.parametrize("mode", ["local", "global"])
@pytest.mark.parametrize("order", ["pyzmq first", "kvconn first"])
def test_each_keeps_its_own_libzmq(lib, order, mode):
    alone = [sys.executable, "-c", "import zmq; print(zmq.zmq_version())"]
    arguments = [sys.executable, "-c", PROGRAM, order, mode, str(ROOT / "python")]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout == subprocess.run(alone, capture_output=True, text=True, timeout=60).stdout
