/*
 * kvconn.h: The outbound ZeroMQ connections of disaggregated LLM inference engines, as a C ABI shared library.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Made from src/capi/ by `make bless`; changes belong there.
 */
#ifndef KVCONN_H
#define KVCONN_H

#include <stddef.h>
#include <stdint.h>

/* ====================================================================================================================
 * kvconn keeps the outbound ZeroMQ connections of an LLM inference engine: one PUSH socket for each remote rank, cached, and
 * given up the moment the rank is gone. The peer is an ordinary libzmq PULL socket that knows nothing of kvconn. Nothing
 * here waits for ever, nothing dials on its own, nothing is accepted for a peer that is not there, and what a peer's death
 * costs is reported, exactly once.
 *
 * Example
 * -------
 *
 *     kvconn_error_t error = KVCONN_ERROR_INIT;
 *     kvconn_conn_t conn;
 *     if (kvconn_connect(KVCONN_DEFAULT, "tcp://10.0.0.7:5557", NULL, 3000, &conn, &error) != KVCONN_OK) {
 *         fprintf(stderr, "%s: %s\n", kvconn_status_name(error.status), error.message);
 *         return 1;
 *     }
 *     kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
 *     if (kvconn_send(conn, frames, 2, KVCONN_DEFAULT_TIMEOUT, NULL, &error) != KVCONN_OK) {
 *         // Not accepted, now or later: the message can be sent again, here or elsewhere.
 *     }
 *     kvconn_disconnect(conn, NULL);
 *
 * Words
 * -----
 *
 * - endpoint: where a peer rank listens, "tcp://host:port" or "ipc://path". Spellings of one address are one endpoint; a
 *   name and its address are two.
 * - connection: one life of one PUSH socket to one endpoint, named by a kvconn_conn_t. A redial is a new connection.
 * - node: one life of a peer instance (one run of a prefill server), named by a kvconn_node_t. It owns endpoints and requests.
 * - request: the caller's 64-bit id of work in flight on a node.
 * - sequence: the number of a message on its connection: 1, 2, 3 …
 * - accepted: libzmq has taken the message. It is not delivered yet.
 * - acknowledged: the peer's kernel has acknowledged every byte of the message (TCP).
 * - unacknowledged: accepted, and not acknowledged when the connection ended: the peer may have got it in the last round trip,
 *   or not. Sending it again gives at-least-once.
 * - fence: an endpoint that must not be dialled until it is connected or registered again; after kvconn_handle_failure only
 *   registration in a live node lifts it.
 * - manager: an independent set of endpoints, nodes, fences, events and settings.
 *
 * Errors
 * ------
 *
 * A function that can fail returns a kvconn_status_t: KVCONN_OK (0) or a negative number. Its last parameter takes the
 * details and may be NULL. An error means that nothing was done: nothing was accepted, nothing half-made is left, and the
 * out-parameters are zero. Exceptions are stated: KVCONN_PARTIAL, which only a batch returns, and KVCONN_TIMEOUT of kvconn_connect,
 * whose dial goes on, and of kvconn_disconnect_all, kvconn_shutdown and kvconn_manager_destroy, which have ended everything all the
 * same. The numbers are frozen.
 *
 * Two statuses can come from every function that takes an error, and the descriptions do not repeat them: KVCONN_SHUTDOWN
 * after kvconn_shutdown (but not from kvconn_options_set, kvconn_set_log, kvconn_dump and those that read a report), and
 * KVCONN_INTERNAL for a defect.
 * KVCONN_INVALID also comes for a NULL where none is allowed, text that is not UTF-8 or longer than 4096 bytes, a timeout
 * below -1, a pointer that is not aligned for its type, and when a KVCONN_ environment variable cannot be used; the message
 * names it.
 *
 * Structs
 * -------
 *
 * A struct that kvconn fills begins with struct_size. The caller sets it to sizeof the struct, most easily with the INIT macro
 * that stands behind each; kvconn writes no byte beyond it, and leaves it as it is. So a program built against an older
 * header works with a newer library. A struct_size below that of the first version is KVCONN_INVALID; a kvconn_error_t with
 * one is just not filled. Texts inside structs end with NUL and are cut between characters when they do not fit.
 *
 * Ownership
 * ---------
 *
 * What a caller passes in is read during the call only, and may be freed or changed after it: texts, frames, options; but for
 * the buffers of kvconn_send_owned, which are lent. Texts
 * that a function returns are static, or belong to the object they were asked from. Objects (options, failure reports) belong
 * to the caller, who frees each once; free takes NULL. Ids need no freeing: they are numbers, never reused, and one that
 * means nothing any more gets KVCONN_STALE. Out-parameters may be NULL only where the description says so.
 *
 * Threads
 * -------
 *
 * Every function may be called from every thread at any time, also while other threads wait in calls on the same connection;
 * a disconnect or failure wakes those with the reason. Exceptions: one kvconn_options_t must not be changed or freed while
 * another thread uses it, and one kvconn_failure_t not freed. No function may be called from a signal handler. Messages of one
 * thread to one connection stay in order. kvconn's own threads block all signals and run none of the caller's code, except
 * the log function and the release functions of kvconn_send_owned.
 *
 * Timeouts
 * --------
 *
 * Timeouts are milliseconds on the monotonic clock. 0 means do not wait; KVCONN_DEFAULT_TIMEOUT (-1) means the configured
 * default, named with each function. There is no infinite wait; more than a year counts as a year. Signals do not end a wait.
 * A timeout bounds the waiting, and a call does little else. The exception is a send's copy of its frames, which takes as long as
 * the memory does: for 256 MiB some tenths of a second, also with timeout 0.
 *
 * Which send
 * ----------
 *
 * kvconn_send on a connection id is for what depends on what this peer got before (metadata after its registration): it
 * never reaches another life of the peer. kvconn_send_to on an endpoint is for messages that stand alone (status, abort).
 * kvconn_send_batch is for many ranks at once: kvconn_send on each of many connections, in parallel.
 *
 * What arrived
 * ------------
 *
 * When a connection ends, kvconn says which sequence was the last acknowledged; what lies between that and the last accepted
 * is unacknowledged and can be sent again. Every message up to acknowledged was in the peer's kernel, and a peer that goes on
 * reading has it, as long as the connection ended by FIN; after a reset or a timeout, or when the peer is killed before reading,
 * what its kernel held may be gone: the report says how the connection ended (ended_by, one of KVCONN_ENDED_…).
 * A peer that closes its socket before it has read everything does not go on reading: libzmq drops what it holds. To leave without
 * loss it half-closes, reads on until the other side has hung up too, and exits. After kvconn's own
 * disconnect the kernel may still deliver unacknowledged bytes late. Where the platform cannot tell, kvconn says "unknown"
 * (KVCONN_UNKNOWN): on ipc endpoints, with acknowledgement off, and on kernels before 4.1.
 * kvconn_flush waits until messages are acknowledged. After kvconn_shutdown kvconn_connection_info returns KVCONN_SHUTDOWN as
 * everything does: who still wants to know calls kvconn_disconnect_all first, which leaves the endings to be asked for.
 *
 * A peer that sends ZMTP heartbeats gets an answer to each, and the kernel counts those among our bytes; how many they are is
 * taken from what the peer sent. For a libzmq peer that is exact. Of a peer of another kind, whose PINGs carry a context,
 * acknowledged may be behind for as long as the connection lives; and until kvconn has noticed what they are, which it does when
 * libzmq has written all that was accepted, ahead by less than a sixth of the bytes of those PINGs.
 *
 * When an endpoint is dialled
 * ---------------------------
 *
 * kvconn dials only inside a call, and what it does depends on how the last connection ended:
 *
 *     how the last connection ended      kvconn_send_to         kvconn_connect         lifted by
 *     ---------------------------------  ---------------------  ---------------------  --------------------------
 *     never seen, PEER_LOST,             dials (backoff)        dials (backoff)        nothing to lift
 *       CONNECT_FAILED, EVICTED,
 *       kvconn_disconnect
 *     kvconn_disconnect_endpoint,        DISCONNECTED, no dial  dials, lifts           kvconn_connect,
 *       kvconn_disconnect_all,                                                         kvconn_node_add_endpoints
 *       kvconn_node_remove_endpoints
 *     kvconn_handle_failure              NODE_FAILED, no dial   NODE_FAILED, no dial   kvconn_node_add_endpoints
 *                                                                                      in a live life, nothing else
 *
 * After a failed dial, kvconn_connect and kvconn_send_to return KVCONN_BACKOFF at once, with retry_after_ms and the errno of
 * the failure, until one step is over: 100 ms, doubling with each failure up to 2 s (options backoff_ms, backoff_max_ms). A dial
 * that the caller gives up before it is READY, by any kind of disconnect, uses up its step as well, counted from the dial's
 * start; the next step is no longer than that one, and the errno is 0. PEER_LOST of a connection that was READY for less than a
 * step counts as a failed dial, so that a peer that lets in and hangs up is not dialled in a storm.
 * Registering an endpoint in a life of a node that is newer than any that registered it before resets the steps, and so does a
 * connection that was READY for longer than a step. One dial tries every address that a name resolves to, in order, within
 * connect_timeout_ms.
 *
 * A full connection
 * -----------------
 *
 * A send that finds the queue full waits until its deadline (KVCONN_TIMEOUT), as long as the connection makes progress. When
 * there was no progress for at least the send's own timeout, it returns KVCONN_STALLED at once instead: a thread that sends to
 * many peers loses one timeout to a stuck one, not one per message. KVCONN_STALLED also comes later than at once, when that patience
 * runs out during the wait. With a timeout of 0 a full connection is always KVCONN_TIMEOUT.
 *
 * A connection is full when libzmq's queue is (option send_hwm, in messages), and when max_queued_bytes (256 MiB) are on the way:
 * accepted, and not yet acknowledged by the peer's kernel. These are bytes on the wire; in memory libzmq needs about 64 more for each
 * frame. A single larger message goes when nothing else is on the way. All
 * connections of the process together may have max_total_queued_bytes (2 GiB) on the way; a send beyond that is KVCONN_LIMIT at once.
 *
 * Idle connections
 * ----------------
 *
 * With the option idle_timeout_ms a connection that nothing was sent over for so long, and whose messages are all acknowledged, is
 * closed; with evict_idle the idlest one makes room when max_endpoints is reached. It ends as EVICTED. Nothing is fenced: the
 * next kvconn_send_to or kvconn_connect dials again. A connection with an unacknowledged message is never evicted.
 *
 * fork and exit
 * -------------
 *
 * A forked child starts empty: every id of the parent is KVCONN_STALE there, new connects work, the parent is undisturbed. As
 * after every fork, the child holds the parent's descriptors until it calls exec or ends: while it lives, a peer does not see
 * that the parent has died, because no FIN leaves. Fork before the first connection or call exec; a child that does neither
 * closes what it does not need, with close_range(3, ~0U, 0) for example, before it calls kvconn.
 * A release function must not return in a child that it forked: the child would end there.
 *
 * A program may return from main, or exit, at any time. If release functions may still run then, it calls kvconn_shutdown first: they
 * must not touch what its exit destroys.
 * kvconn installs no signal handler and no exit hook that waits; unloading the library with dlclose is safe and does nothing.
 */

