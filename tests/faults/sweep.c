// Fails the n-th call of a C library function that kvconn and its libzmq make, with each errno that it may have, over a whole
// run: connect, send, lose the peer, connect again. A child process for each case; errno_sweep.rs runs this and reads the table.
//
// The functions are interposed by this program's own: the dynamic linker looks here first for what libkvconn.so calls.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvconn.h"

// ---- what fails ----------------------------------------------------------------------------------------------------

#define CALLS(X)                                                                                                       \
    X(socket) X(connect) X(bind) X(getsockopt) X(setsockopt) X(getsockname) X(getpeername) X(send) X(recv)             \
    X(epoll_create1) X(epoll_ctl) X(epoll_wait) X(eventfd) X(read) X(write) X(poll) X(ppoll) X(dup) X(fcntl)           \
    X(getaddrinfo) X(pthread_create) X(pthread_setschedparam) X(mmap) X(operator_new) X(posix_memalign) X(malloc)

#define ENUMERATOR(name) CALL_##name,
enum call { CALLS(ENUMERATOR) CALL_COUNT };
#define NAME(name) #name,
static const char *const call_names[] = {CALLS(NAME)};

// What the man pages allow, and EPERM, with which a sandbox refuses.
static const int *const errnos[CALL_COUNT] = {
#define LIST(call, ...) [CALL_##call] = (const int[]){__VA_ARGS__, 0}
    LIST(socket, EMFILE, EACCES, EAFNOSUPPORT, EINVAL, ENFILE, ENOBUFS, ENOMEM, EPROTONOSUPPORT, EPERM),
    LIST(connect, ECONNREFUSED, EACCES, EPERM, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, EALREADY, EBADF, EFAULT,
         EINPROGRESS, EINTR, EISCONN, ENETUNREACH, EHOSTUNREACH, ENOTSOCK, EPROTOTYPE, ETIMEDOUT, ENOPROTOOPT),
    LIST(bind, EADDRINUSE, EACCES, EBADF, EINVAL, ENOTSOCK, EADDRNOTAVAIL, EFAULT, ENOMEM, EPERM),
    LIST(getsockopt, ENOPROTOOPT, EBADF, EFAULT, EINVAL, ENOTSOCK, EPERM),
    LIST(setsockopt, ENOPROTOOPT, EBADF, EFAULT, EINVAL, ENOTSOCK, EPERM, ENOMEM),
    LIST(getsockname, ENOBUFS, EBADF, EFAULT, EINVAL, ENOTSOCK),
    LIST(getpeername, ENOTCONN, EBADF, EFAULT, EINVAL, ENOBUFS, ENOTSOCK),
    LIST(send, ECONNRESET, EACCES, EAGAIN, EALREADY, EBADF, EDESTADDRREQ, EFAULT, EINTR, EINVAL, EISCONN, EMSGSIZE, ENOBUFS,
         ENOMEM, ENOTCONN, ENOTSOCK, EOPNOTSUPP, EPIPE, EPERM, EHOSTUNREACH),
    LIST(recv, ECONNRESET, EAGAIN, EBADF, ECONNREFUSED, EFAULT, EINTR, EINVAL, ENOMEM, ENOTCONN, ENOTSOCK, ETIMEDOUT, EPERM),
    LIST(epoll_create1, EMFILE, EINVAL, ENFILE, ENOMEM, EPERM),
    LIST(epoll_ctl, ENOSPC, EBADF, EEXIST, EINVAL, ELOOP, ENOENT, ENOMEM, EPERM),
    LIST(epoll_wait, EINTR, EBADF, EFAULT, EINVAL, EPERM),
    LIST(eventfd, EMFILE, EINVAL, ENFILE, ENODEV, ENOMEM, EPERM),
    LIST(read, EAGAIN, EINTR),
    LIST(write, EAGAIN, EINTR, EPERM),
    LIST(poll, EINTR, EFAULT, EINVAL, ENOMEM),
    LIST(ppoll, EINTR, EFAULT, EINVAL, ENOMEM),
    LIST(dup, EMFILE, EBADF, EBUSY, EINTR, ENOMEM),
    LIST(fcntl, EMFILE, EACCES, EBADF, EINVAL, ENOMEM, EPERM), // of F_DUPFD, F_GETFL and F_SETFL
    LIST(getaddrinfo, EAI_AGAIN, EAI_FAIL, EAI_MEMORY, EAI_NONAME, EAI_SYSTEM, EAI_FAMILY, EAI_SERVICE),
    LIST(pthread_create, EAGAIN, EINVAL, EPERM),
    LIST(pthread_setschedparam, EPERM, EINVAL, ESRCH),
    LIST(operator_new, ENOMEM),
    LIST(posix_memalign, ENOMEM),
    LIST(malloc, ENOMEM), // on libzmq's own threads
    LIST(mmap, ENOMEM, EACCES, EAGAIN, EBADF, EINVAL, ENFILE, ENODEV, EOVERFLOW, EPERM),
};

