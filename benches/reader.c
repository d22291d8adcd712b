/* A receiving process that costs as little as it can: it reads the TCP connections itself, in large pieces, and checks every message
 * where it lies. What it measures is the sender: libzmq's PULL socket (sink.c) takes more processor time for a small message than both
 * threads of the sender.
 *
 * reader LIBZMQ SHARED_FD ENDPOINTS FRAMES FRAME_SIZE MODE: as sink.c. It needs no libzmq, and MODE is COUNTS. */
#define _GNU_SOURCE
#include "bench.h"

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GREETING = 64, BUFFER = 1 << 18 };

/* ZMTP 3.1 (RFC 37): the greeting with mechanism NULL, and the command READY of a PULL socket. */
static const unsigned char HELLO[] = {
    [0] = 0xff, [8] = 1, 0x7f, 3, 1, 'N', 'U', 'L', 'L',
    [GREETING] = 4, 26, 5, 'R', 'E', 'A', 'D', 'Y', 11, 'S', 'o', 'c', 'k', 'e', 't', '-', 'T', 'y', 'p', 'e', 0, 0, 0, 4, 'P', 'U', 'L', 'L',
};
enum { MORE = 1, LONG = 2, COMMAND = 4 }; /* the flags of a frame */

/* One connection of a sender. */
struct stream {
    int fd;
    int greeted;
    int frame; /* of its present message */
    size_t begin, end; /* what is in the buffer */
    unsigned char *buffer;
};

static struct shared *shared;
static int frames;
static size_t size;
static unsigned long received;

/* Takes a whole frame from the buffer, and checks it. Returns 0 if there is none. */
static int take_frame(struct stream *stream)
{
    static uint64_t last[MAX_THREADS][MAX_ENDPOINTS];
    const unsigned char *at = stream->buffer + stream->begin;
    size_t there = stream->end - stream->begin, head = 2, length;
    if (there < 2)
        return 0;
    length = at[1];
    if (at[0] & LONG) {
        uint64_t big;
        if (there < 9)
            return 0;
        memcpy(&big, at + 1, sizeof big);
        length = be64toh(big);
        head = 9;
    }
    require(head + length <= BUFFER, "a frame is too long");
    if (there < head + length)
        return 0;
    stream->begin += head + length;
    if (at[0] & COMMAND)
        return 1;
    int more = at[0] & MORE, right = length == size && more == (stream->frame < frames - 1);
    if (stream->frame == 0 && length >= sizeof(struct header)) {
        struct header header;
        memcpy(&header, at + head, sizeof header);
        right = right && header.thread < MAX_THREADS && header.endpoint < MAX_ENDPOINTS
            && header.number == ++last[header.thread][header.endpoint];
    }
    if (!right)
        atomic_fetch_add_explicit(&shared->wrong, 1, memory_order_relaxed);
    stream->frame++;
    if (!more) {
        stream->frame = 0;
        received++;
    }
    return 1;
}

/* Reads once. Returns 0 at the end of the connection. */
static int read_some(struct stream *stream)
{
    if (stream->begin == stream->end) {
        stream->begin = stream->end = 0;
    } else if (stream->end == BUFFER) {
        memmove(stream->buffer, stream->buffer + stream->begin, stream->end - stream->begin);
        stream->end -= stream->begin;
        stream->begin = 0;
    }
    ssize_t count = read(stream->fd, stream->buffer + stream->end, BUFFER - stream->end);
    if (count <= 0)
        return 0;
    stream->end += count;
    if (!stream->greeted) {
        if (stream->end < GREETING)
            return 1;
        stream->begin = GREETING;
        stream->greeted = 1;
    }
    while (take_frame(stream)) {
    }
    atomic_store_explicit(&shared->received, received, memory_order_release);
    return 1;
}

int main(int argc, char **argv)
{
    require(argc == 7 && atoi(argv[6]) == COUNTS, "reader: six arguments, and the mode COUNTS");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
    require(shared != MAP_FAILED, "mmap");
    int endpoints = atoi(argv[3]), poller = epoll_create1(0), one = 1;
    frames = atoi(argv[4]);
    size = strtoul(argv[5], NULL, 10);
    for (int i = 0; i < endpoints; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof address;
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        require(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 8) == 0
                    && getsockname(listener, (struct sockaddr *)&address, &length) == 0, "listen");
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = listener};
        require(epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
        printf("tcp://127.0.0.1:%d\n", ntohs(address.sin_port));
    }
    fflush(stdout);
    for (;;) {
        struct epoll_event events[64];
        int count = epoll_wait(poller, events, 64, -1);
        for (int i = 0; i < count; i++) {
            /* The number of a listening descriptor, or the address of a stream, which is larger. */
            if (events[i].data.u64 > INT32_MAX) {
                struct stream *stream = events[i].data.ptr;
                if (!read_some(stream))
                    close(stream->fd);
                continue;
            }
            struct stream *stream = calloc(1, sizeof *stream);
            stream->fd = accept4(events[i].data.u64, NULL, NULL, SOCK_CLOEXEC);
            stream->buffer = malloc(BUFFER);
            struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
            require(stream->fd >= 0 && setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0
                        && write(stream->fd, HELLO, sizeof HELLO) == sizeof HELLO
                        && epoll_ctl(poller, EPOLL_CTL_ADD, stream->fd, &event) == 0, "accept");
        }
    }
}
