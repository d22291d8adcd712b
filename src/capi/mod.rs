//! # At a glance
//!
//! kvconn keeps the outbound ZeroMQ connections of an LLM inference engine: one cached PUSH socket for each remote
//! rank. The peer is an ordinary libzmq PULL socket that knows nothing of kvconn. Four calls do the main job:
//!
//! ```c
//! // Returns the connection to "tcp://host:port" or "ipc://path"; dials if there is none.
//! kvconn_status_t kvconn_connect(kvconn_manager_t m, const char *endpoint, const kvconn_options_t *options,
//!                                int64_t wait_ms, kvconn_conn_t *conn, kvconn_error_t *error);
//! // Sends one message, whole or not at all. An error means: not accepted, now or later.
//! kvconn_status_t kvconn_send(kvconn_conn_t conn, const kvconn_frame_t *frames, size_t frame_count,
//!                             int64_t timeout_ms, uint64_t *sequence, kvconn_error_t *error);
//! // Ends the connection and forbids new dials. Never waits; threads blocked in a send return at once.
//! kvconn_status_t kvconn_disconnect_endpoint(kvconn_manager_t m, const char *endpoint, kvconn_error_t *error);
//! // A remote instance died: ends all its connections in one step, and reports its requests in flight.
//! kvconn_status_t kvconn_handle_failure(kvconn_node_t node, const char *reason, kvconn_failure_t **failure,
//!                                       kvconn_error_t *error);
//! ```
//!
//! Everything else:
//!
//! ```text
//! Messages       kvconn_send_to                send to an endpoint, whichever life of the peer is there
//!                kvconn_send_packed            kvconn_send with all frames in one buffer
//!                kvconn_send_packed_to         kvconn_send_to with all frames in one buffer
//!                kvconn_send_batch             one message to each of many connections, under one deadline
//!                kvconn_send_batch_packed      kvconn_send_batch with flat arrays and one buffer
//!                kvconn_send_owned             send without copying
//!                kvconn_wait_released          wait until the buffers of kvconn_send_owned are free again
//!                kvconn_flush                  wait until messages are acknowledged
//! Connections    kvconn_disconnect             end one connection; the next kvconn_send_to dials again
//!                kvconn_disconnect_all         end everything in a manager
//!                kvconn_connection_info        state, counts and end of a connection
//!                kvconn_connections            list the live connections
//!                kvconn_find                   find the live connection to an endpoint
//! Nodes          kvconn_node_open              begin the life of a remote instance
//!                kvconn_node_add_endpoints     register its endpoints
//!                kvconn_node_remove_endpoints  take endpoints away from it
//!                kvconn_node_set_endpoints     make these its endpoints: registers new ones, takes others away
//!                kvconn_node_connect           register endpoints and connect to all, under one deadline
//!                kvconn_node_track_request     note that a request is in flight on it
//!                kvconn_node_untrack_request   note that the request is done
//!                kvconn_node_report_health     report a health probe; some failures in a row fail the node
//!                kvconn_node_find              find the live node of a name
//!                kvconn_node_info              state and counts of a node
//! Failures       kvconn_take_failure           wait for a failure report that no call returned
//!                kvconn_failure_node, kvconn_failure_name, kvconn_failure_reason, kvconn_failure_time_ms
//!                kvconn_failure_endpoint_count, kvconn_failure_endpoints, kvconn_failure_request_count,
//!                kvconn_failure_requests, kvconn_failure_free                read a report, and free it
//! Events         kvconn_next_event             take the next event: READY, PEER_LOST, STALLED ...
//!                kvconn_event_name             the name of an event kind
//!                kvconn_event_fd               a descriptor for poll or epoll
//! Settings       kvconn_options_new, kvconn_options_set, kvconn_options_free      a set of options
//!                kvconn_configure              change a manager's settings
//! Managers       kvconn_manager_create, kvconn_manager_destroy                    an independent set of endpoints
//!                kvconn_shutdown               end kvconn in this process
//! Observing      kvconn_describe               describe a manager as text
//!                kvconn_metrics_text           metrics for Prometheus
//!                kvconn_dump                   describe everything from a debugger
//!                kvconn_set_log                send the log to a function
//! Library        kvconn_version, kvconn_abi_version, kvconn_has                   what was loaded
//!                kvconn_status_name, kvconn_strerror, kvconn_status_errno         name, meaning and errno of a status
//! ```
//!
//! ## Example
//!
//! A node with one endpoint, a message, and what to do when the peer dies.
//!
//! ```c
//! // Read an error before the next call: every call overwrites it, and a success clears it.
//! kvconn_error_t error = KVCONN_ERROR_INIT;
//! kvconn_node_t node;
//! kvconn_conn_t conn;
//! const char *const endpoints[] = {"tcp://10.0.0.7:5557"};
//! if (kvconn_node_open(KVCONN_DEFAULT, "prefill-0", &node, NULL, &error) != KVCONN_OK ||
//!     kvconn_node_add_endpoints(node, endpoints, 1, NULL, &error) != KVCONN_OK ||
//!     kvconn_node_track_request(node, 17, &error) != KVCONN_OK ||
//!     kvconn_connect(KVCONN_DEFAULT, endpoints[0], NULL, 3000, &conn, &error) != KVCONN_OK) {
//!     fprintf(stderr, "%s: %s\n", kvconn_status_name(error.status), error.message);
//!     return 1;
//! }
//! const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
//! const kvconn_status_t status = kvconn_send(conn, frames, 2, KVCONN_DEFAULT_TIMEOUT, NULL, &error);
//! if (status != KVCONN_OK) { // Not accepted: the message can be sent again, here or to another node.
//!     fprintf(stderr, "%s: %s\n", kvconn_status_name(error.status), error.message);
//! }
//! if (status == KVCONN_PEER_LOST) { // The rank is gone: fail its whole node.
//!     kvconn_failure_t *failure = NULL;
//!     uint64_t requests[64];
//!     size_t count = 0;
//!     if (kvconn_handle_failure(node, error.message, &failure, NULL) == KVCONN_OK &&
//!         kvconn_failure_requests(failure, requests, 64, &count, NULL) == KVCONN_OK) {
//!         printf("%zu requests were in flight; the first is %llu\n", count, (unsigned long long)requests[0]);
//!     }
//!     kvconn_failure_free(failure);
//! }
//! ```
//!
//! The long text begins here: what the words mean, and the rules that hold for every call.
//!
//! ## Words
//!
//! - endpoint: where a peer rank listens, "tcp://host:port" or "ipc://path". Different spellings of one address are one
//!   endpoint. A name and its address are two endpoints.
//! - connection: one PUSH socket to one endpoint, from its dial to its end (kvconn_conn_t). A redial makes a new one.
//! - node: one life of a peer instance, such as one run of a prefill server, named by a kvconn_node_t. It owns
//!   endpoints and requests. A life is one run, from start to end: a server that restarts begins another life.
//! - request: the caller's 64-bit id of work in flight on a node.
//! - sequence: the number of a message on its connection: 1, 2, 3 ...
//! - accepted: libzmq has taken the message. It is not delivered yet.
//! - acknowledged: the kernel at the other end of the TCP connection has acknowledged every byte of the message. "What
//!   arrived" below says what this is worth.
//! - unacknowledged: accepted, but not acknowledged when the connection ended. The peer may or may not have it.
//! - in flight: accepted, not acknowledged yet, and the connection lives.
//! - fence: a mark on an endpoint that forbids dialling it.
//! - manager: an independent set of endpoints, nodes, fences, events and settings. KVCONN_DEFAULT always exists.
//!
//! ## Errors
//!
//! A function that can fail returns a kvconn_status_t: KVCONN_OK (0) or a negative number. The numbers are frozen. The
//! last parameter, error, receives the details; it may be NULL. On an error nothing was done, nothing is left
//! half-done, and the out-parameters are zero, unless their description says otherwise. These are the exceptions:
//!
//! - KVCONN_PARTIAL of kvconn_send_batch and kvconn_send_batch_packed: some items may be accepted.
//! - KVCONN_PARTIAL of kvconn_node_connect: all endpoints are registered, and some may have a connection.
//! - KVCONN_TIMEOUT of kvconn_connect, kvconn_send_to and kvconn_send_packed_to: a dial that has begun goes on.
//! - KVCONN_TIMEOUT of kvconn_disconnect_all, kvconn_shutdown and kvconn_manager_destroy: everything has ended, but
//!   some message was not acknowledged, or some socket not closed, in time.
//! - KVCONN_TIMEOUT of kvconn_set_log: the log goes to the new function. Of kvconn_dump: the text is cut.
//!
//! These statuses are not repeated with each function:
//!
//! - KVCONN_STALE, if the function takes an id (m, conn, node) and it is 0, was never given out, or is forgotten.
//! - KVCONN_SHUTDOWN after kvconn_shutdown. Exceptions: kvconn_options_set, kvconn_set_log, kvconn_dump, and reading a
//!   report.
//! - KVCONN_INTERNAL for a defect in kvconn.
//!
//! KVCONN_INVALID is listed with its special reasons. Its common reasons are: a NULL where none is allowed, a text that
//! is not UTF-8 or longer than 4096 bytes, a timeout below -1, a misaligned pointer, and a KVCONN_ environment variable
//! that cannot be used. The message names the argument.
//!
//! ## Structs and enums
//!
//! A struct that kvconn fills begins with struct_size. Set it to sizeof the struct; the INIT macro behind each struct
//! does that. kvconn does not change it and writes no byte beyond it, so a program that was built with an older header
//! works with a newer library. A size smaller than the first version's is KVCONN_INVALID; a kvconn_error_t with such a
//! size is not filled. Texts in structs end with NUL. A text that is too long is cut between two characters.
//!
//! Each kvconn_..._t that stands for an enum is an int32_t, whatever the compiler makes of the enum. A cast lets the
//! compiler check a switch, and lets gdb print the name: switch ((enum kvconn_event_kind)event.kind). A newer library
//! may return other numbers; keep a default path after the switch.
//!
//! ## Ownership
//!
//! Inputs (texts, frames, options) are read only during the call. Exception: kvconn_send_owned keeps its buffers until
//! it releases them. A returned text is static, or lives as long as its object. Objects (options, failure reports)
//! belong to the caller: free each once. Freeing NULL does nothing. Ids are plain numbers, never reused; they need no
//! freeing. Out-parameters must not be NULL, unless the description allows it.
//!
//! ## Threads
//!
//! Every function may be called from any thread at any time, even while other threads wait in calls on the same
//! connection. A disconnect or a failure wakes those threads and gives them the reason. Exceptions: while one thread
//! changes or frees a kvconn_options_t, or frees a kvconn_failure_t, no other thread may use it. Do not call kvconn
//! from a signal handler. One thread's messages to one connection stay in order. kvconn's own threads block all
//! signals. They run no code of the caller, except the log function and the release functions of kvconn_send_owned. A
//! thread that calls kvconn needs a stack of at least 64 KiB, plus what its own code uses.
//!
//! ## Timeouts
//!
//! Timeouts are milliseconds on the monotonic clock. 0 does not wait. KVCONN_DEFAULT_TIMEOUT (-1) is the option
//! send_timeout_ms, unless the function names another default. There is no infinite wait: more than a year counts as a
//! year. Signals do not end a wait. A timeout bounds waiting; copying the frames takes additional time.
//!
//! ## Which send
//!
//! - kvconn_send takes a connection id. Use it for messages that depend on what this peer got before, such as metadata
//!   after a registration. It never reaches another life of the peer.
//! - kvconn_send_to takes an endpoint. Use it for messages that stand alone, such as a status or an abort.
//! - kvconn_send_batch sends to many ranks at once: kvconn_send on each of many connections, in parallel.
//!
//! ## What arrived
//!
//! When a connection ends, kvconn reports the last acknowledged sequence. Messages after it, up to the last accepted
//! one, are unacknowledged. Send them again if you need at-least-once delivery; the peer may then get some of them
//! twice.
//!
//! Acknowledged means that the kernel at the other end of our TCP connection had every byte. Three things can still go
//! wrong:
//!
//! - A proxy, sidecar or port-forward in between acknowledges in the peer's place. The peer may never get the message.
//! - The peer may reject what it has read, for example a message above its ZMQ_MAXMSGSIZE.
//! - The peer must still read it. It can do so if the connection ended by FIN (KVCONN_ENDED_FIN), the peer still lives,
//!   and it keeps reading. Data in its kernel is lost if the peer is killed, or closes its socket before it has read
//!   everything, and may be lost after a reset or a timeout. A peer that leaves without loss half-closes, reads to the
//!   end, and then exits. A libzmq peer does so only without a bound on its queue (ZMQ_RCVHWM 0): with a full queue,
//!   libzmq drops what its kernel holds once both sides have closed.
//!
//! After kvconn's own disconnect the kernel may still deliver unacknowledged bytes. The count is KVCONN_UNKNOWN where
//! the platform cannot tell: on ipc endpoints, with the option acknowledgement=off, and on kernels before 4.1.
//! docs/limits.md says how exact the count is with peers that send ZMTP heartbeats.
//!
//! kvconn_flush waits until messages are acknowledged. If you need the final counts at the end of the process, call
//! kvconn_disconnect_all first: they stay readable until kvconn_shutdown.
//!
//! ## When an endpoint is dialled
//!
//! kvconn dials only inside a call. What a call does depends on how the last connection ended:
//!
//! ```text
//! how the last connection ended      kvconn_send_to         kvconn_connect         lifted by
//! ---------------------------------  ---------------------  ---------------------  --------------------------
//! never seen, PEER_LOST,             dials (backoff)        dials (backoff)        nothing to lift
//!   CONNECT_FAILED, EVICTED,
//!   kvconn_disconnect
//! kvconn_disconnect_endpoint,        DISCONNECTED, no dial  dials, lifts           kvconn_connect, registration
//!   kvconn_disconnect_all,
//!   kvconn_node_remove_endpoints,
//!   kvconn_node_set_endpoints
//! kvconn_handle_failure              NODE_FAILED, no dial   NODE_FAILED, no dial   registration in a live node,
//!                                                                                  nothing else
//! ```
//!
//! Registration is kvconn_node_add_endpoints or kvconn_node_connect; kvconn_node_set_endpoints, for what the node does
//! not own yet.
//!
//! Backoff: after a failed dial, kvconn_connect and kvconn_send_to return KVCONN_BACKOFF at once, until a step is over.
//! A step is 100 ms, and doubles with each failure up to 2 s (options backoff_ms, backoff_max_ms). retry_after_ms says
//! when to call again; os_errno says why the dial failed. A dial that was given up counts as a failed one. So does a
//! connection that is lost within one backoff step of READY, so a peer that accepts and closes at once is not redialled
//! in a tight loop. Registering an endpoint in a new life of its node resets the steps. One dial tries every address of
//! a name within connect_timeout_ms.
//!
//! ## A full connection
//!
//! A connection is full when libzmq's queue is full (option send_hwm, in messages), or when max_queued_bytes (256 MiB)
//! are in flight. A larger single message is accepted when nothing else is in flight. All connections of the process
//! share max_total_queued_bytes (2 GiB); a send beyond that returns KVCONN_LIMIT at once.
//!
//! A send to a full connection waits until its deadline, and then returns KVCONN_TIMEOUT. If nothing has moved for T ms
//! (T = timeout_ms of this send), it returns KVCONN_STALLED without waiting again. After a KVCONN_TIMEOUT, later sends
//! with the same or a shorter timeout return KVCONN_TIMEOUT at once, until something moves; a send that is already
//! waiting goes on waiting. So a stuck peer costs one timeout, not one for each message. In a loop that sends again,
//! pause after an error. With timeout 0 a full connection is always KVCONN_TIMEOUT. For a moment this can also be a peer
//! that has just died, where kvconn cannot ask the kernel: on ipc endpoints, and with acknowledgement=off.
//!
//! ## Idle connections
//!
//! The options idle_timeout_ms and evict_idle close idle connections, which end as EVICTED. A connection with an
//! unacknowledged message is never evicted. The endpoint is not fenced: the next kvconn_send_to or kvconn_connect dials.
//!
//! ## fork and exit
//!
//! A forked child starts empty: ids of the parent are KVCONN_STALE there, new connects work, and the parent is
//! undisturbed. The child also holds the parent's descriptors until it calls exec or ends. If the parent dies before
//! that, its peers do not notice, because the child keeps the sockets open. So fork before the first connection, or
//! call exec. A child that does neither should close the descriptors that it does not need before it calls kvconn, for
//! example with close_range(3, ~0U, 0).
//!
//! A program may return from main or exit at any time. Exception: release functions that touch what exit destroys; call
//! kvconn_shutdown first. kvconn installs no signal handler and no exit hook that waits. dlclose is safe and unloads
//! nothing.

// C names are used as they are, so that one search finds both sides. The chapters above and each parameter say what a
// pointer must satisfy, so there are no "Safety" sections.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]
// The comments are written for the header, in doxygen's words.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod guard;
mod pointers;
mod recent;
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