/** The version of this header; kvconn_version() is that of the library. */
#define KVCONN_VERSION "0.1.0"
/** The first number of KVCONN_VERSION. */
#define KVCONN_VERSION_MAJOR 0
/** The second number of KVCONN_VERSION. */
#define KVCONN_VERSION_MINOR 1
/** The third number of KVCONN_VERSION. */
#define KVCONN_VERSION_PATCH 0

/**
 * Marks functions whose result must not be ignored: a message that was not accepted, for example, is the caller's to
 * send again. Define it empty before the #include to be free of it.
 */
#ifndef KVCONN_NODISCARD
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L)
#define KVCONN_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define KVCONN_NODISCARD __attribute__((warn_unused_result))
#else
#define KVCONN_NODISCARD
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ====================================================================================================================
 * Basic types and errors
 * ----------------------
 */

/* The statuses. docs/status.md has them as a table. */

/** Done. */
#define KVCONN_OK 0
/**
 * An argument cannot be used; nothing was done.
 * What to do: Mend the argument that the text names.
 */
#define KVCONN_INVALID (-1)
/**
 * The id is 0, was never given out, belongs to a destroyed manager or the process before a fork, or ended too long
 * ago to be remembered.
 * What to do: Get a current id: kvconn_connect, kvconn_find, kvconn_node_open or kvconn_node_find.
 */
#define KVCONN_STALE (-2)
/**
 * There is no such thing now: no connection to that endpoint, no live node of that name.
 * What to do: Connect or open it, if it should be there.
 */
#define KVCONN_NOT_FOUND (-3)
/**
 * The deadline came first; a send has not been accepted, a dial goes on.
 * What to do: Try again, or treat the peer as slow.
 */
#define KVCONN_TIMEOUT (-4)
/**
 * The queue to the peer is full and has made no progress for at least this call's own timeout, or the dial has had
 * no answer for so long; returned without waiting any longer.
 * What to do: Treat the peer as stuck: route elsewhere, or disconnect it; RECOVERED is reported when it moves
 * again.
 */
#define KVCONN_STALLED (-5)
/**
 * Less than one backoff step ago the last dial failed, was given up, or its connection was lost within a step;
 * this call did not dial.
 * What to do: Try again after retry_after_ms; os_errno and the message tell why.
 */
#define KVCONN_BACKOFF (-6)
/**
 * The dial failed: refused, unreachable, unresolvable, timed out, or the peer is not a ZeroMQ PULL socket.
 * What to do: See the text; try again later, or report the node unhealthy.
 */
#define KVCONN_CONNECT_FAILED (-7)
/**
 * The connection was READY and has ended: the peer closed it, died, or stopped answering.
 * What to do: Connect again for a new life, or report the node failed.
 */
#define KVCONN_PEER_LOST (-8)
/**
 * This process ended the connection, and where it did so by endpoint, fenced it: nothing is dialled.
 * What to do: Call kvconn_connect or kvconn_node_add_endpoints if the endpoint is wanted again.
 */
#define KVCONN_DISCONNECTED (-9)
/**
 * This life of the node is over; the endpoints it owned alone are fenced.
 * What to do: Open the node again and register its endpoints in the new life.
 */
#define KVCONN_NODE_FAILED (-10)
/**
 * The options differ from those of the live connection, or a setting can no longer be changed.
 * What to do: Pass NULL to take the live connection, or disconnect it first.
 */
#define KVCONN_CONFLICT (-11)
/**
 * A limit is reached; the text names it and its current value. Nothing was made.
 * What to do: Raise the limit, or give something up.
 */
#define KVCONN_LIMIT (-12)
/**
 * kvconn_shutdown was called: kvconn is closed in this process for good.
 * What to do: Stop calling.
 */
#define KVCONN_SHUTDOWN (-13)
/**
 * kvconn or libzmq met a state that should not exist; the text says where.
 * What to do: Report it as a defect, with the text.
 */
#define KVCONN_INTERNAL (-14)
/**
 * This cannot be done here: on this kind of endpoint, with these options, or on this platform.
 * What to do: Do without it; the text says what is missing.
 */
#define KVCONN_UNSUPPORTED (-15)
/**
 * Some messages of a batch were not accepted; the others were.
 * What to do: Look at the status of each item; to try those again, set conn to 0 in the items that are OK.
 */
#define KVCONN_PARTIAL (-16)
/**
 * The call would wait for its own thread: a release waits for what is released after it.
 * What to do: Return from the release first, or wait on another thread.
 */
#define KVCONN_WOULD_DEADLOCK (-17)
/**
 * The connection was idle, with everything acknowledged, and was closed to save its descriptors.
 * What to do: Connect again: nothing is fenced, and nothing was lost.
 */
#define KVCONN_EVICTED (-18)

/* How far an error reaches. */

/** Nothing is wrong. */
#define KVCONN_SCOPE_NONE 0
/** Only this call: its arguments, or what it asks for. */
#define KVCONN_SCOPE_CALL 1
/** This endpoint; others are not affected. */
#define KVCONN_SCOPE_PEER 2
/** Every endpoint that this life of the node owned alone. */
#define KVCONN_SCOPE_NODE 3
/** The whole process (or manager). */
#define KVCONN_SCOPE_PROCESS 4

/** The process's own manager. */
#define KVCONN_DEFAULT 0

/** As a timeout: the configured default, which each function names. */
#define KVCONN_DEFAULT_TIMEOUT (-1)

/** In a count of acknowledged messages: nobody can tell. */
#define KVCONN_UNKNOWN UINT64_MAX

/** The size of an array that holds the text of any endpoint, with its NUL. */
#define KVCONN_ENDPOINT_SIZE 264

/** The size of an array that holds any name of a node, or one line for a person, with its NUL. */
#define KVCONN_TEXT_SIZE 256

/** The result of a call: KVCONN_OK, or one of the negative numbers above. */
typedef int32_t kvconn_status_t;

/** A manager. KVCONN_DEFAULT is the process's own, which is always there. */
typedef uint64_t kvconn_manager_t;

/** A connection: one life of one PUSH socket to one endpoint. Never reused; 0 is none. */
typedef uint64_t kvconn_conn_t;

/** A node: one life of a peer instance. Never reused; 0 is none. */
typedef uint64_t kvconn_node_t;

/**
 * What went wrong in a call, given as its last argument; start it with KVCONN_ERROR_INIT. A call that succeeds sets the
 * numbers to 0 and the texts to "".
 */
typedef struct kvconn_error_t {
    /** sizeof(kvconn_error_t), set by the caller. */
    uint32_t struct_size;
    /** The status, the same as the call's return value. */
    kvconn_status_t status;
    /** The operating system's errno behind it, or 0. */
    int32_t os_errno;
    /** How far it reaches: one of KVCONN_SCOPE_…. */
    int32_t scope;
    /** 1 when the same call can succeed later without the caller changing anything, else 0. */
    int32_t retriable;
    /**
     * Milliseconds until the same call can help: with KVCONN_BACKOFF, and with the end of a dial in kvconn_connect and
     * kvconn_send_to, until the endpoint may be dialled again. 0 when that is not known, or at once.
     */
    int32_t retry_after_ms;
    /** The connection it is about, or 0. */
    kvconn_conn_t conn;
    /** The endpoint it is about, or "". */
    char endpoint[KVCONN_ENDPOINT_SIZE];
    /** One line for a person: what happened, and with what. */
    char message[KVCONN_TEXT_SIZE];
} kvconn_error_t;

/** A kvconn_error_t that is empty, with its struct_size set. */
#define KVCONN_ERROR_INIT {sizeof(kvconn_error_t), 0, 0, 0, 0, 0, 0, {0}, {0}}

/* ====================================================================================================================
 * The library
 * -----------
 *
 * What was loaded, and what its statuses mean. These functions never fail and need nothing to be set up.
 */

/** The number of the C ABI that this header describes. */
#define KVCONN_ABI_VERSION 0

/**
 * The version of the library that is loaded, as "major.minor.patch". KVCONN_VERSION is that of the header.
 *
 * @return a static text.
 */
const char *kvconn_version(void);

/**
 * The number of the C ABI that the loaded library has, which is also the number in its SONAME. A program built with another
 * KVCONN_ABI_VERSION must not use it.
 *
 * @return the number.
 */
int32_t kvconn_abi_version(void);

