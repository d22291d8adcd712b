"""A rank as objects, with its events in asyncio. Type checkers see every name.

PYTHONPATH=python python3 examples_python/objects.py tcp://10.0.0.7:5557
"""

import asyncio
import sys

import kvconn


async def report(manager: kvconn.Manager) -> None:
    """Prints what happens to the manager's connections and nodes, until it is destroyed."""
    async for event in manager.events():  # waits through the event descriptor, without a thread
        if event["kind"] == kvconn.EVENT_READY:
            print(f"READY {event['endpoint']}", flush=True)
        elif event["kind"] == kvconn.EVENT_NODE_FAILED:
            print(f"FAILED {event['node_name']}", flush=True)
        elif event["status"]:
            print(f"ENDED {event['endpoint']}: {event['message']}", flush=True)


def lost(manager: kvconn.Manager, node: kvconn.Node, error: kvconn.Error) -> str:
    """Takes the node away after an error, and says which requests went with it."""
    try:
        failure: kvconn.Failure | None = node.fail(str(error))
    except kvconn.NodeFailed:  # node_loss has seen the loss first: its report waits
        failure = kvconn.take_failure(1000, manager)
    if failure is None:
        return str(error)
    return f"{failure.name} failed with requests {failure.requests}: {failure.reason}"


async def main(endpoint: str) -> None:
    """Sends one request to one rank, and treats its loss as the loss of the node."""
    # Ends after a flush; at once after an exception. `async with` waits on a thread, so the event loop goes on.
    async with kvconn.Manager({"node_loss": "any"}) as manager:
        events = asyncio.create_task(report(manager))
        node = manager.open_node("prefill-0")
        node.add_endpoints([endpoint])
        node.track(17)
        try:
            # Dialling and waiting for room take time. A thread does that; the event loop goes on.
            conn: kvconn.Connection = await asyncio.to_thread(manager.connect, endpoint, timeout=3)
            sequence: int = await asyncio.to_thread(conn.send_multipart, [b"room", b"17"], timeout=1)
            print(f"connection {conn.id} accepted message {sequence} for {endpoint}")
            node.untrack(17)
        except kvconn.Error as error:
            sys.exit(lost(manager, node, error))
    await events


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: objects.py ENDPOINT, for example tcp://10.0.0.7:5557")
    asyncio.run(main(sys.argv[1]))