/// One case, and what the child tells of it. Shared with the children.
struct report {
    atomic_int seen[CALL_COUNT]; // calls while armed
    atomic_int hits;             // calls that were made to fail
    atomic_int descriptors, threads;
    atomic_int last_status[8];
    atomic_int internal;
};

static struct report *report;
static atomic_int armed; // whether calls are counted and fail
static atomic_int fault_call = -1, fault_number, fault_errno;
static bool fault_stays; // also every later call fails

static int fails(enum call call) {
    if (!armed) return 0;
    int number = ++report->seen[call];
    if ((int)call != fault_call || number < fault_number || (number > fault_number && !fault_stays)) return 0;
    report->hits++;
    return fault_errno;
}

#define INTERPOSED(call)                                                                                               \
    do {                                                                                                               \
        int failed = fails(CALL_##call);                                                                               \
        if (failed) {                                                                                                  \
            errno = failed;                                                                                            \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

// What the C library's syscall does, which is interposed below.
static long direct(long number, long a, long b, long c, long d, long e, long f) {
    long result;
#if defined __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#elif defined __aarch64__
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    if (result >= -4095 && result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

/// Signals between threads are written and read so, because `read` and `write` are cancellation points.
long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (number == SYS_read) INTERPOSED(read);
    if (number == SYS_write) INTERPOSED(write);
    return direct(number, a, b, c, d, e, f);
}

int socket(int domain, int type, int protocol) {
    INTERPOSED(socket);
    return (int)syscall(SYS_socket, domain, type, protocol);
}
int connect(int fd, const struct sockaddr *address, socklen_t length) {
    INTERPOSED(connect);
    return (int)syscall(SYS_connect, fd, address, length);
}
int bind(int fd, const struct sockaddr *address, socklen_t length) {
    INTERPOSED(bind);
    return (int)syscall(SYS_bind, fd, address, length);
}
int getsockopt(int fd, int level, int option, void *value, socklen_t *length) {
    INTERPOSED(getsockopt);
    return (int)syscall(SYS_getsockopt, fd, level, option, value, length);
}
int setsockopt(int fd, int level, int option, const void *value, socklen_t length) {
    INTERPOSED(setsockopt);
    return (int)syscall(SYS_setsockopt, fd, level, option, value, length);
}
int getsockname(int fd, struct sockaddr *address, socklen_t *length) {
    INTERPOSED(getsockname);
    return (int)syscall(SYS_getsockname, fd, address, length);
}
int getpeername(int fd, struct sockaddr *address, socklen_t *length) {
    INTERPOSED(getpeername);
    return (int)syscall(SYS_getpeername, fd, address, length);
}
ssize_t send(int fd, const void *data, size_t size, int flags) {
    INTERPOSED(send);
    return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}
ssize_t recv(int fd, void *data, size_t size, int flags) {
    INTERPOSED(recv);
    return syscall(SYS_recvfrom, fd, data, size, flags, NULL, NULL);
}
int epoll_create1(int flags) {
    INTERPOSED(epoll_create1);
    return (int)syscall(SYS_epoll_create1, flags);
}
int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    INTERPOSED(epoll_ctl);
    return (int)syscall(SYS_epoll_ctl, epoll, operation, fd, event);
}
int epoll_wait(int epoll, struct epoll_event *events, int room, int timeout) {
    INTERPOSED(epoll_wait);
    return (int)syscall(SYS_epoll_pwait, epoll, events, room, timeout, NULL, 8);
}
int eventfd(unsigned int value, int flags) {
    INTERPOSED(eventfd);
    return (int)syscall(SYS_eventfd2, value, flags);
}
ssize_t read(int fd, void *data, size_t size) {
    INTERPOSED(read);
    return direct(SYS_read, fd, (long)data, (long)size, 0, 0, 0);
}
ssize_t write(int fd, const void *data, size_t size) {
    INTERPOSED(write);
    return direct(SYS_write, fd, (long)data, (long)size, 0, 0, 0);
}
int poll(struct pollfd *polled, nfds_t count, int timeout) {
    INTERPOSED(poll);
    struct timespec time = {timeout / 1000, timeout % 1000 * 1000000L};
    return (int)syscall(SYS_ppoll, polled, count, timeout < 0 ? NULL : &time, NULL, 8);
}
int ppoll(struct pollfd *polled, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    INTERPOSED(ppoll);
    struct timespec copy = timeout ? *timeout : (struct timespec){0, 0};
    return (int)syscall(SYS_ppoll, polled, count, timeout ? &copy : NULL, mask, 8);
}
int dup(int fd) {
    INTERPOSED(dup);
    return (int)syscall(SYS_dup, fd);
}
int fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    if (command != F_GETFD) INTERPOSED(fcntl); // which asks whether a descriptor is open, in Rust's debug builds
    return (int)syscall(SYS_fcntl, fd, command, argument);
}
int fcntl64(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    if (command != F_GETFD) INTERPOSED(fcntl); // which asks whether a descriptor is open, in Rust's debug builds
    return (int)syscall(SYS_fcntl, fd, command, argument);
}
void *mmap(void *start, size_t length, int protection, int flags, int fd, off_t offset) {
    int failed = fails(CALL_mmap);
    if (failed) {
        errno = failed;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, start, length, protection, flags, fd, offset);
}
void *mmap64(void *start, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(start, length, protection, flags, fd, offset);
}

static __typeof__(getaddrinfo) *real_getaddrinfo;
static __typeof__(pthread_create) *real_pthread_create;
static __typeof__(pthread_setschedparam) *real_pthread_setschedparam;

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
    int failed = fails(CALL_getaddrinfo);
    if (failed) {
        errno = EMFILE; // for EAI_SYSTEM
        return failed;
    }
    return real_getaddrinfo(node, service, hints, result);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    int failed = fails(CALL_pthread_create);
    return failed ? failed : real_pthread_create(thread, attributes, start, argument);
}
int pthread_setschedparam(pthread_t thread, int policy, const struct sched_param *param) {
    int failed = fails(CALL_pthread_setschedparam);
    return failed ? failed : real_pthread_setschedparam(thread, policy, param);
}

// Memory: C++'s operator new wherever it is called, what libzmq aligns, and malloc on libzmq's own threads. Elsewhere malloc is
// also Rust's, which has no other answer than to end the process.

extern void *__libc_malloc(size_t), *__libc_memalign(size_t, size_t);
static void *(*real_new)(size_t);
static _Thread_local int is_libzmqs; // 1 yes, -1 no, 0 not asked yet

void *malloc(size_t size) {
    if (armed && (fault_call == CALL_malloc || fault_call < 0)) {
        if (is_libzmqs == 0) {
            char name[16] = "";
            pthread_getname_np(pthread_self(), name, sizeof name);
            is_libzmqs = strncmp(name, "ZMQbg", 5) == 0 ? 1 : -1;
        }
        if (is_libzmqs == 1 && fails(CALL_malloc)) {
            errno = ENOMEM;
            return NULL;
        }
    }
    return __libc_malloc(size);
}
int posix_memalign(void **block, size_t alignment, size_t size) {
    int failed = fails(CALL_posix_memalign);
    if (failed) return failed;
    *block = __libc_memalign(alignment, size);
    return *block ? 0 : ENOMEM;
}
void *operator_new(size_t) __asm__("_Znwm");
void *operator_new(size_t size) {
    // The real one throws: so much there never is.
    return real_new(fails(CALL_operator_new) ? SIZE_MAX / 4 : size);
}
void *operator_new_nothrow(size_t, const void *) __asm__("_ZnwmRKSt9nothrow_t");
void *operator_new_nothrow(size_t size, const void *nothrow) {
    (void)nothrow;
    return fails(CALL_operator_new) ? NULL : __libc_malloc(size);
}

// ---- the peer: a process that speaks ZMTP 3 as a PULL socket does --------------------------------------------------

static bool take(int fd, void *to, size_t size) {
    for (char *at = to; size > 0;) {
        ssize_t got = recv(fd, at, size, 0);
        if (got <= 0) return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

/// Takes messages until one says "lose" or the other side closes.
static void *serve(void *argument) {
    int fd = (int)(long)argument;
    unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, theirs[64];
    static const char ready[] = "\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PULL";
    send(fd, greeting, sizeof greeting, MSG_NOSIGNAL);
    if (take(fd, theirs, sizeof theirs)) {
        send(fd, ready, sizeof ready - 1, MSG_NOSIGNAL);
        unsigned char head[2], body[256];
        while (take(fd, head, 2) && take(fd, body, head[1]) && memcmp(body, "lose", 4) != 0) continue;
    }
    close(fd);
    return NULL;
}

static int run_peer(void) {
    // Nonblocking: a connection can be gone again between poll and accept.
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1024) != 0) abort();
    getsockname(listener, (struct sockaddr *)&address, &length);
    pid_t owner = getpid();
    if (fork() == 0) {
        for (;;) {
            struct pollfd polled = {listener, POLLIN, 0};
            if (poll(&polled, 1, 500) == 0 && getppid() != owner) _exit(0);
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            pthread_t thread;
            pthread_attr_t detached;
            pthread_attr_init(&detached);
            pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
            pthread_attr_setstacksize(&detached, 128 * 1024);
            if (fd >= 0 && polled.revents && pthread_create(&thread, &detached, serve, (void *)(long)fd) != 0) close(fd);
        }
    }
    close(listener);
    return ntohs(address.sin_port);
}

// ---- the child -----------------------------------------------------------------------------------------------------

static char endpoint[64];

static long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/// The entries of a directory of /proc/self; threads that look names up leave by themselves, and are not counted.
static int entries(const char *path) {
    DIR *directory = opendir(path);
    int count = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char name[300], text[32] = "";
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s/comm", path, entry->d_name);
        FILE *file = fopen(name, "r");
        if (file) {
            if (!fgets(text, sizeof text, file)) text[0] = 0;
            fclose(file);
        }
        count += strncmp(text, "kvconn-resolve", 14) != 0;
    }
    if (directory) closedir(directory);
    return count;
}

