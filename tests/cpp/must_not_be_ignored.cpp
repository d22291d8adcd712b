// What is a warning, and an error with -Werror. Read as must_not_compile.cpp. A file of its own: a compiler that has found an
// error does not go on to warnings.
#include <kvconn.hpp>

void results_are_looked_at(kvconn::manager_t m, kvconn::conn_t conn, kvconn::node_t node, kvconn::batch &batch) {
    if (!kvconn::try_send(conn, "x")) return;
    kvconn::try_send(conn, "x"); // error: nodiscard
    (void)kvconn::try_disconnect(conn);
    kvconn::try_disconnect(conn); // error: nodiscard
    (void)kvconn::connect(m, "tcp://127.0.0.1:1");
    kvconn::connect(m, "tcp://127.0.0.1:1"); // error: nodiscard
    if (!kvconn::send_batch(batch)) return;
    kvconn::send_batch(batch); // error: nodiscard
    if (!kvconn::node_untrack_request(node, 17)) return;
    kvconn::node_untrack_request(node, 17); // error: nodiscard
    kvconn::handle_failure(node, "gone", kvconn::leave_report);
    kvconn::handle_failure(node, "gone"); // error: nodiscard
    kvconn::node_report_health(node, false, "gone", kvconn::leave_report);
    kvconn::node_report_health(node, false, "gone"); // error: nodiscard
    (void)kvconn::take_failure(m);
    kvconn::take_failure(m); // error: nodiscard
    std::vector<kvconn::connected_t> each;
    if (!kvconn::node_connect(node, {"tcp://127.0.0.1:1"}, each)) return;
    kvconn::node_connect(node, {"tcp://127.0.0.1:1"}, each); // error: nodiscard
    (void)kvconn::next_event(m);
    kvconn::next_event(m); // error: nodiscard
    (void)kvconn::connection_info(conn).accepted();
    kvconn::connection_info(conn).accepted(); // error: nodiscard
    // In C's form too, and only where it is a mistake.
    kvconn_disconnect(conn.raw(), nullptr);
    kvconn_send(conn.raw(), nullptr, 0, 0, nullptr, nullptr); // error: nodiscard
    kvconn_flush(conn.raw(), 0, 0, nullptr, nullptr); // error: nodiscard
    kvconn_next_event(m.raw(), 0, nullptr, nullptr); // error: nodiscard
    kvconn_take_failure(m.raw(), 0, nullptr, nullptr); // error: nodiscard
    kvconn_node_untrack_request(node.raw(), 17, nullptr, nullptr); // error: nodiscard
}

int switches(kvconn::event_kind kind) {
    switch (kind) { // error: not handled in switch
    case kvconn::event_kind::ready:
        return 1;
    }
    return 0;
}