/**
 * Whether the loaded library, as it was built and on this machine, can do something:
 * "curve" (encrypted connections), "ipc" (ipc:// endpoints), "keepalive" (TCP keepalive is really set), "user_timeout"
 * (TCP_USER_TIMEOUT is really set), "acknowledgement" (what the peer's kernel has is known), "out_batch" (small messages leave in
 * large writes).
 *
 * @param feature the name of the feature; NULL and unknown names are features that it does not have.
 * @return 1 or 0.
 */
int32_t kvconn_has(const char *feature);

/**
 * What a status means, in one sentence. The message in a kvconn_error_t says more about the case.
 *
 * @param status any number.
 * @return a static text, "unknown status" for a number that is not one.
 */
const char *kvconn_strerror(kvconn_status_t status);

/**
 * The name of a status as it stands in this header, such as "KVCONN_TIMEOUT".
 *
 * @param status any number.
 * @return a static text, "unknown" for a number that is not a status.
 */
const char *kvconn_status_name(kvconn_status_t status);

/* ====================================================================================================================
 * Options
 * -------
 *
 * Settings are given by name and as text, so that new ones need no new function. docs/options.md lists each with its unit,
 * range and default. A setting is looked for in the options of the call, then in what its endpoint was last connected or
 * registered with, then in what kvconn_configure set for the manager, then in the environment variable KVCONN_<NAME>, then
 * the default holds. An endpoint remembers each setting for itself: options that leave one out do not take it away.
 *
 * With curve_server_key and the client's own curve_public_key and curve_secret_key a connection is encrypted by CURVE, and
 * the peer proves that it holds the server's secret key. It is never plain instead: not when the peer talks plain, which is
 * CONNECT_FAILED, and not when kvconn_send_to dials it again. curve_server_key "" asks for a plain connection, which
 * require_curve forbids. A dial whose peer is not the one meant fails with os_errno EACCES (its key, its mechanism, or it
 * does not let this client in), EPROTO (it is no PULL socket) or ETIMEDOUT (it does not answer). No text, event or log line
 * of kvconn's contains a key.
 */

/** A set of options that were given explicitly. Empty at first: nothing in it overrides anything. */
typedef struct kvconn_options_t kvconn_options_t;

/**
 * Makes an empty set of options.
 *
 * @return the set, to be freed with kvconn_options_free; never NULL.
 */
kvconn_options_t *kvconn_options_new(void);

/**
 * Sets one option; a second value for the same name replaces the first. Nothing changes on an error.
 *
 * @param options the set to change.
 * @param name    the option's name, such as "send_hwm".
 * @param value   its value as text: a number in digits, "0" or "1" for a flag, a word, an address, a key in Z85. The empty text
 *                is no address, no interface and no key.
 * @param error   details of a failure; may be NULL.
 * @retval KVCONN_OK      it is set.
 * @retval KVCONN_INVALID there is no option of that name, or it does not take that value; the message says which it takes,
 *     and never repeats a key.
 */
kvconn_status_t kvconn_options_set(kvconn_options_t *options,
                                   const char *name,
                                   const char *value,
                                   kvconn_error_t *error);

/**
 * Frees a set of options. What was configured or connected with it stays.
 *
 * @param options the set; NULL is allowed.
 */
void kvconn_options_free(kvconn_options_t *options);

/**
 * Changes a manager's settings. Those of a connection act on dials to come; endpoints that were connected or registered with
 * options of their own keep those. Nothing changes on an error.
 *
 * @param m       the manager.
 * @param options the settings to change; others stay as they are.
 * @param error   details of a failure; may be NULL.
 * @retval KVCONN_OK       they are in force.
 * @retval KVCONN_INVALID  an option does not belong here, or two contradict each other.
 * @retval KVCONN_STALE    there is no such manager.
 * @retval KVCONN_CONFLICT a setting of the process was given for another manager than KVCONN_DEFAULT, or after the first
 *     connection.
 */
kvconn_status_t kvconn_configure(kvconn_manager_t m,
                                 const kvconn_options_t *options,
                                 kvconn_error_t *error);

/* ====================================================================================================================
 * Managers and shutdown
 * ---------------------
 *
 * One program rarely needs more than KVCONN_DEFAULT. A manager of its own keeps a component's endpoints, nodes, fences,
 * events and settings apart from those of others; managers share libzmq's threads and the budget of descriptors.
 */

/**
 * Makes a manager.
 *
 * @param options      its settings; NULL for the environment's and the defaults.
 * @param[out] manager the new manager, to be given up with kvconn_manager_destroy.
 * @param error        details of a failure; may be NULL.
 * @retval KVCONN_OK      it is made.
 * @retval KVCONN_INVALID an option does not belong to a manager, or two contradict each other.
 * @retval KVCONN_LIMIT   a limit of the system does not allow it; the message names it.
 */
kvconn_status_t kvconn_manager_create(const kvconn_options_t *options,
                                      kvconn_manager_t *manager,
                                      kvconn_error_t *error);

/**
 * Ends a manager: all its connections end, the calls that wait in it return KVCONN_DISCONNECTED or KVCONN_STALE, and its ids mean
 * nothing any more. What was accepted and not yet sent is dropped; kvconn_disconnect_all before it keeps that. Failure
 * reports that were taken stay valid.
 *
 * @param m          the manager; KVCONN_DEFAULT cannot be destroyed.
 * @param timeout_ms how long to wait until libzmq has given up its sockets and descriptors; 0 does not wait.
 *     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param error      details of a failure; may be NULL.
 * @retval KVCONN_OK      it is gone, with all it had.
 * @retval KVCONN_INVALID m is KVCONN_DEFAULT.
 * @retval KVCONN_STALE   there is no such manager.
 * @retval KVCONN_TIMEOUT it is gone, and libzmq will give up the rest of its sockets a little later.
 */
kvconn_status_t kvconn_manager_destroy(kvconn_manager_t m,
                                       int64_t timeout_ms,
                                       kvconn_error_t *error);

/**
 * Ends everything in a manager, for a change of role: closes and fences all endpoints and forgets all nodes, without failure
 * reports. The manager stays usable: kvconn_connect and kvconn_node_add_endpoints lift the fences.
 *
 * @param m        the manager.
 * @param flush_ms how long the peers may take to acknowledge what was accepted (over ipc: libzmq to send it); then the rest
 *     is dropped. With 0 nothing is waited for, and KVCONN_OK says nothing about what arrived.
 *     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param error    details of a failure; may be NULL.
 * @retval KVCONN_OK      everything is closed, and what was accepted was acknowledged (over ipc: sent), unless its peer was gone.
 * @retval KVCONN_STALE   there is no such manager.
 * @retval KVCONN_TIMEOUT everything has ended, and something that was accepted was not acknowledged (over ipc: not sent) in time.
 */
kvconn_status_t kvconn_disconnect_all(kvconn_manager_t m,
                                      int64_t flush_ms,
                                      kvconn_error_t *error);

/**
 * Ends kvconn in this process for good: closes every connection of every manager; from then on every call returns
 * KVCONN_SHUTDOWN, and so do those that wait. Only for the end of main(); a library must not call it, because it does not know
 * who else uses kvconn. A program may also just exit, unless release functions may still run that touch what its exit destroys.
 *
 * On KVCONN_OK all buffers that were lent by kvconn_send_owned are released. On KVCONN_TIMEOUT those that are not must stay as they
 * are until the process ends; kvconn_wait_released now returns KVCONN_SHUTDOWN.
 *
 * @param flush_ms how long the peers may take to acknowledge what was accepted (over ipc: libzmq to send it); then the rest
 *     is dropped. With 0 nothing is waited for, and KVCONN_OK says nothing about what arrived.
 *     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param error    details of a failure; may be NULL.
 * @retval KVCONN_OK      everything is closed, and what was accepted was acknowledged (over ipc: sent), unless its peer was gone.
 * @retval KVCONN_TIMEOUT everything has ended, and something that was accepted was not acknowledged (over ipc: not sent) in time.
 */
kvconn_status_t kvconn_shutdown(int64_t flush_ms,
                                kvconn_error_t *error);

/* ====================================================================================================================
 * Connections
 * -----------
 *
 * At most one connection to an endpoint lives in a manager at a time. It is CONNECTING until the peer's ZMTP handshake has
 * succeeded, then READY, until it has ENDED for a reason that every later call on its id returns. A new connection to
 * the same endpoint has a new id.
 */

/* Where a connection stands. */

/** Being dialled. */
#define KVCONN_STATE_CONNECTING 1
/** The ZMTP handshake has succeeded. */
#define KVCONN_STATE_READY 2
/** Over. */
#define KVCONN_STATE_ENDED 3

/* How a connection ended, which says what an acknowledgement is worth. */

/** It has not ended, or nobody can tell. */
#define KVCONN_ENDED_UNKNOWN 0
/**
 * The peer closed it in order: what was acknowledged it can have if it goes on reading; one that has closed its socket before
 * it has read everything does not.
 */
#define KVCONN_ENDED_FIN 1
/** The peer or its kernel reset it: what its kernel held may be gone. */
#define KVCONN_ENDED_RESET 2
/** The kernel gave up: nobody answered. What the peer's kernel holds may be dropped when it answers again. */
#define KVCONN_ENDED_TIMEOUT 3
/** This process ended it. */
#define KVCONN_ENDED_LOCAL 4