/// Memory that runs out may cost descriptors for good: there was none to finish closing them with.
static bool is_memory(int call) { return call >= CALL_operator_new && call <= CALL_malloc; }

enum { LEAKS_DESCRIPTORS = 1, LEAKS_THREADS = 2, DEAD = 4, SLOW = 8 };
static int verdict;

/// No call may take longer than this on top of its timeout; a loaded machine has its share in it.
static const long patience_ms = 1500;

static int noted(int place, long begun, long timeout, kvconn_status_t status, const kvconn_error_t *error) {
    if (now_ms() - begun > timeout + patience_ms) {
        verdict |= SLOW;
        fprintf(stderr, "call %d took %ld ms\n", place, now_ms() - begun);
    }
    report->last_status[place] = status;
    if (status == KVCONN_INTERNAL && armed) {
        report->internal++;
        fprintf(stderr, "INTERNAL: %s\n", error->message);
    }
    return status;
}

static int dial(int place, long timeout, kvconn_conn_t *conn) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    long begun = now_ms();
    kvconn_status_t status = kvconn_connect(0, endpoint, NULL, timeout, conn, &error);
    return noted(place, begun, timeout, status, &error);
}

static int say(int place, kvconn_conn_t conn, const char *text, uint64_t *sequence) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    kvconn_frame_t frame = {text, strlen(text)};
    long begun = now_ms();
    return noted(place, begun, 300, kvconn_send(conn, &frame, 1, 300, sequence, &error), &error);
}

