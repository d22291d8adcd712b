/* The job of every consumer of an installed kvconn: send to the first peer, see it killed, go on with the second. */
#ifndef FAILOVER_H
#define FAILOVER_H

#include <kvconn.h>
#include <stdio.h>
#include <string.h>

enum { FAILOVER_MESSAGES = 100, FAILOVER_LONG_MS = 20000 };

static int failover_failed(const char *what, const kvconn_error_t *error) {
    fprintf(stderr, "%s: %s (%s)\n", what, error->message, kvconn_status_name(error->status));
    return 1;
}

/* Sends the messages and waits until they are acknowledged. */
static int failover_send(kvconn_conn_t conn, kvconn_error_t *error) {
    const kvconn_frame_t frames[] = {{"room", 4}, {"17", 2}};
    uint64_t sequence = 0;
    for (int count = 0; count < FAILOVER_MESSAGES; count++)
        if (kvconn_send(conn, frames, 2, FAILOVER_LONG_MS, &sequence, error) != KVCONN_OK) return 1;
    return kvconn_flush(conn, sequence, FAILOVER_LONG_MS, &sequence, error) != KVCONN_OK;
}

/* Prints "sent" when the first peer has its messages and may be killed, and "failed over" when the second has them. */
static int failover(const char *first, const char *second) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_manager_t manager;
    kvconn_node_t node;
    kvconn_conn_t conn;
    if (kvconn_manager_create(NULL, &manager, &error) != KVCONN_OK ||
        kvconn_node_open(manager, "first", &node, NULL, &error) != KVCONN_OK ||
        kvconn_node_add_endpoints(node, &first, 1, NULL, &error) != KVCONN_OK ||
        kvconn_node_track_request(node, 17, &error) != KVCONN_OK ||
        kvconn_connect(manager, first, NULL, FAILOVER_LONG_MS, &conn, &error) != KVCONN_OK ||
        failover_send(conn, &error))
        return failover_failed(first, &error);
    printf("sent %d\n", FAILOVER_MESSAGES);
    fflush(stdout);

    kvconn_event_t event = KVCONN_EVENT_INIT;
    do {
        if (kvconn_next_event(manager, FAILOVER_LONG_MS, &event, &error) != KVCONN_OK)
            return failover_failed(first, &error);
        if (event.kind == KVCONN_EVENT_NONE) return fprintf(stderr, "the loss of the peer was not seen\n"), 1;
    } while (event.kind != KVCONN_EVENT_PEER_LOST);
    const kvconn_frame_t late = {"late", 4};
    if (kvconn_send(conn, &late, 1, FAILOVER_LONG_MS, NULL, &error) != KVCONN_PEER_LOST)
        return fprintf(stderr, "a send to the lost peer did not fail\n"), 1;

    kvconn_failure_t *failure = NULL;
    uint64_t request = 0;
    size_t requests = 0;
    if (kvconn_handle_failure(node, "its peer was killed", &failure, &error) != KVCONN_OK ||
        kvconn_failure_requests(failure, &request, 1, &requests, &error) != KVCONN_OK)
        return failover_failed(first, &error);
    kvconn_failure_free(failure);
    if (requests != 1 || request != 17) return fprintf(stderr, "the request was not reported\n"), 1;

    if (kvconn_connect(manager, second, NULL, FAILOVER_LONG_MS, &conn, &error) != KVCONN_OK ||
        failover_send(conn, &error) ||
        kvconn_manager_destroy(manager, FAILOVER_LONG_MS, &error) != KVCONN_OK)
        return failover_failed(second, &error);
    printf("failed over with kvconn %s\n", kvconn_version());
    fflush(stdout);
    return 0;
}

#endif
