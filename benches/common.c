#define _GNU_SOURCE
#include "bench.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

void require(int condition, const char *text)
{
    if (!condition) {
        fprintf(stderr, "bench: %s (errno: %s)\n", text, strerror(errno));
        exit(1);
    }
}

double clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    require(found != NULL, name);
    return found;
}

struct libzmq load_libzmq(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "bench: %s\n", dlerror());
        exit(1);
    }
    struct libzmq zmq = {
        .ctx_new = symbol(library, "zmq_ctx_new"),       .ctx_term = symbol(library, "zmq_ctx_term"),
        .socket = symbol(library, "zmq_socket"),         .close = symbol(library, "zmq_close"),
        .setsockopt = symbol(library, "zmq_setsockopt"), .getsockopt = symbol(library, "zmq_getsockopt"),
        .bind = symbol(library, "zmq_bind"),             .connect = symbol(library, "zmq_connect"),
        .send = symbol(library, "zmq_send"),             .msg_init = symbol(library, "zmq_msg_init"),
        .msg_recv = symbol(library, "zmq_msg_recv"),     .msg_more = symbol(library, "zmq_msg_more"),
        .msg_data = symbol(library, "zmq_msg_data"),     .msg_size = symbol(library, "zmq_msg_size"),
        .msg_close = symbol(library, "zmq_msg_close"),
    };
    return zmq;
}

struct form form_of(char *argument)
{
    struct form form = {.name = argument};
    char *path = strchr(argument, '=');
    if (path == NULL)
        return form;
    *path++ = 0;
    form.is_kvconn = 1;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "bench: %s\n", dlerror());
        exit(1);
    }
#define LOAD(function) form.function = symbol(library, #function);
    FUNCTIONS(LOAD)
    return form;
}

/* The sinks' processors, once the processors are parted. */
static cpu_set_t receivers;
static int are_parted;

void part_processors(void)
{
    cpu_set_t all, mine;
    require(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity");
    int count = CPU_COUNT(&all), seen = 0;
    if (are_parted || count < 2)
        return;
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, seen++ < count / 2 ? &mine : &receivers);
    require(sched_setaffinity(0, sizeof mine, &mine) == 0, "sched_setaffinity");
    are_parted = 1;
}

void move_to_sinks(const char *threads)
{
    DIR *directory = opendir("/proc/self/task");
    require(directory != NULL, "/proc/self/task");
    int moved = 0;
    for (struct dirent *entry; are_parted && (entry = readdir(directory)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(name, sizeof name, file) != NULL && strncmp(name, threads, strlen(threads)) == 0) {
            require(sched_setaffinity(atoi(entry->d_name), sizeof receivers, &receivers) == 0, "sched_setaffinity");
            moved++;
        }
        fclose(file);
    }
    closedir(directory);
    require(moved > 0 || !are_parted, threads);
}

void start_sink(struct sink *sink, const char *program, const char *libzmq, int endpoints, int frames, size_t size,
                enum sink_mode mode)
{
    int fd = memfd_create("bench", 0), out[2];
    require(fd >= 0 && ftruncate(fd, sizeof *sink->shared) == 0 && pipe2(out, O_CLOEXEC) == 0, "memory for the sink");
    sink->shared = mmap(NULL, sizeof *sink->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    require(sink->shared != MAP_FAILED, "mmap");
    char numbers[5][24];
    snprintf(numbers[0], 24, "%d", fd);
    snprintf(numbers[1], 24, "%d", endpoints);
    snprintf(numbers[2], 24, "%d", frames);
    snprintf(numbers[3], 24, "%zu", size);
    snprintf(numbers[4], 24, "%d", mode);
    sink->pid = fork();
    require(sink->pid >= 0, "fork");
    if (sink->pid == 0) {
        if (are_parted)
            sched_setaffinity(0, sizeof receivers, &receivers);
        dup2(out[1], 1);
        execl(program, program, libzmq, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], NULL);
        _exit(1);
    }
    close(out[1]);
    close(fd);
    sink->output = fdopen(out[0], "r");
    for (int i = 0; i < endpoints; i++) {
        require(fgets(sink->endpoints[i], sizeof sink->endpoints[i], sink->output) != NULL, "the sink's endpoints");
        sink->endpoints[i][strcspn(sink->endpoints[i], "\n")] = 0;
    }
}

void stop_sink(struct sink *sink)
{
    kill(sink->pid, SIGKILL);
    waitpid(sink->pid, NULL, 0);
    fclose(sink->output);
    munmap(sink->shared, sizeof *sink->shared);
}

void wait_received(const struct sink *sink, unsigned long messages)
{
    double begun = clock_ns(CLOCK_MONOTONIC);
    while (atomic_load_explicit(&sink->shared->received, memory_order_acquire) < messages) {
        require(clock_ns(CLOCK_MONOTONIC) - begun < 120e9, "messages are missing");
        usleep(100);
    }
    require(atomic_load(&sink->shared->wrong) == 0, "a message is not what was sent");
}

void *connect_raw(const struct libzmq *zmq, void *context, const struct form *form, const char *endpoint, int hwm)
{
    int linger = 0, batch = 65536;
    void *socket = zmq->socket(context, ZMQ_PUSH);
    zmq->setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq->setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (strcmp(form->name, "same") == 0)
        require(zmq->setsockopt(socket, ZMQ_OUT_BATCH_SIZE, &batch, sizeof batch) == 0, "ZMQ_OUT_BATCH_SIZE");
    require(zmq->connect(socket, endpoint) == 0, "zmq_connect");
    return socket;
}

kvconn_conn_t connect_kvconn(const struct form *form, const char *endpoint, int hwm)
{
    kvconn_options_t *options = form->kvconn_options_new();
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_conn_t conn;
    char text[24];
    snprintf(text, sizeof text, "%d", hwm);
    require(form->kvconn_options_set(options, "send_hwm", text, NULL) == KVCONN_OK, "send_hwm");
    kvconn_status_t status;
    /* The port may be that of a sink that was killed a moment ago. */
    while ((status = form->kvconn_connect(0, endpoint, options, 10000, &conn, &error)) == KVCONN_BACKOFF)
        usleep(10000);
    if (status != KVCONN_OK) {
        fprintf(stderr, "bench: %s\n", error.message);
        exit(1);
    }
    form->kvconn_options_free(options);
    return conn;
}

void check(kvconn_status_t status, const kvconn_error_t *error)
{
    if (status != KVCONN_OK) {
        fprintf(stderr, "bench: a send failed: %d %s\n", status, error->message);
        exit(1);
    }
}

unsigned long rescues(const struct form *form)
{
    static const char NAME[] = "\nkvconn_wakeups_rescued_total{manager=\"0\"} ";
    size_t needed = 0;
    (void)form->kvconn_metrics_text(0, NULL, 0, &needed, NULL);
    char *text = calloc(1, needed + 4096); /* it may have grown */
    require(form->kvconn_metrics_text(0, text, needed + 4096, &needed, NULL) == KVCONN_OK, "kvconn_metrics_text");
    const char *found = strstr(text, NAME);
    require(found != NULL, "the metric of lost wake-ups");
    unsigned long count = strtoul(found + sizeof NAME - 1, NULL, 10);
    free(text);
    return count;
}
