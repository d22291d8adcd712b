/* Sends one message to one rank:  quickstart tcp://10.0.0.7:5557 */
#include <inttypes.h>
#include <kvconn.h>
#include <stdio.h>

/* An error describes the call that just failed. The next call that succeeds clears it: print or copy it first. */
static int failed(const char *endpoint, const kvconn_error_t *error) {
    fprintf(stderr, "%s: %s (%s)\n", endpoint, error->message, kvconn_status_name(error->status));
    return 1;
}
int main(int argc, char **argv) {
    const char *endpoint = argc > 1 ? argv[1] : "tcp://127.0.0.1:5557";
    const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}}; /* one message of two frames: sent whole or not at all */
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_conn_t conn;
    uint64_t sequence;
    /* The live connection to the endpoint. If there is none, it is dialled, within three seconds. */
    if (kvconn_connect(KVCONN_DEFAULT, endpoint, NULL, 3000, &conn, &error) != KVCONN_OK)
        return failed(endpoint, &error);
    /* If the queue is full, this waits one second. An error means not accepted, now or later: sending again is safe. */
    if (kvconn_send(conn, frames, 2, 1000, &sequence, &error) != KVCONN_OK)
        return failed(endpoint, &error);
    printf("connection %" PRIu64 " accepted message %" PRIu64 " for %s\n", conn, sequence, endpoint);
    /* OK: the kernel at the other end has acknowledged every message. */
    return kvconn_shutdown(1000, &error) == KVCONN_OK ? 0 : failed(endpoint, &error);
}
