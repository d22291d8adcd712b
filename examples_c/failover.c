/*
 * A decode engine that survives the loss of its prefill nodes. `make demo` runs it, kills one of them under load, and
 * restarts a rank of the other.
 *
 *     failover A tcp://10.0.0.1:5557 tcp://10.0.0.1:5558 B tcp://10.0.0.2:5557 tcp://10.0.0.2:5558
 *
 * One scheduler thread does everything. It starts requests ("bootstrap rooms") at a steady rate, tells both ranks of
 * a prefill node where each room's KV cache belongs (10 frames, 2 kB, like SGLang's), and receives kvconn's events
 * through one descriptor. Standard input stands for service discovery: "back B" says that node B is up again,
 * "leaving A1" that rank 1 of node A will restart at some later time, "back A1" that it has restarted. "stop" ends
 * the program.
 *
 * Standard output is the timeline. Lines that begin with '{' are for the program that checks it (run_failover.py).
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <kvconn.h>

#include "ledger.h"
#include "timeline.h"

#ifndef SEND_MS
#define SEND_MS 1000 /* a rank that takes nothing for so long counts as lost */
#endif
enum { NODES = 2, RANKS = 2, ROOMS_PER_MS = 2, FLIGHT_MS = 50, SAMPLE_MS = 20, MAX_FLIGHTS = 1 << 16 };

struct rank { const char *endpoint; kvconn_conn_t conn; int leaving; struct ledger ledger; };
struct node { const char *name; kvconn_node_t life; int ready; struct rank ranks[RANKS]; }; /* life 0: none now */
struct flight { uint64_t room; kvconn_node_t life; double due; };

static struct node nodes[NODES];
static struct flight flights[MAX_FLIGHTS]; /* a circular buffer: the requests in flight, oldest first */
static uint64_t first_flight, next_flight, started, done, rerouted;
static kvconn_error_t error = KVCONN_ERROR_INIT;

static void die(const char *what) {
    fprintf(stderr, "failover: %s: %s (%s)\n", what, error.message, kvconn_status_name(error.status));
    exit(1);
}

/* Begins a new connection to a rank without waiting: the dial continues in the background and raises READY. */
static void connect_rank(struct rank *rank) {
    rank->leaving = 0;
    if (kvconn_connect(KVCONN_DEFAULT, rank->endpoint, NULL, 0, &rank->conn, &error) != KVCONN_OK) die("connect");
}

/* Begins a new life of a node. */
static void open_node(struct node *node) {
    const char *endpoints[RANKS];
    for (int r = 0; r < RANKS; r++) endpoints[r] = node->ranks[r].endpoint;
    if (kvconn_node_open(KVCONN_DEFAULT, node->name, &node->life, NULL, &error) != KVCONN_OK) die("node_open");
    if (kvconn_node_add_endpoints(node->life, endpoints, RANKS, NULL, &error) != KVCONN_OK) die("add_endpoints");
    node->ready = 0;
    for (int r = 0; r < RANKS; r++) forget(&node->ranks[r].ledger), connect_rank(&node->ranks[r]);
    say("OPENED", "node %s, life %" PRIu64 ": %d endpoints registered", node->name, node->life, RANKS);
}

/* Sends one room to one rank: a control message like SGLang's. The last frame is for the proof only. */
static kvconn_status_t send_room(struct rank *rank, uint64_t room) {
    char text[24], session[32];
    uint64_t pointers[64], pages[128], states[32], aux = room % 256;
    uint64_t sequence, stamp[2] = {rank->conn, accepted(&rank->ledger) + 1};
    for (uint64_t i = 0; i < 64; i++) pointers[i] = 0x7f0000000000 + (i << 30);
    for (uint64_t i = 0; i < 128; i++) pages[i] = room * 128 + i;
    for (uint64_t i = 0; i < 32; i++) states[i] = room * 32 + i;
    const kvconn_frame_t frames[] = {
        {text, (size_t)snprintf(text, sizeof text, "%" PRIu64, room)}, {"10.0.0.9", 8}, {"17001", 5},
        {session, (size_t)snprintf(session, sizeof session, "decode-0:%ld", (long)getpid())},
        {pointers, sizeof pointers}, {pages, sizeof pages}, {&aux, sizeof aux}, {states, sizeof states}, {"2", 1},
        {stamp, sizeof stamp},
    };
    kvconn_status_t status = kvconn_send(rank->conn, frames, 10, SEND_MS, &sequence, &error);
    if (status == KVCONN_OK && sequence != stamp[1]) die("a sequence that is not the count of OKs");
    return status;
}

