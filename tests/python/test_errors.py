"""Exceptions keep all their fields through pickle and copy, and out of a ProcessPoolExecutor (R12)."""

import concurrent.futures
import copy
import errno
import multiprocessing
import pickle

import pytest

from sharing import canonical, kv, manager  # noqa: F401: fixtures are found by name

FIELDS = {"status", "name", "os_errno", "scope", "retriable", "retry_after_ms", "conn", "endpoint", "message"}


def same(copied, error):
    assert type(copied) is type(error)
    assert copied.__dict__ == error.__dict__ and copied.args == error.args
    assert (str(copied), repr(copied)) == (str(error), repr(error))
    return True


def copies(error):
    yield copy.copy(error)
    yield copy.deepcopy(error)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(error, protocol))


def refused(kv, manager, peer):
    """A connect that is refused, and the Backoff after it."""
    receiver = peer()
    receiver.kill()
    errors = []
    for _ in range(2):
        with pytest.raises(kv.Error) as caught:
            kv.connect(receiver.endpoint, wait_ms=5000, manager=manager)
        errors.append(caught.value)
    return errors


def test_real_errors_are_copied_with_all_fields(kv, manager, peer):
    failed, backoff = refused(kv, manager, peer)
    assert type(failed) is kv.ConnectFailed and type(backoff) is kv.Backoff
    assert failed.os_errno and failed.endpoint and failed.conn and failed.message and backoff.retry_after_ms > 0
    for error in (failed, backoff):
        assert set(error.__dict__) == FIELDS
        assert all(same(copied, error) for copied in copies(error))


def test_every_error_has_an_errno(kv, manager, peer):
    library = kv._lib
    statuses = {status: library.kvconn_status_errno(status) for status in kv.STATUSES}
    assert all(statuses.values()) and statuses[-4] == errno.ETIMEDOUT
    assert library.kvconn_status_errno(0) == 0
    node, _ = kv.node_open("n", manager)
    conn = kv.connect(peer().endpoint, wait_ms=5000, manager=manager)
    kv.disconnect(conn)
    kv.handle_failure(node)
    for kind, expected, call in (
        (kv.Invalid, errno.EINVAL, lambda: kv.connect("tcp://nowhere", manager=manager)),
        (kv.Stale, errno.ESTALE, lambda: kv.connection_info(1)),
        (kv.NotFound, errno.ENOENT, lambda: kv.node_find("nobody", manager)),
        (kv.Disconnected, errno.ENOTCONN, lambda: kv.send(conn, [b"x"])),
        (kv.NodeFailed, errno.EHOSTDOWN, lambda: kv.node_track_request(node, 1)),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.os_errno == expected == statuses[caught.value.status]


def test_every_exception_is_copied(kv):
    from kvconn import _ffi

    for status, kind in [*kv.STATUSES.items(), (-77, kv.Error)]:
        given = _ffi.kvconn_error_t()
        given.status, given.os_errno, given.scope, given.retriable, given.retry_after_ms = status, 111, 2, 1, 250
        given.conn, given.endpoint, given.message = 2**64 - 1, b"tcp://127.0.0.1:9", "why äöü".encode()
        error = kind(given)
        assert all(same(copied, error) for copied in copies(error))


def test_fields_that_others_add_are_copied_as_well(kv, manager, peer):
    error, _ = refused(kv, manager, peer)
    error.rank = 3
    copied = pickle.loads(pickle.dumps(error))
    assert copied.rank == 3 and same(copied, error)


def work(endpoint):
    import kvconn

    kvconn.connect(endpoint, wait_ms=5000)


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_an_error_comes_out_of_a_process_pool(kv, peer, start):
    receiver = peer()
    endpoint = receiver.endpoint
    receiver.kill()
    context = multiprocessing.get_context(start)
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        for kind in (kv.ConnectFailed, kv.Backoff):  # the pool outlives the first
            with pytest.raises(kind) as caught:
                pool.submit(work, endpoint).result(60)
            assert set(caught.value.__dict__) - {"__notes__"} == FIELDS
            assert caught.value.endpoint == canonical(receiver)
