// What every case of the argument sweep (tests/interface/arguments.rs) uses. Each case is one call with one argument
// that is bad, or unusual; everything else is good.
#define KVCONN_NODISCARD // the sweep looks at every result by itself
#include "kvconn.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *peer;         // a PULL socket in another process
static const char *now = "";     // the case that runs
static const char *said = "";    // the text of its error
static int failed;               // how many cases went wrong
static int over;                 // after kvconn_shutdown
static char text_64k[1 << 16];   // one long text
static _Alignas(16) char bytes[1 << 16];
#define MISALIGNED(type) ((type)(void *)(bytes + 1))

static void wrong(const char *what, long long value) {
    failed++;
    printf("WRONG %s: %s (%lld) %s\n", now, what, value, said);
}

static void begin(const char *name) {
    now = name;
    printf("%s\n", name); // the last line before a crash
    fflush(stdout);
}

static void must(kvconn_status_t status, const kvconn_error_t *error) {
    if (status != KVCONN_OK && !over) {
        wrong(error->message, status);
    }
}

// ---- Good arguments --------------------------------------------------------------------------------------------------

static kvconn_conn_t last_conn;
static kvconn_node_t last_node;
static const char *const some_endpoints[] = {"tcp://127.0.0.1:1"};

static kvconn_conn_t good_conn(void) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    if (!over) {
        must(kvconn_connect(KVCONN_DEFAULT, peer, NULL, 5000, &last_conn, &error), &error);
    }
    return last_conn;
}

static kvconn_node_t good_node(void) {
    static int number;
    char name[32];
    kvconn_error_t error = KVCONN_ERROR_INIT;
    if (!over) {
        snprintf(name, sizeof name, "node %d", ++number);
        must(kvconn_node_open(KVCONN_DEFAULT, name, &last_node, NULL, &error), &error);
        must(kvconn_node_add_endpoints(last_node, some_endpoints, 1, NULL, &error), &error);
        must(kvconn_node_track_request(last_node, 17, &error), &error);
    }
    return last_node;
}

static kvconn_manager_t good_manager(void) {
    kvconn_manager_t m = 0;
    kvconn_error_t error = KVCONN_ERROR_INIT;
    must(kvconn_manager_create(NULL, &m, &error), &error);
    return m;
}

static kvconn_options_t *good_options(void) {
    static kvconn_options_t *options;
    kvconn_error_t error = KVCONN_ERROR_INIT;
    if (options == NULL) {
        options = kvconn_options_new();
        must(kvconn_options_set(options, "send_hwm", "1000", &error), &error);
    }
    return options;
}

static kvconn_failure_t *good_failure(void) {
    static kvconn_failure_t *failure;
    kvconn_error_t error = KVCONN_ERROR_INIT;
    if (failure == NULL) {
        must(kvconn_handle_failure(good_node(), "for the sweep", &failure, &error), &error);
    }
    return failure;
}

static const kvconn_frame_t good_frames[] = {{"room", 4}, {NULL, 0}};
static kvconn_batch_item_t *good_items(void) {
    static kvconn_batch_item_t items[1];
    items[0] = (kvconn_batch_item_t){good_conn(), good_frames, 2, 0, 0, 0};
    return items;
}

static const kvconn_conn_t *good_conns(void) {
    static kvconn_conn_t conns[1];
    conns[0] = good_conn();
    return conns;
}

static const uint32_t good_sizes[] = {4, 0};
static void good_log(int32_t level, const char *line, void *user_data) {
    (void)level, (void)line, (void)user_data;
}

static void good_release(kvconn_conn_t conn, uint64_t sequence, int32_t outcome, void *user_data) {
    (void)conn, (void)sequence, (void)outcome, (void)user_data;
}

static int good_fd(void) {
    static int fd = -1;
    if (fd < 0) {
        fd = open("/dev/null", O_WRONLY);
    }
    return fd;
}

static const char *long_text(size_t length) {
    memset(text_64k, 'x', sizeof text_64k);
    memcpy(text_64k, "tcp://", 6);
    text_64k[length] = '\0';
    return text_64k;
}

// ---- What must hold after each call -----------------------------------------------------------------------------------

// `expected`: the status that it must be, or 1 for any of `allowed`, which ends with 1.
static void check_status(kvconn_status_t status, int expected, const kvconn_status_t *allowed) {
    if (expected != 1) {
        if (status != expected) {
            wrong("another status was expected", status);
        }
        return;
    }
    for (; *allowed != 1; allowed++) {
        if (*allowed == status) {
            return;
        }
    }
    wrong("its description does not list this status", status);
}

static void check_error(const kvconn_error_t *error, kvconn_status_t status) {
    if (error->struct_size != sizeof *error) {
        wrong("struct_size was written", error->struct_size);
    }
    if (error->status != status) {
        wrong("the error's status is not the returned one", error->status);
    }
    if (memchr(error->message, 0, sizeof error->message) == NULL ||
        memchr(error->endpoint, 0, sizeof error->endpoint) == NULL) {
        wrong("a text has no end", status);
    }
    if ((status == KVCONN_OK) != (error->message[0] == '\0')) {
        wrong("an error without a text, or a text without an error", status);
    }
    if ((status == KVCONN_OK) != (error->scope == KVCONN_SCOPE_NONE)) {
        wrong("scope", error->scope);
    }
    if ((status == KVCONN_OK) != (error->os_errno == 0) || (status == KVCONN_OK) != (kvconn_status_errno(status) == 0)) {
        wrong("an error without an errno, or an errno without an error", error->os_errno);
    }
    if (error->retriable != 0 && error->retriable != 1) {
        wrong("retriable", error->retriable);
    }
    if (strcmp(kvconn_status_name(status), "unknown") == 0) {
        wrong("no status has this number", status);
    }
}

static void check_zero(const char *name, const void *from, size_t size) {
    const unsigned char *byte = from;
    for (size_t i = 0; i < size; i++) {
        if (byte[i] != 0) {
            printf("%s is not zero at %zu\n", name, i);
            wrong("an out-parameter is not zero after a failure", byte[i]);
            return;
        }
    }
}

// An error with a struct_size that is not one of any version: no byte of it may change.
static kvconn_error_t *strange_error(uint32_t size) {
    memset(bytes, 0x5a, sizeof bytes);
    memcpy(bytes, &size, sizeof size);
    return (kvconn_error_t *)(void *)bytes;
}

static void check_strange_error(uint32_t size) {
    uint32_t found;
    memcpy(&found, bytes, sizeof found);
    if (found != size) {
        wrong("struct_size was written", found);
    }
    for (size_t i = sizeof found; i < sizeof(kvconn_error_t); i++) {
        if (bytes[i] != 0x5a) {
            wrong("an error of unknown size was written", (long long)i);
            return;
        }
    }
}
