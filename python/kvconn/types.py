"""The types of arguments and results, for annotations: `from kvconn.types import Event, Options`."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Frame: TypeAlias = Buffer
else:
    Frame = Any

#: The id of a connection, node or manager, or the object over it.
Id: TypeAlias = SupportsIndex

#: One message: bytes, bytearrays, NumPy arrays or other buffers. A single buffer is no message: write [frame].
Frames: TypeAlias = Iterable[Frame]

#: Names of options (docs/options.md) and their values. CURVE keys may be bytes, as pyzmq has them.
Options: TypeAlias = Mapping[str, int | bool | str | bytes]


class ConnectionInfo(TypedDict):
    """What connection_info returns."""

    state: int  # STATE_…
    status: int  # 0 while it lives
    os_errno: int
    conn: int
    accepted: int
    acknowledged: int  # a sequence, or UNKNOWN
    released: int
    queued_bytes: int
    waiting: int  # threads
    stalled: int
    ended_by: int  # ENDED_…
    reserved: int
    age_ms: int
    ready_ms: int
    endpoint: str
    message: str


class NodeInfo(TypedDict):
    """What node_info returns."""

    status: int  # 0 while it lives
    endpoints: int
    failures_in_row: int
    node: int
    requests: int
    age_ms: int
    name: str
    reason: str


class Event(TypedDict):
    """What next_event returns."""

    kind: int  # EVENT_…
    status: int
    os_errno: int
    conn: int
    node: int
    count: int
    acknowledged: int
    ended_by: int  # ENDED_…
    reserved: int
    time_ms: int  # since 1970
    endpoint: str
    node_name: str
    message: str
