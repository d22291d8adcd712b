"""Watches prefill servers over HTTP and says which one is lost, until all are.

PYTHONPATH=python python3 examples_python/health.py prefill-0=http://10.0.0.7:8998/health prefill-1=http://10.0.0.8:8998
"""

import sys
import threading

import kvconn


def main(servers: list[str]) -> None:
    """Opens a node for each server, with one request in flight, and waits for their failures."""
    lost = threading.Semaphore(0)

    def failed(failure: kvconn.Failure) -> None:
        print(f"LOST {failure.name}, requests {failure.requests}: {failure.reason}", flush=True)
        lost.release()

    with kvconn.HealthWatch(failed) as watch:
        for number, server in enumerate(servers):
            name, _, url = server.partition("=")
            node = kvconn.Manager.default().open_node(name)
            node.track(number)
            watch.add(node, url)  # this life of it: a successor is added by itself
        for _ in servers:
            lost.acquire()


if __name__ == "__main__":
    if not all("=http" in each for each in sys.argv[1:]) or len(sys.argv) < 2:
        sys.exit("usage: health.py NAME=URL…, for example prefill-0=http://10.0.0.7:8998/health")
    main(sys.argv[1:])
