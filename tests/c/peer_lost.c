/* One connection from its dial to the loss of its peer: a child process that speaks just enough ZMTP is killed. */
#include "peer.h"

enum { LONG_MS = 10000, MESSAGES = 100 };

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
    const peer_t peer = start_peer(MESSAGES);
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_manager_t manager;
    EXPECT(KVCONN_OK, kvconn_manager_create(NULL, &manager, &error));
    kvconn_node_t node;
    const char *const endpoints[] = {peer.endpoint};
    EXPECT(KVCONN_OK, kvconn_node_open(manager, "prefill-0", &node, NULL, &error));
    EXPECT(KVCONN_OK, kvconn_node_add_endpoints(node, endpoints, 1, NULL, &error));
    EXPECT(KVCONN_OK, kvconn_node_track_request(node, 17, &error));

    kvconn_conn_t conn;
    EXPECT(KVCONN_OK, kvconn_connect(manager, peer.endpoint, NULL, LONG_MS, &conn, &error));
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
    EXPECT(knows_acknowledged() ? KVCONN_OK : KVCONN_UNSUPPORTED, kvconn_flush(conn, 0, LONG_MS, &acknowledged, &error));
    CHECK(acknowledged == (knows_acknowledged() ? (uint64_t)MESSAGES : KVCONN_UNKNOWN));
    has_read_all(&peer);

    kill_peer(&peer);
    const kvconn_event_t lost = event_of(manager, KVCONN_EVENT_PEER_LOST);
    CHECK(lost.conn == conn && lost.status == KVCONN_PEER_LOST);
    CHECK(lost.count == MESSAGES && lost.acknowledged == acknowledged);
    CHECK(lost.ended_by == (knows_acknowledged() ? KVCONN_ENDED_FIN : KVCONN_ENDED_UNKNOWN));
    const kvconn_frame_t frame = {"x", 1};
    EXPECT(KVCONN_PEER_LOST, kvconn_send(conn, &frame, 1, LONG_MS, NULL, &error));
    CHECK(error.status == KVCONN_PEER_LOST && error.conn == conn && strcmp(error.endpoint, peer.endpoint) == 0);
    CHECK(error.scope == KVCONN_SCOPE_PEER && error.retriable);

    kvconn_failure_t *failure = NULL;
    EXPECT(KVCONN_OK, kvconn_handle_failure(node, "its rank is gone", &failure, &error));
    uint64_t request = 0;
    size_t count = 0;
    EXPECT(KVCONN_OK, kvconn_failure_requests(failure, &request, 1, &count, &error));
    CHECK(count == 1 && request == 17);
    CHECK(strcmp(kvconn_failure_reason(failure), "its rank is gone") == 0);
    kvconn_failure_free(failure);
    EXPECT(KVCONN_NODE_FAILED, kvconn_connect(manager, peer.endpoint, NULL, 0, &conn, &error));
    EXPECT(KVCONN_OK, kvconn_manager_destroy(manager, LONG_MS, &error));
    EXPECT(KVCONN_OK, kvconn_shutdown(LONG_MS, &error));
    return 0;
}
