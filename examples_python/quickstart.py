"""Sends one message to one rank:  PYTHONPATH=python python3 examples_python/quickstart.py tcp://10.0.0.7:5557"""

import sys

import kvconn

if len(sys.argv) != 2:
    sys.exit("usage: quickstart.py ENDPOINT, for example tcp://10.0.0.7:5557")
endpoint = sys.argv[1]
node, _ = kvconn.node_open("prefill-0")  # one life of the prefill server that the rank belongs to
kvconn.node_add_endpoints(node, [endpoint])
kvconn.node_track_request(node, 17)
try:
    conn = kvconn.connect(endpoint, wait_ms=3000)  # the live connection, or a dial; returns when the peer is there
    sequence = kvconn.send(conn, [b"room", b"17"])  # one message of two frames, whole or not at all
    print(f"connection {conn} accepted message {sequence} for {endpoint}")
except kvconn.Error as error:  # not accepted, now or later
    failure = kvconn.handle_failure(node, str(error))  # takes away everything that this life of the node owned
    sys.exit(f"{failure.name} failed with requests {failure.requests}: {failure.reason}")
kvconn.shutdown(flush_ms=1000)  # the end of the program: what was accepted has one second to leave
