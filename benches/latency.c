/* The times of the benchmark: how long a message takes, how soon a sender that waits learns of an end, and what peers that read nothing
 * cost the others. kvconn through its C API, in turns with what it is compared with.
 *
 * latency SINK LIBZMQ ROUNDS SCALE CASE FORM...: a FORM is as for the program sender, or an anchor of the case:
 *
 * cold        one message of 64 bytes to each of 64 connections, after the thread has slept and has written to 8 MiB of other memory:
 *             how long the thread needs for a send. (SINK is reader)
 * push-pull   from before the send until the receiving process has the message, at 10,000 messages of 64 bytes a second
 * disconnect  from before kvconn_disconnect until a sender that waits on this connection returns; anchor "eventfd": from before a write
 *             until a thread that waits in read returns
 * kill        from before SIGKILL of the peer until a sender that waits returns PEER_LOST, and until another thread has the event;
 *             anchor "pipe": until a thread that waits in read sees that the kernel has closed the peer's standard output
 * stalled     round robin over 100 peers that read and 10 that do not; anchor "alone": over the 100 only (with kvconn's library)
 *
 * Prints one line of JSON for each measurement, with every time in it. */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RATE = 10000, HEALTHY = 100, STALLED = 10, FRAMES = 12, FRAME = 43, LONG_MS = 60000 };

static const char *sink_program, *libzmq_path;
static struct libzmq zmq;
static double scale;

static void print_row(const char *name, const struct form *form, int round)
{
    printf("{\"case\": \"%s\", \"form\": \"%s\", \"round\": %d", name, form->name, round);
}

static void print_times(const char *key, const double *ns, int count)
{
    printf(", \"%s\": [", key);
    for (int i = 0; i < count; i++)
        printf("%s%.0f", i ? ", " : "", ns[i]);
    printf("]");
}

/* A send now and then. */

static void measure_cold(const struct form *form, int round)
{
    enum { CONNECTIONS = 64, OTHER = 8 << 20 };
    struct sink sink;
    part_processors();
    start_sink(&sink, sink_program, libzmq_path, CONNECTIONS, 1, 64, COUNTS);
    int count = 100 * scale;
    double ns[128];
    void *context = form->is_kvconn ? NULL : zmq.ctx_new(), *sockets[CONNECTIONS];
    kvconn_conn_t conns[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        if (form->is_kvconn)
            conns[i] = connect_kvconn(form, sink.endpoints[i], 1000);
        else
            sockets[i] = connect_raw(&zmq, context, form, sink.endpoints[i], 1000);
    }
    volatile char *other = calloc(1, OTHER);
    kvconn_error_t error = KVCONN_ERROR_INIT;
    char message[64] = {0};
    const kvconn_frame_t frame = {message, sizeof message};
    int warm = 10; /* raw libzmq's connections are there by then */
    for (int pass = -warm; pass < count; pass++) {
        wait_received(&sink, (unsigned long)CONNECTIONS * (pass + warm));
        usleep(2000);
        for (int i = 0; i < OTHER; i += 64)
            other[i]++;
        double begun = clock_ns(CLOCK_MONOTONIC);
        for (int i = 0; i < CONNECTIONS; i++) {
            struct header header = {0, i, pass + warm + 1};
            memcpy(message, &header, sizeof header);
            if (form->is_kvconn)
                check(form->kvconn_send(conns[i], &frame, 1, LONG_MS, NULL, &error), &error);
            else
                require(zmq.send(sockets[i], message, sizeof message, 0) >= 0, "zmq_send");
        }
        if (pass >= 0)
            ns[pass] = (clock_ns(CLOCK_MONOTONIC) - begun) / CONNECTIONS;
    }
    print_row("cold", form, round);
    print_times("times_ns", ns, count);
    free((void *)other);
    for (int i = 0; i < CONNECTIONS; i++) {
        if (form->is_kvconn)
            (void)form->kvconn_disconnect(conns[i], NULL);
        else
            zmq.close(sockets[i]);
    }
    if (!form->is_kvconn)
        zmq.ctx_term(context);
    stop_sink(&sink);
}

/* PUSH to PULL. */

