// One process for each scenario: what a host does, or a limit, that must neither end the process nor leave anything behind.
// scenarios.rs runs it: `scenarios NAME ENDPOINT`. It says what was wrong and exits with 1, or exits with 0.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kvconn.h"

static const char *endpoint;
static int report_to; // a copy of stderr, for scenarios that close it

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(report_to, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                         \
            dprintf(report_to, __VA_ARGS__);                                                                           \
            dprintf(report_to, "\n");                                                                                  \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static kvconn_status_t dial_to(const char *where, kvconn_conn_t *conn, kvconn_error_t *error) {
    *error = (kvconn_error_t)KVCONN_ERROR_INIT;
    return kvconn_connect(0, where, NULL, 5000, conn, error);
}

static void works(void) {
    kvconn_conn_t conn;
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_status_t status;
    for (int i = 0; (status = dial_to(endpoint, &conn, &error)) == KVCONN_BACKOFF && i < 100; i++) usleep(20000);
    CHECK(status == KVCONN_OK, "connect: %d %s", status, error.message);
    kvconn_frame_t frame = {"hello", 5};
    uint64_t sequence, acknowledged;
    status = kvconn_send(conn, &frame, 1, 5000, &sequence, &error);
    CHECK(status == KVCONN_OK, "send: %d %s", status, error.message);
    status = kvconn_flush(conn, sequence, 5000, &acknowledged, &error);
    CHECK(status == KVCONN_OK, "flush: %d %s", status, error.message);
}

static int entries(const char *path) {
    DIR *directory = opendir(path);
    int count = 0;
    while (directory && readdir(directory)) count++;
    if (directory) closedir(directory);
    return count - 2 - (strcmp(path, "/proc/self/fd") == 0); // the one that reads the directory
}

/// Waits until there are no more than that.
static void at_most(const char *path, int count) {
    int now = 0;
    for (int i = 0; i < 1000 && (now = entries(path)) > count; i++) usleep(5000);
    CHECK(now <= count, "%d in %s, %d before", now, path, count);
}

// ---- descriptors ---------------------------------------------------------------------------------------------------

/// A daemon without standard descriptors: kvconn takes none of them, and what the daemon writes to them harms nobody.
static void standard_descriptors(void) {
    for (int fd = 0; fd < 3; fd++) close(fd);
    uint64_t one = 1;
    for (int round = 0; round < 3; round++) {
        works();
        for (int fd = 0; fd < 3; fd++) {
            CHECK(fcntl(fd, F_GETFD) == -1, "somebody owns descriptor %d", fd);
            CHECK(write(fd, &one, sizeof one) == -1, "descriptor %d could be written to", fd);
        }
        CHECK(kvconn_disconnect_all(0, 1000, NULL) == KVCONN_OK, "disconnect");
        usleep(10000);
    }
    works();
}

/// A host writes to descriptors that are not its own: the mailboxes of libzmq, the wakers of kvconn.
static void foreign_writes(void) {
    works();
    for (int round = 0; round < 200; round++) {
        int written = 0;
        for (int fd = 3; fd < 256; fd++) {
            char path[64], link[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t size = readlink(path, link, sizeof link - 1);
            if (size <= 0) continue;
            link[size] = 0;
            uint64_t count = 1 + (uint64_t)round % 3;
            if (strstr(link, "eventfd")) written += write(fd, &count, sizeof count) == sizeof count;
        }
        CHECK(written >= 5, "%d eventfds", written);
        usleep(500);
    }
    works();
    CHECK(kvconn_disconnect_all(0, 1000, NULL) == KVCONN_OK, "disconnect");
    works();
}

// ---- threads -------------------------------------------------------------------------------------------------------

/// A user of its own has few processes: root has no limit.
static void become_a_user(void) {
    if (getuid() == 0) CHECK(setuid(60000 + (uid_t)getpid() % 5000) == 0, "setuid");
}

static void allow_threads(rlim_t count) {
    struct rlimit limit;
    getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = count;
    CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0, "setrlimit");
}

/// Each start that fails gives everything back; the first that has what it needs works.
static void few_threads(void) {
    become_a_user();
    allow_threads(1);
    kvconn_error_t error;
    kvconn_conn_t conn;
    kvconn_status_t status = dial_to(endpoint, &conn, &error);
    CHECK(status == KVCONN_LIMIT, "without any thread: %d %s", status, error.message);
    int descriptors = entries("/proc/self/fd"), failures = 0;
    for (rlim_t count = 1; count < 12; count++) {
        allow_threads(count);
        status = dial_to(endpoint, &conn, &error);
        if (status == KVCONN_OK) break;
        failures++;
        CHECK(status == KVCONN_LIMIT, "%d threads: %d %s", (int)count, status, error.message);
        CHECK(error.os_errno == EAGAIN, "errno %d", error.os_errno);
        at_most("/proc/self/task", 1);
        at_most("/proc/self/fd", descriptors);
    }
    CHECK(failures >= 2 && status == KVCONN_OK, "%d failures", failures);
    works();
}

static void *nothing(void *argument) { return argument; }

static atomic_bool churning = true;

static void *churn(void *argument) {
    while (churning) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, nothing, NULL) == 0) pthread_join(thread, NULL);
    }
    return argument;
}

