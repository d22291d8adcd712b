/* A peer for the Python benchmark: a ZMTP 3.0 PULL socket with the NULL mechanism, written by hand so that the
 * benchmark needs no libzmq of the machine. It answers the handshake of every connection, and then reads and drops.
 *
 * Prints its port on standard output. It ends when its standard input ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_PEERS = 60, GREETING = 64 };

/* What a peer has sent of its greeting. libzmq sends its own in two parts and waits for ours in between. */
static size_t greeted[MAX_PEERS];

static const char READY[] = "\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL";

static int write_all(int fd, const char *data, size_t size) {
    while (size > 0) {
        ssize_t done = send(fd, data, size, MSG_NOSIGNAL);
        if (done <= 0)
            return 0;
        data += done;
        size -= (size_t)done;
    }
    return 1;
}

int main(void) {
    static char buffer[1 << 18];
    struct pollfd polled[2 + MAX_PEERS];
    nfds_t count = 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&address, &size)) {
        perror("sink");
        return 1;
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    polled[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = listener, .events = POLLIN};
    while (poll(polled, count, -1) >= 0) {
        if (polled[0].revents && read(STDIN_FILENO, buffer, sizeof buffer) <= 0)
            return 0;
        if (polled[1].revents && count < 2 + MAX_PEERS) {
            int fd = accept(listener, NULL, NULL), one = 1;
            /* signature, version 3.0, NULL, not the server */
            char greeting[GREETING] = {(char)0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
            if (fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0 &&
                write_all(fd, greeting, sizeof greeting)) {
                greeted[count - 2] = 0;
                polled[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
            } else if (fd >= 0) {
                close(fd);
            }
        }
        for (nfds_t i = 2; i < count; i++) {
            if (!polled[i].revents)
                continue;
            ssize_t got = read(polled[i].fd, buffer, sizeof buffer);
            size_t *seen = &greeted[i - 2];
            int alive = got > 0;
            if (alive && *seen < GREETING) {
                *seen += (size_t)got;
                /* -1: the string literal's own end */
                alive = *seen < GREETING || write_all(polled[i].fd, READY, sizeof READY - 1);
            }
            if (!alive) {
                close(polled[i].fd);
                count--;
                polled[i] = polled[count];
                *seen = greeted[count - 2];
                polled[i].revents = 0;
            }
        }
    }
    return 1;
}
