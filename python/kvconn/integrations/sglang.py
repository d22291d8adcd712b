"""SGLang's control messages through kvconn, under an unmodified SGLang. docs/sglang.md says what changes.

    import kvconn.integrations.sglang
    kvconn.integrations.sglang.install()  # in every process with a scheduler; after a fork, again in the child
"""

import contextlib
import functools
import logging
import os
import threading
import weakref
from typing import Any

from sglang.srt.disaggregation.common import conn as sglang  # type: ignore

import kvconn
from kvconn.integrations.pyzmq import ConnectionSocket, PushSocket, tcp

logger, lock, no_lock = logging.getLogger("kvconn"), threading.Lock(), contextlib.nullcontext()
this: Any = None  # the Process, since install()


class Process:  # it has a manager of its own, and a thread that takes its failures
    def __init__(self, health_watch: bool) -> None:
        ms = 1000 * int(os.environ.get("SGLANG_DISAGGREGATION_ZMQ_SEND_TIMEOUT") or 1)
        self.manager = kvconn.Manager({"node_loss": "any", "evict_idle": True, "send_timeout_ms": ms})
        self.pid, self.kv_managers = os.getpid(), weakref.WeakSet[Any]()  # the set is guarded by lock
        self.watch = kvconn.HealthWatch(self.failed).start() if health_watch else None
        threading.Thread(target=self.take_failures, name="kvconn-sglang", daemon=True).start()

    def take_failures(self) -> None:
        for failure in self.manager.failures():
            self.failed(failure)

    def failed(self, failure: kvconn.Failure) -> None:
        with lock:
            kv_managers = list(self.kv_managers)
        for kv in kv_managers:
            try:
                self.end(kv, failure.name, failure.node, failure.requests, failure.reason)
            except Exception:
                logger.exception("prefill server %s: its rooms may not have been failed", failure.name)

    def end(self, kv: Any, address: str, life: int, rooms: "list[int]", reason: str) -> None:
        """Fails the rooms of one life of a prefill server, and forgets its ranks. Another life keeps what it has."""
        logger.error("prefill server %s is lost: %s", address, reason)
        with kv.connection_lock:
            for key, infos in list(kv.connection_pool.items()):
                if any(info.get("kvconn_life") == life for info in infos):
                    del kv.connection_pool[key]
            if self.life(address) in (0, life):
                for table in ("prefill_info_table", "heartbeat_failures"):
                    getattr(kv, table, {}).pop(address, None)
        for room in rooms:
            if kv.request_status.get(room) not in (None, sglang.KVPoll.Success, sglang.KVPoll.Failed):
                kv.record_failure(room, f"Lost connection with prefill instance (bootstrap_addr: {address}): {reason}")
                kv.update_status(room, sglang.KVPoll.Failed)

    def life(self, address: str) -> int:
        with contextlib.suppress(kvconn.NotFound):
            return self.manager.find_node(address).id
        return 0

    def untrack(self, life: int, room: int) -> None:
        with contextlib.suppress(kvconn.Error):
            kvconn.node_untrack_request(life, room)


# Each function below replaces, or surrounds, SGLang's function of the same class and name, which is `_stock`.
class CommonKVReceiver:
    """Decode to prefill: a message goes to the connection that got the registration, and to no later one."""
    def _get_bootstrap_info_from_server(_stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        address = self.bootstrap_addr
        with lock:
            this.kv_managers.add(self.kv_mgr)
        try:
            life = this.manager.open_node(address)  # before the question: a life that ends meanwhile refuses the answer
            if life.created and this.watch:
                this.watch.add(life, f"http://{address}/health")
            info = _stock(self, *args, **kwargs)
            if info is not None:
                (rank,), failed = life.connect([tcp(info["rank_ip"], info["rank_port"])], timeout=0)  # dials in parallel
                if failed:
                    raise failed
                info.update(kvconn_life=life.id, kvconn_conn=rank.conn)  # SGLang also uses str(info) as an identity
            return info
        except kvconn.Error as error:
            logger.error("prefill server %s: %s", address, error)
            return None  # SGLang fails the room

    def _connect_to_bootstrap_server(_stock: Any, cls: Any, info: Any) -> Any:
        return (ConnectionSocket(info["kvconn_conn"]), no_lock) if "kvconn_conn" in info else _stock(cls, info)

    def _connect(_stock: Any, cls: Any, endpoint: str, is_ipv6: bool = False) -> Any:
        return PushSocket(endpoint, manager=this.manager), no_lock

    def init(_stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        _stock(self, *args, **kwargs)  # from here on the ranks are in the pool
        infos, room = getattr(self, "bootstrap_infos", None) or (), self.bootstrap_room
        for life in {info["kvconn_life"] for info in infos if "kvconn_life" in info}:
            try:
                kvconn.node_track_request(life, room)
                self.kvconn_done = weakref.finalize(self, this.untrack, life, room)
            except kvconn.Error as error:
                this.end(self.kv_mgr, self.bootstrap_addr, life, [room], str(error))

    def clear(_stock: Any, self: Any) -> None:
        _stock(self)
        getattr(self, "kvconn_done", bool)()

    def disconnect_endpoint(_stock: Any, cls: Any, endpoint: str) -> None:
        this.manager.disconnect_endpoint(endpoint)

    def close_all_sockets(_stock: Any, cls: Any) -> None:
        for each in this.manager.connections():  # disconnect_all would also forbid later messages to decode ranks
            with contextlib.suppress(kvconn.Error):
                each.close(timeout=0.1)


class CommonKVManager:
    """Prefill to decode: a message stands alone, and goes to whatever life of the decode rank is there."""
    def _connect(_stock: Any, self: Any, endpoint: str, is_ipv6: bool = False) -> Any:
        return self._socket_cache.setdefault(endpoint, PushSocket(endpoint, manager=this.manager))

    def _send_multipart_locked(_stock: Any, self: Any, endpoint: str, parts: Any, is_ipv6: bool = False) -> None:
        self._connect(endpoint).send_multipart(parts)

    def _handle_node_failure(_stock: Any, self: Any, address: str) -> None:
        with contextlib.suppress(kvconn.NodeFailed):  # its report is taken elsewhere
            if not (life := this.life(address)):
                this.end(self, address, 0, list(self.addr_to_rooms_tracker.get(address, ())), "no heartbeat")
            elif kvconn.node_info(life)["age_ms"] > 5000:  # SGLang's longest probe: an earlier one asked another life
                this.failed(kvconn.handle_failure(life, "no heartbeat"))


def install(health_watch: bool = False) -> None:
    """Replaces SGLang's functions, as far as this version has them. health_watch: also probes the prefill servers."""
    global this
    first = this is None
    if first or this.pid != os.getpid():
        this = Process(health_watch)
    for ours, theirs in ((CommonKVReceiver, sglang.CommonKVReceiver), (CommonKVManager, sglang.CommonKVManager)):
        for name, function in vars(ours).items() if first else ():
            name = "__init__" if name == "init" and name not in vars(theirs) else name  # older versions do it there
            stock = vars(theirs).get(name)
            if callable(function) and stock is not None:
                plain = getattr(stock, "__func__", stock)
                new = functools.wraps(plain)(lambda *args, f=function, s=plain, **kwargs: f(s, *args, **kwargs))
                setattr(theirs, name, classmethod(new) if isinstance(stock, classmethod) else new)
