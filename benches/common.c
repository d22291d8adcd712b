#include "bench.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void require(int condition, const char *text)
{
    if (!condition) {
        fprintf(stderr, "bench: %s (errno: %s)\n", text, strerror(errno));
        exit(1);
    }
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
