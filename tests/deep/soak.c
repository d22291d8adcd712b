// The engine of a soak run: sends to every rank from some threads, and writes down what the library says of each message and
// each connection. soak.py kills, stops and restarts the ranks, ends the run, and compares.
//
//     soak SENDERS ENDPOINT...
//
// Each message has a first frame of six numbers: connection, sender, this sender's count on the connection, endpoint, the size
// of the second frame, a seed for its bytes. One line of output for each fact:
//
//     sent CONN SENDER COUNT ENDPOINT         a sender has left the connection; the messages that were accepted from it
//     ended CONN KIND ACCEPTED ACKNOWLEDGED ENDED_BY    an ending event
//     lives CONN ACCEPTED ACKNOWLEDGED        a connection at the end of the run, after a flush
//     overflow COUNT, late CALL MS            events that were lost; a call that took longer than it may
//     broken TEXT                             something that must not be
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvconn.h"

#define MAX_ENDPOINTS 64
#define MAX_SENDERS 4
#define LARGEST 65536
#define SEND_MS 200
#define CONNECT_MS 500
// What the machine's load may add to a deadline before it is written down. The bounds are asserted by other tests.
#define LATE_MS 1000

static const char *endpoints[MAX_ENDPOINTS];
static int endpoint_count, sender_count;
static _Atomic int stopping, done;
static char body[LARGEST];

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void nap(int ms) {
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static void in_time(const char *call, int64_t begun, int64_t allowed) {
    const int64_t took = now_ms() - begun;
    if (took > allowed + LATE_MS) printf("late %s %" PRId64 "\n", call, took);
}

static void broken(const char *call, const kvconn_error_t *error) {
    printf("broken %s: %s %s\n", call, kvconn_status_name(error->status), error->message);
}

// What a sender may be told while ranks come and go, and the node fails.
static int expected(kvconn_status_t status) {
    switch (status) {
    case KVCONN_TIMEOUT: case KVCONN_STALLED: case KVCONN_BACKOFF: case KVCONN_CONNECT_FAILED: case KVCONN_PEER_LOST:
    case KVCONN_DISCONNECTED: case KVCONN_NODE_FAILED: return 1;
    default: return 0;
    }
}

static void *send_all(void *argument) {
    const uint64_t place = (uintptr_t)argument / MAX_SENDERS, sender = (uintptr_t)argument % MAX_SENDERS;
    const char *endpoint = endpoints[place];
    unsigned seed = (unsigned)(place * 31 + sender);
    while (!stopping) {
        kvconn_error_t error = KVCONN_ERROR_INIT;
        kvconn_conn_t conn;
        int64_t begun = now_ms();
        kvconn_status_t status = kvconn_connect(KVCONN_DEFAULT, endpoint, NULL, CONNECT_MS, &conn, &error);
        in_time("connect", begun, CONNECT_MS);
        if (status != KVCONN_OK) {
            if (!expected(status)) broken("connect", &error);
            nap(error.retry_after_ms > 0 ? error.retry_after_ms : 10);
            continue;
        }
        uint64_t count = 0, last = 0;
        while (!stopping) {
            const uint64_t size = rand_r(&seed) % 64 == 0 ? (uint64_t)rand_r(&seed) % LARGEST : (uint64_t)rand_r(&seed) % 512;
            const uint64_t offset = (uint64_t)rand_r(&seed) % (LARGEST - size);
            const uint64_t head[6] = {conn, sender, count + 1, place, size, offset};
            const kvconn_frame_t frames[2] = {{head, sizeof head}, {body + offset, size}};
            uint64_t sequence;
            begun = now_ms();
            status = kvconn_send(conn, frames, 2, SEND_MS, &sequence, &error);
            in_time("send", begun, SEND_MS);
            if (status == KVCONN_OK) {
                count++;
                if (sequence <= last) printf("broken sequence %" PRIu64 " after %" PRIu64 "\n", sequence, last);
                last = sequence;
            } else if (status == KVCONN_TIMEOUT || status == KVCONN_STALLED) {
                nap(5);
            } else {
                if (!expected(status)) broken("send", &error);
                break;
            }
        }
        printf("sent %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", conn, sender, count, place);
    }
    return NULL;
}

static void *take_events(void *argument) {
    (void)argument;
    for (;;) {
        kvconn_event_t event = KVCONN_EVENT_INIT;
        const int last = done;
        if (kvconn_next_event(KVCONN_DEFAULT, last ? 0 : 50, &event, NULL) != KVCONN_OK) printf("broken next_event\n");
        switch (event.kind) {
        case KVCONN_EVENT_NONE:
            if (last) return NULL;
            break;
        case KVCONN_EVENT_CONNECT_FAILED: case KVCONN_EVENT_PEER_LOST: case KVCONN_EVENT_DISCONNECTED: case KVCONN_EVENT_EVICTED:
        case KVCONN_EVENT_NODE_FAILED:
            if (event.conn != 0)
                printf("ended %" PRIu64 " %d %" PRIu64 " %" PRId64 " %d\n", event.conn, (int)event.kind, event.count,
                       event.acknowledged == KVCONN_UNKNOWN ? -1 : (int64_t)event.acknowledged, (int)event.ended_by);
            break;
        case KVCONN_EVENT_OVERFLOW: printf("overflow %" PRIu64 "\n", event.count); break;
        default: break;
        }
    }
}

static kvconn_node_t nodes[MAX_ENDPOINTS];

static void open_node(int place) {
    char name[32];
    kvconn_error_t error = KVCONN_ERROR_INIT;
    snprintf(name, sizeof name, "rank %d", place);
    if (kvconn_node_open(KVCONN_DEFAULT, name, &nodes[place], NULL, &error) != KVCONN_OK) broken("node_open", &error);
    if (kvconn_node_add_endpoints(nodes[place], &endpoints[place], 1, NULL, &error) != KVCONN_OK)
        broken("node_add_endpoints", &error);
}

// Requests of the node are in flight when it fails: each is in the report.
static void fail_node(int place) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    for (uint64_t request = 1; request <= 10; request++)
        if (kvconn_node_track_request(nodes[place], request, &error) != KVCONN_OK) broken("track_request", &error);
    kvconn_failure_t *failure;
    const int64_t begun = now_ms();
    if (kvconn_handle_failure(nodes[place], "soak", &failure, &error) != KVCONN_OK) {
        broken("handle_failure", &error);
        return;
    }
    in_time("handle_failure", begun, 10);
    if (kvconn_failure_request_count(failure) != 10) printf("broken report of %zu requests\n", kvconn_failure_request_count(failure));
    kvconn_failure_free(failure);
    nap(20);
    open_node(place);
}

