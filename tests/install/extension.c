/* A Python extension module that has the static library inside: kvconn_inside.failover(first, second). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "failover.h"

static PyObject *run(PyObject *self, PyObject *arguments) {
    const char *first, *second;
    int result;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "ss", &first, &second)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = failover(first, second);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(result);
}

static PyMethodDef methods[] = {
    {"failover", run, METH_VARARGS, "Sends to the first peer, sees it killed, goes on with the second."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kvconn_inside", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_kvconn_inside(void) { return PyModule_Create(&module); }
