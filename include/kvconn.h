/* kvconn.h: the outbound ZeroMQ connections of LLM inference engines, as a C ABI shared library.
 * SPDX-License-Identifier: Apache-2.0
 * Made from src/capi/ by `make bless`; change it there. */
#ifndef KVCONN_H
#define KVCONN_H

#include <stddef.h>
#include <stdint.h>

/* == At a glance ======================================================================================================
 *
 * kvconn keeps the outbound ZeroMQ connections of an LLM inference engine: one cached PUSH socket for each remote
 * rank. The peer is an ordinary libzmq PULL socket that knows nothing of kvconn. Four calls do the main job:
 *
 *     // Returns the connection to "tcp://host:port" or "ipc://path"; dials if there is none.
 *     kvconn_status_t kvconn_connect(kvconn_manager_t m, const char *endpoint, const kvconn_options_t *options,
 *                                    int64_t wait_ms, kvconn_conn_t *conn, kvconn_error_t *error);
 *     // Sends one message, whole or not at all. An error means: not accepted, now or later.
 *     kvconn_status_t kvconn_send(kvconn_conn_t conn, const kvconn_frame_t *frames, size_t frame_count,
 *                                 int64_t timeout_ms, uint64_t *sequence, kvconn_error_t *error);
 *     // Ends the connection and forbids new dials. Never waits; threads blocked in a send return at once.
 *     kvconn_status_t kvconn_disconnect_endpoint(kvconn_manager_t m, const char *endpoint, kvconn_error_t *error);
 *     // A remote instance died: ends all its connections in one step, and reports its requests in flight.
 *     kvconn_status_t kvconn_handle_failure(kvconn_node_t node, const char *reason, kvconn_failure_t **failure,
 *                                           kvconn_error_t *error);
 *
 * Everything else:
 *
 *     Messages       kvconn_send_to                send to an endpoint, whichever life of the peer is there
 *                    kvconn_send_packed            kvconn_send with all frames in one buffer
 *                    kvconn_send_packed_to         kvconn_send_to with all frames in one buffer
 *                    kvconn_send_batch             one message to each of many connections, under one deadline
 *                    kvconn_send_batch_packed      kvconn_send_batch with flat arrays and one buffer
 *                    kvconn_send_owned             send without copying
 *                    kvconn_wait_released          wait until the buffers of kvconn_send_owned are free again
 *                    kvconn_flush                  wait until messages are acknowledged
 *     Connections    kvconn_disconnect             end one connection; the next kvconn_send_to dials again
 *                    kvconn_disconnect_all         end everything in a manager
 *                    kvconn_connection_info        state, counts and end of a connection
 *                    kvconn_connections            list the live connections
 *                    kvconn_find                   find the live connection to an endpoint
 *     Nodes          kvconn_node_open              begin the life of a remote instance
 *                    kvconn_node_add_endpoints     register its endpoints
 *                    kvconn_node_remove_endpoints  take endpoints away from it
 *                    kvconn_node_set_endpoints     make these its endpoints: registers new ones, takes others away
 *                    kvconn_node_connect           register endpoints and connect to all, under one deadline
 *                    kvconn_node_track_request     note that a request is in flight on it
 *                    kvconn_node_untrack_request   note that the request is done
 *                    kvconn_node_report_health     report a health probe; some failures in a row fail the node
 *                    kvconn_node_find              find the live node of a name
 *                    kvconn_node_info              state and counts of a node
 *     Failures       kvconn_take_failure           wait for a failure report that no call returned
 *                    kvconn_failure_node, kvconn_failure_name, kvconn_failure_reason, kvconn_failure_time_ms
 *                    kvconn_failure_endpoint_count, kvconn_failure_endpoints, kvconn_failure_request_count,
 *                    kvconn_failure_requests, kvconn_failure_free                read a report, and free it
 *     Events         kvconn_next_event             take the next event: READY, PEER_LOST, STALLED ...
 *                    kvconn_event_name             the name of an event kind
 *                    kvconn_event_fd               a descriptor for poll or epoll
 *     Settings       kvconn_options_new, kvconn_options_set, kvconn_options_free      a set of options
 *                    kvconn_configure              change a manager's settings
 *     Managers       kvconn_manager_create, kvconn_manager_destroy                    an independent set of endpoints
 *                    kvconn_shutdown               end kvconn in this process
 *     Observing      kvconn_describe               describe a manager as text
 *                    kvconn_metrics_text           metrics for Prometheus
 *                    kvconn_dump                   describe everything from a debugger
 *                    kvconn_set_log                send the log to a function
 *     Library        kvconn_version, kvconn_abi_version, kvconn_has                   what was loaded
 *                    kvconn_status_name, kvconn_strerror, kvconn_status_errno         name, meaning and errno of a status
 *
 * == Example ==
 *
 * A node with one endpoint, a message, and what to do when the peer dies.
 *
 *     // Read an error before the next call: every call overwrites it, and a success clears it.
 *     kvconn_error_t error = KVCONN_ERROR_INIT;
 *     kvconn_node_t node;
 *     kvconn_conn_t conn;
 *     const char *const endpoints[] = {"tcp://10.0.0.7:5557"};
 *     if (kvconn_node_open(KVCONN_DEFAULT, "prefill-0", &node, NULL, &error) != KVCONN_OK ||
 *         kvconn_node_add_endpoints(node, endpoints, 1, NULL, &error) != KVCONN_OK ||
 *         kvconn_node_track_request(node, 17, &error) != KVCONN_OK ||
 *         kvconn_connect(KVCONN_DEFAULT, endpoints[0], NULL, 3000, &conn, &error) != KVCONN_OK) {
 *         fprintf(stderr, "%s: %s\n", kvconn_status_name(error.status), error.message);
 *         return 1;
 *     }
 *     const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
 *     const kvconn_status_t status = kvconn_send(conn, frames, 2, KVCONN_DEFAULT_TIMEOUT, NULL, &error);
 *     if (status != KVCONN_OK) { // Not accepted: the message can be sent again, here or to another node.
 *         fprintf(stderr, "%s: %s\n", kvconn_status_name(error.status), error.message);
 *     }
 *     if (status == KVCONN_PEER_LOST) { // The rank is gone: fail its whole node.
 *         kvconn_failure_t *failure = NULL;
 *         uint64_t requests[64];
 *         size_t count = 0;
 *         if (kvconn_handle_failure(node, error.message, &failure, NULL) == KVCONN_OK &&
 *             kvconn_failure_requests(failure, requests, 64, &count, NULL) == KVCONN_OK) {
 *             printf("%zu requests were in flight; the first is %llu\n", count, (unsigned long long)requests[0]);
 *         }
 *         kvconn_failure_free(failure);
 *     }
 *
 * The long text begins here: what the words mean, and the rules that hold for every call.
 *
 * == Words ==
 *
 * - endpoint: where a peer rank listens, "tcp://host:port" or "ipc://path". Different spellings of one address are one
 *   endpoint. A name and its address are two endpoints.
 * - connection: one PUSH socket to one endpoint, from its dial to its end (kvconn_conn_t). A redial makes a new one.
 * - node: one life of a peer instance, such as one run of a prefill server, named by a kvconn_node_t. It owns
 *   endpoints and requests. A life is one run, from start to end: a server that restarts begins another life.
 * - request: the caller's 64-bit id of work in flight on a node.
 * - sequence: the number of a message on its connection: 1, 2, 3 ...
 * - accepted: libzmq has taken the message. It is not delivered yet.
 * - acknowledged: the kernel at the other end of the TCP connection has acknowledged every byte of the message. "What
 *   arrived" below says what this is worth.
 * - unacknowledged: accepted, but not acknowledged when the connection ended. The peer may or may not have it.
 * - in flight: accepted, not acknowledged yet, and the connection lives.
 * - fence: a mark on an endpoint that forbids dialling it.
 * - manager: an independent set of endpoints, nodes, fences, events and settings. KVCONN_DEFAULT always exists.
 *
 * == Errors ==
 *
 * A function that can fail returns a kvconn_status_t: KVCONN_OK (0) or a negative number. The numbers are frozen. The
 * last parameter, error, receives the details; it may be NULL. On an error nothing was done, nothing is left
 * half-done, and the out-parameters are zero, unless their description says otherwise. These are the exceptions:
 *
 * - KVCONN_PARTIAL of kvconn_send_batch and kvconn_send_batch_packed: some items may be accepted.
 * - KVCONN_PARTIAL of kvconn_node_connect: all endpoints are registered, and some may have a connection.
 * - KVCONN_TIMEOUT of kvconn_connect, kvconn_send_to and kvconn_send_packed_to: a dial that has begun goes on.
 * - KVCONN_TIMEOUT of kvconn_disconnect_all, kvconn_shutdown and kvconn_manager_destroy: everything has ended, but
 *   some message was not acknowledged, or some socket not closed, in time.
 * - KVCONN_TIMEOUT of kvconn_set_log: the log goes to the new function. Of kvconn_dump: the text is cut.
 *
 * These statuses are not repeated with each function:
 *
 * - KVCONN_STALE, if the function takes an id (m, conn, node) and it is 0, was never given out, or is forgotten.
 * - KVCONN_SHUTDOWN after kvconn_shutdown. Exceptions: kvconn_options_set, kvconn_set_log, kvconn_dump, and reading a
 *   report.
 * - KVCONN_INTERNAL for a defect in kvconn.
 *
 * KVCONN_INVALID is listed with its special reasons. Its common reasons are: a NULL where none is allowed, a text that
 * is not UTF-8 or longer than 4096 bytes, a timeout below -1, a misaligned pointer, and a KVCONN_ environment variable
 * that cannot be used. The message names the argument.
 *
 * == Structs and enums ==
 *
 * A struct that kvconn fills begins with struct_size. Set it to sizeof the struct; the INIT macro behind each struct
 * does that. kvconn does not change it and writes no byte beyond it, so a program that was built with an older header
 * works with a newer library. A size smaller than the first version's is KVCONN_INVALID; a kvconn_error_t with such a
 * size is not filled. Texts in structs end with NUL. A text that is too long is cut between two characters.
 *
 * Each kvconn_..._t that stands for an enum is an int32_t, whatever the compiler makes of the enum. A cast lets the
 * compiler check a switch, and lets gdb print the name: switch ((enum kvconn_event_kind)event.kind). A newer library
 * may return other numbers; keep a default path after the switch.
 *
 * == Ownership ==
 *
 * Inputs (texts, frames, options) are read only during the call. Exception: kvconn_send_owned keeps its buffers until
 * it releases them. A returned text is static, or lives as long as its object. Objects (options, failure reports)
 * belong to the caller: free each once. Freeing NULL does nothing. Ids are plain numbers, never reused; they need no
 * freeing. Out-parameters must not be NULL, unless the description allows it.
 *
 * == Threads ==
 *
 * Every function may be called from any thread at any time, even while other threads wait in calls on the same
 * connection. A disconnect or a failure wakes those threads and gives them the reason. Exceptions: while one thread
 * changes or frees a kvconn_options_t, or frees a kvconn_failure_t, no other thread may use it. Do not call kvconn
 * from a signal handler. One thread's messages to one connection stay in order. kvconn's own threads block all
 * signals. They run no code of the caller, except the log function and the release functions of kvconn_send_owned. A
 * thread that calls kvconn needs a stack of at least 64 KiB, plus what its own code uses.
 *
 * == Timeouts ==
 *
 * Timeouts are milliseconds on the monotonic clock. 0 does not wait. KVCONN_DEFAULT_TIMEOUT (-1) is the option
 * send_timeout_ms, unless the function names another default. There is no infinite wait: more than a year counts as a
 * year. Signals do not end a wait. A timeout bounds waiting; copying the frames takes additional time.
 *
 * == Which send ==
 *
 * - kvconn_send takes a connection id. Use it for messages that depend on what this peer got before, such as metadata
 *   after a registration. It never reaches another life of the peer.
 * - kvconn_send_to takes an endpoint. Use it for messages that stand alone, such as a status or an abort.
 * - kvconn_send_batch sends to many ranks at once: kvconn_send on each of many connections, in parallel.
 *
 * == What arrived ==
 *
 * When a connection ends, kvconn reports the last acknowledged sequence. Messages after it, up to the last accepted
 * one, are unacknowledged. Send them again if you need at-least-once delivery; the peer may then get some of them
 * twice.
 *
 * Acknowledged means that the kernel at the other end of our TCP connection had every byte. Three things can still go
 * wrong:
 *
 * - A proxy, sidecar or port-forward in between acknowledges in the peer's place. The peer may never get the message.
 * - The peer may reject what it has read, for example a message above its ZMQ_MAXMSGSIZE.
 * - The peer must still read it. It can do so if the connection ended by FIN (KVCONN_ENDED_FIN), the peer still lives,
 *   and it keeps reading. Data in its kernel is lost if the peer is killed, or closes its socket before it has read
 *   everything, and may be lost after a reset or a timeout. A peer that leaves without loss half-closes, reads to the
 *   end, and then exits. A libzmq peer does so only without a bound on its queue (ZMQ_RCVHWM 0): with a full queue,
 *   libzmq drops what its kernel holds once both sides have closed.
 *
 * After kvconn's own disconnect the kernel may still deliver unacknowledged bytes. The count is KVCONN_UNKNOWN where
 * the platform cannot tell: on ipc endpoints, with the option acknowledgement=off, and on kernels before 4.1.
 * docs/limits.md says how exact the count is with peers that send ZMTP heartbeats.
 *
 * kvconn_flush waits until messages are acknowledged. If you need the final counts at the end of the process, call
 * kvconn_disconnect_all first: they stay readable until kvconn_shutdown.
 *
 * == When an endpoint is dialled ==
 *
 * kvconn dials only inside a call. What a call does depends on how the last connection ended:
 *
 *     how the last connection ended      kvconn_send_to         kvconn_connect         lifted by
 *     ---------------------------------  ---------------------  ---------------------  --------------------------
 *     never seen, PEER_LOST,             dials (backoff)        dials (backoff)        nothing to lift
 *       CONNECT_FAILED, EVICTED,
 *       kvconn_disconnect
 *     kvconn_disconnect_endpoint,        DISCONNECTED, no dial  dials, lifts           kvconn_connect, registration
 *       kvconn_disconnect_all,
 *       kvconn_node_remove_endpoints,
 *       kvconn_node_set_endpoints
 *     kvconn_handle_failure              NODE_FAILED, no dial   NODE_FAILED, no dial   registration in a live node,
 *                                                                                      nothing else
 *
 * Registration is kvconn_node_add_endpoints or kvconn_node_connect; kvconn_node_set_endpoints, for what the node does
 * not own yet.
 *
 * Backoff: after a failed dial, kvconn_connect and kvconn_send_to return KVCONN_BACKOFF at once, until a step is over.
 * A step is 100 ms, and doubles with each failure up to 2 s (options backoff_ms, backoff_max_ms). retry_after_ms says
 * when to call again; os_errno says why the dial failed. A dial that was given up counts as a failed one. So does a
 * connection that is lost within one backoff step of READY, so a peer that accepts and closes at once is not redialled
 * in a tight loop. Registering an endpoint in a new life of its node resets the steps. One dial tries every address of
 * a name within connect_timeout_ms.
 *
 * == A full connection ==
 *
 * A connection is full when libzmq's queue is full (option send_hwm, in messages), or when max_queued_bytes (256 MiB)
 * are in flight. A larger single message is accepted when nothing else is in flight. All connections of the process
 * share max_total_queued_bytes (2 GiB); a send beyond that returns KVCONN_LIMIT at once.
 *
 * A send to a full connection waits until its deadline, and then returns KVCONN_TIMEOUT. If nothing has moved for T ms
 * (T = timeout_ms of this send), it returns KVCONN_STALLED without waiting again. After a KVCONN_TIMEOUT, later sends
 * with the same or a shorter timeout return KVCONN_TIMEOUT at once, until something moves; a send that is already
 * waiting goes on waiting. So a stuck peer costs one timeout, not one for each message. In a loop that sends again,
 * pause after an error. With timeout 0 a full connection is always KVCONN_TIMEOUT. For a moment this can also be a peer
 * that has just died, where kvconn cannot ask the kernel: on ipc endpoints, and with acknowledgement=off.
 *
 * == Idle connections ==
 *
 * The options idle_timeout_ms and evict_idle close idle connections, which end as EVICTED. A connection with an
 * unacknowledged message is never evicted. The endpoint is not fenced: the next kvconn_send_to or kvconn_connect dials.
 *
 * == fork and exit ==
 *
 * A forked child starts empty: ids of the parent are KVCONN_STALE there, new connects work, and the parent is
 * undisturbed. The child also holds the parent's descriptors until it calls exec or ends. If the parent dies before
 * that, its peers do not notice, because the child keeps the sockets open. So fork before the first connection, or
 * call exec. A child that does neither should close the descriptors that it does not need before it calls kvconn, for
 * example with close_range(3, ~0U, 0).
 *
 * A program may return from main or exit at any time. Exception: release functions that touch what exit destroys; call
 * kvconn_shutdown first. kvconn installs no signal handler and no exit hook that waits. dlclose is safe and unloads
 * nothing.
 */

