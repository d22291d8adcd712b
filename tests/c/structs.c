/* The structs of the header as a program of today sees them: their INIT macros, their sizes, what the library fills. */
#include "check.h"

#include <errno.h>

/* All of a struct behind struct_size is zero. */
static int is_empty(const void *start, size_t size) {
    const unsigned char *bytes = (const unsigned char *)start;
    for (size_t at = sizeof(uint32_t); at < size; at++) {
        if (bytes[at] != 0) return 0;
    }
    return 1;
}

#define CHECK_INIT(type, name)                     \
    do {                                           \
        const type empty = name;                   \
        CHECK(empty.struct_size == sizeof(type));  \
        CHECK(offsetof(type, struct_size) == 0);   \
        CHECK(is_empty(&empty, sizeof empty));     \
    } while (0)

static void every_struct_begins_with_its_size(void) {
    CHECK_INIT(kvconn_error_t, KVCONN_ERROR_INIT);
    CHECK_INIT(kvconn_connection_info_t, KVCONN_CONNECTION_INFO_INIT);
    CHECK_INIT(kvconn_node_info_t, KVCONN_NODE_INFO_INIT);
    CHECK_INIT(kvconn_event_t, KVCONN_EVENT_INIT);
}

static void the_library_is_the_one_of_the_header(void) {
    CHECK(kvconn_abi_version() == KVCONN_ABI_VERSION);
    CHECK(strcmp(kvconn_version(), KVCONN_VERSION) == 0);
    CHECK(strcmp(kvconn_status_name(KVCONN_STALLED), "KVCONN_STALLED") == 0);
    CHECK(kvconn_status_errno(KVCONN_INVALID) == EINVAL && kvconn_status_errno(KVCONN_OK) == 0);
    CHECK(kvconn_status_errno(-1000) == 0);
    CHECK(KVCONN_UNKNOWN == UINT64_MAX && KVCONN_DEFAULT_TIMEOUT == -1 && KVCONN_DEFAULT == 0);
}

/* An error is filled whole, emptied by the next success, and never written beyond its struct_size. */
static void an_error_is_filled_as_far_as_its_size_says(void) {
    struct {
        kvconn_error_t error;
        unsigned char beyond[16];
    } both;
    memset(&both, 0x5a, sizeof both);
    both.error.struct_size = sizeof both.error;
    kvconn_conn_t conn = 7;
    EXPECT(KVCONN_INVALID, kvconn_connect(KVCONN_DEFAULT, "tcp://nowhere", NULL, 0, &conn, &both.error));
    CHECK(conn == 0);
    CHECK(both.error.status == KVCONN_INVALID && both.error.scope == KVCONN_SCOPE_CALL && !both.error.retriable);
    CHECK(both.error.os_errno == EINVAL);
    CHECK(both.error.struct_size == sizeof both.error && strlen(both.error.message) > 0);
    for (size_t at = 0; at < sizeof both.beyond; at++) CHECK(both.beyond[at] == 0x5a);

    kvconn_node_t node;
    EXPECT(KVCONN_OK, kvconn_node_open(KVCONN_DEFAULT, "node", &node, NULL, &both.error));
    const kvconn_error_t *const error = &both.error;
    CHECK(error->struct_size == sizeof both.error && error->status == KVCONN_OK && error->os_errno == 0);
    CHECK(error->scope == KVCONN_SCOPE_NONE && error->retriable == 0 && error->retry_after_ms == 0 && error->conn == 0);
    CHECK(strcmp(error->endpoint, "") == 0 && strcmp(error->message, "") == 0);

    /* A program that knows no more of an info than struct_size is refused, not written to. */
    kvconn_node_info_t info = KVCONN_NODE_INFO_INIT;
    EXPECT(KVCONN_OK, kvconn_node_info(node, &info, NULL));
    CHECK(strcmp(info.name, "node") == 0 && info.status == KVCONN_OK);
    info.struct_size = sizeof info.struct_size;
    info.node = 99;
    EXPECT(KVCONN_INVALID, kvconn_node_info(node, &info, NULL));
    CHECK(info.node == 99);
}

int main(void) {
    every_struct_begins_with_its_size();
    the_library_is_the_one_of_the_header();
    an_error_is_filled_as_far_as_its_size_says();
    EXPECT(KVCONN_OK, kvconn_shutdown(1000, NULL));
    return 0;
}