static int flushed(int place, kvconn_conn_t conn, uint64_t sequence) {
    kvconn_error_t error = KVCONN_ERROR_INIT;
    uint64_t acknowledged;
    long begun = now_ms();
    return noted(place, begun, 300, kvconn_flush(conn, sequence, 300, &acknowledged, &error), &error);
}

/// Waits for the end of a connection, if it has not ended.
static void wait_for_end(kvconn_conn_t conn) {
    for (long until = now_ms() + 1000; now_ms() < until;) {
        kvconn_event_t event = KVCONN_EVENT_INIT;
        if (kvconn_next_event(0, 50, &event, NULL) == KVCONN_OK && event.conn == conn && event.kind != KVCONN_EVENT_READY) return;
    }
}

static bool works(long patience) {
    for (long until = now_ms() + patience; now_ms() < until;) {
        kvconn_conn_t conn;
        uint64_t sequence;
        if (dial(6, 1000, &conn) == KVCONN_OK && say(6, conn, "after relief", &sequence) == KVCONN_OK
            && flushed(6, conn, sequence) == KVCONN_OK)
            return true;
        usleep(5000);
    }
    return false;
}

/// Connects, sends, loses the peer, connects again, sends.
static void story(void) {
    kvconn_conn_t conn = 0;
    uint64_t sequence = 0;
    dial(0, 600, &conn);
    say(1, conn, "one", &sequence);
    say(2, conn, "two", &sequence);
    flushed(3, conn, sequence);
    if (say(4, conn, "lose", &sequence) == KVCONN_OK) wait_for_end(conn);
    usleep(6000); // a backoff step
    dial(0, 600, &conn);
    say(1, conn, "three", &sequence);
    flushed(3, conn, sequence);
    kvconn_error_t error = KVCONN_ERROR_INIT;
    noted(5, now_ms(), 0, kvconn_disconnect_endpoint(0, endpoint, &error), &error);
}

