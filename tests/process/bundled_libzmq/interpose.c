// Loaded with LD_PRELOAD into a copy of the test program: shows which functions of the C library libzmq depends on.
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// The wall clock: each reading is an hour earlier than the one before, once this is on.

static atomic_int backwards;
static atomic_long readings;

void interpose_wall_clock_runs_backwards(void) { backwards = 1; }

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    long rc = syscall(SYS_gettimeofday, time, zone);
    if (rc == 0 && backwards) time->tv_sec -= 3600 * ++readings;
    return (int)rc;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    long rc = syscall(SYS_clock_gettime, clock, time);
    if (rc == 0 && clock == CLOCK_REALTIME && backwards) time->tv_sec -= 3600 * ++readings;
    return (int)rc;
}

// Descriptors: counts those opened without close-on-exec, which a program started in the next instant would inherit,
// also when fcntl sets the flag afterwards.

static atomic_int inheritable;

int interpose_inheritable(void) { return inheritable; }

static int opened(long fd, int close_on_exec) {
    if (!close_on_exec) inheritable++;
    return (int)fd;
}

int socket(int domain, int type, int protocol) {
    return opened(syscall(SYS_socket, domain, type, protocol), type & SOCK_CLOEXEC);
}

int socketpair(int domain, int type, int protocol, int fds[2]) {
    return opened(syscall(SYS_socketpair, domain, type, protocol, fds), type & SOCK_CLOEXEC);
}

int accept(int listener, struct sockaddr *restrict peer, socklen_t *restrict length) {
    return opened(syscall(SYS_accept, listener, peer, length), 0);
}

int accept4(int listener, struct sockaddr *restrict peer, socklen_t *restrict length, int flags) {
    return opened(syscall(SYS_accept4, listener, peer, length, flags), flags & SOCK_CLOEXEC);
}

int eventfd(unsigned int value, int flags) {
    return opened(syscall(SYS_eventfd2, value, flags), flags & EFD_CLOEXEC);
}

int epoll_create(int size) {
    (void)size;
    return opened(syscall(SYS_epoll_create1, 0), 0);
}

int epoll_create1(int flags) {
    return opened(syscall(SYS_epoll_create1, flags), flags & EPOLL_CLOEXEC);
}
