/* What the sender and the sink of the benchmark share. */
#ifndef BENCH_H
#define BENCH_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_THREADS = 256, MAX_ENDPOINTS = 64, MAX_FRAMES = 16 };

/* The first frame of every message begins with this, so that the sink can check the order. */
struct header {
    uint32_t thread;
    uint32_t endpoint;
    uint64_t number; /* 1, 2, 3, ... for each pair of thread and endpoint */
};

/* A page that both processes map. */
struct shared {
    _Alignas(64) atomic_ulong received; /* messages */
    _Alignas(64) atomic_ulong wrong;    /* messages that are not what was sent next */
    _Alignas(64) atomic_ulong latency_count;
};

/* libzmq's functions and numbers that the benchmark needs: it is loaded at run time, so no header of it is needed. */
enum { ZMQ_PULL = 7, ZMQ_PUSH = 8, ZMQ_LINGER = 17, ZMQ_SNDHWM = 23, ZMQ_LAST_ENDPOINT = 32, ZMQ_OUT_BATCH_SIZE = 102 };
enum { ZMQ_SNDMORE = 2 };
typedef struct { _Alignas(8) unsigned char bytes[64]; } zmq_msg_t;

struct libzmq {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *);
    void *(*socket)(void *, int);
    int (*close)(void *);
    int (*setsockopt)(void *, int, const void *, size_t);
    int (*getsockopt)(void *, int, void *, size_t *);
    int (*bind)(void *, const char *);
    int (*connect)(void *, const char *);
    int (*send)(void *, const void *, size_t, int);
    int (*msg_init)(zmq_msg_t *);
    int (*msg_recv)(zmq_msg_t *, void *, int);
    int (*msg_more)(const zmq_msg_t *);
    void *(*msg_data)(zmq_msg_t *);
    size_t (*msg_size)(const zmq_msg_t *);
    int (*msg_close)(zmq_msg_t *);
};

/* Ends the program with this text unless the condition holds. */
void require(int condition, const char *text);
/* A function of a loaded library. */
void *symbol(void *library, const char *name);
struct libzmq load_libzmq(const char *path);

#endif