/// Runs one case. `descriptors` and `threads` are how many a process has that has done the same without faults.
static void child(bool warm, int descriptors, int threads) {
    alarm(45);
    int before = entries("/proc/self/fd");
    if (warm && !works(10000)) _exit(101); // the machine's fault, not the case's
    kvconn_disconnect_all(0, 0, NULL);
    armed = 1;
    story();
    armed = 0;
    if (!works(10000)) verdict |= DEAD;
    kvconn_disconnect_all(0, 0, NULL);
    // Closing goes on in the background.
    long until = now_ms() + (descriptors && !is_memory(fault_call) ? 2000 : 300);
    do {
        report->descriptors = entries("/proc/self/fd") - before;
        report->threads = entries("/proc/self/task");
        usleep(2000);
    } while (now_ms() < until && !(report->descriptors <= descriptors && report->threads <= threads));
    if (descriptors && report->descriptors > descriptors) verdict |= LEAKS_DESCRIPTORS;
    if (threads && report->threads > threads) verdict |= LEAKS_THREADS;
    _exit(verdict);
}

// ---- the parent ----------------------------------------------------------------------------------------------------

struct cell {
    int runs, hits, aborts, hangs, descriptors, threads, dead, slow, internal;
};
static struct cell cells[CALL_COUNT][32];

enum { SLOTS = 6 };
static struct slot {
    pid_t child;
    int call, error, number, errors;
    bool warm, stays;
    struct report *report;
} slots[SLOTS];
static int running, expected_descriptors[2], expected_threads[2];
static bool failed;

// Cases in which nothing was wrong but the time. They run again, each alone, for this may be the machine's load. What is
// late every time is a fault.
enum { REPEATS = 3, LATE_CASES = 64 };
static struct late {
    int call, error, number;
    bool warm, stays;
} late[LATE_CASES];
static int late_count, repeat;