/** What is known about a connection; start it with KVCONN_CONNECTION_INFO_INIT. */
typedef struct kvconn_connection_info_t {
    /** sizeof(kvconn_connection_info_t), set by the caller. */
    uint32_t struct_size;
    /** One of KVCONN_STATE_…. */
    int32_t state;
    /** KVCONN_OK while it lives, else why it ended. */
    kvconn_status_t status;
    /** The errno behind its end, or 0. */
    int32_t os_errno;
    /** The connection. */
    kvconn_conn_t conn;
    /** How many messages were accepted, which is also the sequence of the last. */
    uint64_t accepted;
    /** The sequence of the last message that the peer's kernel has acknowledged whole; KVCONN_UNKNOWN where nobody can tell. */
    uint64_t acknowledged;
    /** The buffers of every message up to this one that were lent by kvconn_send_owned are the caller's again. */
    uint64_t released;
    /**
     * Bytes on the wire of what was accepted and is not acknowledged (where nobody can tell: still held by libzmq): what counts
     * against max_queued_bytes. 0 when it has ended.
     */
    uint64_t queued_bytes;
    /** How many threads are waiting in a send on it. */
    uint32_t waiting;
    /** 1 when nothing of what is on the way has moved for stall_ms, else 0. */
    int32_t stalled;
    /** How it ended: one of KVCONN_ENDED_…. */
    int32_t ended_by;
    /** Always 0. */
    uint32_t reserved;
    /** Milliseconds since its dial began. */
    int64_t age_ms;
    /** Milliseconds that it has been, or was, READY; 0 when it never was. */
    int64_t ready_ms;
    /** The endpoint, in its canonical form. */
    char endpoint[KVCONN_ENDPOINT_SIZE];
    /** One line for a person: how it ended, or "". */
    char message[KVCONN_TEXT_SIZE];
} kvconn_connection_info_t;

/** A kvconn_connection_info_t that is empty, with its struct_size set. */
#define KVCONN_CONNECTION_INFO_INIT {sizeof(kvconn_connection_info_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}}

/**
 * Gives the live connection to an endpoint, and dials when there is none.
 *
 * With wait_ms 0 it returns without waiting: the dial goes on, and a send on the connection waits for it inside its own
 * deadline. Else it waits until the connection is READY or the dial has failed. With the option connect_retry it dials again
 * after each backoff step until wait_ms is over, for a start-up in which peers come up in any order. It lifts the fence that a
 * disconnect has left, but not that of kvconn_handle_failure.
 *
 * The endpoint remembers the options for all later dials to it.
 *
 * @param m         the manager.
 * @param endpoint  "tcp://host:port", with an IPv6 address in brackets, or "ipc://path".
 * @param options   settings of this connection; NULL for those that the endpoint remembers, else the configured ones.
 * @param wait_ms   how long to wait until it is READY; 0 does not wait. KVCONN_DEFAULT_TIMEOUT: as long as one dial may take,
 *     the options connect_timeout_ms and handshake_timeout_ms together.
 * @param[out] conn the connection. On KVCONN_TIMEOUT it is set as well while a dial goes on; it is 0 when connect_retry was
 *     waiting for the next step.
 * @param error     details of a failure; may be NULL.
 * @retval KVCONN_OK             the connection is READY; with wait_ms 0, it exists.
 * @retval KVCONN_INVALID        the endpoint is malformed or cannot be dialled (port 0, a wildcard address), or an option
 *     does not belong here; the message says why.
 * @retval KVCONN_STALE          there is no such manager.
 * @retval KVCONN_TIMEOUT        it was not READY in time; a dial that goes on is in conn.
 * @retval KVCONN_BACKOFF        the last dial failed, was given up, or its connection was lost within a step: retry_after_ms says how
 *     long to wait. Not dialled.
 * @retval KVCONN_CONNECT_FAILED the dial has failed; os_errno and the message say why.
 * @retval KVCONN_PEER_LOST      it was READY and was lost before this call could return.
 * @retval KVCONN_DISCONNECTED   another thread disconnected it during the call.
 * @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed: register it in a live node first.
 * @retval KVCONN_CONFLICT       the live connection has other options; the message names one.
 * @retval KVCONN_LIMIT          max_endpoints or the process's descriptors are used up; the message names the limit.
 * @retval KVCONN_EVICTED        it was READY, and was evicted before this call could return.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_connect(kvconn_manager_t m,
                               const char *endpoint,
                               const kvconn_options_t *options,
                               int64_t wait_ms,
                               kvconn_conn_t *conn,
                               kvconn_error_t *error);

/**
 * Ends this connection, if it still lives; a newer one to the same endpoint is not touched. Does not fence: the next
 * kvconn_send_to dials. Never waits: what was accepted and not yet sent is dropped. Threads that wait in calls on it return
 * KVCONN_DISCONNECTED.
 *
 * @param conn  the connection.
 * @param error details of a failure; may be NULL.
 * @retval KVCONN_OK    it has ended, now or before.
 * @retval KVCONN_STALE there is no such connection, or it ended too long ago to be remembered.
 */
kvconn_status_t kvconn_disconnect(kvconn_conn_t conn,
                                  kvconn_error_t *error);

/**
 * Ends whichever connection to the endpoint is live, and fences the endpoint: nothing is dialled there until kvconn_connect or
 * kvconn_node_add_endpoints asks for it. Never waits, even while other threads are blocked in sends to it: they return
 * KVCONN_DISCONNECTED. What was accepted and not yet sent is dropped.
 *
 * @param m        the manager.
 * @param endpoint the endpoint, in any spelling; one that is not known is fenced, too.
 * @param error    details of a failure; may be NULL.
 * @retval KVCONN_OK      it is fenced, and has no connection.
 * @retval KVCONN_INVALID the endpoint is malformed.
 * @retval KVCONN_STALE   there is no such manager.
 */
kvconn_status_t kvconn_disconnect_endpoint(kvconn_manager_t m,
                                           const char *endpoint,
                                           kvconn_error_t *error);

/**
 * Tells what is known about a connection, also after it has ended: the last 4096 endings of a manager are remembered.
 *
 * @param conn      the connection.
 * @param[out] info what is known; its struct_size is set by the caller.
 * @param error     details of a failure; may be NULL.
 * @retval KVCONN_OK      info is filled; info->status says whether and why it has ended.
 * @retval KVCONN_INVALID info->struct_size is not set.
 * @retval KVCONN_STALE   there is no such connection, or it ended too long ago to be remembered.
 */
kvconn_status_t kvconn_connection_info(kvconn_conn_t conn,
                                       kvconn_connection_info_t *info,
                                       kvconn_error_t *error);

/**
 * Lists the live connections of a manager, oldest first.
 *
 * @param m          the manager.
 * @param[out] ids   the first of them, as many as fit; NULL when capacity is 0.
 * @param capacity   how many fit into ids.
 * @param[out] count how many there are; when that is more than capacity, call again with a larger array.
 * @param error      details of a failure; may be NULL.
 * @retval KVCONN_OK    ids and count are set, also when not all fit.
 * @retval KVCONN_STALE there is no such manager.
 */
kvconn_status_t kvconn_connections(kvconn_manager_t m,
                                   kvconn_conn_t *ids,
                                   size_t capacity,
                                   size_t *count,
                                   kvconn_error_t *error);

/**
 * Finds the live connection to an endpoint, CONNECTING or READY. Never dials.
 *
 * @param m         the manager.
 * @param endpoint  the endpoint, in any spelling.
 * @param[out] conn the connection.
 * @param error     details of a failure; may be NULL.
 * @retval KVCONN_OK        there is one.
 * @retval KVCONN_INVALID   the endpoint is malformed.
 * @retval KVCONN_STALE     there is no such manager.
 * @retval KVCONN_NOT_FOUND there is none now.
 */
kvconn_status_t kvconn_find(kvconn_manager_t m, const char *endpoint, kvconn_conn_t *conn, kvconn_error_t *error);

/* ====================================================================================================================
 * Messages
 * --------
 *
 * A message is one or more frames, each of any size, also 0. It is accepted whole or not at all, and it is copied: the
 * frames are the caller's again when the call returns. An error means that it was not accepted, now or later, so sending
 * it again cannot duplicate it. Nothing is accepted before the handshake of this connection has succeeded: a send on one that
 * is CONNECTING waits for it, inside its own deadline.
 */

/** The most frames that one message takes. */
#define KVCONN_MAX_FRAMES 65536

/** One frame of a message. */
typedef struct kvconn_frame_t {
    /** Its bytes; may be NULL when size is 0. */
    const void *data;
    /** How many bytes it has. */
    size_t size;
} kvconn_frame_t;