static void measure_latency(const struct form *form, int round)
{
    struct sink sink;
    start_sink(&sink, sink_program, libzmq_path, 1, 1, 64, TIMES);
    int count = 5000 * scale;
    void *context = NULL, *socket = NULL;
    kvconn_conn_t conn = 0;
    if (form->is_kvconn) {
        conn = connect_kvconn(form, sink.endpoints[0], 1000);
    } else {
        context = zmq.ctx_new();
        socket = connect_raw(&zmq, context, form, sink.endpoints[0], 1000);
    }
    char message[64] = {0};
    struct timed_header header = {.header = {0, 0, 0}};
    const kvconn_frame_t frame = {message, sizeof message};
    kvconn_error_t error = KVCONN_ERROR_INIT;
    int warm = 500; /* the first messages meet a new connection */
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (int i = 0; i < warm + count; i++) {
        next.tv_nsec += 1000000000 / RATE;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
        header.header.number++;
        header.sent_ns = clock_ns(CLOCK_MONOTONIC);
        memcpy(message, &header, sizeof header);
        if (form->is_kvconn)
            check(form->kvconn_send(conn, &frame, 1, LONG_MS, NULL, &error), &error);
        else
            require(zmq.send(socket, message, sizeof message, 0) >= 0, "zmq_send");
    }
    wait_received(&sink, warm + count);
    static double ns[MAX_LATENCIES];
    for (int i = 0; i < count; i++)
        ns[i] = sink.shared->latency_ns[warm + i];
    print_row("push-pull", form, round);
    print_times("times_ns", ns, count);
    if (form->is_kvconn) {
        (void)form->kvconn_disconnect(conn, NULL);
    } else {
        zmq.close(socket);
        zmq.ctx_term(context);
    }
    stop_sink(&sink);
}

/* A thread that waits, and the time at which it went on. */
struct waiter {
    const struct form *form;
    kvconn_conn_t conn;
    int fd;
    pthread_t thread;
    atomic_int tid;
    atomic_ulong calls; /* that have begun */
    kvconn_status_t status;
    double returned;
};

static void *send_until_refused(void *argument)
{
    struct waiter *waiter = argument;
    static const char MESSAGE[1000];
    const kvconn_frame_t frame = {MESSAGE, sizeof MESSAGE};
    atomic_store(&waiter->tid, (int)syscall(SYS_gettid));
    do {
        atomic_fetch_add(&waiter->calls, 1);
        waiter->status = waiter->form->kvconn_send(waiter->conn, &frame, 1, LONG_MS, NULL, NULL);
        waiter->returned = clock_ns(CLOCK_MONOTONIC);
    } while (waiter->status == KVCONN_OK);
    return NULL;
}

static void *wait_for_event(void *argument)
{
    struct waiter *waiter = argument;
    kvconn_event_t event = KVCONN_EVENT_INIT;
    atomic_store(&waiter->tid, (int)syscall(SYS_gettid));
    do {
        atomic_fetch_add(&waiter->calls, 1);
        require(waiter->form->kvconn_next_event(0, LONG_MS, &event, NULL) == KVCONN_OK, "kvconn_next_event");
        waiter->returned = clock_ns(CLOCK_MONOTONIC);
        require(event.kind != KVCONN_EVENT_NONE, "no event came");
    } while (event.conn != waiter->conn || event.kind == KVCONN_EVENT_READY || event.kind == KVCONN_EVENT_STALLED);
    waiter->status = event.status;
    return NULL;
}

static void *wait_in_read(void *argument)
{
    struct waiter *waiter = argument;
    char bytes[8];
    atomic_store(&waiter->tid, (int)syscall(SYS_gettid));
    atomic_fetch_add(&waiter->calls, 1);
    require(read(waiter->fd, bytes, sizeof bytes) >= 0, "read");
    waiter->returned = clock_ns(CLOCK_MONOTONIC);
    return NULL;
}

static void start(struct waiter *waiter, void *(*function)(void *))
{
    require(pthread_create(&waiter->thread, NULL, function, waiter) == 0, "pthread_create");
}

static int sleeps(int tid)
{
    char path[64], text[512], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "re");
    if (file != NULL && fgets(text, sizeof text, file) != NULL && strrchr(text, ')') != NULL)
        state = strrchr(text, ')')[2];
    if (file != NULL)
        fclose(file);
    return state == 'S';
}

/* Returns when the thread has slept in one and the same call for some milliseconds. */
static void wait_until_it_waits(struct waiter *waiter)
{
    double begun = clock_ns(CLOCK_MONOTONIC);
    unsigned long before = 0;
    for (int same = 0; same < 3;) {
        require(clock_ns(CLOCK_MONOTONIC) - begun < 30e9, "the thread does not wait");
        usleep(1500);
        unsigned long calls = atomic_load(&waiter->calls);
        same = calls > 0 && calls == before && sleeps(atomic_load(&waiter->tid)) ? same + 1 : 0;
        before = calls;
    }
}