static void fail_node(struct node *node, const char *why);

/* Sends a rank every room that it was not sent yet: usually the one room that has just been noted. */
static void tell(struct node *node, struct rank *rank) {
    while (untold(&rank->ledger) > 0) {
        kvconn_status_t status = send_room(rank, room_of(&rank->ledger, accepted(&rank->ledger) + 1));
        if (status == KVCONN_OK) { rank->ledger.told++; continue; }
        /* Not accepted, now or later. The room stays noted and tracked, for the rank's next process or another node.
         * If the peer is lost, its event will arrive and decide. A rank that took nothing for a second counts as lost. */
        if (status == KVCONN_TIMEOUT || status == KVCONN_STALLED) fail_node(node, error.message);
        return;
    }
}

/* Starts a request on a node that serves: tracks it, then sends it to the ranks. */
static void start_room(uint64_t room) {
    struct node *node = &nodes[room % NODES];
    if (node->ready < RANKS) node = &nodes[(room + 1) % NODES];
    if (kvconn_node_track_request(node->life, room, &error) != KVCONN_OK) die("no node takes the request");
    flights[next_flight++ % MAX_FLIGHTS] = (struct flight){room, node->life, now_ms() + FLIGHT_MS};
    for (int r = 0; r < RANKS; r++) note(&node->ranks[r].ledger, room);
    for (int r = 0; r < RANKS; r++) tell(node, &node->ranks[r]);
}

/* Takes a node's endpoints and requests away in one step, and starts its requests again on the other node. */
static void fail_node(struct node *node, const char *why) {
    kvconn_failure_t *failure;
    if (kvconn_handle_failure(node->life, why, &failure, &error) != KVCONN_OK) die("handle_failure");
    node->life = 0;
    node->ready = 0;
    size_t count = kvconn_failure_request_count(failure);
    uint64_t *rooms = calloc(count + 1, sizeof *rooms);
    if (kvconn_failure_requests(failure, rooms, count, &count, &error) != KVCONN_OK) die("failure_requests");
    say("FAILED", "node %s, life %" PRIu64 ", because it %s: %zu requests in flight, rooms %" PRIu64 " %" PRIu64 " ...",
        node->name, kvconn_failure_node(failure), kvconn_failure_reason(failure), count, rooms[0], rooms[count > 1]);
    printf("{\"failed\": \"%s\", \"rooms\": [", node->name);
    for (size_t i = 0; i < count; i++) printf("%s%" PRIu64, i ? ", " : "", rooms[i]);
    puts("]}");
    kvconn_failure_free(failure);
    for (size_t i = 0; i < count; i++) start_room(rooms[i]);
    say("REROUTED", "these %zu requests, to the other node", count);
    rerouted += count;
    free(rooms);
}

/* A rank has closed in order, as announced. No request fails: the rank's next process gets what may be missing. */
static void await_successor(struct node *node, int r, const kvconn_event_t *end) {
    struct rank *rank = &node->ranks[r];
    say("UNACKED", "%s rank %d, connection %" PRIu64 ": messages %" PRIu64 " to %" PRIu64 " wait for its next process",
        node->name, r, end->conn, end->acknowledged + 1, end->count);
    printf("{\"unacknowledged\": [");
    for (uint64_t s = end->acknowledged + 1; s <= end->count; s++)
        printf("%s%" PRIu64, s > end->acknowledged + 1 ? ", " : "", room_of(&rank->ledger, s));
    printf("], \"of\": %" PRIu64 "}\n", end->conn);
    if (!go_back(&rank->ledger, end->acknowledged)) die("more is unacknowledged than was kept");
    node->ready--;
}