/**
 * Sends one whole message on this connection, or nothing at all.
 *
 * @param conn          the connection.
 * @param frames        its frames, in order.
 * @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    how long to wait until the connection is READY and has room; 0 does not wait.
 *     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param[out] sequence the message's number on this connection; may be NULL.
 * @param error         details of a failure; may be NULL.
 * @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
 * @retval KVCONN_INVALID        there is no frame or too many, or a frame's data is NULL and its size is not 0.
 * @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
 * @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline.
 * @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
 * @retval KVCONN_CONNECT_FAILED its dial has failed.
 * @retval KVCONN_PEER_LOST      the peer is gone.
 * @retval KVCONN_DISCONNECTED   this process ended it, before or during the call.
 * @retval KVCONN_NODE_FAILED    its node failed, before or during the call.
 * @retval KVCONN_LIMIT          max_total_queued_bytes is used up, or there is no memory for the message; the message says which.
 * @retval KVCONN_EVICTED        it was idle and was closed, before the call.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_send(kvconn_conn_t conn,
                            const kvconn_frame_t *frames,
                            size_t frame_count,
                            int64_t timeout_ms,
                            uint64_t *sequence,
                            kvconn_error_t *error);

/**
 * Does the same as kvconn_send, with frames that lie one behind the other in one buffer, which is easier and faster to call
 * from other languages.
 *
 * @param conn          the connection.
 * @param buffer        the bytes of all frames; may be NULL when all sizes are 0.
 * @param sizes         the size of each frame in bytes.
 * @param frame_count   how many sizes, which is how many frames: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    as for kvconn_send.
 * @param[out] sequence the message's number on this connection; may be NULL.
 * @param error         details of a failure; may be NULL.
 * @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
 * @retval KVCONN_INVALID        there is no frame or too many, or buffer is NULL and not all sizes are 0.
 * @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
 * @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline.
 * @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
 * @retval KVCONN_CONNECT_FAILED its dial has failed.
 * @retval KVCONN_PEER_LOST      the peer is gone.
 * @retval KVCONN_DISCONNECTED   this process ended it, before or during the call.
 * @retval KVCONN_NODE_FAILED    its node failed, before or during the call.
 * @retval KVCONN_LIMIT          max_total_queued_bytes is used up, or there is no memory for the message; the message says which.
 * @retval KVCONN_EVICTED        it was idle and was closed, before the call.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_packed(kvconn_conn_t conn,
                                   const void *buffer,
                                   const uint32_t *sizes,
                                   size_t frame_count,
                                   int64_t timeout_ms,
                                   uint64_t *sequence,
                                   kvconn_error_t *error);

/**
 * Sends one whole message to an endpoint, whichever life of the peer is there; dials when there is no connection and no
 * fence forbids it. Use it for messages that stand alone: two of them may reach two lives of the peer.
 *
 * @param m             the manager.
 * @param endpoint      the endpoint, in any spelling. A new dial uses the options that it remembers.
 * @param frames        the message's frames, in order.
 * @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    how long to wait until the connection is READY and has room; 0 does not wait.
 *     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param[out] conn     the connection that accepted it; may be NULL.
 * @param[out] sequence the message's number on that connection; may be NULL.
 * @param error         details of a failure; may be NULL.
 * @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
 * @retval KVCONN_INVALID        the endpoint is malformed, there is no frame or too many, or a frame's data is NULL and its
 *     size is not 0.
 * @retval KVCONN_STALE          there is no such manager.
 * @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline; a dial goes on.
 * @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
 * @retval KVCONN_BACKOFF        the last dial failed, was given up, or its connection was lost within a step: retry_after_ms says how
 *     long to wait. Not dialled.
 * @retval KVCONN_CONNECT_FAILED the dial has failed.
 * @retval KVCONN_PEER_LOST      the peer was lost during the call.
 * @retval KVCONN_DISCONNECTED   the endpoint is fenced by a disconnect. Not dialled.
 * @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed. Not dialled.
 * @retval KVCONN_LIMIT          max_endpoints, max_total_queued_bytes, the process's descriptors or its memory are used up; the
 *     message names it.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_to(kvconn_manager_t m,
                               const char *endpoint,
                               const kvconn_frame_t *frames,
                               size_t frame_count,
                               int64_t timeout_ms,
                               kvconn_conn_t *conn,
                               uint64_t *sequence,
                               kvconn_error_t *error);

/**
 * Does the same as kvconn_send_to, with frames that lie one behind the other in one buffer.
 *
 * @param m             the manager.
 * @param endpoint      the endpoint, in any spelling. A new dial uses the options that it remembers.
 * @param buffer        the bytes of all frames; may be NULL when all sizes are 0.
 * @param sizes         the size of each frame in bytes.
 * @param frame_count   how many sizes, which is how many frames: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    as for kvconn_send_to.
 * @param[out] conn     the connection that accepted it; may be NULL.
 * @param[out] sequence the message's number on that connection; may be NULL.
 * @param error         details of a failure; may be NULL.
 * @retval KVCONN_OK             it is accepted, in order behind what this thread sent before.
 * @retval KVCONN_INVALID        the endpoint is malformed, there is no frame or too many, or buffer is NULL and not all sizes
 *     are 0.
 * @retval KVCONN_STALE          there is no such manager.
 * @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline; a dial goes on.
 * @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
 * @retval KVCONN_BACKOFF        the last dial failed, was given up, or its connection was lost within a step: retry_after_ms says how
 *     long to wait. Not dialled.
 * @retval KVCONN_CONNECT_FAILED the dial has failed.
 * @retval KVCONN_PEER_LOST      the peer was lost during the call.
 * @retval KVCONN_DISCONNECTED   the endpoint is fenced by a disconnect. Not dialled.
 * @retval KVCONN_NODE_FAILED    the endpoint is fenced because its node failed. Not dialled.
 * @retval KVCONN_LIMIT          max_endpoints, max_total_queued_bytes, the process's descriptors or its memory are used up; the
 *     message names it.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_packed_to(kvconn_manager_t m,
                                      const char *endpoint,
                                      const void *buffer,
                                      const uint32_t *sizes,
                                      size_t frame_count,
                                      int64_t timeout_ms,
                                      kvconn_conn_t *conn,
                                      uint64_t *sequence,
                                      kvconn_error_t *error);

/**
 * Waits until the peer's kernel has acknowledged messages of this connection.
 *
 * What is acknowledged a peer that goes on reading has, as long as the connection ends by KVCONN_ENDED_FIN. After a reset or a timeout,
 * or when the peer closes its socket or is killed before it has read, what its kernel held may be gone.
 *
 * @param conn              the connection.
 * @param sequence          up to which message; 0 is all that were accepted until this call, which is KVCONN_OK when there are none.
 * @param timeout_ms        how long to wait; 0 only looks. KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param[out] acknowledged the sequence of the last message acknowledged whole, also when the wait or the connection ended
 *     first; KVCONN_UNKNOWN with KVCONN_UNSUPPORTED. May be NULL.
 * @param error             details of a failure; may be NULL.
 * @retval KVCONN_OK             they are acknowledged.
 * @retval KVCONN_INVALID        no message of that sequence was accepted yet.
 * @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
 * @retval KVCONN_TIMEOUT        they are not all acknowledged yet.
 * @retval KVCONN_PEER_LOST      the peer was lost before its kernel acknowledged them all.
 * @retval KVCONN_DISCONNECTED   this process ended the connection before they were all acknowledged.
 * @retval KVCONN_NODE_FAILED    its node failed before they were all acknowledged.
 * @retval KVCONN_UNSUPPORTED    nobody can tell: an ipc endpoint, or acknowledgement is off.
 */
kvconn_status_t kvconn_flush(kvconn_conn_t conn,
                             uint64_t sequence,
                             int64_t timeout_ms,
                             uint64_t *acknowledged,
                             kvconn_error_t *error);

/* ====================================================================================================================
 * Batches
 * -------
 *
 * A batch sends one message to each of many ranks with one call, on the caller's thread and under one deadline: a rank that is
 * full or not there yet does not delay the others. Each item is as if sent by kvconn_send: accepted whole or not at all,
 * with a sequence or a status of its own. Items on one connection are accepted in the order of the array; when one is refused (for
 * want of room, say), those behind it get the same status untried, so that nothing overtakes it. An item that cannot be tried
 * (KVCONN_INVALID, no memory) holds up no other. Frames that several items have in common (the same data and size) are copied once.
 *
 *     kvconn_batch_item_t items[RANKS] = {0};
 *     for (int i = 0; i < RANKS; i++) {
 *         items[i].conn = ranks[i]; // 0 is skipped
 *         items[i].frames = frames[i];
 *         items[i].frame_count = 2;
 *     }
 *     if (kvconn_send_batch(items, RANKS, 1000, &error) == KVCONN_PARTIAL) {
 *         // items[i].status says which; with conn 0 in the others, the same array can be sent again.
 *     }
 */

/** The most items that one batch takes. */
#define KVCONN_MAX_BATCH 65536

/** One message of a batch. The layout is frozen, and has no struct_size. */
typedef struct kvconn_batch_item_t {
    /** The connection; 0 skips the item, whatever its frames are. */
    kvconn_conn_t conn;
    /** The message's frames, in order. */
    const kvconn_frame_t *frames;
    /** How many: 1 to KVCONN_MAX_FRAMES. */
    size_t frame_count;
    /** Written: the message's number on its connection, or 0. */
    uint64_t sequence;
    /** Written: KVCONN_OK when it is accepted or skipped, else why it is not. */
    kvconn_status_t status;
    /** Written: 0. */
    uint32_t reserved;
} kvconn_batch_item_t;

/**
 * Sends many messages, each on its connection, under one deadline and without a thread for each.
 *
 * The call returns when every item is accepted or has failed. One whose connection ends gets its status at that moment, and
 * the call goes on with the others. A message that cannot be accepted at once is copied, and its copy is held until its turn comes or
 * the call ends: a batch to full connections needs the memory of all its messages.
 *
 * @param[in,out] items the messages; sequence and status are written, also when the call as a whole fails, then with
 *     its status. May be NULL when count is 0.
 * @param count         how many: 0 to KVCONN_MAX_BATCH.
 * @param timeout_ms    how long to wait, in all, until the connections are READY and have room; 0 does not wait.
 *     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms of each connection's manager.
 * @param error         details of a failure; may be NULL. For KVCONN_PARTIAL: how many failed, and conn, endpoint, os_errno and
 *     message of the first item that did.
 * @retval KVCONN_OK      every item is accepted or skipped.
 * @retval KVCONN_INVALID items is NULL, or count or timeout_ms cannot be; no item was sent.
 * @retval KVCONN_PARTIAL at least one item failed; its status is one that kvconn_send returns. The others are accepted, an
 *     exception from what errors mean.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_batch(kvconn_batch_item_t *items,
                                  size_t count,
                                  int64_t timeout_ms,
                                  kvconn_error_t *error);

/* ====================================================================================================================
 * Owned buffers
 * -------------
 *
 * kvconn_send_owned sends without copying: the caller lends its buffers, and must neither free nor change them until they are its
 * own again. That is when libzmq has let them go, and it is known whether the peer has acknowledged the message or the connection
 * has ended before. A stopped peer keeps them for as long as it is connected; a disconnect gives them back.
 *
 * There are two forms. With a release function, kvconn calls it once for each accepted message, on its thread "kvconn-release",
 * under no lock. Without one, the buffers of all messages up to info.released are the caller's, and kvconn_wait_released waits
 * for that: callers from other languages use this form, because no code of theirs runs on a foreign thread.
 *
 * At the end of the program: after KVCONN_OK of kvconn_shutdown all lent buffers are released; after KVCONN_TIMEOUT of it the rest
 * must stay as they are until the process ends, and kvconn_wait_released returns KVCONN_SHUTDOWN. A program that returns from main
 * while releases may still run shuts down first: they must not touch what its exit destroys.
 */

