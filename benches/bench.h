/* What the programs of the benchmark share. */
#ifndef BENCH_H
#define BENCH_H

#include "kvconn.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

enum { MAX_THREADS = 256, MAX_ENDPOINTS = 128, MAX_FRAMES = 32, MAX_LATENCIES = 1 << 17 };

/* The first frame of every message begins with this, so that the sink can check the order. */
struct header {
    uint32_t thread;
    uint32_t endpoint;
    uint64_t number; /* 1, 2, 3, ... for each pair of thread and endpoint */
};

/* The same, with the time on CLOCK_MONOTONIC at which the send began. */
struct timed_header {
    struct header header;
    uint64_t sent_ns;
};

/* Memory that both processes map. */
struct shared {
    _Alignas(64) atomic_ulong received; /* messages */
    _Alignas(64) atomic_ulong wrong;    /* messages that are not what was sent next */
    uint64_t latency_ns[MAX_LATENCIES]; /* of the first messages, if the sink takes the time */
};

/* libzmq's functions and numbers that the benchmark needs: it is loaded at run time, so no header of it is needed. */
enum {
    ZMQ_PULL = 7,
    ZMQ_PUSH = 8,
    ZMQ_LINGER = 17,
    ZMQ_SNDHWM = 23,
    ZMQ_RCVHWM = 24,
    ZMQ_LAST_ENDPOINT = 32,
    ZMQ_OUT_BATCH_SIZE = 102
};
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

/* kvconn's functions that the benchmark needs. */
#define FUNCTIONS(X) \
    X(kvconn_connect) X(kvconn_disconnect) X(kvconn_options_new) X(kvconn_options_set) X(kvconn_options_free) \
    X(kvconn_send) X(kvconn_send_packed) X(kvconn_send_to) X(kvconn_send_batch) X(kvconn_next_event) X(kvconn_metrics_text)

/* What is measured: raw libzmq, or a library of kvconn. */
struct form {
    const char *name;
    int is_kvconn;
#define POINTER(function) __typeof__(&function) function;
    FUNCTIONS(POINTER)
};

/* A receiving process. */
enum sink_mode { COUNTS, TIMES, DEAF }; /* a deaf sink receives nothing */
struct sink {
    pid_t pid;
    struct shared *shared;
    FILE *output; /* at its end when the process has died */
    char endpoints[MAX_ENDPOINTS][64];
};

/* Ends the program with this text unless the condition holds. */
void require(int condition, const char *text);
double clock_ns(clockid_t clock);
/* A function of a loaded library. */
void *symbol(void *library, const char *name);
struct libzmq load_libzmq(const char *path);
/* A form by its argument: "stock", "same", or name=PATH of a libkvconn.so. The argument stays in use. */
struct form form_of(char *argument);

/* As if on two machines: from now on this process has the first half of the processors, and each sink that it starts has the others.
 * With one processor all have it. Otherwise the kernel moves a thread of the receiver to the sender's processors when these have time.
 * Then the receiver's two threads take several times as long. It happens more often with a cheaper sender. */
void part_processors(void);
/* Moves this process's threads whose names begin like this to the sinks' processors. Does nothing if the processors are not parted. */
void move_to_sinks(const char *threads);
void start_sink(struct sink *sink, const char *program, const char *libzmq, int endpoints, int frames, size_t size,
                enum sink_mode mode);
void stop_sink(struct sink *sink);
/* Waits until the sink has this many messages, all of them right. */
void wait_received(const struct sink *sink, unsigned long messages);

/* A PUSH socket of raw libzmq with the options of the form. */
void *connect_raw(const struct libzmq *zmq, void *context, const struct form *form, const char *endpoint, int hwm);
kvconn_conn_t connect_kvconn(const struct form *form, const char *endpoint, int hwm);
/* Ends the program unless the send was accepted. */
void check(kvconn_status_t status, const kvconn_error_t *error);
/* How many lost wake-ups the safety net of kvconn has found so far. Each is a defect. */
unsigned long rescues(const struct form *form);

#endif