static double time_of(struct waiter *waiter, double begun, kvconn_status_t status)
{
    pthread_join(waiter->thread, NULL);
    require(waiter->status == status, "the thread returned for another reason");
    return waiter->returned - begun;
}

static void measure_disconnects(const struct form *form, int round)
{
    int count = 40 * scale;
    double ns[64], begun;
    struct sink sink;
    start_sink(&sink, sink_program, libzmq_path, 1, 1, 1000, DEAF);
    for (int i = 0; i < count; i++) {
        struct waiter waiter = {.form = form};
        if (form->is_kvconn) {
            waiter.conn = connect_kvconn(form, sink.endpoints[0], 1000);
            start(&waiter, send_until_refused);
            wait_until_it_waits(&waiter);
            begun = clock_ns(CLOCK_MONOTONIC);
            require(form->kvconn_disconnect(waiter.conn, NULL) == KVCONN_OK, "kvconn_disconnect");
        } else {
            const uint64_t one = 1;
            waiter.fd = eventfd(0, EFD_CLOEXEC);
            start(&waiter, wait_in_read);
            wait_until_it_waits(&waiter);
            begun = clock_ns(CLOCK_MONOTONIC);
            require(write(waiter.fd, &one, sizeof one) == sizeof one, "write");
        }
        ns[i] = time_of(&waiter, begun, form->is_kvconn ? KVCONN_DISCONNECTED : KVCONN_OK);
        if (!form->is_kvconn)
            close(waiter.fd);
    }
    print_row("disconnect", form, round);
    print_times("times_ns", ns, count);
    stop_sink(&sink);
}

static void measure_kills(const struct form *form, int round)
{
    int count = 40 * scale;
    double sender_ns[64], event_ns[64], begun;
    for (int i = 0; i < count; i++) {
        struct sink sink;
        start_sink(&sink, sink_program, libzmq_path, 1, 1, 1000, DEAF);
        struct waiter sender = {.form = form, .fd = fileno(sink.output)}, event = {.form = form};
        if (form->is_kvconn) {
            sender.conn = event.conn = connect_kvconn(form, sink.endpoints[0], 1000);
            start(&sender, send_until_refused);
            start(&event, wait_for_event);
            wait_until_it_waits(&event);
        } else {
            start(&sender, wait_in_read);
        }
        wait_until_it_waits(&sender);
        begun = clock_ns(CLOCK_MONOTONIC);
        kill(sink.pid, SIGKILL);
        sender_ns[i] = time_of(&sender, begun, form->is_kvconn ? KVCONN_PEER_LOST : KVCONN_OK);
        if (form->is_kvconn)
            event_ns[i] = time_of(&event, begun, KVCONN_PEER_LOST);
        stop_sink(&sink);
    }
    print_row("kill", form, round);
    print_times("times_ns", sender_ns, count);
    if (form->is_kvconn)
        print_times("event_ns", event_ns, count);
}

/* Peers that read nothing. */

struct pass { /* over all connections, once or more */
    double longest_ns, waited_ns;
    unsigned long refused;
};

static void send_round(const struct form *form, const kvconn_conn_t *conns, int count, uint64_t number, struct pass *pass)
{
    static char message[FRAMES][FRAME];
    kvconn_frame_t frames[FRAMES];
    kvconn_error_t error = KVCONN_ERROR_INIT;
    for (int i = 0; i < FRAMES; i++)
        frames[i] = (kvconn_frame_t){message[i], FRAME};
    for (int i = 0; i < count; i++) {
        struct header header = {0, i % HEALTHY, number};
        memcpy(message[0], &header, sizeof header);
        double begun = clock_ns(CLOCK_MONOTONIC);
        kvconn_status_t status = form->kvconn_send(conns[i], frames, FRAMES, KVCONN_DEFAULT_TIMEOUT, NULL, &error);
        double took = clock_ns(CLOCK_MONOTONIC) - begun;
        if (took > pass->longest_ns)
            pass->longest_ns = took;
        if (i < HEALTHY) {
            check(status, &error);
        } else if (status != KVCONN_OK) {
            require(status == KVCONN_STALLED || status == KVCONN_TIMEOUT, "a stalled peer has another status");
            pass->waited_ns += took;
            pass->refused++;
        }
    }
}