/// The host makes and ends threads all the time at its limit: one that could be made a moment ago cannot be made now.
static void churned_threads(void) {
    become_a_user();
    allow_threads(4);
    pthread_t churner;
    CHECK(pthread_create(&churner, NULL, churn, NULL) == 0, "a thread");
    kvconn_error_t error;
    kvconn_conn_t conn;
    for (int i = 0; i < 300; i++) {
        allow_threads(4 + (rlim_t)i % 3);
        kvconn_status_t status = dial_to(endpoint, &conn, &error);
        CHECK(status == KVCONN_OK || status == KVCONN_LIMIT, "%d %s", status, error.message);
        if (status == KVCONN_OK) break;
    }
    allow_threads(64);
    churning = false;
    pthread_join(churner, NULL);
    works();
}

/// No thread for a look-up.
static void no_resolver(void) {
    become_a_user();
    works();
    char name[64];
    const char *port = strrchr(endpoint, ':');
    snprintf(name, sizeof name, "tcp://localhost%s", port);
    allow_threads((rlim_t)entries("/proc/self/task"));
    kvconn_error_t error;
    kvconn_conn_t conn;
    kvconn_status_t status = dial_to(name, &conn, &error);
    CHECK(status == KVCONN_LIMIT && error.os_errno == EAGAIN, "%d, errno %d, %s", status, error.os_errno, error.message);
    allow_threads(64);
    status = dial_to(name, &conn, &error);
    CHECK(status == KVCONN_OK, "after relief: %d %s", status, error.message);
}

// ---- the kernel's watches ------------------------------------------------------------------------------------------

static atomic_int watches_left = -1;

/// fs.epoll.max_user_watches is used up.
int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    if (operation == EPOLL_CTL_ADD && watches_left >= 0 && atomic_fetch_sub(&watches_left, 1) <= 0) {
        watches_left = 0;
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_epoll_ctl, epoll, operation, fd, event);
}

static void no_watches(void) {
    int descriptors = 0;
    for (int left = 0; left < 12; left++) {
        watches_left = left;
        kvconn_error_t error;
        kvconn_conn_t conn;
        kvconn_status_t status = dial_to(endpoint, &conn, &error);
        if (status == KVCONN_OK || status == KVCONN_BACKOFF) continue;
        CHECK(status == KVCONN_LIMIT || status == KVCONN_CONNECT_FAILED, "%d watches: %d %s", left, status, error.message);
        CHECK(error.os_errno == ENOSPC, "%d watches: errno %d, %s", left, error.os_errno, error.message);
        if (left == 0) descriptors = entries("/proc/self/fd");
        if (status == KVCONN_LIMIT) at_most("/proc/self/fd", descriptors);
    }
    watches_left = -1;
    works();
    CHECK(kvconn_disconnect_all(0, 1000, NULL) == KVCONN_OK, "disconnect");
    at_most("/proc/self/fd", descriptors + 7); // what a context and the watcher need
}

// ---- cancellation --------------------------------------------------------------------------------------------------

static atomic_int stage;