/** The version of this header; kvconn_version() is that of the library. */
#define KVCONN_VERSION "0.1.0"
#define KVCONN_VERSION_MAJOR 0 /**< The first number of KVCONN_VERSION. */
#define KVCONN_VERSION_MINOR 1 /**< The second number. */
#define KVCONN_VERSION_PATCH 0 /**< The third number. */

/** Marks functions whose result must not be ignored. Define it empty before including this header to disable it. */
#ifndef KVCONN_NODISCARD
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L)
#define KVCONN_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define KVCONN_NODISCARD __attribute__((warn_unused_result))
#else
#define KVCONN_NODISCARD
#endif
#endif

/** Makes int32_t the underlying type of the enums in C++, where a number that a newer library adds would else be undefined. */
#ifdef __cplusplus
#define KVCONN_INT32 : int32_t
#else
#define KVCONN_INT32
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* == Basic types and errors ===========================================================================================
 */

#define KVCONN_DEFAULT 0 /**< The process's own manager. */

/** As a timeout: the option send_timeout_ms, unless the function names another default. */
#define KVCONN_DEFAULT_TIMEOUT (-1)

#define KVCONN_UNKNOWN UINT64_MAX /**< As a count of acknowledged messages: unknown. */
#define KVCONN_ENDPOINT_SIZE 264 /**< The size in bytes of an array for the text of any endpoint, with its NUL. */
#define KVCONN_TEXT_SIZE 256 /**< The size in bytes of an array for any node name or message, with its NUL. */