/* What the queues and the kernels take would hide a stall for thousands of messages. Fills all of them at the same time. */
static void fill(const struct form *form, const kvconn_conn_t *conns, int count)
{
    static const char MESSAGE[1000];
    const kvconn_frame_t frame = {MESSAGE, sizeof MESSAGE};
    for (int full = 0; full < 5;) {
        int accepted = 0;
        for (int i = 0; i < count; i++)
            accepted += form->kvconn_send(conns[i], &frame, 1, 0, NULL, NULL) == KVCONN_OK;
        full = accepted ? 0 : full + 1;
        if (full)
            usleep(2000);
    }
}

static void measure_stalled(const struct form *form, int round)
{
    int stalled = form->is_kvconn && strcmp(form->name, "alone") != 0 ? STALLED : 0;
    unsigned long passes = 1000 * scale;
    struct sink healthy, deaf;
    kvconn_conn_t conns[HEALTHY + STALLED];
    start_sink(&healthy, sink_program, libzmq_path, HEALTHY, FRAMES, FRAME, COUNTS);
    start_sink(&deaf, sink_program, libzmq_path, STALLED, FRAMES, FRAME, DEAF);
    for (int i = 0; i < HEALTHY; i++)
        conns[i] = connect_kvconn(form, healthy.endpoints[i], 1000);
    for (int i = 0; i < stalled; i++)
        conns[HEALTHY + i] = connect_kvconn(form, deaf.endpoints[i], 1000);
    fill(form, conns + HEALTHY, stalled);
    /* The first passes meet the stalled peers, the others know them. */
    struct pass first = {0}, later = {0};
    uint64_t number = 0;
    double begun = clock_ns(CLOCK_MONOTONIC);
    do {
        require(number < 1000, "the deaf peers do not stall");
        first.refused = 0;
        send_round(form, conns, HEALTHY + stalled, ++number, &first);
    } while (first.refused < (unsigned long)stalled);
    double first_ns = clock_ns(CLOCK_MONOTONIC) - begun;
    wait_received(&healthy, HEALTHY * number);

    double cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    begun = clock_ns(CLOCK_MONOTONIC);
    for (unsigned long i = 0; i < passes; i++)
        send_round(form, conns, HEALTHY + stalled, ++number, &later);
    cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    wait_received(&healthy, HEALTHY * number);
    double wall = clock_ns(CLOCK_MONOTONIC) - begun, messages = (double)HEALTHY * passes;
    print_row("stalled", form, round);
    printf(", \"wall_ns\": %.1f, \"sender_ns\": %.1f, \"first_pass_ns\": %.0f, \"first_longest_ns\": %.0f, \"longest_ns\": %.0f, "
           "\"refused\": %lu, \"refused_ns\": %.1f",
        wall / messages, cpu / messages, first_ns, first.longest_ns, later.longest_ns, later.refused,
        later.refused ? later.waited_ns / later.refused : 0);
    for (int i = 0; i < HEALTHY + stalled; i++)
        (void)form->kvconn_disconnect(conns[i], NULL);
    stop_sink(&healthy);
    stop_sink(&deaf);
}

static const struct {
    const char *name;
    void (*measure)(const struct form *, int round);
} CASES[] = {
    {"cold", measure_cold},
    {"push-pull", measure_latency},
    {"disconnect", measure_disconnects},
    {"kill", measure_kills},
    {"stalled", measure_stalled},
};

int main(int argc, char **argv)
{
    require(argc >= 7, "usage: latency SINK LIBZMQ ROUNDS SCALE CASE FORM...");
    sink_program = argv[1];
    libzmq_path = argv[2];
    zmq = load_libzmq(libzmq_path);
    scale = atof(argv[4]);
    int rounds = atoi(argv[3]), count = argc - 6, found = 0;
    require(scale > 0 && scale <= 1 && count <= 16, "SCALE is above 0 and at most 1, with at most 16 forms");
    /* A sleep of 100 us must not become one of 150. */
    prctl(PR_SET_TIMERSLACK, 1);
    struct form forms[16];
    for (int i = 0; i < count; i++)
        forms[i] = form_of(argv[6 + i]);
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        if (strcmp(argv[5], CASES[c].name) != 0)
            continue;
        found = 1;
        for (int round = 0; round < rounds; round++)
            for (int i = 0; i < count; i++) {
                const struct form *form = &forms[(i + round) % count];
                unsigned long rescued = form->is_kvconn ? rescues(form) : 0;
                CASES[c].measure(form, round);
                printf(", \"rescues\": %lu}\n", form->is_kvconn ? rescues(form) - rescued : 0);
                fflush(stdout);
            }
    }
    require(found, argv[5]);
    return 0;
}
