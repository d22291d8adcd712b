"""Sends one message to one rank:  PYTHONPATH=python python3 examples_python/quickstart.py tcp://10.0.0.7:5557"""
import sys
import kvconn

endpoint = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5557"
try:
    conn = kvconn.connect(endpoint, wait_ms=3000)  # the live connection; if there is none, it is dialled
    sequence = kvconn.send(conn, [b"room", b"17"], timeout_ms=1000)  # two frames: sent whole or not at all
except kvconn.Error as error:  # not accepted, now or later: sending again is safe
    sys.exit(f"{endpoint}: {error.message} ({error.name})")
print(f"connection {conn} accepted message {sequence} for {endpoint}")
kvconn.shutdown(flush_ms=1000)  # returns when everything is acknowledged; raises kvconn.Timeout if it is not in time
