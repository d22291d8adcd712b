// A PULL peer for the C++ tests: tests/peers/pull.py in a process of its own.
#ifndef PEER_HPP
#define PEER_HPP

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "../c/check.h"

class Peer {
public:
    explicit Peer(const char *option = "--keep") {
        const char *python = std::getenv("KVCONN_TEST_PYTHON"), *program = std::getenv("KVCONN_TEST_PEER");
        CHECK(python != nullptr && program != nullptr);
        int to[2], from[2];
        CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
        pid_ = fork();
        CHECK(pid_ >= 0);
        if (pid_ == 0) {
            dup2(to[0], 0);
            dup2(from[1], 1);
            execl(python, python, program, "--bind", "tcp://127.0.0.1:0", option, static_cast<char *>(nullptr));
            _exit(127);
        }
        close(to[0]);
        close(from[1]);
        to_ = to[1];
        from_ = from[0];
        const std::string bound = line();
        const auto end = bound.find('"', bound.find("tcp://"));
        const auto colon = bound.rfind(':', end);
        endpoint = "tcp://127.0.0.1:" + bound.substr(colon + 1, end - colon - 1);
    }
    Peer(const Peer &) = delete;
    Peer &operator=(const Peer &) = delete;
    ~Peer() {
        if (pid_ > 0) kill();
        close(to_);
        close(from_);
    }

    std::string ask(const std::string &command) {
        const std::string text = command + "\n";
        CHECK(write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
        return line();
    }
    /// Waits until so many messages have arrived in all.
    void expect(int messages) {
        const std::string answer = ask("expect " + std::to_string(messages) + " 20000");
        if (answer.find("\"reached\": true") == std::string::npos) std::fprintf(stderr, "%s\n", answer.c_str());
        CHECK(answer.find("\"reached\": true") != std::string::npos);
    }
    /// Whether it has received a message of these frames, in hexadecimal: "\"726f6f6d\", \"3137\"".
    bool has(const std::string &frames) { return ask("messages").find("[" + frames + "]") != std::string::npos; }
    /// SIGSTOP; every thread has stopped when this returns.
    void stop() const {
        CHECK(::kill(pid_, SIGSTOP) == 0);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!all_stopped()) {
            CHECK(std::chrono::steady_clock::now() < deadline);
            usleep(1000);
        }
    }
    /// SIGKILL; the process is gone when this returns.
    void kill() {
        CHECK(::kill(pid_, SIGKILL) == 0);
        CHECK(waitpid(pid_, nullptr, 0) == pid_);
        pid_ = 0;
    }

    std::string endpoint;

private:
    bool all_stopped() const {
        const std::string tasks = "/proc/" + std::to_string(pid_) + "/task/";
        DIR *directory = opendir(tasks.c_str());
        CHECK(directory != nullptr);
        bool all = true;
        while (const dirent *task = readdir(directory)) {
            if (task->d_name[0] == '.') continue;
            std::string stat;
            std::getline(std::ifstream(tasks + task->d_name + "/stat"), stat);
            all = all && stat.find(") T") != std::string::npos;
        }
        closedir(directory);
        return all;
    }
    std::string line() {
        std::string text;
        for (char c = 0; read(from_, &c, 1) == 1 && c != '\n';) text += c;
        CHECK(!text.empty());
        return text;
    }
    pid_t pid_ = 0;
    int to_ = -1, from_ = -1;
};

#endif