/** The result of a call: KVCONN_OK or a negative number. docs/status.md shows these as a table. */
enum kvconn_status KVCONN_INT32 {
    KVCONN_OK = 0, /**< Done. */
    /** An argument is not valid. Nothing was done. To do: Fix the argument named in the message. */
    KVCONN_INVALID = -1,
    /** The id is 0, was never given out, belongs to a destroyed manager or to the process before a fork, or ended
     * too long ago to be remembered. To do: Get a current id: kvconn_connect, kvconn_find, kvconn_node_open or
     * kvconn_node_find. */
    KVCONN_STALE = -2,
    /** It does not exist now: no connection to that endpoint, or no live node of that name. To do: Connect or open
     * it, if it should exist. */
    KVCONN_NOT_FOUND = -3,
    /** The call's deadline passed. A send returns it at once if an earlier send with the same or a longer timeout
     * ran out here and nothing has moved since. A send was not accepted; a dial goes on. To do: Try again after a
     * pause, or treat the peer as slow. */
    KVCONN_TIMEOUT = -4,
    /** The queue to the peer is full and made no progress for at least this call's own timeout, or the dial has had
     * no answer for so long. The call did not wait longer. To do: Treat the peer as stuck: use another one, or
     * disconnect it. The event RECOVERED reports that it makes progress again. */
    KVCONN_STALLED = -5,
    /** Less than one backoff step ago the last dial failed or was given up, or its connection was lost within one
     * backoff step of READY. This call did not dial. To do: Try again after retry_after_ms. os_errno and the
     * message say why the dial failed. */
    KVCONN_BACKOFF = -6,
    /** The dial failed: refused, unreachable, name not resolved, timed out, or the peer is not a ZeroMQ PULL socket.
     * To do: Read the message. Try again later, or report the node unhealthy. */
    KVCONN_CONNECT_FAILED = -7,
    /** The connection was READY and has ended: the peer closed it, died, or stopped answering. To do: Connect to its
     * next life, or report the node failed. */
    KVCONN_PEER_LOST = -8,
    /** This process ended the connection. If it did so by endpoint, the endpoint is fenced: nothing is dialled. To
     * do: Call kvconn_connect, or register the endpoint in a live node, if you need it again. */
    KVCONN_DISCONNECTED = -9,
    /** This life of the node has ended. The endpoints that it alone owned are fenced. To do: Open the node again,
     * and register its endpoints in the new life. */
    KVCONN_NODE_FAILED = -10,
    /** The options differ from those of the live connection, or a setting can no longer be changed. To do: Pass NULL
     * to use the live connection, or disconnect it first. */
    KVCONN_CONFLICT = -11,
    /** A limit is reached. The message names it and its current value. Nothing was created. To do: Raise the limit,
     * or end something. */
    KVCONN_LIMIT = -12,
    /** kvconn_shutdown was called: kvconn has ended in this process for good. To do: Stop calling kvconn. */
    KVCONN_SHUTDOWN = -13,
    /** kvconn or libzmq is in a state that should not exist. The message says where. To do: Report it as a defect,
     * with the message. */
    KVCONN_INTERNAL = -14,
    /** Not possible here: on this kind of endpoint, with these options, or on this platform. To do: Work without it.
     * The message says what is missing. */
    KVCONN_UNSUPPORTED = -15,
    /** Some items of the call failed, or all: messages of a batch, or endpoints of kvconn_node_connect. The others
     * succeeded. To do: Check the status of each item. To send the failed messages again, set conn to 0 for those
     * that are OK. */
    KVCONN_PARTIAL = -16,
    /** The call would wait for its own thread: a release function waits for a later release. To do: Return from the
     * release function first, or wait on another thread. */
    KVCONN_WOULD_DEADLOCK = -17,
    /** The connection was idle, with all messages acknowledged, and was closed to free its descriptors. To do:
     * Connect again: nothing is fenced, and nothing was lost. */
    KVCONN_EVICTED = -18,
};
typedef int32_t kvconn_status_t;

/** How far an error reaches: what is affected. */
enum kvconn_scope KVCONN_INT32 {
    KVCONN_SCOPE_NONE = 0, /**< No error. */
    KVCONN_SCOPE_CALL = 1, /**< This call only: its arguments, or what it asks for. */
    KVCONN_SCOPE_PEER = 2, /**< This endpoint only. */
    KVCONN_SCOPE_NODE = 3, /**< The endpoints that this life of the node alone owned. */
    KVCONN_SCOPE_PROCESS = 4, /**< The whole process, or the manager. */
};
typedef int32_t kvconn_scope_t;
/* An id is a number. If KVCONN_STRICT_IDS is defined before this header is included, ids are pointers to different
 * structs instead: the compiler then rejects a node where a connection is expected. See docs/guide.md, "Ids". */
#if !defined(KVCONN_STRICT_IDS) || UINTPTR_MAX != UINT64_MAX
/** A manager. KVCONN_DEFAULT is the process's own manager, which always exists. */
typedef uint64_t kvconn_manager_t;
/** A connection: one PUSH socket to one endpoint, from its dial to its end. Never reused; 0 is none. */
typedef uint64_t kvconn_conn_t;
/** A node: one life of a peer instance. Never reused; 0 is none. */
typedef uint64_t kvconn_node_t;
#else
typedef struct kvconn_manager_id *kvconn_manager_t;
typedef struct kvconn_conn_id *kvconn_conn_t;
typedef struct kvconn_node_id *kvconn_node_t;
#endif

/** The details of an error; start it with KVCONN_ERROR_INIT. Every call that gets it overwrites it: read it before the
 * next call. A successful call sets the numbers to 0 and the texts to "". */
typedef struct kvconn_error_t {
    uint32_t struct_size; /**< sizeof(kvconn_error_t), set by the caller. */
    kvconn_status_t status; /**< The status that the call returned. */
    /** The operating system's errno, or else that of the status (kvconn_status_errno). Never 0 in an error. */
    int32_t os_errno;
    kvconn_scope_t scope; /**< What is affected. */
    /** 1 if the same endpoint may be tried again without a change by the caller, else 0. A call with the id of an ended
     * connection never succeeds: get a new id with kvconn_connect. */
    int32_t retriable;
    /** Milliseconds until the endpoint may be dialled again. 0: now, or not known. The next kvconn_connect may still
     * return KVCONN_BACKOFF. */
    int32_t retry_after_ms;
    kvconn_conn_t conn; /**< The connection that the error is about, or 0. */
    char endpoint[KVCONN_ENDPOINT_SIZE]; /**< The endpoint that the error is about, or "". */
    char message[KVCONN_TEXT_SIZE]; /**< One line for a person: what happened, and with what. */
} kvconn_error_t;
/** An empty kvconn_error_t with its struct_size set. */
#define KVCONN_ERROR_INIT {sizeof(kvconn_error_t), 0, 0, 0, 0, 0, 0, {0}, {0}}

/* == The library ======================================================================================================
 *
 * Which library was loaded, and what its statuses mean. These functions never fail, and work at any time.
 */

#define KVCONN_ABI_VERSION 0 /**< The number of the C ABI that this header describes. */

/** The version of the loaded library, as "major.minor.patch". KVCONN_VERSION is the version of the header.
 * @return a static text. */
const char *kvconn_version(void);

/** The number of the loaded library's C ABI, which is also in its SONAME. Do not use a library whose number differs
 * from the KVCONN_ABI_VERSION that the program was built with.
 * @return the number. */
int32_t kvconn_abi_version(void);

/** Says whether the loaded library has a feature, as it was built and on this machine: "curve" (encrypted connections),
 * "ipc" (ipc:// endpoints), "keepalive" (TCP keepalive takes effect), "user_timeout" (TCP_USER_TIMEOUT takes effect),
 * "acknowledgement" (acknowledged messages are counted), "out_batch" (small messages leave in large writes).
 * @param feature the name of the feature. NULL and unknown names return 0.
 * @return 1 or 0. */
int32_t kvconn_has(const char *feature);

/** The meaning of a status, in one sentence. The message in a kvconn_error_t says more about the case.
 * @param status any number.
 * @return a static text; "unknown status" if the number is not a status. */
const char *kvconn_strerror(kvconn_status_t status);

/** The errno of a status, for code that knows errnos only; docs/status.md lists them. A kvconn_error_t has it as its
 * os_errno if the operating system has given none.
 * @param status any number.
 * @return the errno; 0 for KVCONN_OK and for a number that is not a status. */
int32_t kvconn_status_errno(kvconn_status_t status);

/** The name of a status as in this header, such as "KVCONN_TIMEOUT".
 * @param status any number.
 * @return a static text; "unknown" if the number is not a status. */
const char *kvconn_status_name(kvconn_status_t status);

/* == Options ==========================================================================================================
 *
 * A setting has a name and a text value, so new settings need no new function. docs/options.md lists all settings with
 * units, ranges and defaults. kvconn takes the first value that it finds, in this order:
 *
 * 1. the options of the call,
 * 2. what the endpoint remembers from its last connect or registration, for each setting separately,
 * 3. what kvconn_configure set for the manager,
 * 4. the environment variable KVCONN_<NAME>,
 * 5. the default.
 *
 * CURVE encrypts a connection and proves that the peer holds the server's secret key. It needs curve_server_key, and
 * the client's curve_public_key and curve_secret_key. An endpoint with keys never falls back to plain: a plain peer is
 * CONNECT_FAILED, and a redial uses the keys again. curve_server_key "" asks for a plain connection; the option
 * require_curve forbids that. A failed dial has os_errno EACCES if the peer has another key or mechanism, or rejects
 * this client; EPROTO if it is not a PULL socket; ETIMEDOUT if it does not answer. No text, event or log line contains
 * a key.
 */

/** A set of options. It is empty at first: it overrides nothing. */
typedef struct kvconn_options_t kvconn_options_t;

/** Makes an empty set of options.
 * @return the set, never NULL. Free it with kvconn_options_free. */
kvconn_options_t *kvconn_options_new(void);

/** Sets one option. A second value for the same name replaces the first. Changes nothing on an error.
 * @param options the set to change.
 * @param name    the name of the option, such as "send_hwm".
 * @param value   the value as text: a number in digits, "0" or "1" for a flag, a word, an address, or a key in Z85. ""
 *     means no address, no interface or no key.
 * @retval KVCONN_OK      the option is set.
 * @retval KVCONN_INVALID there is no such option, or it does not take this value. The message says which values it
 *     takes. */
kvconn_status_t kvconn_options_set(kvconn_options_t *options, const char *name, const char *value,
                                   kvconn_error_t *error);

/** Frees a set of options. What was configured or connected with it stays.
 * @param options the set, or NULL. */
void kvconn_options_free(kvconn_options_t *options);

/** Changes a manager's settings. Settings of connections affect later dials only, and not endpoints that have options
 * of their own. Changes nothing on an error.
 * @param options the settings to change. The others stay as they are.
 * @retval KVCONN_OK       the settings are in force.
 * @retval KVCONN_INVALID  an option does not belong here, or two options contradict each other.
 * @retval KVCONN_CONFLICT a setting of the process was given to another manager than KVCONN_DEFAULT, or after the
 *     first connection. */
kvconn_status_t kvconn_configure(kvconn_manager_t m, const kvconn_options_t *options, kvconn_error_t *error);

/* == Managers and shutdown ============================================================================================
 *
 * Most programs need KVCONN_DEFAULT only. A separate manager keeps the endpoints, nodes, fences, events and settings
 * of one component apart from those of others. Managers share libzmq's threads and the limits of the process.
 */

/** Makes a manager.
 * @param options      its settings; NULL for the environment's and the defaults.
 * @param[out] manager the new manager. Destroy it with kvconn_manager_destroy.
 * @retval KVCONN_OK      the manager exists.
 * @retval KVCONN_INVALID an option does not belong to a manager, or two options contradict each other.
 * @retval KVCONN_LIMIT   a limit of the system is reached. The message names it. */
kvconn_status_t kvconn_manager_create(const kvconn_options_t *options, kvconn_manager_t *manager,
                                      kvconn_error_t *error);