static void *waits_in_a_send(void *argument) {
    kvconn_conn_t conn = *(kvconn_conn_t *)argument;
    static char bytes[65536];
    kvconn_frame_t frame = {bytes, sizeof bytes};
    uint64_t sequence;
    // Waits in poll, where a thread can be cancelled. A send waits only longer than those before that had waited in vain.
    kvconn_status_t status;
    int64_t timeout_ms = 700;
    do {
        status = kvconn_send(conn, &frame, 1, timeout_ms, &sequence, NULL);
        CHECK(status == KVCONN_OK || status == KVCONN_TIMEOUT || status == KVCONN_STALLED, "%d", status);
        if (status != KVCONN_OK) timeout_ms *= 2;
    } while (status == KVCONN_OK || stage == 0);
    stage = 2;
    pthread_testcancel();
    stage = 3;
    return NULL;
}

/// A thread is cancelled while it waits: the call ends as it would have, and the cancellation comes after it.
static void cancelled(void) {
    setenv("KVCONN_SEND_HWM", "2", 1);
    kvconn_error_t error;
    kvconn_conn_t conn;
    // This peer reads nothing.
    kvconn_status_t status = dial_to(endpoint, &conn, &error);
    CHECK(status == KVCONN_OK, "%d %s", status, error.message);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits_in_a_send, &conn) == 0, "a thread");
    // In a wait. It may end with room for the message, because libzmq's thread is late: then the next one is in poll.
    kvconn_connection_info_t info = {.struct_size = sizeof info};
    do {
        usleep(1000);
        CHECK(kvconn_connection_info(conn, &info, NULL) == KVCONN_OK, "info");
    } while (info.waiting == 0);
    CHECK(pthread_cancel(thread) == 0, "pthread_cancel");
    stage = 1;
    void *result = NULL;
    CHECK(pthread_join(thread, &result) == 0, "pthread_join");
    CHECK(stage == 2 && result == PTHREAD_CANCELED, "stage %d", stage);
    CHECK(kvconn_disconnect_all(0, 0, NULL) == KVCONN_OK, "disconnect");
}

static void *sends_with_a_cancellation_pending(void *argument) {
    kvconn_conn_t conn = *(kvconn_conn_t *)argument;
    static char bytes[2000];
    kvconn_frame_t frames[2] = {{bytes, sizeof bytes}, {bytes, 10}};
    uint32_t sizes[2] = {10, 20};
    kvconn_batch_item_t item = {.conn = conn, .frames = frames, .frame_count = 2};
    uint64_t sequence;
    CHECK(pthread_cancel(pthread_self()) == 0, "pthread_cancel");
    // Wakes libzmq's idle thread, and the watcher; finds the queue full; reads commands; waits; wakes one that polls.
    kvconn_status_t status = KVCONN_OK;
    for (int i = 0; i < 20 || status == KVCONN_OK; i++) {
        status = kvconn_send(conn, frames, 2, 0, &sequence, NULL);
        stage = 1;
        if (i < 3) syscall(SYS_nanosleep, &(struct timespec){0, 20000000}, NULL); // no cancellation point
    }
    CHECK(status == KVCONN_TIMEOUT, "%d", status);
    CHECK(kvconn_send(conn, frames, 2, 50, &sequence, NULL) != KVCONN_OK, "full");
    CHECK(kvconn_send_packed(conn, bytes, sizes, 2, 0, &sequence, NULL) == KVCONN_TIMEOUT, "full");
    CHECK(kvconn_send_to(0, endpoint, frames, 2, 0, NULL, &sequence, NULL) == KVCONN_TIMEOUT, "full");
    CHECK(kvconn_send_batch(&item, 1, 0, NULL) == KVCONN_PARTIAL, "full");
    CHECK(kvconn_send(conn + 1, frames, 2, 0, &sequence, NULL) == KVCONN_STALE, "stale");
    CHECK(kvconn_send(conn, NULL, 2, 0, &sequence, NULL) == KVCONN_INVALID, "no frames");
    stage = 2;
    pthread_testcancel();
    stage = 3;
    return NULL;
}

/// A thread is to be cancelled before it sends: every call ends as it would have, and the cancellation comes after them.
static void cancelled_early(void) {
    setenv("KVCONN_SEND_HWM", "20", 1);
    kvconn_error_t error;
    kvconn_conn_t conn;
    // This peer reads nothing.
    kvconn_status_t status = dial_to(endpoint, &conn, &error);
    CHECK(status == KVCONN_OK, "%d %s", status, error.message);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sends_with_a_cancellation_pending, &conn) == 0, "a thread");
    // Waits for room beside it, and so is woken by it.
    while (stage == 0) usleep(1000);
    static char bytes[65536];
    kvconn_frame_t frame = {bytes, sizeof bytes};
    while (stage < 2) {
        status = kvconn_send(conn, &frame, 1, 30, NULL, NULL);
        CHECK(status == KVCONN_OK || status == KVCONN_TIMEOUT || status == KVCONN_STALLED, "%d", status);
    }
    void *result = NULL;
    CHECK(pthread_join(thread, &result) == 0, "pthread_join");
    CHECK(stage == 2 && result == PTHREAD_CANCELED, "stage %d", stage);
    CHECK(kvconn_disconnect_all(0, 0, NULL) == KVCONN_OK, "disconnect");
}

