/* A host that ends kvconn's threads in its functions, as an interpreter that exits does: what the header says happens then,
   and the process goes on and ends in order. Which unwinder the library has, and how it is linked, decides this. */
#include "peer.h"

#include <pthread.h>

enum { LONG_MS = 10000, SHORT_MS = 100, MESSAGES = 2 };

/* Readable when the function was called. */
typedef struct {
    int ends[2];
} called_t;

static void note(void *called) { CHECK(write(((called_t *)called)->ends[1], "", 1) == 1); }

static void was_called(const called_t *called) {
    char byte;
    CHECK(read(called->ends[0], &byte, 1) == 1);
}

static void leave_release(kvconn_conn_t conn, uint64_t sequence, kvconn_outcome_t outcome, void *called) {
    (void)conn, (void)sequence, (void)outcome;
    note(called);
    pthread_exit(NULL);
}

static void leave_log(kvconn_log_level_t level, const char *line, void *called) {
    (void)level, (void)line;
    note(called);
    pthread_exit(NULL);
}

int main(void) {
    const peer_t peer = start_peer(MESSAGES);
    kvconn_error_t error = KVCONN_ERROR_INIT;
    called_t logged, released;
    CHECK(pipe(logged.ends) == 0 && pipe(released.ends) == 0);
    EXPECT(KVCONN_OK, kvconn_set_log(leave_log, &logged, KVCONN_LOG_DEBUG, &error));

    kvconn_conn_t conn;
    EXPECT(KVCONN_OK, kvconn_connect(KVCONN_DEFAULT, peer.endpoint, NULL, LONG_MS, &conn, &error));
    was_called(&logged);
    const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
    for (int message = 0; message < MESSAGES; message++) {
        EXPECT(KVCONN_OK, kvconn_send_owned(conn, frames, 2, LONG_MS, leave_release, &released, NULL, &error));
    }
    was_called(&released);
    has_read_all(&peer);
    EXPECT(KVCONN_TIMEOUT, kvconn_wait_released(conn, 0, SHORT_MS, &error)); /* nothing is released any more */

    EXPECT(KVCONN_OK, kvconn_set_log(NULL, NULL, KVCONN_LOG_INFO, &error));
    EXPECT(KVCONN_TIMEOUT, kvconn_shutdown(SHORT_MS, &error)); /* for the buffers */
    kill_peer(&peer);
    return 0;
}