/** Ends a manager. All its connections end, calls that wait in it return KVCONN_DISCONNECTED or KVCONN_STALE, and its
 * ids become KVCONN_STALE. Unsent messages are dropped; call kvconn_disconnect_all first to keep them. Failure reports
 * that were already taken stay valid.
 * @param m          the manager. KVCONN_DEFAULT cannot be destroyed.
 * @param timeout_ms how long to wait until libzmq has closed the sockets.
 * @retval KVCONN_OK      the manager is gone, and its descriptors are closed.
 * @retval KVCONN_INVALID m is KVCONN_DEFAULT.
 * @retval KVCONN_TIMEOUT the manager is gone. libzmq closes the rest of its sockets later. */
kvconn_status_t kvconn_manager_destroy(kvconn_manager_t m, int64_t timeout_ms, kvconn_error_t *error);

/** Ends everything in a manager, for a change of role: closes and fences all endpoints, and forgets all nodes without
 * failure reports. The manager stays usable: kvconn_connect or a registration lifts a fence.
 * @param flush_ms how long to wait until the peers have acknowledged all accepted messages (ipc: until libzmq has sent
 *     them). The rest is then dropped. 0 does not wait, and KVCONN_OK then says nothing about what arrived.
 * @retval KVCONN_OK      everything is closed, and each message was acknowledged (ipc: sent), unless its peer was
 *     gone.
 * @retval KVCONN_TIMEOUT everything is closed, but some message was not acknowledged (ipc: not sent) in time. */
kvconn_status_t kvconn_disconnect_all(kvconn_manager_t m, int64_t flush_ms, kvconn_error_t *error);

/** Ends kvconn in this process for good: closes all connections of all managers. From then on calls return
 * KVCONN_SHUTDOWN, and so do calls that wait now. Call it only at the end of main(). A library must not call it,
 * because other code may use kvconn too. A program may also just exit, unless release functions may still run that
 * touch what exit destroys.
 *
 * On KVCONN_OK all buffers of kvconn_send_owned are released. On KVCONN_TIMEOUT libzmq still holds some of them: do
 * not free or change those until the process ends.
 * @param flush_ms as for kvconn_disconnect_all.
 * @retval KVCONN_OK      everything is closed, and each message was acknowledged (ipc: sent), unless its peer was
 *     gone.
 * @retval KVCONN_TIMEOUT everything is closed, but some message was not acknowledged (ipc: not sent) in time. */
kvconn_status_t kvconn_shutdown(int64_t flush_ms, kvconn_error_t *error);

/* == Connections ======================================================================================================
 *
 * A manager has at most one live connection to an endpoint. It is CONNECTING until the peer's ZMTP handshake has
 * succeeded, and READY until it has ENDED. Later calls on its id return the reason of its end. A new connection to the
 * same endpoint has a new id.
 */

/** The state of a connection. */
enum kvconn_state KVCONN_INT32 {
    KVCONN_STATE_CONNECTING = 1, /**< Being dialled. */
    KVCONN_STATE_READY = 2, /**< The ZMTP handshake has succeeded. */
    KVCONN_STATE_ENDED = 3, /**< It has ended. */
};
typedef int32_t kvconn_state_t;

/** How a connection ended. This decides what an acknowledgement is worth; see "What arrived". */
enum kvconn_ended_by KVCONN_INT32 {
    KVCONN_ENDED_UNKNOWN = 0, /**< It has not ended, or the cause is unknown. */
    /** The peer's process closed the connection, exited or was killed, when its kernel held nothing unread. It says
     * nothing about whether the process still lives. Acknowledged messages are safe only if it goes on reading. */
    KVCONN_ENDED_FIN = 1,
    KVCONN_ENDED_RESET = 2, /**< The same, with unread data, which may be lost; or the network reset it. */
    KVCONN_ENDED_TIMEOUT = 3, /**< No answer from the peer's host. Data in its kernel may be lost. */
    KVCONN_ENDED_LOCAL = 4, /**< This process ended it. */
};
typedef int32_t kvconn_ended_by_t;

/** What is known about a connection; start it with KVCONN_CONNECTION_INFO_INIT. */
typedef struct kvconn_connection_info_t {
    uint32_t struct_size; /**< sizeof(kvconn_connection_info_t), set by the caller. */
    kvconn_state_t state; /**< Its state. */
    kvconn_status_t status; /**< KVCONN_OK while it lives, else why it ended. */
    int32_t os_errno; /**< The errno behind its end, or 0. */
    kvconn_conn_t conn; /**< The connection. */
    uint64_t accepted; /**< The number of accepted messages, which is also the sequence of the last one. */
    uint64_t acknowledged; /**< The sequence of the last acknowledged message, or KVCONN_UNKNOWN. */
    /** The buffers of kvconn_send_owned are the caller's again, for all messages up to this sequence. */
    uint64_t released;
    uint64_t queued_bytes; /**< Bytes on the wire in flight, which count against max_queued_bytes; 0 after its end. */
    uint32_t waiting; /**< The number of threads that wait in a send on it. */
    int32_t stalled; /**< 1 if messages are in flight and made no progress for stall_ms, else 0. */
    kvconn_ended_by_t ended_by; /**< How it ended. */
    uint32_t reserved; /**< Always 0. */
    int64_t age_ms; /**< Milliseconds since its dial began. */
    int64_t ready_ms; /**< Milliseconds for which it has been, or was, READY; 0 if it never was. */
    char endpoint[KVCONN_ENDPOINT_SIZE]; /**< The endpoint in its canonical form. */
    char message[KVCONN_TEXT_SIZE]; /**< One line for a person: how it ended, or "". */
} kvconn_connection_info_t;
/** An empty kvconn_connection_info_t with its struct_size set. */
#define KVCONN_CONNECTION_INFO_INIT {sizeof(kvconn_connection_info_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}}

/** Returns the live connection to an endpoint. Dials if there is none.
 *
 * With wait_ms 0 it returns at once, and the dial goes on; a send on the connection waits for it, within its own
 * timeout. Else it waits until the connection is READY or the dial has failed. With the option connect_retry it dials
 * again after each backoff step until wait_ms is over: for a start-up in which peers come up in any order. It lifts
 * the fence of a disconnect, but not the fence of kvconn_handle_failure. The endpoint remembers the options for all
 * later dials.
 * @param endpoint  "tcp://host:port" (an IPv6 address in brackets) or "ipc://path".
 * @param options   settings of this connection; NULL for those that the endpoint remembers, else the configured ones.
 * @param wait_ms   how long to wait until READY. KVCONN_DEFAULT_TIMEOUT: as long as one dial may take, which is
 *     connect_timeout_ms plus handshake_timeout_ms.
 * @param[out] conn the connection. Also set on KVCONN_TIMEOUT if the dial goes on; 0 if connect_retry waits for the
 *     next step, or if so many sockets to this endpoint are still being closed that no dial has begun.
 * @retval KVCONN_OK             the connection is READY; with wait_ms 0, it exists.
 * @retval KVCONN_INVALID        the endpoint is malformed or cannot be dialled (port 0, a wildcard address), or an
 *     option does not belong here.
 * @retval KVCONN_TIMEOUT        the connection was not READY in time. A dial that goes on is in conn.
 * @retval KVCONN_BACKOFF        the last dial failed a moment ago. Not dialled; call again after retry_after_ms.
 * @retval KVCONN_CONNECT_FAILED the dial failed; os_errno and the message say why.
 * @retval KVCONN_PEER_LOST      the connection was READY, and was lost before this call returned.
 * @retval KVCONN_DISCONNECTED   another thread disconnected it during the call.
 * @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed. Register it in a live node first.
 * @retval KVCONN_CONFLICT       the live connection has other options; the message names one.
 * @retval KVCONN_LIMIT          max_endpoints or the process's descriptors are used up; the message names the limit.
 * @retval KVCONN_EVICTED        the connection was READY, and was evicted before this call returned. */
KVCONN_NODISCARD
kvconn_status_t kvconn_connect(kvconn_manager_t m, const char *endpoint, const kvconn_options_t *options,
                               int64_t wait_ms, kvconn_conn_t *conn, kvconn_error_t *error);

/** Ends this connection, if it still lives. A newer connection to the same endpoint is not affected. Does not fence:
 * the next kvconn_send_to dials. Never waits: unsent messages are dropped. Threads that wait in calls on it return
 * KVCONN_DISCONNECTED.
 * @retval KVCONN_OK the connection has ended, now or before. */
kvconn_status_t kvconn_disconnect(kvconn_conn_t conn, kvconn_error_t *error);

/** Ends the live connection to an endpoint, and fences the endpoint: nothing is dialled there until kvconn_connect, or
 * registering it in a live node, lifts the fence. Never waits, even while other threads are blocked in sends to it: they
 * return KVCONN_DISCONNECTED. Unsent messages are dropped.
 * @param endpoint the endpoint in any spelling. An unknown endpoint is fenced too.
 * @retval KVCONN_OK      the endpoint is fenced, and has no connection.
 * @retval KVCONN_INVALID the endpoint is malformed. */
kvconn_status_t kvconn_disconnect_endpoint(kvconn_manager_t m, const char *endpoint, kvconn_error_t *error);

/** Returns what is known about a connection. The last 4096 ended connections of a manager are remembered.
 * @param[out] info what is known. Set its struct_size before the call.
 * @retval KVCONN_OK      info is filled; info->status says whether and why the connection has ended.
 * @retval KVCONN_INVALID info->struct_size is not set. */
kvconn_status_t kvconn_connection_info(kvconn_conn_t conn, kvconn_connection_info_t *info, kvconn_error_t *error);

/** Lists the live connections of a manager, oldest first.
 * @param[out] ids   the first of them, as many as fit. May be NULL if capacity is 0.
 * @param capacity   how many elements ids has.
 * @param[out] count how many connections there are. If this is more than capacity, call again with a larger array.
 * @retval KVCONN_OK ids and count are set, even if not all fit. */
kvconn_status_t kvconn_connections(kvconn_manager_t m, kvconn_conn_t *ids, size_t capacity, size_t *count,
                                   kvconn_error_t *error);

/** Finds the live connection to an endpoint, CONNECTING or READY. Never dials.
 * @param endpoint  the endpoint in any spelling.
 * @param[out] conn the connection.
 * @retval KVCONN_OK        there is one.
 * @retval KVCONN_INVALID   the endpoint is malformed.
 * @retval KVCONN_NOT_FOUND there is none now. */
