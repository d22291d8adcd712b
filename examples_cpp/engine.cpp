// A decode engine that sends each request to the ranks of a prefill node, and survives the loss of a node.
//
//     engine A tcp://10.0.0.7:5557 tcp://10.0.0.7:5558 ... B tcp://10.0.0.8:5557 ...
//
// Four threads send, one takes events and finishes requests, one probes the nodes and joins those that came back. A request
// is one message to each rank of a node. If the node fails first, kvconn's failure report lists the request, once, and it
// goes to the other node. The engine ends with its standard input, when everything is acknowledged.
#include <kvconn.hpp>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

using namespace std::chrono_literals;
using kvconn::event_kind, kvconn::status;
constexpr auto SEND_TIMEOUT = 200ms, REQUEST_EVERY = 8ms; // of each sender

struct Life { // One life of a node. It is dropped as a whole when it has failed.
    kvconn::node_t node;
    std::vector<kvconn::connected_t> ranks;
    std::atomic<bool> avoid{false}; // a rank does not read: nothing new for this node
    std::mutex lock;
    std::map<std::uint64_t, std::vector<std::uint64_t>> sent; // accepted requests: the sequence at each rank. Under lock
};
struct Node {
    std::string name;
    std::vector<std::string> endpoints{};
    std::shared_ptr<Life> life{}; // guarded by Engine::lock; null while the node is down
};

struct Engine {
    std::vector<Node> nodes;
    // One lost rank fails its node, and so do 20 bad probes in a row. A rank is stalled after 300 ms without progress.
    kvconn::manager manager{kvconn::options{{"node_loss", "any"}, {"max_failures", "20"}, {"stall_ms", "300"}}};
    std::mutex lock{}; // of the next two, and of each node's life. Never held during a send
    std::deque<std::uint64_t> waiting{}; // requests that need another node
    std::uint64_t last_room = 0;
    std::atomic<bool> sending{true}, finishing{true};
    std::atomic<std::uint64_t> done{0}, rerouted{0};

    /// A request that lost its node, else a new one.
    std::uint64_t next_room() {
        const std::lock_guard guard(lock);
        if (waiting.empty()) return ++last_room;
        const std::uint64_t room = waiting.front();
        waiting.pop_front();
        return room;
    }
    void send_elsewhere(std::uint64_t room) {
        const std::lock_guard guard(lock);
        waiting.push_back(room);
    }
    /// The nodes that are up, from one on.
    std::vector<std::shared_ptr<Life>> lives(std::size_t from = 0) {
        const std::lock_guard guard(lock);
        std::vector<std::shared_ptr<Life>> all;
        for (std::size_t i = 0; i < nodes.size(); i++)
            if (const auto &life = nodes[(from + i) % nodes.size()].life) all.push_back(life);
        return all;
    }

    /// Opens a node and connects to all its ranks at the same time. If one does not answer, the next probe tries again.
    void join(Node &node) {
        const auto life = std::make_shared<Life>();
        life->node = kvconn::node_open(manager, node.name).node;
        const auto all = kvconn::try_node_connect(life->node, node.endpoints, life->ranks, 1s);
        const auto failed = [](const auto &rank) { return rank.status == status::connect_failed; }; // not: in backoff
        if (std::any_of(life->ranks.begin(), life->ranks.end(), failed))
            std::printf("NOT JOINED %s: %s\n", node.name.c_str(), all.error().message());
        if (!all) return;
        std::printf("JOINED %s\n", node.name.c_str());
        const std::lock_guard guard(lock);
        if (kvconn::node_info(life->node).status() == status::ok) node.life = life; // else it has failed since
    }

    /// A sender thread. A batch reaches all ranks under one deadline: a rank that is stuck does not delay the others.
    void send(std::chrono::nanoseconds &longest_send) {
        kvconn::batch batch;
        for (; sending; std::this_thread::sleep_for(REQUEST_EVERY)) {
            const std::uint64_t room = next_room();
            const auto up = lives(room); // the nodes share the requests
            const auto fit = std::find_if(up.begin(), up.end(), [](const auto &life) { return !life->avoid; });
            if (fit == up.end() || !kvconn::try_node_track_request((*fit)->node, room)) {
                send_elsewhere(room); // it is not tracked, so no report will list it
                continue;
            }
            Life &life = **fit;
            const std::string number = std::to_string(room);
            const std::vector<std::uint64_t> pages(64, room); // where the ranks put their parts of the KV cache
            batch.clear();
            for (const auto &rank : life.ranks) batch.add(rank.conn, {"room", number, pages});
            const auto begun = std::chrono::steady_clock::now();
            const auto result = kvconn::try_send_batch(batch, SEND_TIMEOUT);
            longest_send = std::max(longest_send, std::chrono::steady_clock::now() - begun);
            if (result) { // accepted by all ranks
                const std::lock_guard guard(life.lock);
                for (std::size_t i = 0; i < batch.size(); i++) life.sent[room].push_back(batch[i].sequence);
                continue;
            }
            life.avoid = true; // until a probe finds all ranks fit
            // If this takes the request back, it is this thread's; if not, the failure report has it.
            if (!kvconn::try_node_untrack_request(life.node, room).value_or(false)) continue;
            for (std::size_t i = 0; i < batch.size(); i++) // what some ranks have accepted, they must not wait for
                if (batch[i].status == status::ok) (void)kvconn::try_send(batch[i].conn, {"abort", number}, 0ms);
            rerouted++;
            send_elsewhere(room);
        }
    }

