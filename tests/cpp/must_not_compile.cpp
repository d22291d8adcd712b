// What kvconn.hpp must refuse. A line that ends with "// error: PATTERN" must have an error that matches; no other line may
// have one. So each wrong line stands beside the right one, which shows that it is wrong for that reason.
#include <kvconn.hpp>

#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;

void the_kinds_of_ids(kvconn::manager_t m, kvconn::conn_t conn, kvconn::node_t node) {
    kvconn::disconnect(conn);
    kvconn::disconnect(node); // error: node_kind
    kvconn::send(conn, "x");
    kvconn::send(node, "x"); // error: node_kind
    (void)kvconn::try_send(node, "x", 0ms); // error: node_kind
    (void)kvconn::handle_failure(node, "gone");
    (void)kvconn::handle_failure(conn, "gone"); // error: handle_failure
    kvconn::node_track_request(node, 17);
    kvconn::node_track_request(17, node); // error: convert|conversion
    (void)kvconn::next_event(m);
    (void)kvconn::next_event(conn); // error: conn_kind
    (void)(conn == conn);
    (void)(conn == node); // error: no match for|invalid operands
    (void)kvconn::conn_t(std::uint64_t(1));
    kvconn::conn_t from_a_number = std::uint64_t(1); // error: conversion|convert
    const std::uint64_t number = conn.number();
    const std::uint64_t lost_its_kind = conn; // error: convert|conversion
    (void)number;
    kvconn::batch batch;
    batch.add(conn, "x");
    batch.add(node, "x"); // error: node_kind
    const kvconn::node_t the_same = kvconn::node_t::from(node.raw());
    const kvconn::conn_t through_raw = node.raw(); // error: conversion|convert
}

void owners_move(kvconn::manager m, kvconn::options o, kvconn::failure f, kvconn::owned_message w) {
    kvconn::manager moved_m = std::move(m);
    kvconn::manager copied_m = moved_m; // error: deleted
    kvconn::options moved_o = std::move(o);
    kvconn::options copied_o = moved_o; // error: deleted
    kvconn::failure moved_f = std::move(f);
    kvconn::failure copied_f = moved_f; // error: deleted
    kvconn::owned_message moved_w = std::move(w);
    kvconn::owned_message copied_w = moved_w; // error: deleted
    (void)kvconn::describe(moved_m);
    (void)kvconn::describe(kvconn::manager()); // error: deleted
}

void texts_and_frames(kvconn::manager_t m, kvconn::conn_t conn) {
    const std::string endpoint = "tcp://127.0.0.1:1";
    (void)kvconn::find(m, endpoint);
    (void)kvconn::find(m, std::string_view(endpoint)); // error: deleted
    kvconn::send(conn, {"x"});
    kvconn::send(conn, {}); // error: deleted
    kvconn::send(conn, std::vector<int>{1});
    kvconn::send(conn, std::vector<int *>{nullptr}); // error: conversion|initialization
    const int number = 1;
    kvconn::send(conn, {kvconn::bytes_of(number), "x"});
    kvconn::send(conn, {kvconn::bytes_of(number + 1), "x"}); // error: deleted
    kvconn::send(conn, {kvconn::bytes_of(endpoint), "x"}); // error: these bytes mean nothing to a peer
    kvconn::send(conn, {"x", nullptr}); // error: deleted|convert|conversion
    kvconn::send(conn, "x", 1500ms);
    kvconn::send(conn, "x", 1500us); // error: convert|conversion
    kvconn::send(conn, "x", 1500); // error: convert|conversion
}

std::string made();
void what_is_kept(kvconn::conn_t conn, const std::string &text, const std::vector<std::string> &texts) {
    kvconn::send(conn, {"a", std::to_string(3), std::vector<int>{1}}); // read during the call only
    kvconn::batch batch;
    batch.add(conn, {"a", text, std::string_view(text), text.c_str(), {text.data(), text.size()}});
    batch.add(conn, {"a", std::to_string(3)}); // error: deleted
    batch.add(conn, {"a", std::vector<int>{1}}); // error: deleted
    batch.add(conn, text);
    batch.add(conn, made()); // error: deleted
    batch.add(conn, texts);
    batch.add(conn, std::vector<std::string>{"a"}); // error: deleted
    batch.add(conn, std::vector<std::string_view>{text, "b"});
    batch.add(conn, std::vector<kvconn_frame_t>{{text.data(), 1}});
    const auto released = [](kvconn::conn_t, std::uint64_t, kvconn::outcome) noexcept {};
    kvconn::owned_message right({"a", text}, released);
    kvconn::owned_message wrong({"a", made()}, released); // error: deleted
    (void)kvconn::send_owned(conn, {"a", text}, 1s);
    (void)kvconn::send_owned(conn, {"a", made()}, 1s); // error: deleted
}

void callables() {
    kvconn::owned_message right("x", [](kvconn::conn_t, std::uint64_t, kvconn::outcome) noexcept {});
    kvconn::owned_message may_throw("x", [](kvconn::conn_t, std::uint64_t, kvconn::outcome) {}); // error: release must be callable
    kvconn::set_log([](kvconn::log_level, const char *) noexcept {}, kvconn::log_level::info);
    kvconn::set_log([](kvconn::log_level, const char *) {}, kvconn::log_level::info); // error: log must be callable
}

bool enums(kvconn::status s) {
    return s == kvconn::status::ok;
    return s == KVCONN_OK; // error: no match for|invalid operands
}