kvconn_status_t kvconn_find(kvconn_manager_t m, const char *endpoint, kvconn_conn_t *conn, kvconn_error_t *error);

/* == Messages =========================================================================================================
 *
 * A message is one or more frames of any size, also 0. It is accepted whole or not at all. kvconn copies it: the
 * frames are the caller's again when the call returns. An error means that the message was not accepted, now or later,
 * so sending it again cannot duplicate it. No message is accepted before the handshake of its connection has
 * succeeded: a send to a connection that is CONNECTING waits for READY, within its own timeout.
 *
 * == Statuses that all sends share ==
 *
 *     KVCONN_OK             the message is accepted. It is queued after this thread's earlier messages.
 *     KVCONN_INVALID        there is no frame, or too many, or a frame's data is NULL and its size is not 0.
 *     KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline; or another send has waited
 *                           so long before, and nothing has moved since. This call did not wait then.
 *     KVCONN_STALLED        the connection is full, and nothing has moved for at least timeout_ms; or it has been
 *                           CONNECTING for so long. The call did not wait longer. Never with timeout 0.
 *     KVCONN_CONNECT_FAILED the dial failed.
 *     KVCONN_PEER_LOST      the peer is gone.
 *     KVCONN_DISCONNECTED   this process ended the connection, before or during the call.
 *     KVCONN_NODE_FAILED    the node of the endpoint failed, before or during the call.
 *     KVCONN_LIMIT          max_total_queued_bytes is used up, or there is no memory. The message says which.
 */

#define KVCONN_MAX_FRAMES 65536 /**< The largest number of frames in one message. */

/** One frame of a message. */
typedef struct kvconn_frame_t {
    const void *data; /**< Its bytes; may be NULL if size is 0. */
    size_t size; /**< Its size in bytes. */
} kvconn_frame_t;

/** Sends one whole message on this connection, or nothing. Never dials. Returns the statuses that all sends share, and
 * EVICTED.
 * @param frames        the frames, in order.
 * @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    how long to wait until the connection is READY and has room.
 * @param[out] sequence the message's number on this connection; may be NULL.
 * @retval KVCONN_EVICTED the connection was idle, and was closed before the call. */
KVCONN_NODISCARD
kvconn_status_t kvconn_send(kvconn_conn_t conn, const kvconn_frame_t *frames, size_t frame_count, int64_t timeout_ms,
                            uint64_t *sequence, kvconn_error_t *error);

/** Like kvconn_send, with all frames one after the other in one buffer. This is easier and faster to call from other
 * languages. Returns the statuses that all sends share, and EVICTED.
 * @param buffer        the bytes of all frames; may be NULL if all sizes are 0.
 * @param sizes         the size of each frame in bytes.
 * @param frame_count   how many sizes (and frames): 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    as for kvconn_send.
 * @param[out] sequence the message's number on this connection; may be NULL.
 * @retval KVCONN_EVICTED the connection was idle, and was closed before the call. */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_packed(kvconn_conn_t conn, const void *buffer, const uint32_t *sizes, size_t frame_count,
                                   int64_t timeout_ms, uint64_t *sequence, kvconn_error_t *error);

/** Sends one whole message to an endpoint, whichever life of the peer is there. Dials if there is no connection and no
 * fence. Use it for messages that stand alone: two of them may reach two lives of the peer. Returns the statuses that
 * all sends share, and those below.
 * @param endpoint      the endpoint in any spelling. A dial uses the options that the endpoint remembers.
 * @param frames        the frames, in order.
 * @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    as for kvconn_send.
 * @param[out] conn     the connection that accepted the message; may be NULL.
 * @param[out] sequence the message's number on that connection; may be NULL.
 * @retval KVCONN_INVALID      also: the endpoint is malformed.
 * @retval KVCONN_TIMEOUT      as for all sends; a dial goes on.
 * @retval KVCONN_BACKOFF      the last dial failed a moment ago. Not dialled; send again after retry_after_ms.
 * @retval KVCONN_DISCONNECTED also: the endpoint is fenced by a disconnect. Not dialled.
 * @retval KVCONN_NODE_FAILED  also: the endpoint is fenced because its node failed. Not dialled.
 * @retval KVCONN_LIMIT        also: max_endpoints or the process's descriptors are used up. */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_to(kvconn_manager_t m, const char *endpoint, const kvconn_frame_t *frames,
                               size_t frame_count, int64_t timeout_ms, kvconn_conn_t *conn, uint64_t *sequence,
                               kvconn_error_t *error);

/** Like kvconn_send_to, with all frames one after the other in one buffer. Returns the statuses that all sends share,
 * and those of kvconn_send_to.
 * @param endpoint      as for kvconn_send_to.
 * @param buffer        the bytes of all frames; may be NULL if all sizes are 0.
 * @param sizes         the size of each frame in bytes.
 * @param frame_count   how many sizes (and frames): 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    as for kvconn_send.
 * @param[out] conn     the connection that accepted the message; may be NULL.
 * @param[out] sequence the message's number on that connection; may be NULL.
 * @retval KVCONN_BACKOFF as for kvconn_send_to. */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_packed_to(kvconn_manager_t m, const char *endpoint, const void *buffer,
                                      const uint32_t *sizes, size_t frame_count, int64_t timeout_ms,
                                      kvconn_conn_t *conn, uint64_t *sequence, kvconn_error_t *error);

/** Waits until messages of this connection are acknowledged. "What arrived" says what an acknowledgement is worth.
 * @param sequence          the last message to wait for; 0 is the last one accepted so far.
 * @param timeout_ms        how long to wait; 0 only looks.
 * @param[out] acknowledged the sequence of the last acknowledged message, also set if the wait or the connection ended
 *     first; KVCONN_UNKNOWN with KVCONN_UNSUPPORTED. May be NULL.
 * @retval KVCONN_OK           all messages up to sequence are acknowledged, or no message was accepted yet and
 *     sequence is 0.
 * @retval KVCONN_INVALID      no message with this sequence was accepted yet.
 * @retval KVCONN_TIMEOUT      some are not acknowledged yet.
 * @retval KVCONN_PEER_LOST    the peer was lost before all of them were acknowledged.
 * @retval KVCONN_DISCONNECTED this process ended the connection before all of them were acknowledged.
 * @retval KVCONN_NODE_FAILED  the node failed before all of them were acknowledged.
 * @retval KVCONN_UNSUPPORTED  unknown: an ipc endpoint, or the option acknowledgement is off. */
KVCONN_NODISCARD
kvconn_status_t kvconn_flush(kvconn_conn_t conn, uint64_t sequence, int64_t timeout_ms, uint64_t *acknowledged,
                             kvconn_error_t *error);

/* == Batches ==========================================================================================================
 *
 * One call sends a message to each of many ranks, on the caller's thread and under one deadline. A rank that is full
 * or not READY does not delay the others. Each item behaves like a kvconn_send: accepted whole or not at all, with its
 * own sequence or status. Items on one connection are accepted in the order of the array. If an item fails because its
 * connection is full, not READY or ended, the later items on that connection get the same status and are not tried, so
 * nothing overtakes it. An item that is KVCONN_INVALID or has no memory does not affect other items. Frames above
 * 1 KiB with the same data and size are copied once.
 *
 *     kvconn_batch_item_t items[RANKS] = {0};
 *     for (int i = 0; i < RANKS; i++) {
 *         items[i].conn = ranks[i]; // 0 is skipped
 *         items[i].frames = frames[i];
 *         items[i].frame_count = 2;
 *     }
 *     if (kvconn_send_batch(items, RANKS, 1000, &error) == KVCONN_PARTIAL) {
 *         // items[i].status says which failed. To send those again, set conn to 0 in the others.
 *     }
 */

#define KVCONN_MAX_BATCH 65536 /**< The largest number of items in one batch. */

/** One message of a batch. The layout is frozen and has no struct_size. */
typedef struct kvconn_batch_item_t {
    kvconn_conn_t conn; /**< The connection; 0 skips the item. */
    const kvconn_frame_t *frames; /**< The frames, in order. */
    size_t frame_count; /**< How many: 1 to KVCONN_MAX_FRAMES. */
    uint64_t sequence; /**< Written: the message's number on its connection, or 0. */
    kvconn_status_t status; /**< Written: KVCONN_OK if accepted or skipped, else why not. */
    uint32_t reserved; /**< Written: 0. */
} kvconn_batch_item_t;

/** Sends many messages, each on its connection, under one deadline. Returns when every item is accepted or has failed.
 * A message that cannot be accepted at once is copied, and the copy is kept until its turn comes or the call ends: a
 * batch to full connections needs the memory of all its messages.
 * @param[in,out] items the messages. sequence and status are written, even if the whole call fails; status is then the
 *     status of the call. May be NULL if count is 0.
 * @param count         how many: 0 to KVCONN_MAX_BATCH.
 * @param timeout_ms    how long to wait, in all, until the connections are READY and have room.
 *     KVCONN_DEFAULT_TIMEOUT: option send_timeout_ms of each connection's manager.
 * @param error         for KVCONN_PARTIAL: how many items failed, and conn, endpoint, os_errno and message of the
 *     first of them.
 * @retval KVCONN_OK      every item is accepted or skipped.
 * @retval KVCONN_INVALID items is NULL, or count or timeout_ms is out of range. No item was sent.
 * @retval KVCONN_PARTIAL at least one item failed, with a status that kvconn_send returns. The others are accepted. */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_batch(kvconn_batch_item_t *items, size_t count, int64_t timeout_ms, kvconn_error_t *error);

