/* Ids under KVCONN_STRICT_IDS, in C. Read as must_not_compile.cpp. Without KVCONN_STRICT_IDS nothing here is an error. */
#include <kvconn.h>

uint64_t number(kvconn_conn_t conn);
void ids(kvconn_manager_t m, kvconn_conn_t conn, kvconn_node_t node, kvconn_error_t *error);

uint64_t number(kvconn_conn_t conn) { return (uint64_t)conn; }

void ids(kvconn_manager_t m, kvconn_conn_t conn, kvconn_node_t node, kvconn_error_t *error) {
    const kvconn_conn_t none = 0;
    kvconn_batch_item_t item = {0};
    kvconn_event_t event = KVCONN_EVENT_INIT;
    if (conn == none || conn == 0 || event.conn == conn) item.conn = conn;
    kvconn_disconnect(conn, error);
    kvconn_disconnect(node, error); // error: incompatible pointer
    kvconn_disconnect(m, error); // error: incompatible pointer
    if (kvconn_node_track_request(node, 17, error) == KVCONN_OK) return;
    if (kvconn_node_track_request(conn, 17, error) == KVCONN_OK) return; // error: incompatible pointer
    if (kvconn_find(KVCONN_DEFAULT, "tcp://127.0.0.1:1", &conn, error) == KVCONN_OK) return;
    if (kvconn_find(KVCONN_DEFAULT, "tcp://127.0.0.1:1", &node, error) == KVCONN_OK) return; // error: incompatible pointer
    item.conn = node; // error: incompatible pointer
    kvconn_disconnect(number(conn), error); // error: makes pointer from integer|integer to pointer
    if (event.conn == node) return; // error: distinct pointer types
    (void)item;
}
