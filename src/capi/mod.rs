//! kvconn keeps the outbound ZeroMQ connections of an LLM inference engine: one PUSH socket for each remote rank, cached, and
//! given up the moment the rank is gone. The peer is an ordinary libzmq PULL socket that knows nothing of kvconn. Nothing
//! here waits for ever, nothing dials on its own, nothing is accepted for a peer that is not there, and what a peer's death
//! costs is reported, exactly once.
//!
//! ## Example
//!
//! ```c
//! kvconn_error_t error = KVCONN_ERROR_INIT;
//! kvconn_conn_t conn;
//! if (kvconn_connect(KVCONN_DEFAULT, "tcp://10.0.0.7:5557", NULL, 3000, &conn, &error) != KVCONN_OK) {
//!     fprintf(stderr, "%s: %s\n", kvconn_status_name(error.status), error.message);
//!     return 1;
//! }
//! kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
//! if (kvconn_send(conn, frames, 2, KVCONN_DEFAULT_TIMEOUT, NULL, &error) != KVCONN_OK) {
//!     // Not accepted, now or later: the message can be sent again, here or elsewhere.
//! }
//! kvconn_disconnect(conn, NULL);
//! ```
//!
//! ## Words
//!
//! - endpoint: where a peer rank listens, "tcp://host:port" or "ipc://path". Spellings of one address are one endpoint; a
//!   name and its address are two.
//! - connection: one life of one PUSH socket to one endpoint, named by a kvconn_conn_t. A redial is a new connection.
//! - node: one life of a peer instance (one run of a prefill server), named by a kvconn_node_t. It owns endpoints and requests.
//! - request: the caller's 64-bit id of work in flight on a node.
//! - sequence: the number of a message on its connection: 1, 2, 3 …
//! - accepted: libzmq has taken the message. It is not delivered yet.
//! - acknowledged: the peer's kernel has acknowledged every byte of the message (TCP).
//! - unacknowledged: accepted, and not acknowledged when the connection ended: the peer may have got it in the last round trip,
//!   or not. Sending it again gives at-least-once.
//! - fence: an endpoint that must not be dialled until it is connected or registered again; after kvconn_handle_failure only
//!   registration in a live node lifts it.
//! - manager: an independent set of endpoints, nodes, fences, events and settings.
//!
//! ## Errors
//!
//! A function that can fail returns a kvconn_status_t: KVCONN_OK (0) or a negative number. Its last parameter takes the
//! details and may be NULL. An error means that nothing was done: nothing was accepted, nothing half-made is left, and the
//! out-parameters are zero. Exceptions are stated: KVCONN_PARTIAL, which only a batch returns, and KVCONN_TIMEOUT of kvconn_connect,
//! whose dial goes on, and of kvconn_disconnect_all, kvconn_shutdown and kvconn_manager_destroy, which have ended everything all the
//! same. The numbers are frozen.
//!
//! Two statuses can come from every function that takes an error, and the descriptions do not repeat them: KVCONN_SHUTDOWN
//! after kvconn_shutdown (but not from kvconn_options_set, kvconn_set_log, kvconn_dump and those that read a report), and
//! KVCONN_INTERNAL for a defect.
//! KVCONN_INVALID also comes for a NULL where none is allowed, text that is not UTF-8 or longer than 4096 bytes, a timeout
//! below -1, a pointer that is not aligned for its type, and when a KVCONN_ environment variable cannot be used; the message
//! names it.
//!
//! ## Structs
//!
//! A struct that kvconn fills begins with struct_size. The caller sets it to sizeof the struct, most easily with the INIT macro
//! that stands behind each; kvconn writes no byte beyond it, and leaves it as it is. So a program built against an older
//! header works with a newer library. A struct_size below that of the first version is KVCONN_INVALID; a kvconn_error_t with
//! one is just not filled. Texts inside structs end with NUL and are cut between characters when they do not fit.
//!
//! ## Ownership
//!
//! What a caller passes in is read during the call only, and may be freed or changed after it: texts, frames, options; but for
//! the buffers of kvconn_send_owned, which are lent. Texts
//! that a function returns are static, or belong to the object they were asked from. Objects (options, failure reports) belong
//! to the caller, who frees each once; free takes NULL. Ids need no freeing: they are numbers, never reused, and one that
//! means nothing any more gets KVCONN_STALE. Out-parameters may be NULL only where the description says so.
//!
//! ## Threads
//!
//! Every function may be called from every thread at any time, also while other threads wait in calls on the same connection;
//! a disconnect or failure wakes those with the reason. Exceptions: one kvconn_options_t must not be changed or freed while
//! another thread uses it, and one kvconn_failure_t not freed. No function may be called from a signal handler. Messages of one
//! thread to one connection stay in order. kvconn's own threads block all signals and run none of the caller's code, except
//! the log function and the release functions of kvconn_send_owned.
//!
//! ## Timeouts
//!
//! Timeouts are milliseconds on the monotonic clock. 0 means do not wait; KVCONN_DEFAULT_TIMEOUT (-1) means the configured
//! default, named with each function. There is no infinite wait; more than a year counts as a year. Signals do not end a wait.
//! A timeout bounds the waiting, and a call does little else. The exception is a send's copy of its frames, which takes as long as
//! the memory does: for 256 MiB some tenths of a second, also with timeout 0.
//!
//! ## Which send
//!
//! kvconn_send on a connection id is for what depends on what this peer got before (metadata after its registration): it
//! never reaches another life of the peer. kvconn_send_to on an endpoint is for messages that stand alone (status, abort).
//! kvconn_send_batch is for many ranks at once: kvconn_send on each of many connections, in parallel.
//!
//! ## What arrived
//!
//! When a connection ends, kvconn says which sequence was the last acknowledged; what lies between that and the last accepted
//! is unacknowledged and can be sent again. Every message up to acknowledged was in the peer's kernel, and a peer that goes on
//! reading has it, as long as the connection ended by FIN; after a reset or a timeout, or when the peer is killed before reading,
//! what its kernel held may be gone: the report says how the connection ended (ended_by, one of KVCONN_ENDED_…).
//! A peer that closes its socket before it has read everything does not go on reading: libzmq drops what it holds. To leave without
//! loss it half-closes, reads on until the other side has hung up too, and exits. After kvconn's own
//! disconnect the kernel may still deliver unacknowledged bytes late. Where the platform cannot tell, kvconn says "unknown"
//! (KVCONN_UNKNOWN): on ipc endpoints, with acknowledgement off, and on kernels before 4.1.
//! kvconn_flush waits until messages are acknowledged. After kvconn_shutdown kvconn_connection_info returns KVCONN_SHUTDOWN as
//! everything does: who still wants to know calls kvconn_disconnect_all first, which leaves the endings to be asked for.
//!
//! A peer that sends ZMTP heartbeats gets an answer to each, and the kernel counts those among our bytes; how many they are is
//! taken from what the peer sent. For a libzmq peer that is exact. Of a peer of another kind, whose PINGs carry a context,
//! acknowledged may be behind for as long as the connection lives; and until kvconn has noticed what they are, which it does when
//! libzmq has written all that was accepted, ahead by less than a sixth of the bytes of those PINGs.
//!
//! ## When an endpoint is dialled
//!
//! kvconn dials only inside a call, and what it does depends on how the last connection ended:
//!
//! ```text
//! how the last connection ended      kvconn_send_to         kvconn_connect         lifted by
//! ---------------------------------  ---------------------  ---------------------  --------------------------
//! never seen, PEER_LOST,             dials (backoff)        dials (backoff)        nothing to lift
//!   CONNECT_FAILED, EVICTED,
//!   kvconn_disconnect
//! kvconn_disconnect_endpoint,        DISCONNECTED, no dial  dials, lifts           kvconn_connect,
//!   kvconn_disconnect_all,                                                         kvconn_node_add_endpoints
//!   kvconn_node_remove_endpoints
//! kvconn_handle_failure              NODE_FAILED, no dial   NODE_FAILED, no dial   kvconn_node_add_endpoints
//!                                                                                  in a live life, nothing else
//! ```
//!
//! After a failed dial, kvconn_connect and kvconn_send_to return KVCONN_BACKOFF at once, with retry_after_ms and the errno of
//! the failure, until one step is over: 100 ms, doubling with each failure up to 2 s (options backoff_ms, backoff_max_ms). A dial
//! that the caller gives up before it is READY, by any kind of disconnect, uses up its step as well, counted from the dial's
//! start; the next step is no longer than that one, and the errno is 0. PEER_LOST of a connection that was READY for less than a
//! step counts as a failed dial, so that a peer that lets in and hangs up is not dialled in a storm.
//! Registering an endpoint in a life of a node that is newer than any that registered it before resets the steps, and so does a
//! connection that was READY for longer than a step. One dial tries every address that a name resolves to, in order, within
//! connect_timeout_ms.
//!
//! ## A full connection
//!
//! A send that finds the queue full waits until its deadline (KVCONN_TIMEOUT), as long as the connection makes progress. When
//! there was no progress for at least the send's own timeout, it returns KVCONN_STALLED at once instead: a thread that sends to
//! many peers loses one timeout to a stuck one, not one per message. KVCONN_STALLED also comes later than at once, when that patience
//! runs out during the wait. With a timeout of 0 a full connection is always KVCONN_TIMEOUT.
//!
//! A connection is full when libzmq's queue is (option send_hwm, in messages), and when max_queued_bytes (256 MiB) are on the way:
//! accepted, and not yet acknowledged by the peer's kernel. These are bytes on the wire; in memory libzmq needs about 64 more for each
//! frame. A single larger message goes when nothing else is on the way. All
//! connections of the process together may have max_total_queued_bytes (2 GiB) on the way; a send beyond that is KVCONN_LIMIT at once.
//!
//! ## Idle connections
//!
//! With the option idle_timeout_ms a connection that nothing was sent over for so long, and whose messages are all acknowledged, is
//! closed; with evict_idle the idlest one makes room when max_endpoints is reached. It ends as EVICTED. Nothing is fenced: the
//! next kvconn_send_to or kvconn_connect dials again. A connection with an unacknowledged message is never evicted.
//!
//! ## fork and exit
//!
//! A forked child starts empty: every id of the parent is KVCONN_STALE there, new connects work, the parent is undisturbed. As
//! after every fork, the child holds the parent's descriptors until it calls exec or ends: while it lives, a peer does not see
//! that the parent has died, because no FIN leaves. Fork before the first connection or call exec; a child that does neither
//! closes what it does not need, with close_range(3, ~0U, 0) for example, before it calls kvconn.
//! A release function must not return in a child that it forked: the child would end there.
//!
//! A program may return from main, or exit, at any time. If release functions may still run then, it calls kvconn_shutdown first: they
//! must not touch what its exit destroys.
//! kvconn installs no signal handler and no exit hook that waits; unloading the library with dlclose is safe and does nothing.

// C names are used as they are, so that one search finds both sides. What a pointer must satisfy is said once, for C, in the
// chapters above and with each parameter, not again under "Safety".
#![allow(non_camel_case_types, clippy::missing_safety_doc)]
// The comments are written for the header, in doxygen's words.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod guard;
mod strings;

mod batch;
mod connection;
mod events;
mod failure;
mod library;
mod managers;
mod message;
mod node;
mod observe;
mod options;
mod owned;
mod types;

pub use batch::*;
pub use connection::*;
pub use events::*;
pub use failure::*;
pub use library::*;
pub use managers::*;
pub use message::*;
pub use node::*;
pub use observe::*;
pub use options::*;
pub use owned::*;
pub use types::*;