/** Like kvconn_send_batch, with flat arrays instead of structs, and all frames of all messages one after the other in
 * one buffer. This is easier and faster to call from other languages. A skipped message keeps its place in sizes and
 * buffer, so that the failed ones are sent again by setting the conns of the others to 0.
 * @param conns          the connection of each message; 0 skips it. May be NULL if count is 0, as all arrays.
 * @param frame_counts   how many frames each message has: 1 to KVCONN_MAX_FRAMES.
 * @param count          how many messages: 0 to KVCONN_MAX_BATCH.
 * @param buffer         the bytes of all frames; may be NULL if all sizes are 0.
 * @param sizes          the size of each frame in bytes: those of the first message, then those of the second ...
 * @param timeout_ms     as for kvconn_send_batch.
 * @param[out] sequences each message's number on its connection, or 0; may be NULL.
 * @param[out] statuses  KVCONN_OK for each message that is accepted or skipped, else why not; if the whole call fails,
 *     its status. May be NULL.
 * @param error          as for kvconn_send_batch.
 * @retval KVCONN_OK      every message is accepted or skipped.
 * @retval KVCONN_INVALID an array is NULL, or count, a frame count or timeout_ms is out of range. No message was sent.
 * @retval KVCONN_PARTIAL at least one message failed, with a status that kvconn_send returns. The others are accepted. */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_batch_packed(const kvconn_conn_t *conns, const uint32_t *frame_counts, size_t count,
                                         const void *buffer, const uint32_t *sizes, int64_t timeout_ms,
                                         uint64_t *sequences, kvconn_status_t *statuses, kvconn_error_t *error);

/* == Owned buffers ====================================================================================================
 *
 * kvconn_send_owned sends without copying. The caller must not free or change the buffers until they are released.
 * Two things must have happened: libzmq has freed them; and the message is acknowledged, or its connection has ended. A
 * stopped peer keeps them as long as it is connected; a disconnect releases them. There are two forms:
 *
 * - With a release function: kvconn calls it once for each accepted message, on the thread "kvconn-release", holding
 *   no lock.
 * - Without one: the buffers of all messages up to info.released are the caller's again; kvconn_wait_released waits
 *   for that. Use this form from other languages: no code of theirs runs on a foreign thread.
 *
 * At the end of the program, call kvconn_shutdown before main returns if release functions may still run. KVCONN_OK of
 * it means that all buffers are released. After KVCONN_TIMEOUT do not free or change the rest until the process ends.
 */

/** The outcome of a message whose buffers are released. */
enum kvconn_outcome KVCONN_INT32 {
    KVCONN_OUTCOME_ACKNOWLEDGED = 1, /**< The peer's kernel has acknowledged the whole message. */
    KVCONN_OUTCOME_UNACKNOWLEDGED = 2, /**< The connection ended before that. */
    KVCONN_OUTCOME_UNKNOWN = 3, /**< Unknown. */
};
typedef int32_t kvconn_outcome_t;

/** A function that tells the caller that the buffers of a message are its own again. It gets the connection, the
 * sequence and the outcome of the message, and the pointer given to kvconn_send_owned.
 *
 * It runs on the thread "kvconn-release", one call at a time; while it runs, other buffers wait. It may call kvconn.
 * In it, kvconn_wait_released returns KVCONN_WOULD_DEADLOCK instead of waiting for a later release, and
 * kvconn_disconnect_all, kvconn_manager_destroy and kvconn_shutdown do not wait for buffers. It is not called in a
 * forked child. It must return. After a C++ exception out of it, or pthread_exit, nothing is released any more. A
 * longjmp out of it is undefined. If it forks, the child must not return from it: the child would end there. */
typedef void (*kvconn_release_fn_t)(kvconn_conn_t conn, uint64_t sequence, kvconn_outcome_t outcome, void *user_data);

/** Sends one whole message on this connection without copying it, or nothing. Use it for large frames: below about 10
 * KiB kvconn_send is faster. Returns the statuses that all sends share, and those below.
 *
 * On KVCONN_OK kvconn keeps the buffers until it releases them, which may be before the call returns. On an error they
 * are the caller's when the call returns, and release is not called, now or later. If the peer dies in the middle of
 * the message, the call waits some milliseconds until libzmq has freed the first frames.
 * @param frames        the frames, in order. The array is read only during the call; the data must not change until
 *     released.
 * @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    as for kvconn_send.
 * @param release       called once when the buffers are the caller's again; NULL for the form without a function.
 * @param user_data     a pointer for release; kvconn does not use it.
 * @param[out] sequence the message's number on this connection; may be NULL.
 * @retval KVCONN_LIMIT   also: the thread "kvconn-release" cannot be started.
 * @retval KVCONN_EVICTED the connection was idle, and was closed before the call. */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_owned(kvconn_conn_t conn, const kvconn_frame_t *frames, size_t frame_count,
                                  int64_t timeout_ms, kvconn_release_fn_t release, void *user_data, uint64_t *sequence,
                                  kvconn_error_t *error);

/** Waits until the buffers of kvconn_send_owned are the caller's again, and their release functions have returned.
 * Messages up to acknowledged in kvconn_connection_info were acknowledged.
 * @param conn       the connection. It may have ended; it is remembered until all its buffers are released.
 * @param sequence   the last message to wait for; 0 is the last one accepted so far.
 * @param timeout_ms how long to wait; 0 only looks.
 * @retval KVCONN_OK             the buffers of all messages up to sequence are the caller's.
 * @retval KVCONN_INVALID        no message with this sequence was accepted yet.
 * @retval KVCONN_TIMEOUT        some buffers are not released yet.
 * @retval KVCONN_WOULD_DEADLOCK called from a release function, for buffers that are not released yet. */
KVCONN_NODISCARD
kvconn_status_t kvconn_wait_released(kvconn_conn_t conn, uint64_t sequence, int64_t timeout_ms, kvconn_error_t *error);

/* == Nodes ============================================================================================================
 *
 * A node is one life of a peer instance, and owns endpoints and requests. kvconn_node_open begins it. Its failure ends
 * it, and takes all of them away in one step; kvconn_disconnect_all ends it without a report. By default the loss of a
 * connection does not fail its node: call kvconn_handle_failure yourself. The option node_loss ("any", "all") does it
 * for you. A late call with the id of an ended life changes nothing. The next life of the name has a new id.
 *
 * == Statuses that all node calls share ==
 *
 *     KVCONN_DISCONNECTED   kvconn_disconnect_all has ended this life of the node. Nothing changed.
 *     KVCONN_NODE_FAILED    this life of the node has failed. Nothing changed.
 */

#define KVCONN_MAX_ENDPOINTS_PER_CALL 65536 /**< The largest number of endpoints in one call. */

/** What is known about a node; start it with KVCONN_NODE_INFO_INIT. */
typedef struct kvconn_node_info_t {
    uint32_t struct_size; /**< sizeof(kvconn_node_info_t), set by the caller. */
    kvconn_status_t status; /**< KVCONN_OK while it lives, else KVCONN_NODE_FAILED or KVCONN_DISCONNECTED. */
    uint32_t endpoints; /**< The number of endpoints that it owns; 0 after its end. */
    uint32_t failures_in_row; /**< The number of unhealthy reports since the last healthy one. */
    kvconn_node_t node; /**< The node. */
    uint64_t requests; /**< The number of requests tracked on it; 0 after its end. */
    int64_t age_ms; /**< Milliseconds that it has lived, or lived until its end. */
    char name[KVCONN_TEXT_SIZE]; /**< Its name. */
    /** Why it failed. While it lives: the last report's reason if that was unhealthy, else "". */
    char reason[KVCONN_TEXT_SIZE];
} kvconn_node_info_t;
/** An empty kvconn_node_info_t with its struct_size set. */
#define KVCONN_NODE_INFO_INIT {sizeof(kvconn_node_info_t), 0, 0, 0, 0, 0, 0, {0}, {0}}

/** Returns the live node of a name. If there is none, begins a new life without endpoints and requests; no other call
 * does that.
 * @param name         the name of the instance: 1 to 255 bytes of UTF-8, compared exactly.
 * @param[out] node    the node.
 * @param[out] created 1 if this call began the life, else 0; may be NULL.
 * @retval KVCONN_OK      the node lives.
 * @retval KVCONN_INVALID the name is empty or too long.
 * @retval KVCONN_LIMIT   max_nodes is reached, by live nodes and failure reports that were not taken. */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_open(kvconn_manager_t m, const char *name, kvconn_node_t *node, int32_t *created,
                                 kvconn_error_t *error);

/** Finds the live node of a name.
 * @param name      the name.
 * @param[out] node the node.
 * @retval KVCONN_OK        there is one.
 * @retval KVCONN_INVALID   the name is empty or too long.
 * @retval KVCONN_NOT_FOUND there is none now. */
kvconn_status_t kvconn_node_find(kvconn_manager_t m, const char *name, kvconn_node_t *node, kvconn_error_t *error);

/** Returns what is known about a node. The last 4096 ended nodes of a manager are remembered.
 * @param[out] info what is known. Set its struct_size before the call.
 * @retval KVCONN_OK      info is filled; info->status says whether and why the node has ended.
 * @retval KVCONN_INVALID info->struct_size is not set. */
kvconn_status_t kvconn_node_info(kvconn_node_t node, kvconn_node_info_t *info, kvconn_error_t *error);

/** Registers endpoints with a node: all of them, or none on an error. Dials nothing. Lifts every fence on them. Resets
 * their backoff if this life is newer than any that registered them before. An endpoint may belong to several nodes,
 * and may be registered again. Returns the statuses that all node calls share, and those below.
 * @param endpoints the endpoints; may be NULL if count is 0.
 * @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
 * @param options   settings for later dials to them; NULL for those that they remember, else the configured ones.
 * @param error     its endpoint names the one that was refused.
 * @retval KVCONN_OK       the endpoints are registered.
 * @retval KVCONN_INVALID  an endpoint is malformed, or an option does not belong here.
 * @retval KVCONN_CONFLICT a live connection to one of them has other options.
 * @retval KVCONN_LIMIT    max_endpoints would be exceeded. */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_add_endpoints(kvconn_node_t node, const char *const *endpoints, size_t count,
                                          const kvconn_options_t *options, kvconn_error_t *error);

/** Takes endpoints away from a node, ends their connections and fences them, as kvconn_disconnect_endpoint does. If
 * another live node also owns an endpoint, it keeps its connection and gets no fence. An endpoint that the node does
 * not own is skipped. Returns the statuses that all node calls share, and those below.
 * @param endpoints the endpoints; may be NULL if count is 0.
 * @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
 * @retval KVCONN_OK      the node owns none of them any more.
 * @retval KVCONN_INVALID an endpoint is malformed. None was taken away. */
kvconn_status_t kvconn_node_remove_endpoints(kvconn_node_t node, const char *const *endpoints, size_t count,
                                             kvconn_error_t *error);

