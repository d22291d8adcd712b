/* Sends one message to one rank:  quickstart tcp://10.0.0.7:5557 */
#include <inttypes.h>
#include <stdio.h>

#include <kvconn.h>

int main(int argc, char **argv) {
    const char *endpoint = argc > 1 ? argv[1] : "tcp://127.0.0.1:5557";
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_conn_t conn;
    uint64_t sequence;

    /* The live connection to the endpoint, or a dial that gets three seconds. OK: the peer has shaken hands. */
    if (kvconn_connect(KVCONN_DEFAULT, endpoint, NULL, 3000, &conn, &error) != KVCONN_OK) goto failed;

    /* One message of two frames, whole or not at all. It waits one second for room if the queue to the peer is full. */
    const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
    if (kvconn_send(conn, frames, 2, 1000, &sequence, &error) != KVCONN_OK) goto failed;
    printf("connection %" PRIu64 " accepted message %" PRIu64 " for %s\n", conn, sequence, endpoint);

    /* The end of the program: what was accepted has one more second to leave. */
    return kvconn_shutdown(1000, NULL) == KVCONN_OK ? 0 : 1;

failed: /* Nothing was accepted, now or later: the same message can be sent again, here or elsewhere. */
    fprintf(stderr, "%s: %s (%s)\n", endpoint, error.message, kvconn_status_name(error.status));
    return 1;
}
