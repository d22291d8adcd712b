/* The sending process of the benchmark: kvconn through its C API beside raw libzmq, in one process, in turns.
 *
 * sender SINK LIBZMQ ROUNDS SCALE CASES FORM...: SINK is the program sink or reader. CASES is a list of names with commas, or "all". With
 * ":apart" after its name, libzmq's thread of a case has the receiver's processors and not the sender's. A FORM is "stock" or "same" (raw libzmq with its own options, and with kvconn's OUT_BATCH_SIZE), or name=PATH of a libkvconn.so. Prints
 * one line of JSON for each measurement. Every round measures every form of a case once, in another order than the round before. */
#define _GNU_SOURCE
#include "bench.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum how { SEND, PACKED, TO, BATCH, BY_TIME /* SEND for SCALE seconds */ };

struct a_case {
    const char *name;
    int threads, endpoints, frames;
    size_t size;
    int hwm;
    unsigned long messages;
    enum how how;
};

static const struct a_case CASES[] = {
    {"64", 1, 1, 1, 64, 1000, 600000, SEND},
    {"64-unbounded", 1, 1, 1, 64, 10000000, 600000, SEND},
    {"64-packed", 1, 1, 1, 64, 1000, 600000, PACKED},
    {"64-to", 1, 1, 1, 64, 1000, 600000, TO},
    {"12x43", 1, 1, 12, 43, 1000, 80000, SEND},
    {"25x100", 1, 1, 25, 100, 1000, 40000, SEND},
    {"10x200-8", 1, 8, 10, 200, 1000, 80000, SEND},
    {"4t-1", 4, 1, 1, 64, 1000, 600000, SEND},
    {"4t-64", 4, 64, 1, 64, 1000, 400000, SEND},
    {"64k", 1, 1, 1, 65536, 1000, 8000, SEND},
    {"3x100-8", 1, 8, 3, 100, 1000, 200000, SEND},
    {"batch-8", 1, 8, 3, 100, 1000, 200000, BATCH},
    {"batch-64", 1, 64, 3, 100, 1000, 200000, BATCH},
    {"2t", 2, 1, 1, 64, 1000, 100000, BY_TIME},
    {"8t", 8, 1, 1, 64, 1000, 100000, BY_TIME},
    {"32t", 32, 1, 1, 64, 1000, 100000, BY_TIME},
    {"64t", 64, 1, 1, 64, 1000, 100000, BY_TIME},
    {"256t", 256, 1, 1, 64, 1000, 100000, BY_TIME},
};

/* Writes to sockets by anybody in this process: libzmq and kvconn find this function before the C library's. */
static atomic_ulong writes;
__attribute__((visibility("default"))) ssize_t send(int fd, const void *data, size_t size, int flags)
{
    atomic_fetch_add_explicit(&writes, 1, memory_order_relaxed);
    return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}

/* One measurement: a sink, its connections, and the threads that send. */
struct run {
    const struct a_case *which;
    const struct form *form;
    struct libzmq zmq;
    struct sink sink;
    void *context;
    void *sockets[MAX_ENDPOINTS];
    pthread_mutex_t locks[MAX_ENDPOINTS];
    kvconn_conn_t conns[MAX_ENDPOINTS];
    pthread_barrier_t barrier;
    double seconds; /* of a case that is measured by time */
    atomic_int over;
};

struct worker {
    struct run *run;
    uint32_t index;
    unsigned long messages; /* to send */
    unsigned long sent;
    uint64_t numbers[MAX_ENDPOINTS];
    double cpu;
};

static void open_all(struct run *run)
{
    const struct a_case *which = run->which;
    if (!run->form->is_kvconn)
        run->context = run->zmq.ctx_new();
    for (int i = 0; i < which->endpoints; i++) {
        pthread_mutex_init(&run->locks[i], NULL);
        if (run->form->is_kvconn)
            run->conns[i] = connect_kvconn(run->form, run->sink.endpoints[i], which->hwm);
        else
            run->sockets[i] = connect_raw(&run->zmq, run->context, run->form, run->sink.endpoints[i], which->hwm);
    }
}

static void close_all(struct run *run)
{
    for (int i = 0; i < run->which->endpoints; i++) {
        if (run->form->is_kvconn)
            (void)run->form->kvconn_disconnect(run->conns[i], NULL);
        else
            run->zmq.close(run->sockets[i]);
    }
    if (!run->form->is_kvconn)
        run->zmq.ctx_term(run->context);
}

/* The memory that a thread sends from. Every frame is filled once; only the header of the first one changes. */
struct buffers {
    char *bytes;
    kvconn_frame_t frames[MAX_FRAMES];
    uint32_t sizes[MAX_FRAMES];
};