/** Makes these the endpoints of a node, in one step, or changes nothing on an error: for a discovery that tells the whole
 * truth. Endpoints that the node does not own yet are registered, as kvconn_node_add_endpoints does. Those that it owns
 * and that are not in the list are taken away, as kvconn_node_remove_endpoints does. The others keep their connections
 * and their fences, so the same list twice changes nothing. Dials nothing. Returns the statuses that all node calls
 * share, and those below.
 * @param endpoints the endpoints; may be NULL if count is 0, which takes all endpoints away.
 * @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
 * @param options   settings for later dials to all of them; NULL for those that they remember, else the configured
 *     ones.
 * @param error     its endpoint names the one that was refused.
 * @retval KVCONN_OK       the node owns exactly these endpoints.
 * @retval KVCONN_INVALID  an endpoint is malformed, or an option does not belong here.
 * @retval KVCONN_CONFLICT a live connection to one of them has other options.
 * @retval KVCONN_LIMIT    max_endpoints would be exceeded, also without those that are taken away. */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_set_endpoints(kvconn_node_t node, const char *const *endpoints, size_t count,
                                          const kvconn_options_t *options, kvconn_error_t *error);

/** Registers endpoints with a node, as kvconn_node_add_endpoints does, and dials all of them at the same time: for the
 * ranks of an instance. Waits until each is READY or has failed, under one deadline. With the option connect_retry it
 * dials those that failed again after each backoff step, until wait_ms is over. Returns the statuses that all node
 * calls share, and those below.
 *
 * Registered endpoints stay registered, whatever their dials came to. If the node ends during the call, the call fails
 * as a whole with the reason, and all its connections have ended with the node, unless another node owns them. An
 * endpoint that is in the list twice has one connection.
 * @param endpoints     the endpoints; may be NULL if count is 0.
 * @param count         how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
 * @param options       as for kvconn_node_add_endpoints; and connect_retry.
 * @param wait_ms       how long to wait, in all. With 0 it returns when all dials have begun; KVCONN_DEFAULT_TIMEOUT:
 *     as long as one dial may take.
 * @param[out] conns    the connection of each endpoint; 0 if its status is not KVCONN_OK. With KVCONN_TIMEOUT, the
 *     connection if its dial goes on. May be NULL if count is 0.
 * @param[out] statuses KVCONN_OK for each endpoint that is READY (with wait_ms 0: that has a connection), else a status
 *     that kvconn_connect returns; if the whole call fails, its status. May be NULL.
 * @param error         for KVCONN_PARTIAL: how many endpoints failed, and conn, endpoint, os_errno and message of the
 *     first of them.
 * @retval KVCONN_OK       all statuses are KVCONN_OK.
 * @retval KVCONN_INVALID  conns is NULL, an endpoint is malformed, or an option does not belong here. Nothing was done.
 * @retval KVCONN_CONFLICT a live connection to one of them has other options. Nothing was done.
 * @retval KVCONN_LIMIT    max_endpoints would be exceeded. Nothing was done.
 * @retval KVCONN_PARTIAL  at least one endpoint failed. All are registered. */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_connect(kvconn_node_t node, const char *const *endpoints, size_t count,
                                    const kvconn_options_t *options, int64_t wait_ms, kvconn_conn_t *conns,
                                    kvconn_status_t *statuses, kvconn_error_t *error);

/** Notes that a request is in flight on a node. If the node fails before kvconn_node_untrack_request, the failure
 * report lists the request. The node needs no endpoint for this. Tracking a request twice is tracking it once. Returns
 * the statuses that all node calls share, and those below.
 * @param request any number of the caller's.
 * @retval KVCONN_OK          the request is tracked.
 * @retval KVCONN_NODE_FAILED the node has failed. No report lists this request: the caller must fail it.
 * @retval KVCONN_LIMIT       max_requests is reached, by live nodes and failure reports that were not taken. */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_track_request(kvconn_node_t node, uint64_t request, kvconn_error_t *error);

/** Notes that a request is done. Look at was_tracked, so that no request is both done and failed. Returns the statuses
 * that all node calls share.
 * @param request          the number.
 * @param[out] was_tracked 1: done, no report will list it. 0 or an error: a report lists it, or it was never tracked; do
 *     not report it as done. May be NULL.
 * @retval KVCONN_OK the request is not tracked any more. */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_untrack_request(kvconn_node_t node, uint64_t request, int32_t *was_tracked,
                                            kvconn_error_t *error);

/* == Failures =========================================================================================================
 *
 * A node fails when kvconn_handle_failure is called, when max_failures health probes in a row were bad, or by the
 * option node_loss. Then its endpoints and requests are taken away in one step: connections end, endpoints are fenced,
 * and exactly one report lists what was taken. The call that failed the node returns the report through `failure`. If
 * that was NULL, or node_loss failed the node, take it with kvconn_take_failure: on a thread that waits, or with timeout
 * 0 after a NODE_FAILED event whose conn is 0. NULL then means that a call has already returned it. A report is never
 * dropped and never changes; several threads may read it. Functions that take a report and return no status accept NULL.
 */

/** A report of a node's failure. Free it with kvconn_failure_free. */
typedef struct kvconn_failure_t kvconn_failure_t;

/** One endpoint in a failure report. */
typedef struct kvconn_failed_endpoint_t {
    uint32_t struct_size; /**< The size of this element, as given to kvconn_failure_endpoints. */
    /** 1 if another live node owns it too, so its connection goes on; 0 if it was closed and fenced. */
    int32_t spared;
    /** The connection that ended with the node, or goes on. If there was none: the last one that was lost while the
     * node owned the endpoint, whose status in kvconn_connection_info is KVCONN_PEER_LOST. Else 0, and the counts are 0. */
    kvconn_conn_t conn;
    uint64_t accepted; /**< The number of messages that this connection had accepted. */
    uint64_t acknowledged; /**< The sequence of the last acknowledged message, or KVCONN_UNKNOWN. */
    char endpoint[KVCONN_ENDPOINT_SIZE]; /**< The endpoint in its canonical form. */
} kvconn_failed_endpoint_t;

/** Fails a node. Takes away all its endpoints and requests in one step, ends and fences the endpoints that no other
 * live node owns, and wakes all threads that wait in a call on them, with KVCONN_NODE_FAILED. Never waits, whatever
 * those threads do. Returns the statuses that all node calls share, so a late call does not harm the next life.
 * @param reason       one line for people; later errors on these endpoints repeat it. May be NULL. Cut after 200
 *     bytes.
 * @param[out] failure the report; free it with kvconn_failure_free. If the parameter is NULL, kvconn_take_failure
 *     returns the report.
 * @retval KVCONN_OK the node has failed, by this call. */
kvconn_status_t kvconn_handle_failure(kvconn_node_t node, const char *reason, kvconn_failure_t **failure,
                                      kvconn_error_t *error);

/** Reports the result of a health probe. max_failures unhealthy reports in a row fail the node, as
 * kvconn_handle_failure does. A healthy report sets the count to 0. Returns the statuses that all node calls share.
 * @param healthy      0 for unhealthy, any other number for healthy.
 * @param reason       one line for people. May be NULL. Cut after 200 bytes.
 * @param[out] failure the report if this call failed the node, else NULL; free it with kvconn_failure_free. If the
 *     parameter is NULL, kvconn_take_failure returns the report.
 * @retval KVCONN_OK the result is noted. */
kvconn_status_t kvconn_node_report_health(kvconn_node_t node, int32_t healthy, const char *reason,
                                          kvconn_failure_t **failure, kvconn_error_t *error);

/** Takes the oldest failure report that no call has returned yet, and waits for one if there is none. Several threads
 * may call it; each report goes to one of them.
 * @param timeout_ms   how long to wait for a report; 0 only looks. KVCONN_DEFAULT_TIMEOUT (-1): the longest wait, a
 *     year. kvconn_disconnect_all does not end the wait.
 * @param[out] failure the report; NULL if none came in time. Free it with kvconn_failure_free.
 * @retval KVCONN_OK    the report is the caller's, or none came in time.
 * @retval KVCONN_STALE also: the manager was destroyed during the call. */
KVCONN_NODISCARD
kvconn_status_t kvconn_take_failure(kvconn_manager_t m, int64_t timeout_ms, kvconn_failure_t **failure,
                                    kvconn_error_t *error);

/** @return the node that failed; 0 for NULL. */
kvconn_node_t kvconn_failure_node(const kvconn_failure_t *failure);

/** @return the name of the node that failed, a text that lives as long as the report; "" for NULL. */
const char *kvconn_failure_name(const kvconn_failure_t *failure);

/** @return the given reason, or what kvconn observed, a text that lives as long as the report; "" for NULL. */
const char *kvconn_failure_reason(const kvconn_failure_t *failure);

/** @return when the node failed, in milliseconds since 1970 on the wall clock; 0 for NULL. */
int64_t kvconn_failure_time_ms(const kvconn_failure_t *failure);

/** @return how many endpoints the node owned; 0 for NULL. */
size_t kvconn_failure_endpoint_count(const kvconn_failure_t *failure);

/** @return how many requests were in flight; 0 for NULL. */
size_t kvconn_failure_request_count(const kvconn_failure_t *failure);

/** Copies the endpoints that the node owned, in the order of their registration.
 * @param[out] endpoints the first of them, as many as fit; need not be initialised. May be NULL if capacity is 0.
 * @param element_size   sizeof(kvconn_failed_endpoint_t), the distance from one element to the next.
 * @param capacity       how many elements fit.
 * @param[out] count     how many there are.
 * @retval KVCONN_OK      endpoints and count are set, even if not all fit.
 * @retval KVCONN_INVALID element_size is not the size of any version of the struct. */
kvconn_status_t kvconn_failure_endpoints(const kvconn_failure_t *failure, kvconn_failed_endpoint_t *endpoints,
                                         size_t element_size, size_t capacity, size_t *count, kvconn_error_t *error);

/** Copies the requests that were in flight, in ascending order.
 * @param[out] requests the first of them, as many as fit. May be NULL if capacity is 0.
 * @param capacity      how many fit.
 * @param[out] count    how many there are.
 * @retval KVCONN_OK      requests and count are set, even if not all fit.
 * @retval KVCONN_INVALID a required argument is NULL. */
kvconn_status_t kvconn_failure_requests(const kvconn_failure_t *failure, uint64_t *requests, size_t capacity,
                                        size_t *count, kvconn_error_t *error);

/** Frees a report.
 * @param failure the report, or NULL. */
