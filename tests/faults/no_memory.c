// no_memory ENDPOINT: libzmq has no memory for the notes with which kvconn follows a message (acknowledgement=off). Sends messages of
// the frames "room" and 20,000 bytes, and of the latter alone, and prints how many of each were accepted.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvconn.h"

// What libzmq allocates for a frame that it does not copy. This thread allocates nothing else of that size before it.
#define NOTES 40

static __thread bool fails_next;

extern void *__libc_malloc(size_t size);

void *malloc(size_t size) {
    if (fails_next && size == NOTES) {
        fails_next = false;
        return NULL;
    }
    return __libc_malloc(size);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s; %s %s\n", __LINE__, #condition, kvconn_status_name(error.status), error.message);     \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

int main(int count, char **arguments) {
    static char bytes[20000]; // so many that each message is followed
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_options_t *options = kvconn_options_new();
    kvconn_conn_t conn;
    const kvconn_frame_t frames[] = {{"room", 4}, {bytes, sizeof bytes}};
    int accepted[2] = {0, 0};
    CHECK(count == 2);
    CHECK(kvconn_options_set(options, "acknowledgement", "off", &error) == KVCONN_OK);
    CHECK(kvconn_connect(KVCONN_DEFAULT, arguments[1], options, 5000, &conn, &error) == KVCONN_OK);
    kvconn_options_free(options);
    for (int round = 0; round < 20; round++) {
        const int first = round % 2;
        // A send that finds no room in the process's budget tries again, but not twice within 20 ms.
        usleep(25000);
        fails_next = round % 4 < 2;
        const kvconn_status_t status = kvconn_send(conn, frames + first, 2 - (size_t)first, 1000, NULL, &error);
        CHECK(!fails_next);
        CHECK(status == KVCONN_OK || status == KVCONN_LIMIT);
        accepted[first] += status == KVCONN_OK;
    }
    printf("%d %d\n", accepted[0], accepted[1]);
    // The messages are in flight. Nothing reports their arrival.
    return kvconn_disconnect_all(KVCONN_DEFAULT, 3000, &error) == KVCONN_OK ? 0 : 1;
}