// One command a line: `fail N`, `disconnect N`, `stop` (the senders), `finish`.
static void obey(pthread_t *threads, int count) {
    char line[64];
    kvconn_error_t error = KVCONN_ERROR_INIT;
    int place;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "fail %d", &place) == 1) fail_node(place);
        if (sscanf(line, "disconnect %d", &place) == 1) {
            const int64_t begun = now_ms();
            if (kvconn_disconnect_endpoint(KVCONN_DEFAULT, endpoints[place], &error) != KVCONN_OK &&
                error.status != KVCONN_NOT_FOUND)
                broken("disconnect_endpoint", &error);
            in_time("disconnect_endpoint", begun, 10);
        }
        if (strcmp(line, "stop\n") == 0) {
            stopping = 1;
            for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
            printf("stopped\n");
        }
        if (strcmp(line, "finish\n") == 0) return;
    }
}

static void flush_all(void) {
    kvconn_conn_t conns[MAX_ENDPOINTS];
    size_t count;
    kvconn_error_t error = KVCONN_ERROR_INIT;
    if (kvconn_connections(KVCONN_DEFAULT, conns, MAX_ENDPOINTS, &count, &error) != KVCONN_OK) broken("connections", &error);
    for (size_t i = 0; i < count; i++) {
        kvconn_connection_info_t info = KVCONN_CONNECTION_INFO_INIT;
        if (kvconn_flush(conns[i], 0, 60000, NULL, &error) != KVCONN_OK) broken("flush", &error);
        if (kvconn_connection_info(conns[i], &info, &error) != KVCONN_OK) broken("connection_info", &error);
        if (info.status == KVCONN_OK) printf("lives %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", conns[i], info.accepted, info.acknowledged);
    }
}

int main(int argc, char **argv) {
    sender_count = argc > 1 ? atoi(argv[1]) : 0;
    endpoint_count = argc - 2;
    if (sender_count < 1 || sender_count > MAX_SENDERS || endpoint_count < 1 || endpoint_count > MAX_ENDPOINTS) {
        fprintf(stderr, "soak SENDERS (1 to %d) ENDPOINT... (1 to %d)\n", MAX_SENDERS, MAX_ENDPOINTS);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    for (int i = 0; i < LARGEST; i++) body[i] = (char)(i * 7 + i / 256);
    for (int i = 0; i < endpoint_count; i++) {
        endpoints[i] = argv[i + 2];
        open_node(i);
    }
    pthread_t threads[MAX_ENDPOINTS * MAX_SENDERS], reader;
    pthread_create(&reader, NULL, take_events, NULL);
    int count = 0;
    for (int i = 0; i < endpoint_count; i++)
        for (int sender = 0; sender < sender_count; sender++)
            pthread_create(&threads[count++], NULL, send_all, (void *)(uintptr_t)(i * MAX_SENDERS + sender));
    obey(threads, count);
    flush_all();
    done = 1;
    pthread_join(reader, NULL);
    char text[1 << 16];
    size_t needed;
    if (kvconn_describe(KVCONN_DEFAULT, text, sizeof text, &needed, NULL) == KVCONN_OK) fprintf(stderr, "%s\n", text);
    printf("finished\n");
    kvconn_error_t error = KVCONN_ERROR_INIT;
    if (kvconn_shutdown(5000, &error) != KVCONN_OK) broken("shutdown", &error);
    return 0;
}