void kvconn_failure_free(kvconn_failure_t *failure);

/* == Events ===========================================================================================================
 *
 * Each manager queues what happens to its connections and nodes, in order. Every connection raises exactly one ending
 * event: CONNECT_FAILED, PEER_LOST, DISCONNECTED, EVICTED or NODE_FAILED. It is queued before the call that caused it
 * returns. The surviving connections of a failed node end as NODE_FAILED, not as PEER_LOST.
 *
 * The queue is bounded (option max_events): events that do not fit are counted, and OVERFLOW says how many are missing at
 * its place. Ending events have places of their own. Only the ending of a connection that began while max_events
 * endings were unread can be missing.
 *
 * To find your rank from an event, keep the id from kvconn_connect (with wait_ms 0 it is set at once) and compare it
 * with event.conn. Do not compare endpoint texts: event.endpoint is canonical.
 */

/** The kinds of events. */
enum kvconn_event_kind KVCONN_INT32 {
    KVCONN_EVENT_NONE = 0, /**< No event came in time. */
    KVCONN_EVENT_READY = 1, /**< The ZMTP handshake of a connection has succeeded. */
    KVCONN_EVENT_CONNECT_FAILED = 2, /**< Ending: the dial failed. */
    KVCONN_EVENT_PEER_LOST = 3, /**< Ending: the peer of a READY connection is gone. */
    KVCONN_EVENT_DISCONNECTED = 4, /**< Ending: this process ended the connection. */
    KVCONN_EVENT_EVICTED = 5, /**< Ending: an idle connection was closed, with everything acknowledged. */
    /** Messages are in flight, and made no progress for stall_ms. There may still be room. */
    KVCONN_EVENT_STALLED = 6,
    KVCONN_EVENT_RECOVERED = 7, /**< A stalled connection makes progress again. */
    KVCONN_EVENT_NODE_FAILED = 8, /**< With a connection: ending, its node failed. Without: the node failed. */
    KVCONN_EVENT_OVERFLOW = 9, /**< Some events did not fit into the queue at this place; count says how many. */
};
typedef int32_t kvconn_event_kind_t;

/** One event; start it with KVCONN_EVENT_INIT. */
typedef struct kvconn_event_t {
    uint32_t struct_size; /**< sizeof(kvconn_event_t), set by the caller. */
    kvconn_event_kind_t kind; /**< What happened. */
    /** Ending events and NODE_FAILED: the status that calls on the connection or node get from now on. STALLED:
     * KVCONN_STALLED, but the connection lives, and a send on it may still succeed. Others: KVCONN_OK. */
    kvconn_status_t status;
    int32_t os_errno; /**< The errno behind it, or 0. */
    kvconn_conn_t conn; /**< The connection, or 0. */
    /** The node, or 0. Always 0 for the end of a connection: its endpoint may belong to several nodes, or to none. */
    kvconn_node_t node;
    /** Ending events: messages accepted. OVERFLOW: events lost. NODE_FAILED of a node: requests failed. Else 0. */
    uint64_t count;
    /** The sequence of the connection's last acknowledged message, or KVCONN_UNKNOWN. Final in ending events: the
     * messages after it, up to count, are unacknowledged. */
    uint64_t acknowledged;
    kvconn_ended_by_t ended_by; /**< Ending events: how it ended. */
    uint32_t reserved; /**< Always 0. */
    int64_t time_ms; /**< When it happened, in milliseconds since 1970 on the wall clock. */
    char endpoint[KVCONN_ENDPOINT_SIZE]; /**< The endpoint in its canonical form, or "". */
    char node_name[KVCONN_TEXT_SIZE]; /**< The name of the node, or "". Always "" for the end of a connection. */
    char message[KVCONN_TEXT_SIZE]; /**< One line for a person, or "" if there is nothing to add (READY). */
} kvconn_event_t;
/** An empty kvconn_event_t with its struct_size set. */
#define KVCONN_EVENT_INIT {sizeof(kvconn_event_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}}

/** The name of an event kind as in this header, such as "KVCONN_EVENT_READY".
 * @param kind any number.
 * @return a static text; "unknown" if the number is not a kind. */
const char *kvconn_event_name(kvconn_event_kind_t kind);

/** Returns a descriptor for poll, epoll or an event loop. It is readable exactly while an event waits
 * (level-triggered). With an edge-triggered poller, call kvconn_next_event with timeout 0 until KVCONN_EVENT_NONE. The
 * descriptor belongs to the manager: do not read, write or close it, and stop watching it before the manager is
 * destroyed.
 * @param[out] fd the descriptor; -1 on failure.
 * @retval KVCONN_OK    the descriptor stays valid as long as the manager.
 * @retval KVCONN_LIMIT there is no descriptor left. */
kvconn_status_t kvconn_event_fd(kvconn_manager_t m, int *fd, kvconn_error_t *error);

/** Takes the oldest event, and waits for one if there is none. Several threads may call it; each event goes to one of
 * them.
 * @param timeout_ms how long to wait for an event. KVCONN_DEFAULT_TIMEOUT (-1): send_timeout_ms, not for ever.
 * @param[out] event the event. Its kind is KVCONN_EVENT_NONE if none came in time, or if the manager was destroyed
 *     meanwhile. Set its struct_size before the call.
 * @retval KVCONN_OK      event is filled.
 * @retval KVCONN_INVALID event->struct_size is not set. */
KVCONN_NODISCARD
kvconn_status_t kvconn_next_event(kvconn_manager_t m, int64_t timeout_ms, kvconn_event_t *event, kvconn_error_t *error);

/* == Observing ========================================================================================================
 */

/** The levels of the log. */
enum kvconn_log_level KVCONN_INT32 {
    KVCONN_LOG_OFF = 0, /**< No line at all. */
    KVCONN_LOG_ERROR = 1, /**< kvconn cannot do something that it should. */
    KVCONN_LOG_WARN = 2, /**< Something that the operator may want to change. */
    KVCONN_LOG_INFO = 3, /**< What happens to connections and nodes. */
    KVCONN_LOG_DEBUG = 4, /**< Each step of it. */
};
typedef int32_t kvconn_log_level_t;

/** A function that receives the lines of the log: the level; the line without a newline, valid only during the call;
 * and the pointer given to kvconn_set_log. */
typedef void (*kvconn_log_fn_t)(kvconn_log_level_t level, const char *line, void *user_data);

/** Describes a manager as text: settings and their sources, connections with states and ages, nodes, the last losses
 * with their counts, fences, backoff. The form may change.
 * @param[out] buffer the text with a NUL, cut if it does not fit. May be NULL if capacity is 0.
 * @param capacity    the size of buffer in bytes.
 * @param[out] needed the size of the whole text with its NUL. If this is more than capacity, the text is cut. May be
 *     NULL.
 * @retval KVCONN_OK buffer and needed are set, even if the text was cut. */
kvconn_status_t kvconn_describe(kvconn_manager_t m, char *buffer, size_t capacity, size_t *needed,
                                kvconn_error_t *error);

/** Writes the metrics of a manager as OpenMetrics text, for Prometheus and others to scrape as
 * "application/openmetrics-text; version=1.0.0; charset=utf-8". docs/metrics.md lists them. Metrics of the process,
 * such as descriptors, are in the text of KVCONN_DEFAULT only. The option metrics_endpoints adds series for single
 * endpoints.
 *
 * Made for one scrape every few seconds: it takes some microseconds for each live connection. It waits for no peer and
 * delays no other call.
 * @param[out] buffer the text with a NUL, cut if it does not fit. May be NULL if capacity is 0. A whole text ends with
 *     "# EOF".
 * @param capacity    the size of buffer in bytes.
 * @param[out] needed the size of the whole text with its NUL. If this is more than capacity, the text is cut. The next
 *     text may need more. May be NULL.
 * @retval KVCONN_OK buffer and needed are set, even if the text was cut. */
kvconn_status_t kvconn_metrics_text(kvconn_manager_t m, char *buffer, size_t capacity, size_t *needed,
                                    kvconn_error_t *error);

/** Writes the descriptions of all managers to a descriptor, for a debugger on a process that hangs. In gdb (14 or later
 * on a processor with AMX; the cast is needed): call ((int(*)(int, void*))kvconn_dump)(2, (void*)0)
 * Waits for no lock and leaves out what it cannot get without waiting. Works after kvconn_shutdown. Raises no SIGPIPE.
 * @param fd a descriptor that can be written.
 * @retval KVCONN_OK      the text is written.
 * @retval KVCONN_INVALID fd cannot be written; os_errno says why (EPIPE: its reader is gone).
 * @retval KVCONN_TIMEOUT nothing read from fd for a second. The rest of the text is cut. */
kvconn_status_t kvconn_dump(int fd, kvconn_error_t *error);

/** Sends the log to a function. Without a function kvconn is silent, unless the environment variable KVCONN_LOG names a
 * level and a file ("info:/var/log/kvconn.log", or "-" for standard error). The first call of kvconn_set_log overrides
 * KVCONN_LOG for good. If KVCONN_LOG cannot be used, one line on standard error says so, and the log stays off. A
 * renamed file (logrotate) is opened again under its old name with the next line.
 *
 * The function is called on the thread "kvconn-log", one line at a time, with no lock held. It may call kvconn. While
 * it is slow, lines are dropped and counted. It is not called in a forked child. It must return: after a C++ exception
 * out of it, or pthread_exit, no line comes any more. A longjmp out of it is undefined.
 * @param function  the function; NULL for no log.
 * @param user_data a pointer for the function. It must stay valid until another kvconn_set_log has returned KVCONN_OK.
 * @param level     the least important level that the function gets.
 * @retval KVCONN_OK      the function gets every line from now on. The old function has got its last line and is not
 *     called again; the call waits up to 1 s for that, unless the old function itself makes this call.
 * @retval KVCONN_INVALID there is no such level.
 * @retval KVCONN_TIMEOUT the same, but the old function has not returned from its last call within 1 s: it may need this
 *     thread, or a lock of the caller. It is not called again. Another kvconn_set_log waits for it again.
 * @retval KVCONN_LIMIT   the thread could not be started. Nothing changed. */
kvconn_status_t kvconn_set_log(kvconn_log_fn_t function, void *user_data, kvconn_log_level_t level,
                               kvconn_error_t *error);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // KVCONN_H
