/* Stands for another libzmq. It has a version, and ends the process when kvconn calls it in place of its own. */
#include <stdio.h>
#include <stdlib.h>

void zmq_version(int *major, int *minor, int *patch) { *major = 9, *minor = 8, *patch = 7; }

#define NOT_FOR_KVCONN(name) \
    int name(void) { return fputs("kvconn has called " #name " of another libzmq\n", stderr), abort(), 0; }
NOT_FOR_KVCONN(zmq_ctx_new)
NOT_FOR_KVCONN(zmq_ctx_set)
NOT_FOR_KVCONN(zmq_ctx_term)
NOT_FOR_KVCONN(zmq_socket)
NOT_FOR_KVCONN(zmq_close)
NOT_FOR_KVCONN(zmq_setsockopt)
NOT_FOR_KVCONN(zmq_getsockopt)
NOT_FOR_KVCONN(zmq_connect)
NOT_FOR_KVCONN(zmq_send)
NOT_FOR_KVCONN(zmq_errno)
NOT_FOR_KVCONN(zmq_has)
NOT_FOR_KVCONN(zmq_msg_init)
NOT_FOR_KVCONN(zmq_msg_send)
NOT_FOR_KVCONN(zmq_msg_close)
NOT_FOR_KVCONN(zmq_socket_monitor)