static struct buffers make_buffers(const struct a_case *which)
{
    struct buffers buffers = {.bytes = calloc(which->frames, which->size)};
    for (int i = 0; i < which->frames; i++) {
        buffers.frames[i] = (kvconn_frame_t){buffers.bytes + i * which->size, which->size};
        buffers.sizes[i] = which->size;
    }
    return buffers;
}

static inline void set_header(struct worker *worker, char *bytes, uint32_t endpoint)
{
    struct header header = {worker->index, endpoint, ++worker->numbers[endpoint]};
    memcpy(bytes, &header, sizeof header);
}

static void send_raw(struct worker *worker, unsigned long messages)
{
    struct run *run = worker->run;
    const struct a_case *which = run->which;
    int (*zmq_send)(void *, const void *, size_t, int) = run->zmq.send;
    struct buffers buffers = make_buffers(which);
    uint32_t endpoint = worker->index * which->endpoints / which->threads;
    for (; worker->sent < messages && !atomic_load_explicit(&run->over, memory_order_relaxed); worker->sent++) {
        set_header(worker, buffers.bytes, endpoint);
        if (which->threads > 1)
            pthread_mutex_lock(&run->locks[endpoint]);
        for (int frame = 0; frame < which->frames; frame++) {
            int more = frame < which->frames - 1 ? ZMQ_SNDMORE : 0;
            if (zmq_send(run->sockets[endpoint], buffers.frames[frame].data, which->size, more) < 0)
                require(0, "zmq_send");
        }
        if (which->threads > 1)
            pthread_mutex_unlock(&run->locks[endpoint]);
        if (++endpoint == (uint32_t)which->endpoints)
            endpoint = 0;
    }
    free(buffers.bytes);
}

static void send_kvconn(struct worker *worker, unsigned long messages)
{
    struct run *run = worker->run;
    const struct a_case *which = run->which;
    const struct form *kv = run->form;
    struct buffers buffers = make_buffers(which);
    uint32_t endpoint = worker->index * which->endpoints / which->threads;
    kvconn_error_t error = {.struct_size = sizeof error};
    for (; worker->sent < messages && !atomic_load_explicit(&run->over, memory_order_relaxed); worker->sent++) {
        uint64_t sequence;
        kvconn_conn_t conn = run->conns[endpoint];
        kvconn_status_t status;
        set_header(worker, buffers.bytes, endpoint);
        if (which->how == PACKED)
            status = kv->kvconn_send_packed(conn, buffers.bytes, buffers.sizes, which->frames, 60000, &sequence, &error);
        else if (which->how == TO)
            status = kv->kvconn_send_to(0, run->sink.endpoints[endpoint], buffers.frames, which->frames, 60000, &conn, &sequence, &error);
        else
            status = kv->kvconn_send(conn, buffers.frames, which->frames, 60000, &sequence, &error);
        if (status != KVCONN_OK)
            check(status, &error);
        if (++endpoint == (uint32_t)which->endpoints)
            endpoint = 0;
    }
    free(buffers.bytes);
}

static void send_batches(struct worker *worker, unsigned long messages)
{
    struct run *run = worker->run;
    const struct a_case *which = run->which;
    struct buffers buffers[MAX_ENDPOINTS];
    kvconn_batch_item_t items[MAX_ENDPOINTS];
    kvconn_error_t error = {.struct_size = sizeof error};
    memset(items, 0, sizeof items);
    for (int i = 0; i < which->endpoints; i++) {
        buffers[i] = make_buffers(which);
        items[i].conn = run->conns[i];
        items[i].frames = buffers[i].frames;
        items[i].frame_count = which->frames;
    }
    for (unsigned long i = 0; i < messages; i += which->endpoints) {
        for (int endpoint = 0; endpoint < which->endpoints; endpoint++)
            set_header(worker, buffers[endpoint].bytes, endpoint);
        check(run->form->kvconn_send_batch(items, which->endpoints, 60000, &error), &error);
    }
    worker->sent = messages;
    for (int i = 0; i < which->endpoints; i++)
        free(buffers[i].bytes);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    pthread_barrier_wait(&worker->run->barrier);
    double before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    if (!worker->run->form->is_kvconn)
        send_raw(worker, worker->messages);
    else if (worker->run->which->how == BATCH)
        send_batches(worker, worker->messages);
    else
        send_kvconn(worker, worker->messages);
    worker->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    return NULL;
}

static void *end_of_time(void *argument)
{
    struct run *run = argument;
    double end = clock_ns(CLOCK_MONOTONIC) + run->seconds * 1e9;
    while (clock_ns(CLOCK_MONOTONIC) < end)
        usleep(10000);
    atomic_store(&run->over, 1);
    return NULL;
}

/* Lets every thread send this many messages each, or for the case's time, and waits until the sink has them all. Returns the
 * threads' processor time. */
