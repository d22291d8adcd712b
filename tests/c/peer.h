/* A peer for the C tests: a child process that speaks just enough ZMTP. */
#ifndef PEER_H
#define PEER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* qemu-user cuts TCP_INFO to 4 bytes: there kvconn must say that it does not know what is acknowledged. */
static inline int knows_acknowledged(void) { return getenv("KVCONN_TEST_WITHOUT_TCP_INFO") == NULL; }

typedef struct {
    pid_t pid;
    int told; /* readable when the peer has read all messages */
    char endpoint[64];
} peer_t;

static void read_all(int fd, void *buffer, size_t size) {
    char *to = (char *)buffer;
    while (size > 0) {
        const ssize_t count = read(fd, to, size);
        if (count <= 0) _exit(2);
        to += count;
        size -= (size_t)count;
    }
}

/* A PULL socket: the greeting and READY of ZMTP 3.0 with the mechanism NULL, then every frame is read. Each message has two
   short frames; when the last one has come, a byte goes into the pipe. */
static void be_a_peer(int listener, int told, int messages) {
    unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    const char ready[] = "\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PULL";
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0) _exit(2);
    if (write(fd, greeting, sizeof greeting) != (ssize_t)sizeof greeting) _exit(2);
    if (write(fd, ready, sizeof ready - 1) != (ssize_t)sizeof ready - 1) _exit(2);
    unsigned char theirs[64 + 28];
    read_all(fd, theirs, sizeof theirs);
    for (int frame = 0; frame < 2 * messages; frame++) {
        unsigned char head[2], body[255];
        read_all(fd, head, sizeof head);
        if (head[0] != (frame % 2 == 0)) _exit(3); /* MORE, and not a long one */
        read_all(fd, body, head[1]);
    }
    if (write(told, "", 1) != 1) _exit(2);
    for (;;) pause();
}

/* Starts a peer that reads this many messages, and then nothing more. Call it before the first call of kvconn. */
static peer_t start_peer(int messages) {
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    int told[2];
    CHECK(pipe(told) == 0);
    peer_t peer;
    memset(&peer, 0, sizeof peer);
    peer.pid = fork();
    CHECK(peer.pid >= 0);
    if (peer.pid == 0) be_a_peer(listener, told[1], messages);
    close(listener);
    close(told[1]);
    peer.told = told[0];
    snprintf(peer.endpoint, sizeof peer.endpoint, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    return peer;
}

/* Waits until the peer has read the last message. */
static void has_read_all(const peer_t *peer) {
    char byte;
    CHECK(read(peer->told, &byte, 1) == 1);
}

static void kill_peer(const peer_t *peer) { CHECK(kill(peer->pid, SIGKILL) == 0 && waitpid(peer->pid, NULL, 0) == peer->pid); }

#endif