static void finish(struct slot *slot, int status) {
    struct cell *cell = &cells[slot->call][slot->error];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, killer = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    cell->runs++;
    cell->hits += slot->report->hits > 0;
    cell->internal += slot->report->internal > 0;
    cell->hangs += killer == SIGALRM;
    cell->aborts += (killer != 0 && killer != SIGALRM) || code > 15;
    int faults = code & ~(is_memory(slot->call) ? LEAKS_DESCRIPTORS : 0);
    bool bad = killer != 0 || faults != 0;
    if (killer == 0 && faults == SLOW && repeat < REPEATS && late_count < LATE_CASES) {
        late[late_count++] = (struct late){slot->call, slot->error, slot->number, slot->warm, slot->stays};
        bad = false;
        code &= ~SLOW;
    }
    if (code > 0 && code <= 15) {
        cell->descriptors += (code & LEAKS_DESCRIPTORS) != 0;
        cell->threads += (code & LEAKS_THREADS) != 0;
        cell->dead += (code & DEAD) != 0;
        cell->slow += (code & SLOW) != 0;
    }
    if (bad) {
        failed = true;
        char text[1500];
        ssize_t size = pread(slot->errors, text, sizeof text - 1, 0);
        text[size > 0 ? size : 0] = 0;
        printf("BAD %s %s number %d%s%s: %s%d, descriptors %d of %d, threads %d of %d\n%s\n", call_names[slot->call],
               slot->call == CALL_getaddrinfo ? gai_strerror(errnos[slot->call][slot->error])
                                              : strerrorname_np(errnos[slot->call][slot->error]),
               slot->number, slot->stays ? " and later" : "", slot->warm ? " warm" : " cold", killer ? "signal " : "verdict ",
               killer ? killer : code, slot->report->descriptors, expected_descriptors[slot->warm], slot->report->threads,
               expected_threads[slot->warm], text);
        fflush(stdout);
    }
    close(slot->errors);
    slot->child = 0;
    running--;
}

static void reap(void) {
    int status;
    pid_t child = wait(&status);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].child == child) finish(&slots[i], status);
}

static void run(int call, int error, int number, bool warm, bool stays) {
    // A mailbox that can never be written to or read from is no mailbox: nothing works without.
    if (stays && (call == CALL_read || call == CALL_write)) return;
    while (running == SLOTS) reap();
    struct slot *slot = slots;
    while (slot->child) slot++;
    memset(slot->report, 0, sizeof *slot->report);
    slot->errors = memfd_create("stderr", MFD_CLOEXEC);
    slot->call = call, slot->error = error, slot->number = number, slot->warm = warm, slot->stays = stays;
    running++;
    slot->child = fork();
    if (slot->child == 0) {
        dup2(slot->errors, 2);
        for (int i = 0; i < SLOTS; i++) // the slots' files of this moment are not the child's
            if (slots[i].errors > 2 && (slots[i].child || &slots[i] == slot)) close(slots[i].errors);
        report = slot->report;
        fault_call = call;
        fault_number = number;
        fault_stays = stays;
        if (call >= 0) fault_errno = errnos[call][error];
        child(warm, expected_descriptors[warm], expected_threads[warm]);
    }
}