    /// Finishes the requests that all ranks have acknowledged. Acknowledged is not processed: a real engine finishes a
    /// request when the node says that its KV cache has arrived. If untrack says false, the failure report has the request.
    void finish(Life &life) {
        std::vector<std::uint64_t> acknowledged;
        for (const auto &[conn, _] : life.ranks) acknowledged.push_back(kvconn::connection_info(conn).acknowledged().value_or(0));
        const std::lock_guard guard(life.lock);
        for (auto next = life.sent.begin(); next != life.sent.end();) {
            const auto [room, sequences] = *next;
            const bool all = std::equal(sequences.begin(), sequences.end(), acknowledged.begin(), std::less_equal());
            if (all && kvconn::try_node_untrack_request(life.node, room).value_or(false)) done++;
            next = all ? life.sent.erase(next) : std::next(next);
        }
    }

    void take(const kvconn::failure &report) {
        const auto requests = report.requests();
        std::printf("FAILED %s with %zu requests: %s\n", report.name(), requests.size(), report.reason());
        const std::lock_guard guard(lock);
        for (Node &node : nodes)
            if (node.life && node.life->node == report.node()) node.life = nullptr;
        waiting.insert(waiting.end(), requests.begin(), requests.end());
        rerouted += requests.size();
    }

    /// The event thread. An engine with an event loop waits there, with kvconn::event_fd.
    void handle_events() {
        while (finishing) {
            if (const auto report = kvconn::take_failure(manager, 20ms)) take(report); // waits for one, up to 20 ms
            for (const auto &event : kvconn::events(manager)) {
                if (event.kind() == event_kind::stalled) std::printf("STALLED %s\n", event.endpoint());
                if (!event.ends_connection()) continue; // else what is not acknowledged may be lost
                std::printf("ENDED %s accepted %" PRIu64 " acknowledged %" PRIu64 ": %s\n", event.endpoint(), event.count(),
                            event.acknowledged().value_or(0), event.message());
            }
            for (const auto &life : lives()) finish(*life);
            std::fflush(stdout);
        }
    }

    /// The health thread. Here a node is healthy if no rank is stalled; a real engine asks the node too. Joins those not up.
    void probe() {
        for (; sending; std::this_thread::sleep_for(100ms)) {
            for (Node &node : nodes) {
                const auto life = (std::lock_guard(lock), node.life);
                if (!life) join(node);
                if (!life) continue;
                const auto stalled = [](const auto &rank) { return kvconn::connection_info(rank.conn).stalled(); };
                life->avoid = std::any_of(life->ranks.begin(), life->ranks.end(), stalled);
                // The event thread takes the report. An error says that this life has just ended.
                (void)kvconn::try_node_report_health(life->node, !life->avoid, "a rank does not read", kvconn::leave_report);
            }
        }
    }

    bool run() {
        std::thread events(&Engine::handle_events, this);
        std::vector<std::thread> threads;
        threads.emplace_back(&Engine::probe, this);
        std::array<std::chrono::nanoseconds, 4> longest{};
        for (auto &of_one : longest) threads.emplace_back(&Engine::send, this, std::ref(of_one));
        while (std::getchar() != EOF) {}
        sending = false;
        for (auto &thread : threads) thread.join();
        bool flushed = true; // all messages to the nodes that are up are acknowledged
        for (const auto &life : lives())
            for (const auto &rank : life->ranks) flushed &= kvconn::try_flush(rank.conn, kvconn::last_accepted, 5s).has_value();
        finishing = false;
        events.join();
        for (const auto &life : lives()) finish(*life);
        std::printf("requests %" PRIu64 " done %" PRIu64 " waiting %zu rerouted %" PRIu64 " longest send %" PRId64 " ms\n",
                    last_room, done.load(), waiting.size(), rerouted.load(), *std::max_element(longest.begin(), longest.end()) / 1ms);
        kvconn::shutdown(1s);
        return flushed;
    }
};

int main(int argc, char **argv) try {
    std::vector<Node> nodes;
    for (const std::string argument : std::vector<const char *>(argv + 1, argv + argc)) {
        if (argument.find("://") == std::string::npos) nodes.push_back({argument});
        else nodes.at(nodes.size() - 1).endpoints.push_back(argument);
    }
    return Engine{std::move(nodes)}.run() ? 0 : 1;
} catch (const std::exception &e) {
    std::fprintf(stderr, "engine: %s\n", e.what());
    return 1;
}
