// failover FIRST SECOND [send]: a C++ program against an installed kvconn. With BESIDE_LIBZMQ it also uses another
// libzmq: it prints that one's version and, with `send`, sends it a message to SECOND.
#if defined(__has_include)
#if __has_include(<kvconn.hpp>)
#include <kvconn.hpp>
#endif
#endif
#include "failover.h"

#include <stdexcept>
#include <string>
#include <vector>

#ifdef BESIDE_LIBZMQ
extern "C" {
void zmq_version(int *major, int *minor, int *patch);
void *zmq_ctx_new();
int zmq_ctx_term(void *context);
void *zmq_socket(void *context, int type);
int zmq_close(void *socket);
int zmq_setsockopt(void *socket, int option, const void *value, size_t size);
int zmq_connect(void *socket, const char *endpoint);
int zmq_send(void *socket, const void *data, size_t size, int flags);
}

static void print_version() {
    int major = 0, minor = 0, patch = 0;
    zmq_version(&major, &minor, &patch);
    printf("libzmq %d.%d.%d\n", major, minor, patch);
    fflush(stdout);
}

// Ending the context waits until the peer has the message.
static int send_by_libzmq(const std::string &endpoint) {
    constexpr int zmq_push = 8, zmq_sndtimeo = 28, zmq_linger = 17, wait_ms = 20000;
    void *const context = zmq_ctx_new();
    void *const socket = zmq_socket(context, zmq_push);
    const bool sent = zmq_setsockopt(socket, zmq_sndtimeo, &wait_ms, sizeof wait_ms) == 0 &&
                      zmq_setsockopt(socket, zmq_linger, &wait_ms, sizeof wait_ms) == 0 &&
                      zmq_connect(socket, endpoint.c_str()) == 0 && zmq_send(socket, "libzmq", 6, 0) == 6;
    zmq_close(socket);
    zmq_ctx_term(context);
    return sent ? 0 : 1;
}
#endif

// The same templates as in libzmq, and an exception: the program's own must not be mixed up with those of the library.
static std::string unwound(const std::vector<std::string> &arguments) {
    try {
        throw std::runtime_error(arguments.at(1));
    } catch (const std::exception &error) {
        return error.what();
    }
}

int main(int count, char **values) {
    const std::vector<std::string> arguments(values, values + count);
    if (arguments.size() < 3 || unwound(arguments) != arguments[1]) return 2;
#ifdef BESIDE_LIBZMQ
    print_version();
#endif
    if (failover(arguments[1].c_str(), arguments[2].c_str()) != 0) return 1;
#ifdef BESIDE_LIBZMQ
    if (arguments.size() > 3 && send_by_libzmq(arguments[2]) != 0) return 3;
#endif
    return 0;
}
