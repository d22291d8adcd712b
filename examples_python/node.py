"""One life of a prefill node: its rank and its requests are taken away together when it fails.

PYTHONPATH=python python3 examples_python/node.py tcp://10.0.0.7:5557
"""

import sys

import kvconn

if len(sys.argv) != 2:
    sys.exit("usage: node.py ENDPOINT, for example tcp://10.0.0.7:5557")
endpoint = sys.argv[1]
node, _ = kvconn.node_open("prefill-0")  # begins a life of the prefill server that the rank belongs to
kvconn.node_add_endpoints(node, [endpoint])
kvconn.node_track_request(node, 17)
try:
    conn = kvconn.connect(endpoint, wait_ms=3000)
    sequence = kvconn.send(conn, [b"room", b"17"])
    print(f"connection {conn} accepted message {sequence} for {endpoint}")
except kvconn.Error as error:
    failure = kvconn.handle_failure(node, str(error))  # ends this life: its endpoints and requests go in one step
    sys.exit(f"{failure.name} failed with requests {failure.requests}: {failure.reason}")
kvconn.node_untrack_request(node, 17)  # the request is done
kvconn.shutdown(flush_ms=1000)
