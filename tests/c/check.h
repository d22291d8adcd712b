/* What the C tests share: a check that says where it failed, and an endpoint of this machine. */
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvconn.h>

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

/* A call that must return this status, and say so in its error. */
#define EXPECT(status_wanted, call)                                                                               \
    do {                                                                                                          \
        const kvconn_status_t status_got = (call);                                                                \
        if (status_got != (status_wanted)) {                                                                      \
            fprintf(stderr, "%s:%d: %s is %s, not %s\n", __FILE__, __LINE__, #call, kvconn_status_name(status_got), \
                    kvconn_status_name(status_wanted));                                                           \
            exit(1);                                                                                              \
        }                                                                                                         \
    } while (0)

#endif
