/* The ranks of a node: connected in one call, followed as a discovery says, and a thread that waits for failure reports. */
#include "peer.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>

enum { LONG_MS = 10000 };

static kvconn_manager_t manager;
static sem_t taken; /* how many reports were taken */

/* Waits for reports until the manager is destroyed. */
static void *take_reports(void *nothing) {
    (void)nothing;
    for (;;) {
        kvconn_failure_t *failure = NULL;
        kvconn_error_t error = KVCONN_ERROR_INIT;
        const kvconn_status_t status = kvconn_take_failure(manager, KVCONN_DEFAULT_TIMEOUT, &failure, &error);
        if (status == KVCONN_STALE) {
            CHECK(failure == NULL && error.os_errno == ESTALE);
            return NULL;
        }
        CHECK(status == KVCONN_OK && failure != NULL);
        CHECK(kvconn_failure_request_count(failure) == 1);
        kvconn_failure_free(failure);
        CHECK(sem_post(&taken) == 0);
    }
}

int main(void) {
    const peer_t peers[] = {start_peer(1), start_peer(1)};
    kvconn_error_t error = KVCONN_ERROR_INIT;
    EXPECT(KVCONN_OK, kvconn_manager_create(NULL, &manager, &error));
    CHECK(sem_init(&taken, 0, 0) == 0);
    pthread_t taker;
    CHECK(pthread_create(&taker, NULL, take_reports, NULL) == 0);
    kvconn_node_t node;
    EXPECT(KVCONN_OK, kvconn_node_open(manager, "prefill-0", &node, NULL, &error));
    EXPECT(KVCONN_OK, kvconn_node_track_request(node, 17, &error));

    /* Two ranks are there, and nobody listens on port 1. */
    const char *const endpoints[] = {peers[0].endpoint, "tcp://127.0.0.1:1", peers[1].endpoint};
    kvconn_conn_t conns[3] = {7, 7, 7};
    kvconn_status_t statuses[3] = {7, 7, 7};
    EXPECT(KVCONN_PARTIAL, kvconn_node_connect(node, endpoints, 3, NULL, LONG_MS, conns, statuses, &error));
    CHECK(statuses[0] == KVCONN_OK && statuses[1] == KVCONN_CONNECT_FAILED && statuses[2] == KVCONN_OK);
    CHECK(conns[0] != 0 && conns[1] == 0 && conns[2] != 0 && conns[0] != conns[2]);
    CHECK(error.os_errno == ECONNREFUSED && strcmp(error.endpoint, endpoints[1]) == 0);

    /* One message to both, as flat arrays. */
    const uint32_t frame_counts[] = {2, 2, 2}, sizes[] = {4, 2, 4, 2, 4, 2};
    uint64_t sequences[3] = {7, 7, 7};
    EXPECT(KVCONN_OK, kvconn_send_batch_packed(conns, frame_counts, 3, "room17room17room17", sizes, LONG_MS, sequences,
                                               statuses, &error));
    CHECK(sequences[0] == 1 && sequences[1] == 0 && sequences[2] == 1 && statuses[1] == KVCONN_OK);
    has_read_all(&peers[0]);
    has_read_all(&peers[1]);

    /* The discovery knows the first rank only. */
    EXPECT(KVCONN_OK, kvconn_node_set_endpoints(node, endpoints, 1, NULL, &error));
    const kvconn_frame_t frame = {"x", 1};
    EXPECT(KVCONN_DISCONNECTED, kvconn_send(conns[2], &frame, 1, LONG_MS, NULL, &error));
    CHECK(error.os_errno == ENOTCONN);
    kvconn_node_info_t info = KVCONN_NODE_INFO_INIT;
    EXPECT(KVCONN_OK, kvconn_node_info(node, &info, &error));
    CHECK(info.endpoints == 1);

    /* The report goes to the thread; the end of the manager ends its wait. */
    EXPECT(KVCONN_OK, kvconn_handle_failure(node, "its rank is gone", NULL, &error));
    EXPECT(KVCONN_NODE_FAILED, kvconn_node_connect(node, endpoints, 3, NULL, LONG_MS, conns, statuses, &error));
    CHECK(conns[0] == 0 && statuses[0] == KVCONN_NODE_FAILED && statuses[2] == KVCONN_NODE_FAILED);
    EXPECT(KVCONN_NODE_FAILED, kvconn_node_set_endpoints(node, endpoints, 1, NULL, &error));
    CHECK(sem_wait(&taken) == 0);
    EXPECT(KVCONN_OK, kvconn_manager_destroy(manager, LONG_MS, &error));
    CHECK(pthread_join(taker, NULL) == 0);
    CHECK(sem_trywait(&taken) == -1);
    EXPECT(KVCONN_OK, kvconn_shutdown(LONG_MS, NULL));
    kill_peer(&peers[0]);
    kill_peer(&peers[1]);
    return 0;
}
