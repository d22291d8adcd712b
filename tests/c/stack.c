/* Every kind of call, on a thread with exactly the stack that the header demands. A smaller stack (KiB as the argument) shows where
   it ends: by SIGSEGV. */
#include "peer.h"

#include <fcntl.h>
#include <pthread.h>

enum { LONG_MS = 10000, MESSAGES = 7, STACK_KIB = 64 };

static peer_t peer;
static char text[1 << 16]; /* not on the stack that is measured */
static int calls_done;

static void ignore_line(int32_t level, const char *line, void *user_data) { (void)level, (void)line, (void)user_data; }

static void send_in_every_way(kvconn_conn_t conn) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
    const uint32_t sizes[] = {4, 2};
    uint64_t sequence = 0;
    kvconn_conn_t by = 0;
    EXPECT(KVCONN_OK, kvconn_send(conn, frames, 2, LONG_MS, &sequence, &error));
    EXPECT(KVCONN_OK, kvconn_send_packed(conn, "room17", sizes, 2, LONG_MS, &sequence, &error));
    EXPECT(KVCONN_OK, kvconn_send_to(KVCONN_DEFAULT, peer.endpoint, frames, 2, LONG_MS, &by, &sequence, &error));
    EXPECT(KVCONN_OK, kvconn_send_packed_to(KVCONN_DEFAULT, peer.endpoint, "room17", sizes, 2, LONG_MS, &by, &sequence, &error));
    kvconn_batch_item_t item = {conn, frames, 2, 0, 0, 0};
    EXPECT(KVCONN_OK, kvconn_send_batch(&item, 1, LONG_MS, &error));
    const uint32_t frame_count = 2;
    kvconn_status_t status = KVCONN_INTERNAL;
    EXPECT(KVCONN_OK, kvconn_send_batch_packed(&conn, &frame_count, 1, "room17", sizes, LONG_MS, &sequence, &status, &error));
    CHECK(status == KVCONN_OK && sequence == MESSAGES - 1);
    EXPECT(KVCONN_OK, kvconn_send_owned(conn, frames, 2, LONG_MS, NULL, NULL, &sequence, &error));
    CHECK(by == conn && sequence == MESSAGES);
    EXPECT(KVCONN_OK, kvconn_flush(conn, 0, LONG_MS, &sequence, &error));
    EXPECT(KVCONN_OK, kvconn_wait_released(conn, 0, LONG_MS, &error));
    CHECK(sequence == MESSAGES);
}

static void observe(kvconn_conn_t conn, kvconn_node_t node) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_connection_info_t info = KVCONN_CONNECTION_INFO_INIT;
    EXPECT(KVCONN_OK, kvconn_connection_info(conn, &info, &error));
    CHECK(info.state == KVCONN_STATE_READY && info.acknowledged == MESSAGES);
    kvconn_node_info_t node_info = KVCONN_NODE_INFO_INIT;
    EXPECT(KVCONN_OK, kvconn_node_info(node, &node_info, &error));
    size_t needed = 0;
    EXPECT(KVCONN_OK, kvconn_describe(KVCONN_DEFAULT, text, sizeof text, &needed, &error));
    EXPECT(KVCONN_OK, kvconn_metrics_text(KVCONN_DEFAULT, text, sizeof text, &needed, &error));
    const int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
    CHECK(sink >= 0);
    EXPECT(KVCONN_OK, kvconn_dump(sink, &error));
    close(sink);
}

static void lose_the_peer(kvconn_node_t node) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kill_peer(&peer);
    for (kvconn_event_t event = KVCONN_EVENT_INIT; event.kind != KVCONN_EVENT_PEER_LOST;) {
        EXPECT(KVCONN_OK, kvconn_next_event(KVCONN_DEFAULT, LONG_MS, &event, &error));
        CHECK(event.kind != KVCONN_EVENT_NONE);
    }
    /* A dial that fails, and its error. */
    kvconn_conn_t conn;
    kvconn_options_t *retry = kvconn_options_new();
    EXPECT(KVCONN_OK, kvconn_options_set(retry, "connect_retry", "1", &error));
    CHECK(kvconn_connect(KVCONN_DEFAULT, "tcp://no-such-name.invalid:1", retry, 300, &conn, &error) != KVCONN_OK);
    kvconn_options_free(retry);
    kvconn_failure_t *failure = NULL;
    EXPECT(KVCONN_OK, kvconn_handle_failure(node, "its rank is gone", &failure, &error));
    kvconn_failed_endpoint_t endpoint;
    uint64_t request;
    size_t count = 0;
    EXPECT(KVCONN_OK, kvconn_failure_endpoints(failure, &endpoint, sizeof endpoint, 1, &count, &error));
    EXPECT(KVCONN_OK, kvconn_failure_requests(failure, &request, 1, &count, &error));
    CHECK(count == 1 && request == 17);
    kvconn_failure_free(failure);
    EXPECT(KVCONN_OK, kvconn_take_failure(KVCONN_DEFAULT, 0, &failure, &error));
    EXPECT(KVCONN_OK, kvconn_disconnect_endpoint(KVCONN_DEFAULT, "tcp://127.0.0.1:1", &error));
    EXPECT(KVCONN_OK, kvconn_disconnect_all(KVCONN_DEFAULT, LONG_MS, &error));
    EXPECT(KVCONN_OK, kvconn_set_log(NULL, NULL, KVCONN_LOG_OFF, &error));
    EXPECT(KVCONN_OK, kvconn_shutdown(LONG_MS, &error));
}

static void *all_calls(void *nothing) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_node_t node;
    kvconn_conn_t conn;
    const char *const endpoints[] = {peer.endpoint};
    EXPECT(KVCONN_OK, kvconn_set_log(ignore_line, NULL, KVCONN_LOG_DEBUG, &error));
    EXPECT(KVCONN_OK, kvconn_node_open(KVCONN_DEFAULT, "prefill-0", &node, NULL, &error));
    EXPECT(KVCONN_OK, kvconn_node_add_endpoints(node, endpoints, 1, NULL, &error));
    kvconn_status_t status = KVCONN_INTERNAL;
    EXPECT(KVCONN_OK, kvconn_node_set_endpoints(node, endpoints, 1, NULL, &error));
    EXPECT(KVCONN_OK, kvconn_node_connect(node, endpoints, 1, NULL, LONG_MS, &conn, &status, &error));
    CHECK(status == KVCONN_OK && conn != 0);
    EXPECT(KVCONN_OK, kvconn_node_track_request(node, 17, &error));
    EXPECT(KVCONN_OK, kvconn_connect(KVCONN_DEFAULT, peer.endpoint, NULL, LONG_MS, &conn, &error));
    send_in_every_way(conn);
    has_read_all(&peer);
    observe(conn, node);
    lose_the_peer(node);
    calls_done = 1;
    return nothing;
}

int main(int count, char **arguments) {
    const size_t stack = (size_t)(count > 1 ? atoi(arguments[1]) : STACK_KIB) * 1024;
    peer = start_peer(MESSAGES);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, stack) == 0);
    CHECK(pthread_create(&thread, &attributes, all_calls, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(calls_done);
    return 0;
}