/* What became of a message whose buffers are released. */

/** The peer's kernel has acknowledged it whole. */
#define KVCONN_OUTCOME_ACKNOWLEDGED 1
/** The connection has ended before that. */
#define KVCONN_OUTCOME_UNACKNOWLEDGED 2
/** Nobody can tell. */
#define KVCONN_OUTCOME_UNKNOWN 3

/**
 * A function that is told that the buffers of a message are the caller's again: the connection, the message's sequence, what became
 * of it (one of KVCONN_OUTCOME_…), and the pointer that was given with it.
 *
 * It is called on the thread "kvconn-release", one call at a time; while it runs, other buffers wait. It may call kvconn: every
 * function works there, but kvconn_wait_released returns KVCONN_WOULD_DEADLOCK instead of waiting for what comes after this
 * call, and kvconn_disconnect_all, kvconn_manager_destroy and kvconn_shutdown do not wait for buffers. In a forked child it is not
 * called, and in a child that it forked itself it must not return: the child then ends. Elsewhere it must return: a C++ exception
 * out of it, or pthread_exit, stops the thread, and nothing is released any more; a longjmp out of it is undefined.
 */
typedef void (*kvconn_release_fn_t)(kvconn_conn_t conn, uint64_t sequence, int32_t outcome, void *user_data);

/**
 * Sends one whole message on this connection without copying it, or nothing at all. For large frames: one below some ten KiB is
 * sent faster by kvconn_send.
 *
 * The array of frames itself is read during the call only. On KVCONN_OK the buffers are lent until they are released; on an error
 * they are the caller's when the call returns, and release is not called, now or later. When the peer dies in the middle of the
 * message, the call waits for libzmq to let the frames go that it took, which takes some milliseconds. A release may come before
 * the call returns.
 *
 * @param conn          the connection.
 * @param frames        its frames, in order. Their data must stay as it is until it is released.
 * @param frame_count   how many: 1 to KVCONN_MAX_FRAMES.
 * @param timeout_ms    how long to wait until the connection is READY and has room; 0 does not wait.
 *     KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param release       told once when the buffers are the caller's again; NULL for the form without one.
 * @param user_data     a pointer that release gets; kvconn does not look at it.
 * @param[out] sequence the message's number on this connection; may be NULL.
 * @param error         details of a failure; may be NULL.
 * @retval KVCONN_OK             it is accepted, in order behind what this thread sent before, and its buffers are lent.
 * @retval KVCONN_INVALID        there is no frame or too many, or a frame's data is NULL and its size is not 0.
 * @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered.
 * @retval KVCONN_TIMEOUT        the connection was not READY, or had no room, until the deadline.
 * @retval KVCONN_STALLED        it is full and has made no progress for at least timeout_ms; never with timeout 0.
 * @retval KVCONN_CONNECT_FAILED its dial has failed.
 * @retval KVCONN_PEER_LOST      the peer is gone.
 * @retval KVCONN_DISCONNECTED   this process ended it, before or during the call.
 * @retval KVCONN_NODE_FAILED    its node failed, before or during the call.
 * @retval KVCONN_LIMIT          max_total_queued_bytes is used up, there is no memory, or the thread "kvconn-release" cannot be
 *     started; the message says which.
 * @retval KVCONN_EVICTED        it was idle and was closed, before the call.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_send_owned(kvconn_conn_t conn,
                                  const kvconn_frame_t *frames,
                                  size_t frame_count,
                                  int64_t timeout_ms,
                                  kvconn_release_fn_t release,
                                  void *user_data,
                                  uint64_t *sequence,
                                  kvconn_error_t *error);

/**
 * Waits until the buffers of messages that were sent by kvconn_send_owned are the caller's again, after release was called where
 * one was given. What became of the messages: those up to acknowledged in kvconn_connection_info were acknowledged.
 *
 * @param conn       the connection, also one that has ended.
 * @param sequence   up to which message; 0 is all that were accepted until this call.
 * @param timeout_ms how long to wait; 0 only looks. KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param error      details of a failure; may be NULL.
 * @retval KVCONN_OK             the buffers of all messages up to that one are the caller's.
 * @retval KVCONN_INVALID        no message of that sequence was accepted yet.
 * @retval KVCONN_STALE          there is no such connection, or it ended too long ago to be remembered. A connection that has lent
 *     buffers is remembered until they are released.
 * @retval KVCONN_TIMEOUT        some are not the caller's yet.
 * @retval KVCONN_WOULD_DEADLOCK called from a release function, for buffers that are not released yet.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_wait_released(kvconn_conn_t conn,
                                     uint64_t sequence,
                                     int64_t timeout_ms,
                                     kvconn_error_t *error);

/* ====================================================================================================================
 * Nodes
 * -----
 *
 * A node is one life of a peer instance, begun by kvconn_node_open and ended by kvconn_handle_failure (or by what leads to it).
 * It owns endpoints and requests. Its end takes all of them away in one step; a call that comes late, with the id of a life
 * that is over, changes nothing and gets KVCONN_NODE_FAILED. The next life of the same name has a new id.
 */

/** The most endpoints that one call takes. */
#define KVCONN_MAX_ENDPOINTS_PER_CALL 65536

/** What is known about a node; start it with KVCONN_NODE_INFO_INIT. */
typedef struct kvconn_node_info_t {
    /** sizeof(kvconn_node_info_t), set by the caller. */
    uint32_t struct_size;
    /** KVCONN_OK while it lives, else why it is over: KVCONN_NODE_FAILED or KVCONN_DISCONNECTED. */
    kvconn_status_t status;
    /** How many endpoints it owns; 0 once it is over. */
    uint32_t endpoints;
    /** How many unhealthy reports came since the last healthy one. */
    uint32_t failures_in_row;
    /** The node. */
    kvconn_node_t node;
    /** How many requests are tracked on it; 0 once it is over. */
    uint64_t requests;
    /** Milliseconds that it has lived, or lived until it was over. */
    int64_t age_ms;
    /** Its name. */
    char name[KVCONN_TEXT_SIZE];
    /** Why it failed; while it lives, what the last unhealthy report said, "" when the last was healthy. */
    char reason[KVCONN_TEXT_SIZE];
} kvconn_node_info_t;

/** A kvconn_node_info_t that is empty, with its struct_size set. */
#define KVCONN_NODE_INFO_INIT {sizeof(kvconn_node_info_t), 0, 0, 0, 0, 0, 0, {0}, {0}}

/**
 * Gives the live node of that name, or begins a new life with no endpoints and no requests. The only call that begins one.
 *
 * @param m            the manager.
 * @param name         the name of the instance: 1 to 255 bytes of UTF-8, compared exactly.
 * @param[out] node    the node.
 * @param[out] created 1 when this call began the life, else 0; may be NULL.
 * @param error        details of a failure; may be NULL.
 * @retval KVCONN_OK      the node lives.
 * @retval KVCONN_INVALID the name is empty or too long.
 * @retval KVCONN_STALE   there is no such manager.
 * @retval KVCONN_LIMIT   max_nodes is reached, by live nodes and failure reports that nobody took.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_open(kvconn_manager_t m,
                                 const char *name,
                                 kvconn_node_t *node,
                                 int32_t *created,
                                 kvconn_error_t *error);

/**
 * Finds the live node of a name.
 *
 * @param m         the manager.
 * @param name      the name.
 * @param[out] node the node.
 * @param error     details of a failure; may be NULL.
 * @retval KVCONN_OK        there is one.
 * @retval KVCONN_INVALID   the name is empty or too long.
 * @retval KVCONN_STALE     there is no such manager.
 * @retval KVCONN_NOT_FOUND there is none now.
 */
kvconn_status_t kvconn_node_find(kvconn_manager_t m, const char *name, kvconn_node_t *node, kvconn_error_t *error);

/**
 * Tells what is known about a node, also after it is over: the last 4096 of a manager are remembered.
 *
 * @param node      the node.
 * @param[out] info what is known; its struct_size is set by the caller.
 * @param error     details of a failure; may be NULL.
 * @retval KVCONN_OK      info is filled; info->status says whether and why it is over.
 * @retval KVCONN_INVALID info->struct_size is not set.
 * @retval KVCONN_STALE   there is no such node, or it was over too long ago to be remembered.
 */
kvconn_status_t kvconn_node_info(kvconn_node_t node, kvconn_node_info_t *info, kvconn_error_t *error);

/**
 * Registers endpoints with a node: all of them or, on an error, none. Dials nothing. Lifts every fence on them, and resets
 * their backoff when this life is newer than any that registered them before. An endpoint may belong to several nodes, and may be
 * registered again.
 *
 * @param node      the node.
 * @param endpoints the endpoints; NULL when count is 0.
 * @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
 * @param options   settings that every later dial to them uses; NULL for those they remember, else the configured ones.
 * @param error     details of a failure; may be NULL. Its endpoint names the one that was refused.
 * @retval KVCONN_OK           they are registered.
 * @retval KVCONN_INVALID      an endpoint is malformed, or an option does not belong here.
 * @retval KVCONN_STALE        there is no such node.
 * @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
 * @retval KVCONN_NODE_FAILED  this life of the node is over.
 * @retval KVCONN_CONFLICT     a live connection to one of them has other options.
 * @retval KVCONN_LIMIT        max_endpoints would be exceeded.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_add_endpoints(kvconn_node_t node,
                                          const char *const *endpoints,
                                          size_t count,
                                          const kvconn_options_t *options,
                                          kvconn_error_t *error);

/**
 * Takes endpoints away from a node, ends their connections and fences them, as kvconn_disconnect_endpoint does. One that
 * another live node also owns keeps its connection and gets no fence; one that the node does not own is skipped.
 *
 * @param node      the node.
 * @param endpoints the endpoints; NULL when count is 0.
 * @param count     how many: 0 to KVCONN_MAX_ENDPOINTS_PER_CALL.
 * @param error     details of a failure; may be NULL.
 * @retval KVCONN_OK           none of them is the node's any more.
 * @retval KVCONN_INVALID      an endpoint is malformed; none was taken away.
 * @retval KVCONN_STALE        there is no such node.
 * @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
 * @retval KVCONN_NODE_FAILED  this life of the node is over.
 */
