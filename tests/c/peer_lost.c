/* One connection from its dial to the loss of its peer: a child process that speaks just enough ZMTP is killed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { LONG_MS = 10000, MESSAGES = 100 };

static void read_all(int fd, void *buffer, size_t size) {
    char *to = (char *)buffer;
    while (size > 0) {
        const ssize_t count = read(fd, to, size);
        if (count <= 0) _exit(2);
        to += count;
        size -= (size_t)count;
    }
}

/* A PULL socket: the greeting and READY of ZMTP 3.0 with the mechanism NULL, then every frame is read. Each message has
   two short frames; when the last has come, a byte goes into the pipe. */
static void be_a_peer(int listener, int told) {
    unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    const char ready[] = "\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PULL";
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0) _exit(2);
    if (write(fd, greeting, sizeof greeting) != (ssize_t)sizeof greeting) _exit(2);
    if (write(fd, ready, sizeof ready - 1) != (ssize_t)sizeof ready - 1) _exit(2);
    unsigned char theirs[64 + 28];
    read_all(fd, theirs, sizeof theirs);
    for (int frame = 0; frame < 2 * MESSAGES; frame++) {
        unsigned char head[2], body[255];
        read_all(fd, head, sizeof head);
        if (head[0] != (frame % 2 == 0)) _exit(3); /* MORE, and not a long one */
        read_all(fd, body, head[1]);
    }
    if (write(told, "", 1) != 1) _exit(2);
    for (;;) pause();
}

/* The next event of this kind. */
static kvconn_event_t event_of(kvconn_manager_t manager, int32_t kind) {
    for (;;) {
        kvconn_event_t event = KVCONN_EVENT_INIT;
        EXPECT(KVCONN_OK, kvconn_next_event(manager, LONG_MS, &event, NULL));
        CHECK(event.kind != KVCONN_EVENT_NONE);
        if (event.kind == kind) return event;
    }
}

int main(void) {
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    int told[2];
    CHECK(pipe(told) == 0);
    const pid_t peer = fork();
    CHECK(peer >= 0);
    if (peer == 0) be_a_peer(listener, told[1]);
    close(listener);
    close(told[1]);

    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_manager_t manager;
    EXPECT(KVCONN_OK, kvconn_manager_create(NULL, &manager, &error));
    kvconn_node_t node;
    const char *const endpoints[] = {endpoint};
    EXPECT(KVCONN_OK, kvconn_node_open(manager, "prefill-0", &node, NULL, &error));
    EXPECT(KVCONN_OK, kvconn_node_add_endpoints(node, endpoints, 1, NULL, &error));
    EXPECT(KVCONN_OK, kvconn_node_track_request(node, 17, &error));

    kvconn_conn_t conn;
    EXPECT(KVCONN_OK, kvconn_connect(manager, endpoint, NULL, LONG_MS, &conn, &error));
    CHECK(event_of(manager, KVCONN_EVENT_READY).conn == conn);
    for (uint64_t number = 1; number <= MESSAGES; number++) {
        char text[32];
        const int length = snprintf(text, sizeof text, "%" PRIu64, number);
        const kvconn_frame_t frames[] = {{"room", 4}, {text, (size_t)length}};
        uint64_t sequence = 0;
        EXPECT(KVCONN_OK, kvconn_send(conn, frames, 2, LONG_MS, &sequence, &error));
        CHECK(sequence == number);
    }
    uint64_t acknowledged = 0;
    EXPECT(KVCONN_OK, kvconn_flush(conn, 0, LONG_MS, &acknowledged, &error));
    CHECK(acknowledged == MESSAGES);
    char byte;
    CHECK(read(told[0], &byte, 1) == 1); /* the peer has read the last message */

    CHECK(kill(peer, SIGKILL) == 0 && waitpid(peer, NULL, 0) == peer);
    const kvconn_event_t lost = event_of(manager, KVCONN_EVENT_PEER_LOST);
    CHECK(lost.conn == conn && lost.status == KVCONN_PEER_LOST);
    CHECK(lost.count == MESSAGES && lost.acknowledged == MESSAGES && lost.ended_by == KVCONN_ENDED_FIN);
    const kvconn_frame_t frame = {"x", 1};
    EXPECT(KVCONN_PEER_LOST, kvconn_send(conn, &frame, 1, LONG_MS, NULL, &error));
    CHECK(error.status == KVCONN_PEER_LOST && error.conn == conn && strcmp(error.endpoint, endpoint) == 0);
    CHECK(error.scope == KVCONN_SCOPE_PEER && error.retriable);

    kvconn_failure_t *failure = NULL;
    EXPECT(KVCONN_OK, kvconn_handle_failure(node, "its rank is gone", &failure, &error));
    uint64_t request = 0;
    size_t count = 0;
    EXPECT(KVCONN_OK, kvconn_failure_requests(failure, &request, 1, &count, &error));
    CHECK(count == 1 && request == 17);
    CHECK(strcmp(kvconn_failure_reason(failure), "its rank is gone") == 0);
    kvconn_failure_free(failure);
    EXPECT(KVCONN_NODE_FAILED, kvconn_connect(manager, endpoint, NULL, 0, &conn, &error));
    EXPECT(KVCONN_OK, kvconn_manager_destroy(manager, LONG_MS, &error));
    EXPECT(KVCONN_OK, kvconn_shutdown(LONG_MS, &error));
    return 0;
}
