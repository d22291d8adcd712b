/*
 * An encode node sends one embedding of 100 MB to a prefill rank, without copying it:  embedding tcp://10.0.0.7:5557
 *
 * Engines open a socket for each such request and close it with linger, hoping. Here the connection is the cached one, the
 * buffer is lent, and the flush says when the rank's host has all of it.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <string.h>

#include <kvconn.h>

#include "timeline.h"

enum { EMBEDDING = 100 * 1000 * 1000 };

/* On kvconn's thread: the buffer is ours again. */
static void give_back(kvconn_conn_t conn, uint64_t sequence, int32_t outcome, void *buffer) {
    say("RELEASED", "message %" PRIu64 " of connection %" PRIu64 " was %s", sequence, conn,
        outcome == KVCONN_OUTCOME_ACKNOWLEDGED ? "acknowledged" : "not acknowledged: send it again");
    free(buffer);
}

int main(int argc, char **argv) {
    const char *endpoint = argc > 1 ? argv[1] : "tcp://127.0.0.1:5557";
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_conn_t conn;
    uint64_t sequence, acknowledged;
    char *embedding = malloc(EMBEDDING);
    if (embedding == NULL) return 1;
    memset(embedding, 'e', EMBEDDING);

    if (kvconn_connect(KVCONN_DEFAULT, endpoint, NULL, 3000, &conn, &error) != KVCONN_OK) goto not_accepted;
    const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}, {embedding, EMBEDDING}};
    if (kvconn_send_owned(conn, frames, 3, 1000, give_back, embedding, &sequence, &error) != KVCONN_OK) goto not_accepted;
    say("ACCEPTED", "message %" PRIu64 " of connection %" PRIu64 ": %d bytes, none of them copied", sequence, conn, EMBEDDING);

    /* Not only sent: every byte of it is in the kernel of the rank's host. */
    if (kvconn_flush(conn, sequence, 10000, &acknowledged, &error) != KVCONN_OK) goto failed;
    say("FLUSHED", "the host of %s has it", endpoint);
    /* The next embedding would go over the same connection. This one's buffer is given back before the shutdown is over. */
    return kvconn_shutdown(1000, NULL) == KVCONN_OK ? 0 : 1;

not_accepted: /* The buffer was not lent. */
    free(embedding);
failed:
    fprintf(stderr, "%s: %s (%s)\n", endpoint, error.message, kvconn_status_name(error.status));
    return 1;
}