kvconn_status_t kvconn_node_remove_endpoints(kvconn_node_t node,
                                             const char *const *endpoints,
                                             size_t count,
                                             kvconn_error_t *error);

/**
 * Notes that a request is in flight on a node; it comes out in the failure report if the node fails before
 * kvconn_node_untrack_request. Works before the node has any endpoint. Tracking a request twice is tracking it once.
 *
 * @param node    the node.
 * @param request any number of the caller's.
 * @param error   details of a failure; may be NULL.
 * @retval KVCONN_OK           it is tracked.
 * @retval KVCONN_STALE        there is no such node.
 * @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
 * @retval KVCONN_NODE_FAILED  this life of the node is over: the request is in no report and must be failed by the caller.
 * @retval KVCONN_LIMIT        max_requests is reached, by live nodes and failure reports that nobody took.
 */
KVCONN_NODISCARD
kvconn_status_t kvconn_node_track_request(kvconn_node_t node,
                                          uint64_t request,
                                          kvconn_error_t *error);

/**
 * Notes that a request is done. When was_tracked is 0 or the call fails, the request was never tracked or its failure has been
 * or will be reported: it is not both done and failed.
 *
 * @param node             the node.
 * @param request          the number.
 * @param[out] was_tracked 1 when it was tracked until now, else 0; may be NULL.
 * @param error            details of a failure; may be NULL.
 * @retval KVCONN_OK           it is not tracked any more.
 * @retval KVCONN_STALE        there is no such node.
 * @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
 * @retval KVCONN_NODE_FAILED  this life of the node is over.
 */
kvconn_status_t kvconn_node_untrack_request(kvconn_node_t node,
                                            uint64_t request,
                                            int32_t *was_tracked,
                                            kvconn_error_t *error);

/* ====================================================================================================================
 * Failures
 * --------
 *
 * A node fails when kvconn_handle_failure says so, when max_failures health probes in a row were bad, or when connections to it
 * are lost and the option node_loss says that this fails it. Then its endpoints and requests are taken
 * away in one step: connections end, endpoints are fenced, and what was taken is in exactly one report. The report goes to the
 * call that caused the failure; when that gave no place for it, or when no call did, it waits for kvconn_take_failure and is
 * never dropped.
 */

/** A report of a node's failure. It never changes, and belongs to the caller until kvconn_failure_free. */
typedef struct kvconn_failure_t kvconn_failure_t;

/** One endpoint in a failure report. */
typedef struct kvconn_failed_endpoint_t {
    /** The size of this element, as it was given to kvconn_failure_endpoints. */
    uint32_t struct_size;
    /** 1 when another live node owns it as well, so that its connection goes on; else it was closed and fenced. */
    int32_t spared;
    /** Its connection, or 0 when there was none. */
    kvconn_conn_t conn;
    /** How many messages that connection had accepted. */
    uint64_t accepted;
    /** The last of them that the peer's kernel has acknowledged; KVCONN_UNKNOWN where nobody can tell. */
    uint64_t acknowledged;
    /** The endpoint, in its canonical form. */
    char endpoint[KVCONN_ENDPOINT_SIZE];
} kvconn_failed_endpoint_t;

/**
 * Fails a node: takes away all its endpoints and requests in one step, ends and fences the endpoints that no other live node
 * owns, and wakes every thread that waits in a call on them, with KVCONN_NODE_FAILED. Never waits, whatever those threads do.
 *
 * @param node         the node.
 * @param reason       one line for people, which later errors on these endpoints repeat; NULL is allowed, and what is longer
 *     than 200 bytes is cut.
 * @param[out] failure the report, to be freed with kvconn_failure_free. The parameter may be NULL: then kvconn_take_failure
 *     gives the report out.
 * @param error        details of a failure of this call; may be NULL.
 * @retval KVCONN_OK           the node has failed, by this call.
 * @retval KVCONN_STALE        there is no such node.
 * @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
 * @retval KVCONN_NODE_FAILED  this life of the node was over before; nothing has changed, the next life goes on.
 */
kvconn_status_t kvconn_handle_failure(kvconn_node_t node,
                                      const char *reason,
                                      kvconn_failure_t **failure,
                                      kvconn_error_t *error);

/**
 * Reports what a health probe found. max_failures unhealthy reports in a row fail the node, as kvconn_handle_failure does; a
 * healthy one begins the count anew.
 *
 * @param node         the node.
 * @param healthy      0 for unhealthy, any other number for healthy.
 * @param reason       one line for people; NULL is allowed, and what is longer than 200 bytes is cut.
 * @param[out] failure the report, when this call failed the node, to be freed with kvconn_failure_free; else NULL. The
 *     parameter may be NULL: then kvconn_take_failure gives the report out.
 * @param error        details of a failure; may be NULL.
 * @retval KVCONN_OK           it is noted.
 * @retval KVCONN_STALE        there is no such node.
 * @retval KVCONN_DISCONNECTED kvconn_disconnect_all has forgotten the node.
 * @retval KVCONN_NODE_FAILED  this life of the node was over before: a late probe changes nothing.
 */
kvconn_status_t kvconn_node_report_health(kvconn_node_t node,
                                          int32_t healthy,
                                          const char *reason,
                                          kvconn_failure_t **failure,
                                          kvconn_error_t *error);

/**
 * Takes the oldest failure report that nobody got yet.
 *
 * @param m            the manager.
 * @param[out] failure the report, to be freed with kvconn_failure_free; NULL when there is none.
 * @param error        details of a failure of this call; may be NULL.
 * @retval KVCONN_OK    the report is the caller's, or there is none.
 * @retval KVCONN_STALE there is no such manager.
 */
kvconn_status_t kvconn_take_failure(kvconn_manager_t m, kvconn_failure_t **failure, kvconn_error_t *error);

/**
 * Which node failed.
 *
 * @param failure the report; NULL is allowed.
 * @return the node, 0 for NULL.
 */
kvconn_node_t kvconn_failure_node(const kvconn_failure_t *failure);

/**
 * The name of the node that failed.
 *
 * @param failure the report; NULL is allowed.
 * @return a text that lives as long as the report, "" for NULL.
 */
const char *kvconn_failure_name(const kvconn_failure_t *failure);

/**
 * Why the node failed: the reason that was given, or what kvconn saw.
 *
 * @param failure the report; NULL is allowed.
 * @return a text that lives as long as the report, "" for NULL.
 */
const char *kvconn_failure_reason(const kvconn_failure_t *failure);

/**
 * When the node failed.
 *
 * @param failure the report; NULL is allowed.
 * @return milliseconds since 1970 on the wall clock, 0 for NULL.
 */
int64_t kvconn_failure_time_ms(const kvconn_failure_t *failure);

/**
 * How many endpoints the node owned.
 *
 * @param failure the report; NULL is allowed.
 * @return the number, 0 for NULL.
 */
size_t kvconn_failure_endpoint_count(const kvconn_failure_t *failure);

/**
 * How many requests were in flight.
 *
 * @param failure the report; NULL is allowed.
 * @return the number, 0 for NULL.
 */
size_t kvconn_failure_request_count(const kvconn_failure_t *failure);

/**
 * Copies the endpoints that the node owned, in the order in which they were registered, with what became of each.
 *
 * @param failure        the report.
 * @param[out] endpoints the first of them, as many as fit; needs no initialisation. NULL when capacity is 0.
 * @param element_size   sizeof(kvconn_failed_endpoint_t), by which one element follows the other.
 * @param capacity       how many elements fit.
 * @param[out] count     how many there are.
 * @param error          details of a failure of this call; may be NULL.
 * @retval KVCONN_OK      endpoints and count are set, also when not all fit.
 * @retval KVCONN_INVALID element_size is not that of any version of the struct.
 */
kvconn_status_t kvconn_failure_endpoints(const kvconn_failure_t *failure,
                                         kvconn_failed_endpoint_t *endpoints,
                                         size_t element_size,
                                         size_t capacity,
                                         size_t *count,
                                         kvconn_error_t *error);

/**
 * Copies the requests that were in flight, in ascending order.
 *
 * @param failure       the report.
 * @param[out] requests the first of them, as many as fit. NULL when capacity is 0.
 * @param capacity      how many fit.
 * @param[out] count    how many there are.
 * @param error         details of a failure of this call; may be NULL.
 * @retval KVCONN_OK      requests and count are set, also when not all fit.
 * @retval KVCONN_INVALID an argument is NULL that must not be.
 */
kvconn_status_t kvconn_failure_requests(const kvconn_failure_t *failure,
                                        uint64_t *requests,
                                        size_t capacity,
                                        size_t *count,
                                        kvconn_error_t *error);

/**
 * Frees a report.
 *
 * @param failure the report; NULL is allowed.
 */
void kvconn_failure_free(kvconn_failure_t *failure);

/* ====================================================================================================================
 * Events
 * ------
 *
 * Each manager queues what happens to its connections and nodes, in order. Every connection raises exactly one ending event
 * (CONNECT_FAILED, PEER_LOST, DISCONNECTED, EVICTED or NODE_FAILED), which is queued before the call that caused it returns. The queue is
 * bounded (option max_events): what does not fit is counted, and OVERFLOW tells how many are missing at that place. Who does not
 * care about events need not read them.
 */

/* The kinds of events. */