int main(int count, char **arguments) {
    bool full = count > 1 && strcmp(arguments[1], "full") == 0;
    const char *only = count > 2 ? arguments[2] : NULL;
    real_getaddrinfo = dlsym(RTLD_NEXT, "getaddrinfo");
    real_pthread_create = dlsym(RTLD_NEXT, "pthread_create");
    real_new = dlsym(RTLD_NEXT, "_Znwm");
    real_pthread_setschedparam = dlsym(RTLD_NEXT, "pthread_setschedparam");
    setenv("KVCONN_CONNECT_TIMEOUT_MS", "300", 1);
    setenv("KVCONN_HANDSHAKE_TIMEOUT_MS", "300", 1);
    setenv("KVCONN_BACKOFF_MS", "2", 1);
    setenv("KVCONN_BACKOFF_MAX_MS", "4", 1);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (int i = 0; i < SLOTS; i++)
        slots[i].report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(endpoint, sizeof endpoint, "tcp://localhost:%d", run_peer());

    // One case, in this process: CALL ERRNO NUMBER cold|warm once|stays. For a debugger.
    if (count > 6 && strcmp(arguments[1], "one") == 0) {
        report = slots[0].report;
        for (int c = 0; c < CALL_COUNT; c++)
            if (strcmp(call_names[c], arguments[2]) == 0) fault_call = c;
        fault_errno = atoi(arguments[3]);
        fault_number = atoi(arguments[4]);
        fault_stays = strcmp(arguments[6], "stays") == 0;
        child(strcmp(arguments[5], "warm") == 0, 0, 0);
    }

    // Without faults: how many calls there are, and what is left at the end.
    int calls[2][CALL_COUNT];
    for (int warm = 0; warm < 2; warm++) {
        run(-1, 0, 0, warm, false);
        int status;
        waitpid(slots[0].child, &status, 0);
        for (int c = 0; c < CALL_COUNT; c++) calls[warm][c] = slots[0].report->seen[c];
        expected_descriptors[warm] = slots[0].report->descriptors;
        expected_threads[warm] = slots[0].report->threads;
        slots[0].child = 0;
        running--;
        printf("without faults, %s: status %d, descriptors %d, threads %d, results", warm ? "warm" : "cold", status,
               expected_descriptors[warm], expected_threads[warm]);
        for (int i = 0; i < 7; i++) printf(" %d", slots[0].report->last_status[i]);
        printf("\n");
        if (status != 0) return 2;
    }
    for (int c = 0; c < CALL_COUNT; c++) printf("%s: %d calls cold, %d warm\n", call_names[c], calls[0][c], calls[1][c]);
    fflush(stdout);

    for (int c = 0; c < CALL_COUNT; c++) {
        if (only && strcmp(only, call_names[c]) != 0) continue;
        int error_count = 0, turn = 0;
        while (errnos[c][error_count]) error_count++;
        for (int warm = 0; warm < 2; warm++) {
            for (int number = 1; number <= calls[warm][c]; number++) {
                if (full) {
                    for (int e = 0; e < error_count; e++)
                        for (int stays = 0; stays < 2; stays++) run(c, e, number, warm, stays);
                } else if (number <= 24 || number % 4 == 0) {
                    // Each number with one errno, in turn, once for the call alone and once for all that follow.
                    run(c, turn++ % error_count, number, warm, (number + warm) % 2);
                }
            }
            if (!full && calls[warm][c] > 0) // and each errno at the first calls
                for (int e = 0; e < error_count; e++) run(c, e, 1 + e % (calls[warm][c] < 3 ? calls[warm][c] : 3), warm, true);
        }
    }
    while (running) reap();
    int first_late = late_count;
    for (repeat = 1; repeat <= REPEATS && late_count > 0; repeat++) {
        struct late again[LATE_CASES];
        int count = late_count;
        memcpy(again, late, sizeof again);
        late_count = 0;
        for (int i = 0; i < count; i++) {
            run(again[i].call, again[i].error, again[i].number, again[i].warm, again[i].stays);
            while (running) reap();
        }
    }
    printf("%d cases were late beside others, and were repeated alone\n", first_late);

    printf("\n| call | errno | runs | reached | aborts | hangs | late | descriptors left | threads left | dead after relief | INTERNAL |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    struct cell all = {0};
    for (int c = 0; c < CALL_COUNT; c++)
        for (int e = 0; errnos[c][e]; e++) {
            struct cell *cell = &cells[c][e];
            if (!cell->runs) continue;
            printf("| %s | %s | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", call_names[c],
                   c == CALL_getaddrinfo ? gai_strerror(errnos[c][e]) : strerrorname_np(errnos[c][e]), cell->runs, cell->hits, cell->aborts,
                   cell->hangs, cell->slow, cell->descriptors, cell->threads, cell->dead, cell->internal);
            for (size_t i = 0; i < sizeof all / sizeof(int); i++) ((int *)&all)[i] += ((int *)cell)[i];
        }
    printf("| all | | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", all.runs, all.hits, all.aborts, all.hangs, all.slow, all.descriptors,
           all.threads, all.dead, all.internal);
    return failed ? 1 : 0;
}
