// What kvconn.hpp does, against real PULL peers. Compiled with and without exceptions, and with sanitizers.
#include <kvconn.hpp>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <new>
#include <poll.h>
#include <set>
#include <thread>
#include <unordered_map>

#include "peer.hpp"

using namespace std::chrono_literals;
using namespace std::string_literals;
using kvconn::conn_t, kvconn::event_kind, kvconn::node_t, kvconn::outcome, kvconn::status;

constexpr auto LONG = 20s;

static thread_local std::size_t allocations = 0;

#ifdef COUNT_ALLOCATIONS
// Not inlined: gcc would see malloc and delete, and take that for a mistake.
[[gnu::noinline]] void *operator new(std::size_t size) {
    allocations++;
    if (void *memory = std::malloc(size)) return memory;
    std::abort();
}
[[gnu::noinline]] void operator delete(void *memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
#endif

#define IS(wanted, call)                                                                                            \
    do {                                                                                                            \
        const auto got = (call);                                                                                    \
        if (got.status() != (wanted)) {                                                                             \
            std::fprintf(stderr, "%s:%d: %s is %s: %s\n", __FILE__, __LINE__, #call, kvconn::status_name(got.status()), \
                         got ? "" : got.error().message());                                                         \
            std::exit(1);                                                                                           \
        }                                                                                                           \
    } while (0)

static kvconn::manager make_manager() {
    auto made = kvconn::manager::try_create();
    CHECK(made);
    return *std::move(made);
}

static conn_t connected(kvconn::manager_t m, const Peer &peer) {
    const auto conn = kvconn::try_connect(m, peer.endpoint, LONG);
    CHECK(conn && *conn);
    return *conn;
}

static kvconn::event_t event_of(kvconn::manager_t m, event_kind kind) {
    for (;;) {
        const auto event = kvconn::try_next_event(m, LONG);
        CHECK(event && *event);
        if ((*event)->kind() == kind) return **event;
    }
}

static void ids() {
    const conn_t none, one(1), other(2);
    CHECK(!none && one && one == conn_t(1) && one != other && one < other && one.number() == 1);
    CHECK(conn_t::from(one.raw()) == one);
    const std::unordered_map<conn_t, int> hashed{{one, 10}, {other, 20}};
    const std::map<node_t, int> ordered{{node_t(3), 30}};
    CHECK(hashed.at(one) == 10 && ordered.at(node_t(3)) == 30);
    CHECK(kvconn::default_manager == kvconn::manager_t(0));
}

static void library() {
    CHECK(kvconn::abi_matches() && kvconn::abi_version() == KVCONN_ABI_VERSION);
    CHECK(kvconn::version() == KVCONN_VERSION ""s && kvconn::has("curve") && !kvconn::has("nothing"));
    CHECK(kvconn::status_name(status::peer_lost) == "KVCONN_PEER_LOST"s && *kvconn::strerror(status::stale) != 0);
    CHECK(kvconn::event_name(event_kind::peer_lost) == "KVCONN_EVENT_PEER_LOST"s);
    CHECK(kvconn::status_errno(status::timeout) == ETIMEDOUT && kvconn::status_errno(status::ok) == 0);
}

static std::string joined(const kvconn::frames &frames) {
    std::string all;
    for (std::size_t i = 0; i < frames.size(); i++) {
        all.append(static_cast<const char *>(frames.data()[i].data), frames.data()[i].size).append("|");
    }
    return all;
}

static void frames() {
    const std::string text = "17", binary("a\0b", 3);
    const std::vector<std::uint16_t> pages{0x6161, 0x6262};
    const std::array<std::byte, 2> bytes{std::byte{'x'}, std::byte{'y'}};
    const unsigned char octets[] = {'1', '2'};
    const std::uint32_t number = 0x64636261;
    CHECK(joined({"room", text, std::string_view("view"), pages, bytes, octets, kvconn::bytes_of(number), {"head", 2}, ""}) ==
          "room|17|view|aabb|xy|12|abcd|he||");
    CHECK(joined("alone") == "alone|" && joined(text) == "17|" && joined(pages) == "aabb|" && joined({pages}) == "aabb|");
    CHECK(joined(binary) == binary + "|" && joined({binary, "c"}) == binary + "|c|");
    // A range of texts is a message of many frames.
    CHECK(joined(std::vector<std::string>{"a", "b"}) == "a|b|" && joined(std::array<std::string_view, 2>{"c", "d"}) == "c|d|");
    CHECK(joined(std::list<std::string>{"a", "b"}) == "a|b|" && joined(std::vector<const char *>{"e", "f"}) == "e|f|");
    CHECK(joined(std::vector<std::vector<char>>{{'a', 'b'}, {'c'}}) == "ab|c|");
    const std::vector<kvconn_frame_t> c{{"g", 1}, {"h", 1}};
    CHECK(joined(c) == "g|h|" && joined({c.data(), c.size()}) == "g|h|" && joined({c[1]}) == "h|");
    CHECK(joined(std::vector<kvconn::frame_t>{"i", "j"}) == "i|j|");
    const std::vector<std::string> many(1000, "k");
    CHECK(kvconn::frames(many).size() == 1000 && joined(many).size() == 2000);
#ifdef __cpp_lib_span
    CHECK(joined(std::span<const std::uint16_t>(pages)) == "aabb|" && joined(std::span(c)) == "g|h|");
    CHECK(joined(std::span(many).first(2)) == "k|k|");
#endif
}

static void messages() {
    Peer peer;
    const auto m = make_manager();
    const conn_t conn = connected(m, peer);
    const std::string room = "17";
    const std::vector<std::uint32_t> pages{1};
    const auto before = allocations; // (libzmq's own count too, so not around the send)
    const kvconn::frames message{"room", room, pages, "a", "b", "c", "d", "e", "f", "g"};
    CHECK(allocations == before); // nothing is allocated for a message of ordinary size
    const auto first = kvconn::try_send(conn, message, LONG);
    CHECK(first && *first == 1);
    const std::vector<std::uint32_t> sizes{4, 2};
    const auto packed = kvconn::try_send_packed(conn, {"room18", sizes}, LONG);
    CHECK(packed && *packed == 2);
    const std::vector<std::uint32_t> wrong{4, 3};
    IS(status::invalid, kvconn::try_send_packed(conn, {"room18", wrong}, LONG));
    IS(status::invalid, kvconn::try_send_packed_to(m, peer.endpoint, {"room18", wrong}, LONG));
    const auto third = kvconn::try_send_to(m, peer.endpoint, {"room", "19"}, LONG);
    CHECK(third && third->conn == conn && third->sequence == 3);
    const auto fourth = kvconn::try_send_packed_to(m, peer.endpoint, {"room20", sizes}, LONG);
    CHECK(fourth && fourth->conn == conn && fourth->sequence == 4);
    const auto flushed = kvconn::try_flush(conn, kvconn::last_accepted, LONG);
    CHECK(flushed && *flushed == 4);
    IS(status::invalid, kvconn::try_flush(conn, 5, 0ms));
    peer.expect(4);
    CHECK(peer.has("\"726f6f6d\", \"3137\", \"01000000\", \"61\", \"62\", \"63\", \"64\", \"65\", \"66\", \"67\""));
    CHECK(peer.has("\"726f6f6d\", \"3138\"") && peer.has("\"726f6f6d\", \"3139\"") && peer.has("\"726f6f6d\", \"3230\""));

    const auto info = kvconn::try_connection_info(conn);
    CHECK(info && info->state() == kvconn::state::ready && info->status() == status::ok && info->conn() == conn);
    CHECK(info->accepted() == 4 && info->acknowledged() == 4 && !info->stalled() && info->endpoint() == peer.endpoint);
    const auto all = kvconn::try_connections(m);
    CHECK(all && all->size() == 1 && all->front() == conn);
    CHECK(*kvconn::try_find(m, peer.endpoint) == conn);
    IS(status::not_found, kvconn::try_find(m, "tcp://127.0.0.1:1"));

    IS(status::ok, kvconn::try_disconnect(conn));
    IS(status::disconnected, kvconn::try_send(conn, "late", 0ms));
    IS(status::ok, kvconn::try_disconnect_endpoint(m, peer.endpoint));
    IS(status::disconnected, kvconn::try_send_to(m, peer.endpoint, "fenced", 0ms));
    IS(status::ok, kvconn::try_disconnect_all(m, LONG));
    CHECK(kvconn::try_connections(m)->empty());
}

static void batches() {
    Peer first, second;
    const auto m = make_manager();
    const conn_t a = connected(m, first), b = connected(m, second);
    IS(status::ok, kvconn::try_disconnect(b));
    kvconn::batch batch;
    const std::string pages = "pages";
    CHECK(batch.add(a, {pages, "1"}) == 0 && batch.add(b, {pages, "2"}) == 1 && batch.add(a, {pages, "3", "x"}) == 2);
    CHECK(batch.add({}, "skipped") == 3 && batch.size() == 4);
    IS(status::partial, kvconn::try_send_batch(batch, LONG));
    CHECK(batch[0].status == status::ok && batch[0].sequence == 1 && batch[0].conn == a);
    CHECK(batch[1].status == status::disconnected && batch[1].sequence == 0);
    CHECK(batch[2].status == status::ok && batch[2].sequence == 2 && batch[3].status == status::ok);
    batch.skip_accepted();
    CHECK(!batch[0].conn && batch[1].conn == b);
    IS(status::partial, kvconn::try_send_batch(batch, LONG)); // only the failed one, again
    CHECK(batch[0].sequence == 0 && batch[1].status == status::disconnected);
    first.expect(2);
    CHECK(first.has("\"7061676573\", \"31\"") && first.has("\"7061676573\", \"33\", \"78\""));
    batch.clear();
    const auto before = allocations;
    batch.add(a, {pages, "4"});
    CHECK(allocations == before);
    IS(status::ok, kvconn::try_send_batch(batch, LONG));
    CHECK(batch.size() == 1 && batch[0].sequence == 3);
}

static void owned() {
    Peer gone, peer;
    const auto m = make_manager();
    const conn_t dead = connected(m, gone), conn = connected(m, peer);
    IS(status::ok, kvconn::try_disconnect(dead));

    struct Released {
        std::atomic<int> calls{0}, destroyed{0};
        std::atomic<std::uint64_t> sequence{0};
        std::atomic<outcome> what{outcome::unknown};
        std::atomic<bool> other_thread{false};
    } released;
    struct Buffer { // what the callable owns
        std::vector<char> bytes;
        Released *of;
        Buffer(Released *r) : bytes(1 << 20, 'e'), of(r) {}
        ~Buffer() { of->destroyed++; }
    };
    auto buffer = std::make_unique<Buffer>(&released);
    const auto *raw = buffer.get();
    const auto here = std::this_thread::get_id();
    kvconn::owned_message message({"embedding", raw->bytes},
                                  [&released, here, held = std::move(buffer)](conn_t, std::uint64_t sequence, outcome o) noexcept {
                                      CHECK(held->bytes.size() == 1 << 20 && released.destroyed == 0);
                                      released.sequence = sequence;
                                      released.what = o;
                                      released.other_thread = std::this_thread::get_id() != here;
                                      released.calls++;
                                  });
    // An error leaves the message with the caller, who sends it to another rank.
    IS(status::disconnected, kvconn::try_send_owned(dead, message, LONG));
    CHECK(message && released.calls == 0 && released.destroyed == 0);
    const auto sent = kvconn::try_send_owned(conn, message, LONG);
    CHECK(sent && *sent == 1 && !message);
    IS(status::invalid, kvconn::try_send_owned(conn, message, LONG)); // it is empty now
    IS(status::ok, kvconn::try_wait_released(conn, *sent, LONG));
    CHECK(released.calls == 1 && released.sequence == 1 && released.what == outcome::acknowledged && released.other_thread);
    CHECK(released.destroyed == 1); // wait_released returns after the callable is gone
    peer.expect(1);

    // Never sent: destroyed, and not called.
    {
        const kvconn::owned_message unsent("x", [held = std::make_unique<Buffer>(&released)](conn_t, std::uint64_t, outcome) noexcept {
            CHECK(held == nullptr);
        });
    }
    CHECK(released.destroyed == 2 && released.calls == 1);

    // Without a callable.
    const std::vector<char> bytes(100000, 'f');
    IS(status::ok, kvconn::try_send_owned(conn, {"embedding", bytes}, LONG));
    IS(status::ok, kvconn::try_wait_released(conn, kvconn::last_accepted, LONG));
    CHECK(kvconn::try_connection_info(conn)->released() == 2);

    // The peer is stopped, and the connection ends: unacknowledged.
    peer.stop();
    const std::vector<char> large(64 << 20, 'g');
    kvconn::owned_message stuck(large, [&](conn_t c, std::uint64_t, outcome o) noexcept {
        CHECK(c == conn && o == outcome::unacknowledged);
        released.calls++;
    });
    const auto last = kvconn::try_send_owned(conn, stuck, LONG);
    CHECK(last);
    IS(status::timeout, kvconn::try_wait_released(conn, *last, 50ms));
    IS(status::ok, kvconn::try_disconnect(conn));
    IS(status::ok, kvconn::try_wait_released(conn, *last, LONG));
    CHECK(released.calls == 2);
}

static void nodes_and_failures() {
    Peer first, second;
    const auto m = make_manager();
    const auto opened = kvconn::try_node_open(m, "prefill-0");
    CHECK(opened && opened->node && opened->created && !kvconn::try_node_open(m, "prefill-0")->created);
    const node_t node = opened->node;
    IS(status::not_found, kvconn::try_node_find(m, "prefill-1"));
    CHECK(*kvconn::try_node_find(m, "prefill-0") == node);
    IS(status::ok, kvconn::try_node_add_endpoints(node, {first.endpoint, second.endpoint}));
    IS(status::ok, kvconn::try_node_add_endpoints(node, std::vector<std::string>{first.endpoint, "tcp://127.0.0.1:1"}));
    IS(status::ok, kvconn::try_node_remove_endpoints(node, {"tcp://127.0.0.1:1"}));
    const conn_t conn = connected(m, first);
    CHECK(event_of(m, event_kind::ready).conn() == conn);
    for (const auto request : {7u, 5u, 6u}) IS(status::ok, kvconn::try_node_track_request(node, request));
    CHECK(*kvconn::try_node_untrack_request(node, 6) && !*kvconn::try_node_untrack_request(node, 6));
    const auto info = kvconn::try_node_info(node);
    CHECK(info && info->status() == status::ok && info->endpoints() == 2 && info->requests() == 2 && info->name() == "prefill-0"s);
    CHECK(kvconn::try_send(conn, {"room", "17"}, LONG) && kvconn::try_flush(conn, kvconn::last_accepted, LONG));
    first.expect(1);

    const auto fd = kvconn::try_event_fd(m);
    CHECK(fd && *fd >= 3);
    first.kill();
    pollfd readable{*fd, POLLIN, 0};
    CHECK(poll(&readable, 1, 20000) == 1);
    const auto lost = event_of(m, event_kind::peer_lost);
    CHECK(lost.conn() == conn && lost.status() == status::peer_lost && lost.ends_connection() && lost.count() == 1);
    CHECK(lost.acknowledged() == 1 && lost.endpoint() == first.endpoint && lost.ended_by() != kvconn::ended_by::local);
    CHECK(std::chrono::system_clock::now() - lost.time() < 10min);
    const auto error = kvconn::try_send(conn, "late", LONG);
    CHECK(!error && error.status() == status::peer_lost && error.error().scope() == kvconn::scope::peer);
    CHECK(error.error().conn() == conn && error.error().endpoint() == first.endpoint && error.error().retriable());
    std::uint64_t acknowledged = 0;
    IS(status::ok, kvconn::try_flush(conn, kvconn::last_accepted, LONG, &acknowledged));
    CHECK(acknowledged == 1);

    auto report = kvconn::try_handle_failure(node, "its rank is gone");
    CHECK(report && *report && report->node() == node && report->name() == "prefill-0"s);
    const kvconn::failure kept = *std::move(report);
    CHECK(kept.reason() == "its rank is gone"s && kept.requests() == std::vector<std::uint64_t>({5, 7}));
    const auto endpoints = kept.endpoints();
    CHECK(endpoints.size() == 2 && endpoints[1].endpoint() == second.endpoint && !endpoints[1].spared() && !endpoints[1].conn());
    CHECK(endpoints[0].conn() == conn && endpoints[0].accepted() == 1 && endpoints[0].acknowledged() == 1u); // the rank that died
    IS(status::node_failed, kvconn::try_handle_failure(node, nullptr));
    IS(status::node_failed, kvconn::try_node_track_request(node, 8));
    IS(status::node_failed, kvconn::try_connect(m, second.endpoint, LONG));
    CHECK(!*kvconn::try_take_failure(m)); // a call has returned it
    const kvconn::failure empty;
    CHECK(!empty && !empty.node() && empty.requests().empty() && empty.endpoints().empty() && empty.name() == ""s);

    // Reports that no call returns: take_failure.
    const node_t next = kvconn::try_node_open(m, "prefill-0")->node;
    CHECK(next != node);
    CHECK(!*kvconn::try_node_report_health(next, true) && !*kvconn::try_node_report_health(next, false, "no answer"));
    CHECK(kvconn::try_node_info(next)->failures_in_row() == 1);
    IS(status::ok, kvconn::try_node_report_health(next, false, "no answer", kvconn::leave_report));
    const auto taken = kvconn::try_take_failure(m);
    CHECK(taken && *taken && taken->node() == next);
    const node_t third = kvconn::try_node_open(m, "prefill-0")->node;
    IS(status::ok, kvconn::try_handle_failure(third, nullptr, kvconn::leave_report));
    CHECK(kvconn::try_take_failure(m)->node() == third);
    const node_t fourth = kvconn::try_node_open(m, "prefill-0")->node;
    CHECK(!*kvconn::try_node_report_health(fourth, false) && *kvconn::try_node_report_health(fourth, false));
}

static void connecting_nodes() {
    Peer first, second;
    const auto m = make_manager();
    const node_t node = kvconn::try_node_open(m, "prefill-0")->node;
    std::vector<kvconn::connected_t> each(7); // overwritten
    const std::vector<std::string> both{first.endpoint, second.endpoint};
    IS(status::ok, kvconn::try_node_connect(node, both, each, LONG));
    CHECK(each.size() == 2 && each[0].status == status::ok && each[1].status == status::ok);
    CHECK(each[0].conn == *kvconn::try_find(m, first.endpoint) && each[1].conn == *kvconn::try_find(m, second.endpoint));
    CHECK(kvconn::try_node_info(node)->endpoints() == 2);

    // One of them refuses: its status says so, the others are connected, and all are registered.
    const char *const refused = "tcp://127.0.0.1:1";
    const conn_t conn = each[0].conn;
    const auto partial = kvconn::try_node_connect(node, {first.endpoint, refused}, each, LONG);
    IS(status::partial, partial);
    CHECK(partial.error().endpoint() == std::string(refused) && partial.error().os_errno() == ECONNREFUSED);
    CHECK(each.size() == 2 && each[0].status == status::ok && each[0].conn == conn);
    CHECK(each[1].status == status::connect_failed && !each[1].conn && kvconn::try_node_info(node)->endpoints() == 3);
    IS(status::invalid, kvconn::try_node_connect(node, {first.endpoint, "nonsense"}, each, LONG));
    CHECK(each[0].status == status::invalid && !each[0].conn && kvconn::try_node_info(node)->endpoints() == 3);

    // Discovery's new truth: what stays keeps its connection, what left has none and is fenced.
    IS(status::ok, kvconn::try_node_set_endpoints(node, {first.endpoint, "tcp://127.0.0.1:2"}));
    CHECK(kvconn::try_node_info(node)->endpoints() == 2 && *kvconn::try_find(m, first.endpoint) == conn);
    IS(status::disconnected, kvconn::try_send_to(m, second.endpoint, "left", 0ms));
    kvconn::options other;
    IS(status::ok, other.try_set("send_hwm", "17"));
    IS(status::conflict, kvconn::try_node_set_endpoints(node, {first.endpoint}, other));
    IS(status::conflict, kvconn::try_node_connect(node, {first.endpoint}, each, LONG, other));
    CHECK(kvconn::try_node_info(node)->endpoints() == 2);
    IS(status::ok, kvconn::try_node_set_endpoints(node, std::vector<std::string>()));
    CHECK(kvconn::try_node_info(node)->endpoints() == 0 && kvconn::try_connections(m)->empty());

    // A report that comes while a thread waits for it; and none in time.
    std::thread waiting([&] {
        const auto report = kvconn::try_take_failure(m, LONG);
        CHECK(report && *report && report->node() == node);
    });
    IS(status::ok, kvconn::try_handle_failure(node, "for the waiting thread", kvconn::leave_report));
    waiting.join();
    const auto begun = std::chrono::steady_clock::now();
    CHECK(!*kvconn::try_take_failure(m, 50ms) && std::chrono::steady_clock::now() - begun >= 50ms);
    IS(status::invalid, kvconn::try_take_failure(m, -2ms));
    IS(status::node_failed, kvconn::try_node_connect(node, both, each, LONG));
    CHECK(each.size() == 2 && each[1].status == status::node_failed && !each[1].conn);
    IS(status::node_failed, kvconn::try_node_set_endpoints(node, both));
}

static void managers_and_options() {
    kvconn::options settings;
    IS(status::ok, settings.try_set("stall_ms", "250"));
    IS(status::ok, settings.try_set("send_hwm", 100));
    IS(status::ok, settings.try_set("evict_idle", true));
    IS(status::invalid, settings.try_set("stall_ms", -1));
    IS(status::invalid, settings.try_set("no_such_option", "1"));
    IS(status::invalid, settings.try_set("stall_ms", "a\0b"s)); // not cut at the NUL
    auto made = kvconn::manager::try_create(settings);
    CHECK(made);
    kvconn::manager m = *std::move(made);
    const kvconn::manager_t id = m;
    CHECK(kvconn::try_describe(m)->find("stall_ms") != std::string::npos);
    IS(status::ok, kvconn::try_configure(m, settings));
    kvconn::manager moved = std::move(m);
    CHECK(moved.get() == id);
    IS(status::stale, kvconn::try_describe(m)); // moved from: no manager, and not the process's own
    {
        const kvconn::manager gone = std::move(moved);
    }
    IS(status::stale, kvconn::try_describe(id)); // destroyed with its owner
    kvconn::manager first = make_manager(), second = make_manager();
    const kvconn::manager_t old = first, kept = second;
    first = std::move(second); // the old one is destroyed now, not with the other variable
    CHECK(first.get() == kept && second.get() != old);
    IS(status::stale, kvconn::try_describe(old));
    IS(status::ok, kvconn::try_describe(kept));
    kvconn::manager &itself = first;
    first = std::move(itself);
    IS(status::ok, kvconn::try_describe(kept));
    auto again = make_manager();
    IS(status::ok, again.try_destroy(LONG));
    IS(status::stale, again.try_destroy(LONG));
}

static void errors() {
    const auto m = make_manager();
    IS(status::invalid, kvconn::try_connect(m, "nonsense", 0ms));
    IS(status::invalid, kvconn::try_connect(m, "tcp://127.0.0.1:1\0"s, 0ms));
    const auto refused = kvconn::try_connect(m, "tcp://127.0.0.1:1", LONG);
    CHECK(refused.status() == status::connect_failed && refused.error().os_errno() == ECONNREFUSED);
    CHECK(refused.error().name() == "KVCONN_CONNECT_FAILED"s && refused.error().endpoint() == "tcp://127.0.0.1:1"s);
    const auto backoff = kvconn::try_connect(m, "tcp://127.0.0.1:1", LONG);
    CHECK(backoff.status() == status::backoff ? backoff.error().retry_after() > 0ms : backoff.status() == status::connect_failed);
    // A timed-out connect tells which dial goes on.
    Peer peer;
    peer.stop();
    const auto slow = kvconn::try_connect(m, peer.endpoint, 50ms);
    IS(status::timeout, slow);
    CHECK(slow.error().conn() == *kvconn::try_find(m, peer.endpoint));
    IS(status::stale, kvconn::try_disconnect(conn_t()));
    IS(status::stale, kvconn::try_node_info(node_t(12345)));
    IS(status::invalid, kvconn::try_send(*kvconn::try_find(m, peer.endpoint), "x", -2ms));
    CHECK(kvconn::try_connect(m, "nonsense", 0ms).value_or(conn_t(9)) == conn_t(9));
}

static void observing() {
    const auto m = make_manager();
    const auto metrics = kvconn::try_metrics_text(m);
    CHECK(metrics && metrics->size() > 1000 && metrics->compare(metrics->size() - 6, 6, "# EOF\n") == 0);
    for (int i = 0; i < 100; i++) { // longer than the first guess of its size
        IS(status::ok, kvconn::try_node_open(m, "a node with a long name, number " + std::to_string(i)));
    }
    const auto text = kvconn::try_describe(m);
    CHECK(text && text->size() > 4096 && text->find("number 99") != std::string::npos && text->find('\0') == std::string::npos);
    std::FILE *file = std::tmpfile();
    IS(status::ok, kvconn::try_dump(fileno(file)));
    CHECK(std::fseek(file, 0, SEEK_END) == 0 && std::ftell(file) > 100);
    std::fclose(file);
    IS(status::invalid, kvconn::try_dump(-1));

    std::atomic<int> first{0}, second{0};
    const auto lose_one = [&] { // raises a line
        const auto node = kvconn::try_node_open(m, "logged");
        CHECK(node && kvconn::try_handle_failure(node->node, "for the log", kvconn::leave_report));
    };
    const auto wait_for = [](const std::atomic<int> &lines) {
        const auto deadline = std::chrono::steady_clock::now() + LONG;
        while (lines == 0) {
            CHECK(std::chrono::steady_clock::now() < deadline);
            std::this_thread::sleep_for(1ms);
        }
    };
    const std::string prefix = "prefix"; // the thread kvconn-log reads it: a hand-over that ThreadSanitizer must see
    IS(status::ok, kvconn::try_set_log(
                       [&first, prefix](kvconn::log_level level, const char *line) noexcept {
                           if (prefix.size() == 6 && level != kvconn::log_level::off && *line != 0) first++;
                       },
                       kvconn::log_level::debug));
    lose_one();
    wait_for(first);
    IS(status::ok, kvconn::try_set_log([&second, prefix](kvconn::log_level, const char *) noexcept { second += prefix.size() == 6; },
                                       kvconn::log_level::debug));
    const int until = first;
    lose_one();
    wait_for(second);
    CHECK(first == until);
    IS(status::ok, kvconn::try_set_log(nullptr));
}

#ifdef __cpp_exceptions

template <class Call>
static status thrown(Call call) {
    try {
        call();
    } catch (const kvconn::error &e) {
        CHECK(*e.what() != 0 && e.what() == std::string(e.message()));
        const kvconn::error copy = e;
        CHECK(copy.status() == e.status());
        return e.status();
    }
    return status::ok;
}

static void throwing_forms() {
    Peer peer;
    kvconn::manager m{kvconn::options{{"stall_ms", "250"}, {"max_failures", 1}}};
    kvconn::configure(m, kvconn::options().set("send_timeout_ms", 5000));
    const node_t node = kvconn::node_open(m, "prefill-0").node;
    kvconn::node_add_endpoints(node, {peer.endpoint});
    const conn_t conn = kvconn::connect(m, peer.endpoint, LONG);
    CHECK(kvconn::send(conn, {"room", "17"}) == 1 && kvconn::send_to(m, peer.endpoint, "x").sequence == 2);
    const std::vector<std::uint32_t> sizes{1, 2};
    CHECK(kvconn::send_packed(conn, {"abc", sizes}) == 3 && kvconn::send_packed_to(m, peer.endpoint, {"abc", sizes}).sequence == 4);
    kvconn::batch batch;
    batch.add(conn, "y");
    CHECK(kvconn::send_batch(batch) && batch[0].sequence == 5);
    batch.add(conn_t(77), "z");
    CHECK(!kvconn::send_batch(batch) && batch[1].status == status::stale); // partial is not thrown
    std::atomic<bool> released{false};
    kvconn::owned_message message("w", [&](conn_t, std::uint64_t, outcome) noexcept { released = true; });
    const auto sequence = kvconn::send_owned(conn, message);
    kvconn::wait_released(conn, sequence, LONG);
    CHECK(released);
    const std::string v = "v";
    kvconn::wait_released(conn, kvconn::send_owned(conn, v), LONG);
    CHECK(kvconn::flush(conn) == sequence + 1 && kvconn::connection_info(conn).accepted() == sequence + 1);
    CHECK(kvconn::connections(m).size() == 1 && kvconn::find(m, peer.endpoint) == conn && !kvconn::find(m, "tcp://127.0.0.1:1"));
    CHECK(kvconn::node_find(m, "prefill-0") == node && !kvconn::node_find(m, "prefill-1"));
    kvconn::node_track_request(node, 1);
    kvconn::node_track_request(node, 2);
    CHECK(kvconn::node_untrack_request(node, 1) && kvconn::node_info(node).requests() == 1);
    CHECK(!kvconn::node_report_health(node, true));
    kvconn::node_report_health(node, false, "no answer", kvconn::leave_report);
    const kvconn::failure report = kvconn::take_failure(m);
    CHECK(report && report.requests() == std::vector<std::uint64_t>{2});
    CHECK(thrown([&] { (void)kvconn::handle_failure(node, "late"); }) == status::node_failed);
    CHECK(thrown([&] { kvconn::handle_failure(node, "late", kvconn::leave_report); }) == status::node_failed);

    CHECK(kvconn::event_fd(m) >= 3);
    std::set<event_kind> kinds;
    int ends = 0;
    for (const auto &event : kvconn::events(m)) {
        kinds.insert(event.kind());
        ends += event.ends_connection();
    }
    CHECK(kinds == std::set({event_kind::ready, event_kind::node_failed}) && ends == 1);
    CHECK(!kvconn::next_event(m, 0ms));

    CHECK(thrown([&] { kvconn::send(conn, "late"); }) == status::node_failed);
    CHECK(thrown([&] { (void)kvconn::connect(m, "nonsense", 0ms); }) == status::invalid);
    CHECK(thrown([&] { kvconn::disconnect(conn_t()); }) == status::stale);
    CHECK(thrown([&] { kvconn::options{{"no_such_option", "1"}}; }) == status::invalid);
    CHECK(!kvconn::describe(m).empty() && !kvconn::metrics_text(m).empty());
    kvconn::disconnect(conn);
    kvconn::disconnect_endpoint(m, peer.endpoint);
    kvconn::set_log([](kvconn::log_level, const char *) noexcept {}, kvconn::log_level::warn);
    kvconn::set_log(nullptr);
    const node_t next = kvconn::node_open(m, "prefill-0").node;
    kvconn::node_remove_endpoints(next, {peer.endpoint});
    std::vector<kvconn::connected_t> each;
    CHECK(kvconn::node_connect(next, {peer.endpoint}, each, LONG) && each[0].conn == kvconn::find(m, peer.endpoint));
    CHECK(!kvconn::node_connect(next, {peer.endpoint, "tcp://127.0.0.1:1"}, each, LONG)); // partial is not thrown
    CHECK(each[0].status == status::ok && each[1].status == status::connect_failed);
    CHECK(thrown([&] { (void)kvconn::node_connect(next, {"nonsense"}, each); }) == status::invalid);
    kvconn::node_set_endpoints(next, {"tcp://127.0.0.1:1"});
    CHECK(!kvconn::find(m, peer.endpoint) && kvconn::node_info(next).endpoints() == 1);
    CHECK(kvconn::handle_failure(next, nullptr) && !kvconn::take_failure(m, 0ms));
    kvconn::disconnect_all(m, LONG);
    kvconn::dump(open("/dev/null", O_WRONLY | O_CLOEXEC));
    m.destroy(LONG);
}

#else

static void throwing_forms() {}

#endif

// A mistake of the program's own, which ThreadSanitizer must report although it does not look into kvconn.
static void race() {
    Peer peer;
    const auto m = make_manager();
    const conn_t conn = connected(m, peer);
    int unguarded = 0;
    kvconn::owned_message message("x", [&](conn_t, std::uint64_t, outcome) noexcept { unguarded++; });
    CHECK(kvconn::try_send_owned(conn, message, LONG));
    unguarded++;
    IS(status::ok, kvconn::try_wait_released(conn, kvconn::last_accepted, LONG));
    CHECK(unguarded == 2);
}

int main(int argc, char **) {
    if (argc > 1) {
        race();
        return 0;
    }
    ids();
    library();
    frames();
    messages();
    batches();
    owned();
    nodes_and_failures();
    connecting_nodes();
    managers_and_options();
    errors();
    observing();
    throwing_forms();
    IS(status::ok, kvconn::try_shutdown(LONG));
    IS(status::shutdown, kvconn::try_describe(kvconn::default_manager));
    return 0;
}