/** Nothing happened within the time given. */
#define KVCONN_EVENT_NONE 0
/** The ZMTP handshake of a connection has succeeded. */
#define KVCONN_EVENT_READY 1
/** Ending: the dial failed. */
#define KVCONN_EVENT_CONNECT_FAILED 2
/** Ending: a READY connection's peer is gone. */
#define KVCONN_EVENT_PEER_LOST 3
/** Ending: this process ended the connection. */
#define KVCONN_EVENT_DISCONNECTED 4
/** Ending: the connection was idle, with everything acknowledged, and was closed to save its descriptors. */
#define KVCONN_EVENT_EVICTED 5
/**
 * Nothing of what is on the way to the peer has been acknowledged for stall_ms; there may still be room. (Where nobody can
 * tell: libzmq has let go of nothing that it holds.)
 */
#define KVCONN_EVENT_STALLED 6
/** A stalled connection makes progress again. */
#define KVCONN_EVENT_RECOVERED 7
/** With a connection: ending, its node failed. Without: the life of the node is over. */
#define KVCONN_EVENT_NODE_FAILED 8
/** Some events did not fit in the queue at this place; count says how many. */
#define KVCONN_EVENT_OVERFLOW 9

/** One event; start it with KVCONN_EVENT_INIT. */
typedef struct kvconn_event_t {
    /** sizeof(kvconn_event_t), set by the caller. */
    uint32_t struct_size;
    /** What happened: one of KVCONN_EVENT_…. */
    int32_t kind;
    /**
     * Ending events and NODE_FAILED: the status that calls on the connection or node get from now on. STALLED: KVCONN_STALLED,
     * although the connection lives and a send on it may still succeed. All others: KVCONN_OK.
     */
    kvconn_status_t status;
    /** The errno behind it, or 0. */
    int32_t os_errno;
    /** The connection it is about, or 0. */
    kvconn_conn_t conn;
    /** The node it is about, or 0, as in every ending of a connection: an endpoint may belong to several nodes, or to none. */
    kvconn_node_t node;
    /** Ending events: messages accepted. OVERFLOW: events lost. NODE_FAILED of a node: requests failed. Else 0. */
    uint64_t count;
    /**
     * The last message of the connection that the peer's kernel has acknowledged, final in ending events: what lies between it
     * and the last accepted is unacknowledged. KVCONN_UNKNOWN where nobody can tell.
     */
    uint64_t acknowledged;
    /** Ending events: how it ended, one of KVCONN_ENDED_…. */
    int32_t ended_by;
    /** Always 0. */
    uint32_t reserved;
    /** When it happened, in milliseconds since 1970 on the wall clock. */
    int64_t time_ms;
    /** The endpoint it is about, in its canonical form, or "". */
    char endpoint[KVCONN_ENDPOINT_SIZE];
    /** The name of the node it is about, or "", as in every ending of a connection. */
    char node_name[KVCONN_TEXT_SIZE];
    /** One line for a person, or "" when there is nothing to add (READY). */
    char message[KVCONN_TEXT_SIZE];
} kvconn_event_t;

/** A kvconn_event_t that is empty, with its struct_size set. */
#define KVCONN_EVENT_INIT {sizeof(kvconn_event_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}}

/**
 * Gives a descriptor that is readable while events wait, for poll, epoll or an event loop. It belongs to the manager: do not
 * read, write or close it, and stop watching it before the manager is destroyed. It is readable exactly while an event waits
 * (level-triggered); with an edge-triggered poller, call kvconn_next_event with timeout 0 until KVCONN_EVENT_NONE.
 *
 * @param m       the manager.
 * @param[out] fd the descriptor; -1 on failure.
 * @param error   details of a failure; may be NULL.
 * @retval KVCONN_OK    it stays valid as long as the manager.
 * @retval KVCONN_STALE there is no such manager.
 * @retval KVCONN_LIMIT there is no descriptor left.
 */
kvconn_status_t kvconn_event_fd(kvconn_manager_t m,
                                int *fd,
                                kvconn_error_t *error);

/**
 * Takes the oldest event, and waits for one when there is none. Several threads may call it; each event goes to one of them.
 *
 * @param m          the manager.
 * @param timeout_ms how long to wait for an event; 0 does not wait. KVCONN_DEFAULT_TIMEOUT: the option send_timeout_ms.
 * @param[out] event the event; its kind is KVCONN_EVENT_NONE when none came in time, or when the manager was destroyed
 *     meanwhile. Its struct_size is set by the caller.
 * @param error      details of a failure; may be NULL.
 * @retval KVCONN_OK      event is filled.
 * @retval KVCONN_INVALID event->struct_size is not set.
 * @retval KVCONN_STALE   there is no such manager.
 */
kvconn_status_t kvconn_next_event(kvconn_manager_t m,
                                  int64_t timeout_ms,
                                  kvconn_event_t *event,
                                  kvconn_error_t *error);

/* ====================================================================================================================
 * Observing
 * ---------
 *
 * For people and debuggers; programs use the functions above.
 */

/* The levels of the log. */

/** No line at all. */
#define KVCONN_LOG_OFF 0
/** kvconn cannot do something that it should. */
#define KVCONN_LOG_ERROR 1
/** Something that the operator may want to change. */
#define KVCONN_LOG_WARN 2
/** What happens to connections and nodes. */
#define KVCONN_LOG_INFO 3
/** Each step of it. */
#define KVCONN_LOG_DEBUG 4

/**
 * A function that takes lines of the log: the level (one of KVCONN_LOG_…), the line without a newline, valid during the call
 * only, and the pointer that was given to kvconn_set_log.
 */
typedef void (*kvconn_log_fn_t)(int32_t level, const char *line, void *user_data);

/**
 * Describes a manager in text: settings and where they come from, connections with states and ages, nodes, the last losses with
 * their counts, fences, backoff. The form may change.
 *
 * @param m           the manager.
 * @param[out] buffer the text, ended with NUL, cut when it does not fit; NULL when capacity is 0.
 * @param capacity    the size of buffer in bytes.
 * @param[out] needed the size that the whole text needs, its NUL included; when that is more than capacity, the text is cut.
 *     May be NULL.
 * @param error       details of a failure; may be NULL.
 * @retval KVCONN_OK    buffer and needed are set, also when the text was cut.
 * @retval KVCONN_STALE there is no such manager.
 */
kvconn_status_t kvconn_describe(kvconn_manager_t m,
                                char *buffer,
                                size_t capacity,
                                size_t *needed,
                                kvconn_error_t *error);

/**
 * Writes the metrics of a manager as OpenMetrics text, to be served to Prometheus and the like as
 * "application/openmetrics-text; version=1.0.0; charset=utf-8". docs/metrics.md lists them. What the process has one of, such
 * as descriptors, is in the text of manager KVCONN_DEFAULT only. Option metrics_endpoints adds series for single endpoints.
 *
 * Made for one scrape every few seconds. It takes some microseconds for each live connection, waits for no peer, and holds
 * up no other call.
 *
 * @param m           the manager.
 * @param[out] buffer the text, ended with NUL, cut when it does not fit; NULL when capacity is 0. A whole text ends with
 *     "# EOF".
 * @param capacity    the size of buffer in bytes.
 * @param[out] needed the size that the whole text needs, its NUL included; when that is more than capacity, the text is cut.
 *     The next text may need more. May be NULL.
 * @param error       details of a failure; may be NULL.
 * @retval KVCONN_OK    buffer and needed are set, also when the text was cut.
 * @retval KVCONN_STALE there is no such manager.
 */
kvconn_status_t kvconn_metrics_text(kvconn_manager_t m,
                                    char *buffer,
                                    size_t capacity,
                                    size_t *needed,
                                    kvconn_error_t *error);

/**
 * Writes the descriptions of all managers to a descriptor. Made for a debugger on a process that hangs
 * ("call (int)kvconn_dump(2, (void*)0)"): it waits for no lock, leaves out what it could not get without waiting, and works after
 * kvconn_shutdown too. It raises no SIGPIPE.
 *
 * @param fd    a descriptor that can be written.
 * @param error details of a failure; may be NULL.
 * @retval KVCONN_OK      it is written.
 * @retval KVCONN_INVALID fd cannot be written; os_errno says why: EPIPE when its reader is gone.
 * @retval KVCONN_TIMEOUT nobody read from fd for a second; what was written until then is cut.
 */
kvconn_status_t kvconn_dump(int fd,
                            kvconn_error_t *error);

/**
 * Sends the log to a function. Without one kvconn is silent, unless the environment variable KVCONN_LOG names a level and a
 * file ("info:/var/log/kvconn.log", or "-" for standard error); after the first call of this function that has no effect. A value
 * that cannot be used is reported by one line on standard error, and leaves the log off. A file that was renamed, as logrotate
 * does, is opened again under its name with the next line.
 *
 * The function is called on the thread "kvconn-log", one line at a time, under no lock of kvconn's, and may call kvconn. While
 * it is slow, lines are dropped and counted. In a forked child it is not called. It must return: a C++ exception out
 * of it, or pthread_exit, stops the thread, and no line comes any more; a longjmp out of it is undefined.
 *
 * @param function  the function; NULL to be silent again.
 * @param user_data a pointer that it gets; must stay valid until another kvconn_set_log has returned KVCONN_OK.
 * @param level     the least important level that it gets: one of KVCONN_LOG_….
 * @param error     details of a failure; may be NULL.
 * @retval KVCONN_OK      it gets every line from now on. The function before it has got its last line and will not be called
 *     again; the call waits for that, for at most 1 s, unless it comes from that very function.
 * @retval KVCONN_TIMEOUT the same, but the function before has not returned from its call within 1 s. It is not called again after
 *     that. It may need this thread, or a lock that the caller holds. Another kvconn_set_log waits for it again.
 * @retval KVCONN_INVALID there is no such level.
 * @retval KVCONN_LIMIT   the thread could not be started; nothing has changed.
 */
kvconn_status_t kvconn_set_log(kvconn_log_fn_t function,
                               void *user_data,
                               int32_t level,
                               kvconn_error_t *error);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // KVCONN_H
