/* The receiving process of the benchmark: one PULL socket, bound to as many endpoints as asked. It counts every message and checks
 * its frames, their sizes, and the order for each pair of sending thread and endpoint.
 *
 * sink LIBZMQ SHARED_FD ENDPOINTS FRAMES FRAME_SIZE MODE: prints one endpoint on each line, and runs until its parent ends it. MODE is a
 * number of enum sink_mode. */
#define _GNU_SOURCE
#include "bench.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    require(argc == 7, "sink: six arguments");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct libzmq zmq = load_libzmq(argv[1]);
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
    require(shared != MAP_FAILED, "mmap");
    int endpoints = atoi(argv[3]), frames = atoi(argv[4]);
    size_t size = strtoul(argv[5], NULL, 10);
    enum sink_mode mode = atoi(argv[6]);

    int one = 1;
    void *socket = zmq.socket(zmq.ctx_new(), ZMQ_PULL);
    if (mode == DEAF)
        zmq.setsockopt(socket, ZMQ_RCVHWM, &one, sizeof one);
    for (int i = 0; i < endpoints; i++) {
        char endpoint[256];
        size_t length = sizeof endpoint;
        require(zmq.bind(socket, "tcp://127.0.0.1:*") == 0, "zmq_bind");
        require(zmq.getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &length) == 0, "ZMQ_LAST_ENDPOINT");
        puts(endpoint);
    }
    fflush(stdout);
    while (mode == DEAF)
        pause();

    static uint64_t last[MAX_THREADS][MAX_ENDPOINTS];
    unsigned long received = 0;
    zmq_msg_t message;
    zmq.msg_init(&message);
    for (;;) {
        int right = 1;
        for (int frame = 0;; frame++) {
            require(zmq.msg_recv(&message, socket, 0) >= 0, "zmq_msg_recv");
            right &= frame < frames && zmq.msg_size(&message) == size;
            if (frame == 0 && mode == TIMES && received < MAX_LATENCIES) {
                struct timed_header header;
                uint64_t now = clock_ns(CLOCK_MONOTONIC);
                memcpy(&header, zmq.msg_data(&message), sizeof header);
                shared->latency_ns[received] = now - header.sent_ns;
            }
            if (frame == 0 && right) {
                struct header header;
                memcpy(&header, zmq.msg_data(&message), sizeof header);
                right = header.thread < MAX_THREADS && header.endpoint < MAX_ENDPOINTS
                    && header.number == ++last[header.thread][header.endpoint];
            }
            if (!zmq.msg_more(&message)) {
                right &= frame == frames - 1;
                break;
            }
        }
        if (!right)
            atomic_fetch_add_explicit(&shared->wrong, 1, memory_order_relaxed);
        atomic_store_explicit(&shared->received, ++received, memory_order_release);
    }
}