static double send_all(struct run *run, struct worker *workers, unsigned long messages, unsigned long *total)
{
    pthread_t threads[MAX_THREADS], timer;
    int by_time = messages == ULONG_MAX;
    pthread_barrier_init(&run->barrier, NULL, run->which->threads);
    for (int i = 0; i < run->which->threads; i++) {
        workers[i].messages = messages;
        workers[i].sent = 0;
    }
    for (int i = 1; i < run->which->threads; i++)
        require(pthread_create(&threads[i], NULL, work, &workers[i]) == 0, "pthread_create");
    if (by_time)
        require(pthread_create(&timer, NULL, end_of_time, run) == 0, "pthread_create");
    work(&workers[0]);
    double cpu = workers[0].cpu;
    for (int i = 1; i < run->which->threads; i++) {
        pthread_join(threads[i], NULL);
        cpu += workers[i].cpu;
    }
    if (by_time)
        pthread_join(timer, NULL);
    pthread_barrier_destroy(&run->barrier);
    for (int i = 0; i < run->which->threads; i++)
        *total += workers[i].sent;
    wait_received(&run->sink, *total);
    return cpu;
}

static void measure(const struct a_case *which, const struct form *form, int apart, int round, double scale, char **argv)
{
    struct run run = {.which = which, .form = form, .zmq = load_libzmq(argv[2]), .seconds = scale};
    struct worker workers[MAX_THREADS];
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < which->threads; i++)
        workers[i] = (struct worker){.run = &run, .index = i};
    start_sink(&run.sink, argv[1], argv[2], which->endpoints, which->frames, which->size, COUNTS);
    open_all(&run);
    unsigned long rescued = form->is_kvconn ? rescues(form) : 0;
    unsigned long total = 0, messages = which->messages * scale / which->threads / which->endpoints;
    messages = (messages ? messages : 1) * which->endpoints;
    send_all(&run, workers, messages < 6400 ? messages : 6400, &total); /* warm */
    if (apart) /* it has given itself its name by now */
        move_to_sinks("ZMQbg/IO");

    struct rusage before, after;
    unsigned long writes_before = atomic_load(&writes);
    getrusage(RUSAGE_SELF, &before);
    double begun = clock_ns(CLOCK_MONOTONIC), process = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    clockid_t sink_clock;
    require(clock_getcpuclockid(run.sink.pid, &sink_clock) == 0, "clock_getcpuclockid");
    double receiver = clock_ns(sink_clock);
    unsigned long warm = total;
    double cpu = send_all(&run, workers, which->how == BY_TIME ? ULONG_MAX : messages, &total);
    double wall = clock_ns(CLOCK_MONOTONIC) - begun;
    process = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - process;
    receiver = clock_ns(sink_clock) - receiver;
    getrusage(RUSAGE_SELF, &after);
    double sent = (double)(total - warm);
    unsigned long least = ULONG_MAX, most = 0;
    for (int i = 0; i < which->threads; i++) {
        least = workers[i].sent < least ? workers[i].sent : least;
        most = workers[i].sent > most ? workers[i].sent : most;
    }
    long switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw;
    printf("{\"case\": \"%s\", \"form\": \"%s\", \"round\": %d, \"messages\": %.0f, \"wall_ns\": %.1f, \"sender_ns\": %.1f, "
           "\"process_ns\": %.1f, \"receiver_ns\": %.1f, \"switches\": %ld, \"writes\": %lu, \"least\": %lu, \"most\": %lu, \"rescues\": %lu}\n",
        which->name, form->name, round, sent, wall / sent, cpu / sent, process / sent, receiver / sent, switches,
        atomic_load(&writes) - writes_before, least, most, form->is_kvconn ? rescues(form) - rescued : 0);
    fflush(stdout);
    close_all(&run);
    stop_sink(&run.sink);
}

int main(int argc, char **argv)
{
    require(argc >= 7, "usage: sender SINK LIBZMQ ROUNDS SCALE CASES FORM...");
    int rounds = atoi(argv[3]), count = argc - 6;
    double scale = atof(argv[4]);
    struct form forms[16];
    for (int i = 0; i < count; i++)
        forms[i] = form_of(argv[6 + i]);
    char *names = strdup(argv[5]);
    for (char *name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) {
        int found = 0;
        char *apart = strstr(name, ":apart");
        if (apart != NULL)
            *apart = 0;
        for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
            if (strcmp(name, CASES[c].name) != 0 && (strcmp(name, "all") != 0 || CASES[c].how == BY_TIME))
                continue;
            found = 1;
            if (CASES[c].how != BY_TIME)
                part_processors();
            for (int round = 0; round < rounds; round++)
                for (int i = 0; i < count; i++)
                    measure(&CASES[c], &forms[(i + round) % count], apart != NULL, round, scale, argv);
        }
        require(found, name);
    }
    free(names);
    return 0;
}
