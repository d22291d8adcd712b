/*
 * kvconn in an event loop: epoll on its event descriptor, beside a timer that sends a heartbeat.
 *
 *     event_loop tcp://10.0.0.7:5557 tcp://10.0.0.8:5557 ...
 *
 * Only epoll_wait waits: connections are dialled in the background, heartbeats are sent with timeout 0, and the loss
 * of a peer is an event. The program ends when the last peer is lost.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <kvconn.h>

enum { MAX_PEERS = 64, HEARTBEAT_MS = 100 };

static kvconn_conn_t peers[MAX_PEERS]; /* 0: lost */
static int peer_count, live;

static int fail(const char *what, const kvconn_error_t *error) {
    fprintf(stderr, "%s: %s (%s)\n", what, error->message, kvconn_status_name(error->status));
    return 1;
}

/* Each connection raises exactly one of the five ending events. event.conn is the id from kvconn_connect; event.endpoint
 * may be spelt in another way than on the command line. A new kvconn_connect would make the next connection. */
static void on_end(const kvconn_event_t *end) {
    printf("%s %s after %" PRIu64 " messages: %s\n", kvconn_status_name(end->status) + strlen("KVCONN_"), end->endpoint,
           end->count, end->message);
    for (int i = 0; i < peer_count; i++) {
        if (peers[i] == end->conn) peers[i] = 0, live--;
    }
}

/* Handles every pending event. */
static void on_events(void) {
    kvconn_event_t event = KVCONN_EVENT_INIT;
    while (kvconn_next_event(KVCONN_DEFAULT, 0, &event, NULL) == KVCONN_OK && event.kind != KVCONN_EVENT_NONE) {
        switch (event.kind) {
        case KVCONN_EVENT_READY:
            printf("READY %s\n", event.endpoint);
            break;
        case KVCONN_EVENT_STALLED:
        case KVCONN_EVENT_RECOVERED:
            printf("%s %s\n", event.kind == KVCONN_EVENT_STALLED ? "STALLED" : "RECOVERED", event.endpoint);
            break;
        case KVCONN_EVENT_CONNECT_FAILED:
        case KVCONN_EVENT_PEER_LOST:
        case KVCONN_EVENT_DISCONNECTED:
        case KVCONN_EVENT_EVICTED:
        case KVCONN_EVENT_NODE_FAILED:
            if (event.conn != 0) on_end(&event); /* 0: not a connection but its node has failed */
            break;
        default:
            break;
        }
    }
    fflush(stdout);
}

static void on_timer(void) {
    const kvconn_frame_t heartbeat = {"heartbeat", strlen("heartbeat")};
    kvconn_error_t error = KVCONN_ERROR_INIT;
    for (int i = 0; i < peer_count; i++) {
        if (peers[i] != 0 && kvconn_send(peers[i], &heartbeat, 1, 0, NULL, &error) != KVCONN_OK) {
            /* Not READY yet, full, or just lost. The next heartbeat tries again. */
            fprintf(stderr, "no heartbeat to %s: %s\n", error.endpoint, error.message);
        }
    }
}

int main(int argc, char **argv) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    int events;
    if (kvconn_event_fd(KVCONN_DEFAULT, &events, &error) != KVCONN_OK) return fail("kvconn_event_fd", &error);
    for (; peer_count < MAX_PEERS && peer_count + 1 < argc; peer_count++, live++) {
        const char *endpoint = argv[peer_count + 1];
        /* wait_ms 0: the dial continues in the background and raises READY or CONNECT_FAILED. */
        if (kvconn_connect(KVCONN_DEFAULT, endpoint, NULL, 0, &peers[peer_count], &error) != KVCONN_OK) {
            return fail(endpoint, &error);
        }
    }

    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    const struct itimerspec every = {{0, HEARTBEAT_MS * 1000000}, {0, HEARTBEAT_MS * 1000000}};
    timerfd_settime(timer, 0, &every, NULL);

    int loop = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(loop, EPOLL_CTL_ADD, events, &(struct epoll_event){.events = EPOLLIN, .data.fd = events});
    epoll_ctl(loop, EPOLL_CTL_ADD, timer, &(struct epoll_event){.events = EPOLLIN, .data.fd = timer});
    while (live > 0) {
        struct epoll_event ready[2];
        int count = epoll_wait(loop, ready, 2, -1);
        for (int i = 0; i < count; i++) {
            uint64_t expirations;
            if (ready[i].data.fd == events) {
                on_events();
            } else if (read(timer, &expirations, sizeof expirations) > 0) {
                on_timer();
            }
        }
    }
    return 0;
}
