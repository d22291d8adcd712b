/* Every function with NULL for everything that can be NULL: an error code or nothing, never a crash. The sweep of
   tests/interface/arguments.rs says which value of which parameter gives which status. */
#include "check.h"

/* All pointers NULL: the calls that need one of them refuse. */
static void without_any_pointer(void) {
    EXPECT(KVCONN_INVALID, kvconn_options_set(NULL, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_configure(KVCONN_DEFAULT, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_manager_create(NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_connect(KVCONN_DEFAULT, NULL, NULL, 0, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_disconnect_endpoint(KVCONN_DEFAULT, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_connection_info(1, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_connections(KVCONN_DEFAULT, NULL, 0, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_find(KVCONN_DEFAULT, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_send_to(KVCONN_DEFAULT, NULL, NULL, 1, 0, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_send_packed_to(KVCONN_DEFAULT, NULL, NULL, NULL, 1, 0, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_send_batch_packed(NULL, NULL, 1, NULL, NULL, 0, NULL, NULL, NULL));
    EXPECT(KVCONN_OK, kvconn_send_batch_packed(NULL, NULL, 0, NULL, NULL, 0, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_node_open(KVCONN_DEFAULT, NULL, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_node_find(KVCONN_DEFAULT, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_node_info(1, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_node_add_endpoints(1, NULL, 1, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_node_remove_endpoints(1, NULL, 1, NULL));
    EXPECT(KVCONN_INVALID, kvconn_node_set_endpoints(1, NULL, 1, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_node_connect(1, NULL, 1, NULL, 0, NULL, NULL, NULL));
    EXPECT(KVCONN_STALE, kvconn_node_connect(1, NULL, 0, NULL, 0, NULL, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_take_failure(KVCONN_DEFAULT, 0, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_failure_endpoints(NULL, NULL, 0, 0, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_failure_requests(NULL, NULL, 0, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_event_fd(KVCONN_DEFAULT, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_next_event(KVCONN_DEFAULT, 0, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_describe(KVCONN_DEFAULT, NULL, 1, NULL, NULL));
    EXPECT(KVCONN_INVALID, kvconn_dump(-1, NULL));
}

/* Ids that mean nothing, and NULL for what may be NULL. */
static void with_ids_that_mean_nothing(void) {
    const uint64_t ids[] = {0, 1, 1000000, UINT64_MAX};
    for (size_t at = 0; at < sizeof ids / sizeof ids[0]; at++) {
        const uint64_t id = ids[at];
        const kvconn_frame_t frame = {NULL, 0};
        const uint32_t size = 0;
        EXPECT(KVCONN_STALE, kvconn_disconnect(id, NULL));
        EXPECT(KVCONN_STALE, kvconn_send(id, &frame, 1, 0, NULL, NULL));
        EXPECT(KVCONN_STALE, kvconn_send_packed(id, NULL, &size, 1, 0, NULL, NULL));
        EXPECT(KVCONN_STALE, kvconn_flush(id, 0, 0, NULL, NULL));
        EXPECT(KVCONN_STALE, kvconn_node_track_request(id, 1, NULL));
        EXPECT(KVCONN_STALE, kvconn_node_untrack_request(id, 1, NULL, NULL));
        EXPECT(KVCONN_STALE, kvconn_node_report_health(id, 0, NULL, NULL, NULL));
        EXPECT(KVCONN_STALE, kvconn_handle_failure(id, NULL, NULL, NULL));
        if (id != KVCONN_DEFAULT) {
            EXPECT(KVCONN_STALE, kvconn_manager_destroy(id, 0, NULL));
            EXPECT(KVCONN_STALE, kvconn_disconnect_all(id, 0, NULL));
        }
    }
    EXPECT(KVCONN_INVALID, kvconn_manager_destroy(KVCONN_DEFAULT, 0, NULL));
}

/* Those that cannot fail. */
static void functions_without_a_status(void) {
    CHECK(kvconn_has(NULL) == 0);
    CHECK(kvconn_failure_node(NULL) == 0);
    CHECK(strcmp(kvconn_failure_name(NULL), "") == 0 && strcmp(kvconn_failure_reason(NULL), "") == 0);
    CHECK(kvconn_failure_time_ms(NULL) == 0);
    CHECK(kvconn_failure_endpoint_count(NULL) == 0 && kvconn_failure_request_count(NULL) == 0);
    kvconn_failure_free(NULL);
    kvconn_options_free(NULL);
    kvconn_options_free(kvconn_options_new());
    EXPECT(KVCONN_OK, kvconn_set_log(NULL, NULL, KVCONN_LOG_OFF, NULL));
}

int main(void) {
    without_any_pointer();
    with_ids_that_mean_nothing();
    functions_without_a_status();
    EXPECT(KVCONN_OK, kvconn_disconnect_all(KVCONN_DEFAULT, 0, NULL));
    EXPECT(KVCONN_OK, kvconn_shutdown(0, NULL));
    EXPECT(KVCONN_SHUTDOWN, kvconn_disconnect_all(KVCONN_DEFAULT, 0, NULL));
    return 0;
}
