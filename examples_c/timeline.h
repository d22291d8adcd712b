/* A clock and a timeline for the example programs. Nothing here uses kvconn. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Milliseconds since the first call, or since the time on CLOCK_MONOTONIC given by TIMELINE_ZERO_MS. */
static double now_ms(void) {
    static double zero = -1;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
    if (zero < 0) zero = getenv("TIMELINE_ZERO_MS") ? atof(getenv("TIMELINE_ZERO_MS")) : ms;
    return ms - zero;
}

/* One line of the timeline: when, what, details. */
static void say(const char *what, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("%9.1f  %-12s  ", now_ms(), what);
    vprintf(format, arguments);
    puts("");
    fflush(stdout);
    va_end(arguments);
}