static void on_ready(struct node *node, int r) {
    struct rank *rank = &node->ranks[r];
    say("READY", "%s rank %d is connection %" PRIu64, node->name, r, rank->conn);
    /* The next process of a rank that left. It gets the unacknowledged messages, and rooms that were refused after the
     * end of the connection and before its event: those for the first time. */
    if (untold(&rank->ledger) > 0) {
        tell(node, rank);
        if (node->life == 0) return;
        say("RESENT", "to %s rank %d: %" PRIu64 " messages, as its first", node->name, r, accepted(&rank->ledger));
    }
    if (++node->ready == RANKS) say("SERVING", "node %s", node->name);
}

/* Each connection raises exactly one ending event. */
static void on_end(struct node *node, int r, const kvconn_event_t *end) {
    static const char *const BY[] = {"UNKNOWN", "FIN", "RESET", "TIMEOUT", "LOCAL"}; /* KVCONN_ENDED_... */
    struct rank *rank = &node->ranks[r];
    const char *status = kvconn_status_name(end->status) + strlen("KVCONN_");
    say(status, "%s rank %d, connection %" PRIu64 ": %" PRIu64 " messages accepted, %" PRIu64 " acknowledged, by %s",
        node->name, r, end->conn, end->count, end->acknowledged, BY[end->ended_by]);
    printf("{\"conn\": %" PRIu64 ", \"rank\": \"%s%d\", \"accepted\": %" PRIu64 ", \"acknowledged\": %" PRIu64
           ", \"ended\": \"%s\", \"by\": \"%s\", \"ms\": %.1f}\n",
           end->conn, node->name, r, accepted(&rank->ledger), end->acknowledged, status, BY[end->ended_by], now_ms());
    if (end->count != accepted(&rank->ledger)) die("an event's count that is not the count of OKs");
    if (node->life == 0) return;
    if (end->status == KVCONN_CONNECT_FAILED) fail_node(node, "cannot be reached");
    if (end->status != KVCONN_PEER_LOST) return;
    /* Only a FIN guarantees that a rank that keeps reading gets everything acknowledged. */
    int is_sure = end->ended_by == KVCONN_ENDED_FIN && end->acknowledged != KVCONN_UNKNOWN;
    if (rank->leaving && is_sure) await_successor(node, r, end);
    else fail_node(node, "lost a rank");
}

/* Handles every pending event. */
static void on_events(void) {
    kvconn_event_t event = KVCONN_EVENT_INIT;
    while (kvconn_next_event(KVCONN_DEFAULT, 0, &event, &error) == KVCONN_OK && event.kind != KVCONN_EVENT_NONE) {
        for (int i = 0; i < NODES * RANKS; i++) {
            struct node *node = &nodes[i / RANKS];
            int r = i % RANKS, is_end = event.kind != KVCONN_EVENT_STALLED && event.kind != KVCONN_EVENT_RECOVERED;
            if (node->ranks[r].conn != event.conn) continue;
            if (event.kind == KVCONN_EVENT_READY) on_ready(node, r);
            else if (is_end) on_end(node, r, &event);
        }
    }
}

/* Reads one line of standard input; returns 1 for "stop". */
static int on_command(void) {
    char line[64], verb[16], name[16];
    int r = -1;
    if (fgets(line, sizeof line, stdin) == NULL || sscanf(line, "%15s %15[A-Z]%d", verb, name, &r) < 2) return 1;
    for (int n = 0; n < NODES; n++) {
        struct node *node = &nodes[n];
        if (strcmp(name, node->name) != 0) continue;
        if (r < 0) {
            if (node->life != 0) fail_node(node, "restarted"), on_events(); /* its loss was not seen yet */
            open_node(node);
        } else if (strcmp(verb, "back") == 0) {
            connect_rank(&node->ranks[r % RANKS]);
        } else {
            node->ranks[r % RANKS].leaving = 1;
            say("LEAVING", "%s rank %d will restart: its end will not fail the node", name, r);
        }
    }
    return 0;
}