// ---- within a message ----------------------------------------------------------------------------------------------

extern void *__libc_memalign(size_t, size_t);

/// What happens when libzmq next allocates memory for a queue of messages, on this thread: after some frames of a message.
static _Thread_local enum { NOTHING, NO_MEMORY, PEER_DIES } within_a_message;
static pid_t peer; // 0: it does not die
static unsigned single_frames;

int posix_memalign(void **block, size_t alignment, size_t size) {
    if (within_a_message != NOTHING && size > 8192) { // smaller: a queue of libzmq's commands
        bool has_memory = within_a_message == PEER_DIES;
        within_a_message = NOTHING;
        if (!has_memory) return ENOMEM;
        int descriptors = entries("/proc/self/fd");
        kill(peer, SIGKILL);
        // libzmq's thread says that the peer is gone, and then closes its descriptor.
        at_most("/proc/self/fd", descriptors - 1);
        usleep(5000); // libzmq looks for commands that seldom
    }
    *block = __libc_memalign(alignment, size);
    return *block ? 0 : ENOMEM;
}

/// A message that libzmq has begun to take when its queue cannot take more: it is not accepted, and nothing after it.
static void broken_message(void) {
    kvconn_error_t error;
    kvconn_conn_t conn;
    kvconn_status_t status = dial_to(endpoint, &conn, &error);
    CHECK(status == KVCONN_OK, "%d %s", status, error.message);
    // libzmq takes a message of up to 128 frames in one call, within which it does not notice the end of the peer.
    size_t count = peer ? 300 : 16;
    kvconn_frame_t frames[300];
    for (size_t i = 0; i < count; i++) frames[i] = (kvconn_frame_t){&"0123456789abcdef"[i % 16], 1};
    uint64_t accepted = 0, sequence;
    // Decides which frame of a later message it is.
    for (; accepted < single_frames; accepted++) CHECK(kvconn_send(conn, frames, 1, 5000, NULL, NULL) == KVCONN_OK, "send");
    within_a_message = peer ? PEER_DIES : NO_MEMORY;
    for (; within_a_message != NOTHING; accepted += status == KVCONN_OK) {
        CHECK(accepted < 1000, "libzmq allocates no memory");
        status = kvconn_send(conn, frames, count, 0, &sequence, &error);
    }
    CHECK(status == KVCONN_PEER_LOST, "the message itself: %d %s", status, error.message);
    for (int i = 0; i < 3; i++) {
        status = kvconn_send(conn, frames, count, 0, &sequence, &error);
        CHECK(status == KVCONN_PEER_LOST, "the next: %d %s", status, error.message);
    }
    kvconn_connection_info_t info = {.struct_size = sizeof info};
    CHECK(kvconn_connection_info(conn, &info, NULL) == KVCONN_OK, "info");
    CHECK(info.accepted == accepted, "%d of %d", (int)info.accepted, (int)accepted);
    if (peer == 0) works();
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"standard_descriptors", standard_descriptors},
               {"foreign_writes", foreign_writes},
               {"few_threads", few_threads},
               {"churned_threads", churned_threads},
               {"no_resolver", no_resolver},
               {"no_watches", no_watches},
               {"cancelled", cancelled},
               {"cancelled_early", cancelled_early},
               {"broken_message", broken_message}};
    report_to = fcntl(2, F_DUPFD_CLOEXEC, 100);
    endpoint = count > 2 ? arguments[2] : "";
    peer = count > 3 ? atoi(arguments[3]) : 0;
    single_frames = count > 4 ? (unsigned)atoi(arguments[4]) : 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (count > 1 && strcmp(arguments[1], all[i].name) == 0) {
            alarm(60);
            all[i].run();
            return 0;
        }
    }
    CHECK(false, "no scenario of that name");
}
