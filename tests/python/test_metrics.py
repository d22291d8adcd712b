"""The metrics as a parser reads them that somebody else wrote and Prometheus's rules are in."""

import ctypes

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sharing import kv, manager  # noqa: F401: fixtures are found by name


def samples(text):
    """{(name, labels): value} of a whole text; the parser raises what is wrong with it."""
    families = list(text_string_to_metric_families(text))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(kv, manager, name, **labels):
    return samples(kv.metrics_text(manager))[name, frozenset({"manager": str(manager), **labels}.items())]


def test_the_text_of_every_manager_is_openmetrics(kv, manager):
    for m in (kv.DEFAULT, manager):
        families = {family.name: family for family in text_string_to_metric_families(kv.metrics_text(m))}
        kinds = {name: family.type for name, family in families.items()}
        assert kinds["kvconn_dials"] == "counter" and kinds["kvconn_nodes"] == "gauge"
        assert kinds["kvconn_send_blocked_seconds"] == "histogram"
        assert families["kvconn_send_blocked_seconds"].unit == "seconds"
        assert all(family.documentation.endswith(".") for family in families.values())
        assert (kinds.get("kvconn_build") == "info") == (m == kv.DEFAULT)


def test_a_session_is_counted(kv, manager, peer, wait_until):
    receiver = peer("--keep")
    conn = kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
    for _ in range(3):
        kv.send(conn, [b"x"])
    kv.flush(conn, timeout_ms=5000)
    of = lambda name, **labels: value(kv, manager, name, **labels)  # noqa: E731
    assert of("kvconn_messages_accepted_total") == of("kvconn_messages_acknowledged_total") == 3
    receiver.kill()
    wait_until("the peer is lost", lambda: of("kvconn_connections_ended_total", status="PEER_LOST") == 1)
    with pytest.raises(kv.PeerLost):
        kv.send(conn, [b"x"])
    assert of("kvconn_sends_refused_total", status="PEER_LOST") == 1
    assert of("kvconn_send_blocked_seconds_count") == 0
    assert of("kvconn_send_blocked_seconds_bucket", le="+Inf") == 0


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.7:5557", 'ipc:///tmp/"quoted" \\n and \\', "ipc:///tmp/é{},="])
def test_a_label_gives_the_endpoint_back(kv, manager, endpoint):
    kv.configure({"metrics_endpoints": 10}, manager=manager)
    node, _ = kv.node_open("n", manager=manager)
    kv.node_add_endpoints(node, [endpoint])
    assert value(kv, manager, "kvconn_endpoint_state", endpoint=endpoint) == 0


def test_a_buffer_that_is_too_small_gets_the_beginning_and_the_size_of_all(kv, manager):
    from kvconn import _ffi

    library, needed, error = _ffi.load(), ctypes.c_size_t(), _ffi.kvconn_error_t()
    whole = kv.metrics_text(manager).encode()
    for capacity in (0, 1, 100, len(whole), len(whole) + 1):
        buffer = ctypes.create_string_buffer(b"#" * capacity, capacity + 1)
        status = library.kvconn_metrics_text(
            manager, buffer if capacity else None, capacity, ctypes.byref(needed), ctypes.byref(error)
        )
        assert (status, needed.value) == (0, len(whole) + 1)
        assert buffer.value == whole[: max(capacity - 1, 0)]