/* Ends the requests whose KV cache has arrived, which takes FLIGHT_MS here. */
static void finish_rooms(void) {
    for (; first_flight < next_flight && flights[first_flight % MAX_FLIGHTS].due <= now_ms(); first_flight++) {
        const struct flight *flight = &flights[first_flight % MAX_FLIGHTS];
        int32_t was_tracked;
        /* An error: that life is over. The room was reported failed then, and is not done. */
        if (kvconn_node_untrack_request(flight->life, flight->room, &was_tracked, NULL) == KVCONN_OK)
            done += (uint64_t)was_tracked;
    }
}

static void say_counts(void) {
    const struct rank *a = nodes[0].ranks, *b = nodes[1].ranks;
    say("STREAMING", "%s %" PRIu64 " + %" PRIu64 ", %s %" PRIu64 " + %" PRIu64 " messages; %" PRIu64 " requests done",
        nodes[0].name, accepted(&a[0].ledger), accepted(&a[1].ledger), nodes[1].name, accepted(&b[0].ledger),
        accepted(&b[1].ledger), done);
}

/* What each connection has accepted so far, and what the kernel at the other end has acknowledged: for the picture. */
static void sample_counts(void) {
    printf("{\"sample\": %.1f", now_ms());
    for (int i = 0; i < NODES * RANKS; i++) {
        const struct rank *rank = &nodes[i / RANKS].ranks[i % RANKS];
        kvconn_connection_info_t info = KVCONN_CONNECTION_INFO_INIT;
        if (kvconn_connection_info(rank->conn, &info, NULL) != KVCONN_OK || info.status != KVCONN_OK) continue;
        printf(", \"%s%d\": [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", nodes[i / RANKS].name, i % RANKS, info.conn,
               info.accepted, info.acknowledged);
    }
    puts("}");
}

int main(int argc, char **argv) {
    if (argc != 1 + NODES * (1 + RANKS)) return fputs("usage: failover A end point B end point\n", stderr), 2;
    setvbuf(stdin, NULL, _IONBF, 0); /* so that poll reports what fgets has not read */
    for (int n = 0; n < NODES; n++) {
        nodes[n].name = *++argv;
        for (int r = 0; r < RANKS; r++) nodes[n].ranks[r].endpoint = *++argv;
        open_node(&nodes[n]);
    }
    struct pollfd fds[] = {{.events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    if (kvconn_event_fd(KVCONN_DEFAULT, &fds[0].fd, &error) != KVCONN_OK) die("event_fd");

    double begun = 0, said = 0, sampled = 0; /* begun when both nodes serve */
    for (int stopping = 0; !stopping || first_flight < next_flight;) {
        poll(fds, stopping ? 1 : 2, 1);
        on_events();
        if (!stopping && fds[1].revents) stopping = on_command();
        finish_rooms();
        int serving = (nodes[0].ready == RANKS) + (nodes[1].ready == RANKS);
        if (begun == 0 && serving == NODES) begun = said = now_ms();
        if (now_ms() > sampled + SAMPLE_MS) sampled = now_ms(), sample_counts();
        if (begun == 0 || stopping || serving == 0) continue;
        for (int n = 0; n < 16 && (double)started < (now_ms() - begun) * ROOMS_PER_MS; n++) start_room(started++);
        if (now_ms() > said + 250) said += 250, say_counts();
    }
    /* Waits up to five seconds until everything accepted is acknowledged. The endings are events like all others. */
    if (kvconn_disconnect_all(KVCONN_DEFAULT, 5000, &error) != KVCONN_OK) die("disconnect_all");
    on_events();
    say("STOPPED", "%" PRIu64 " requests started, %" PRIu64 " done, %" PRIu64 " rerouted", started, done, rerouted);
    printf("{\"started\": %" PRIu64 ", \"done\": %" PRIu64 ", \"rerouted\": %" PRIu64 "}\n", started, done, rerouted);
    return 0;
}
