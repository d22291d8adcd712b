/* kvconn._fast: attempts of sends and polls that keep the GIL.
 *
 * An attempt is a call with timeout 0. Most sends need no more, and giving up the GIL costs 5 ms for each as soon as
 * another Python thread is busy. The Python code behind this module (kvconn/_attempts.py) makes what an attempt could not
 * do: it waits, it reports every wrong argument, and it takes arguments of unusual types. So this module has no error
 * texts of its own, and both ways behave the same.
 *
 * Each function takes a list of one element, the "cell", first. It leaves there what the call has done, before any signal
 * handler of Python can run:
 *     unchanged   nothing
 *     bytes       the call has failed: its kvconn_error_t
 *     other       what the call returned
 * It returns what the call returned, or None if nothing was attempted or the attempt has failed, or False if the call
 * must wait. An attempt that takes long for its size gives up the GIL.
 *
 * The functions of kvconn and two of Python's come by address, from ctypes (`bind`). So this module calls the same copy
 * of the library as the rest of the package, needs no library at link time, and uses only what the stable ABI of Python
 * 3.10 has. Each interpreter has its own copy of the module's state. There is no other state: nothing to do after fork.
 */
#define PY_SSIZE_T_CLEAN
#ifdef Py_GIL_DISABLED
#error "kvconn._fast is for builds of Python with the GIL; without one the package uses ctypes"
#endif
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <kvconn.h>
#include <string.h>

/* What _attempts.py expects. To be raised with every change of what the functions take or return. */
#define LEVEL 2

/* An attempt up to this size takes a few microseconds: it keeps the GIL. kvconn hands over messages of more than 128
 * frames in steps. */
enum { MOST_BYTES = 64 * 1024, MOST_FRAMES = 128 };

/* Py_buffer. The stable ABI has it since Python 3.11, with the layout that it had before. */
struct buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
};
enum { SIMPLE = 0 }; /* PyBUF_SIMPLE: contiguous bytes */

struct state {
    int (*get_buffer)(PyObject *, struct buffer *, int);
    void (*release_buffer)(struct buffer *);
    kvconn_status_t (*send)(kvconn_conn_t, const kvconn_frame_t *, size_t, int64_t, uint64_t *, kvconn_error_t *);
    kvconn_status_t (*send_to)(kvconn_manager_t, const char *, const kvconn_frame_t *, size_t, int64_t, kvconn_conn_t *,
                               uint64_t *, kvconn_error_t *);
    kvconn_status_t (*send_batch)(kvconn_batch_item_t *, size_t, int64_t, kvconn_error_t *);
    kvconn_status_t (*find)(kvconn_manager_t, const char *, kvconn_conn_t *, kvconn_error_t *);
    kvconn_status_t (*track)(kvconn_node_t, uint64_t, kvconn_error_t *);
    kvconn_status_t (*untrack)(kvconn_node_t, uint64_t, int32_t *, kvconn_error_t *);
    kvconn_status_t (*next_event)(kvconn_manager_t, int64_t, kvconn_event_t *, kvconn_error_t *);
    PyObject *default_timeout; /* the int KVCONN_DEFAULT_TIMEOUT: CPython has only one, so most sends pass this object */
    int bound;
};

static struct state *state_of(PyObject *module) {
    struct state *state = PyModule_GetState(module);
    if (state != NULL && state->bound)
        return state;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "kvconn._fast.bind was not called");
    return NULL;
}

/* ---- Arguments ------------------------------------------------------------------------------------------------- */

/* What reading an argument has come to: an exception is set; the Python code must see to it; it is read. */
enum read { FAILED = -1, DECLINED = 0, READ = 1 };

/* Drops an exception that the Python code will raise again, with the parameter's name. */
static enum read decline(void) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
        PyErr_ExceptionMatches(PyExc_OverflowError) || PyErr_ExceptionMatches(PyExc_BufferError)) {
        PyErr_Clear();
        return DECLINED;
    }
    return FAILED;
}

/* A number: an int, and nothing else. PyLong_AsUnsignedLong is the fastest way for numbers of more than 30 bits, as ids are. */
static enum read read_uint64(PyObject *given, uint64_t *value) {
    _Static_assert(sizeof(unsigned long) == sizeof *value, "long has 64 bits");
    if (!PyLong_CheckExact(given))
        return DECLINED;
    *value = PyLong_AsUnsignedLong(given);
    return *value == UINT64_MAX && PyErr_Occurred() ? decline() : READ;
}

/* An id: an int, or an object that stands for one, as kvconn.Connection does. Its __index__ is any code. */
static enum read read_id(PyObject *given, uint64_t *value) {
    if (PyLong_CheckExact(given) || PyLong_Check(given) || !PyIndex_Check(given))
        return read_uint64(given, value); /* a bool is the second of these, and no id */
    PyObject *index = PyNumber_Index(given);
    if (index == NULL)
        return decline();
    enum read result = read_uint64(index, value);
    Py_DECREF(index);
    return result;
}

/* Whether a call with this timeout may wait. */
static enum read read_waits(const struct state *state, PyObject *given, int *waits) {
    if (given == state->default_timeout) {
        *waits = 1;
        return READ;
    }
    if (!PyLong_CheckExact(given))
        return DECLINED;
    long long number = PyLong_AsLongLong(given);
    if (number == -1 && PyErr_Occurred())
        return decline();
    *waits = number != 0;
    return number < KVCONN_DEFAULT_TIMEOUT ? DECLINED : READ;
}

/* A text; it lives as long as `given`. */
static enum read read_text(PyObject *given, const char **text) {
    if (!PyUnicode_Check(given))
        return DECLINED;
    Py_ssize_t size;
    *text = PyUnicode_AsUTF8AndSize(given, &size);
    if (*text == NULL)
        return decline();
    return strlen(*text) == (size_t)size ? READ : DECLINED;
}

static Py_ssize_t length_of(PyObject *items) { return PyList_CheckExact(items) ? PyList_Size(items) : PyTuple_Size(items); }

/* Borrowed. NULL without an exception if a list has become shorter meanwhile. */
static PyObject *item_of(PyObject *items, Py_ssize_t place) {
    PyObject *item = PyList_CheckExact(items) ? PyList_GetItem(items, place) : PyTuple_GetItem(items, place);
    if (item == NULL)
        PyErr_Clear();
    return item;
}

/* The frames of a message. Each is kept alive and unchanged until `drop`: by the GIL alone (`held` is 0), or by a reference
 * or a Py_buffer. */
enum { INLINE = 32 };
struct frames {
    kvconn_frame_t *list;
    struct buffer *buffers;
    size_t count, bytes, held;
    kvconn_frame_t list_inline[INLINE];
    struct buffer buffers_inline[INLINE];
};

static int is_short(const struct frames *frames) { return frames->bytes <= MOST_BYTES && frames->count <= MOST_FRAMES; }

static void drop(const struct state *state, struct frames *frames) {
    for (size_t i = 0; i < frames->held; i++) {
        struct buffer *held = &frames->buffers[i];
        if (PyBytes_CheckExact(held->obj))
            Py_DECREF(held->obj); /* no other buffer is held of a bytes object: see read_frames */
        else
            state->release_buffer(held);
    }
    if (frames->list != frames->list_inline)
        PyMem_Free(frames->list);
    if (frames->buffers != frames->buffers_inline)
        PyMem_Free(frames->buffers);
}

/* A short message of bytes objects, the usual case: no other code of Python's runs before the attempt is over, so nothing
 * has to be held. Returns 0 for any other message. */
static int read_bytes(PyObject *given, struct frames *frames) {
    PyObject *(*get)(PyObject *, Py_ssize_t) = PyList_CheckExact(given) ? PyList_GetItem : PyTuple_GetItem;
    kvconn_frame_t *frame = frames->list;
    for (Py_ssize_t place = 0; place < (Py_ssize_t)frames->count; place++, frame++) {
        PyObject *item = get(given, place); /* not NULL: nothing can have changed the list since its length was read */
        if (!PyBytes_CheckExact(item))
            return 0;
        frame->data = PyBytes_AsString(item);
        frame->size = (size_t)Py_SIZE(item);
        frames->bytes += frame->size;
    }
    return is_short(frames);
}

/* Only after READ is there anything to drop. must_hold: other code may run before the attempt is over. */
static enum read read_frames(const struct state *state, PyObject *given, struct frames *frames, int must_hold) {
    if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given))
        return DECLINED;
    Py_ssize_t count = length_of(given);
    if (count < 1 || count > KVCONN_MAX_FRAMES)
        return DECLINED;
    frames->bytes = frames->held = 0;
    frames->count = (size_t)count;
    frames->list = frames->list_inline;
    frames->buffers = frames->buffers_inline;
    if (count > INLINE)
        frames->list = PyMem_Malloc((size_t)count * sizeof *frames->list);
    if (frames->list != NULL && !must_hold && read_bytes(given, frames))
        return READ;
    if (count > INLINE)
        frames->buffers = PyMem_Malloc((size_t)count * sizeof *frames->buffers);
    if (frames->list == NULL || frames->buffers == NULL) {
        drop(state, frames);
        PyErr_NoMemory();
        return FAILED;
    }
    enum read result = READ;
    frames->bytes = 0;
    for (Py_ssize_t place = 0; result == READ && place < count; place++) {
        PyObject *item = item_of(given, place);
        if (item == NULL) {
            result = DECLINED;
            break;
        }
        struct buffer *held = &frames->buffers[place];
        Py_INCREF(item); /* a frame's own code, which the next lines may call, could take it out of the list */
        if (PyBytes_CheckExact(item)) {
            char *start = NULL;
            held->obj = item;
            PyBytes_AsStringAndSize(item, &start, &held->len); /* cannot fail for bytes */
            held->buf = start;
        } else {
            int failed = state->get_buffer(item, held, SIMPLE);
            Py_DECREF(item);
            if (failed) {
                result = decline();
                break;
            }
            if (held->obj == NULL || PyBytes_CheckExact(held->obj)) {
                state->release_buffer(held);
                result = DECLINED;
                break;
            }
        }
        frames->held++;
        frames->list[place].data = held->buf;
        frames->list[place].size = (size_t)held->len;
        frames->bytes += (size_t)held->len;
        if (held->len > UINT32_MAX)
            result = DECLINED;
    }
    if (result != READ)
        drop(state, frames);
    return result;
}

/* ---- Results --------------------------------------------------------------------------------------------------- */

/* Leaves a result in the cell, and returns it. `result` may be NULL: then an exception is set. */
static PyObject *leave(PyObject *cell, PyObject *result) {
    if (result == NULL)
        return NULL;
    Py_INCREF(result);
    if (PyList_SetItem(cell, 0, result) < 0) { /* drops that reference in any case */
        Py_DECREF(result);
        return NULL;
    }
    return result;
}

static PyObject *leave_error(PyObject *cell, const kvconn_error_t *error) {
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)error, sizeof *error);
    if (bytes == NULL || PyList_SetItem(cell, 0, bytes) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *declined(enum read read) {
    if (read == FAILED)
        return NULL;
    Py_RETURN_NONE;
}

/* Whether the cell and the number of arguments are as the Python code passes them. */
static int is_called_well(PyObject *const *args, Py_ssize_t given, Py_ssize_t expected) {
    if (given == expected && PyList_CheckExact(args[0]))
        return 1;
    PyErr_SetString(PyExc_TypeError, "kvconn._fast is for the package's own use");
    return 0;
}

/* A call, with or without the GIL. */
#define CALL(keeps_gil, status, call)                                                                                  \
    do {                                                                                                               \
        if (keeps_gil) {                                                                                               \
            status = call;                                                                                             \
        } else {                                                                                                       \
            Py_BEGIN_ALLOW_THREADS status = call;                                                                      \
            Py_END_ALLOW_THREADS                                                                                       \
        }                                                                                                              \
    } while (0)

/* ---- Attempts -------------------------------------------------------------------------------------------------- */

/* send(cell, conn, frames, timeout_ms) -> sequence */
static PyObject *fast_send(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    struct state *state = state_of(module);
    if (state == NULL || !is_called_well(args, nargs, 4))
        return NULL;
    uint64_t conn = 0, sequence;
    int waits = 0;
    struct frames frames;
    enum read read = read_id(args[1], &conn);
    if (read == READ)
        read = read_waits(state, args[3], &waits);
    if (read == READ)
        read = read_frames(state, args[2], &frames, 0);
    if (read != READ)
        return declined(read);
    kvconn_error_t error;
    error.struct_size = sizeof error;
    kvconn_status_t status;
    CALL(is_short(&frames), status,
         state->send(conn, frames.list, frames.count, 0, &sequence, &error));
    PyObject *result;
    if (status == KVCONN_OK)
        result = leave(args[0], PyLong_FromUnsignedLongLong(sequence));
    else if (status == KVCONN_TIMEOUT && waits)
        result = PyBool_FromLong(0);
    else
        result = leave_error(args[0], &error);
    drop(state, &frames);
    return result;
}

/* send_to(cell, manager, endpoint, frames, timeout_ms) -> (conn, sequence)
 *
 * Nothing is attempted without a live connection. The attempt would dial, with the GIL, and the call after it could get
 * BACKOFF for the end of that dial. */
static PyObject *fast_send_to(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    struct state *state = state_of(module);
    if (state == NULL || !is_called_well(args, nargs, 5))
        return NULL;
    uint64_t manager = 0, sequence;
    const char *endpoint = NULL;
    int waits = 0;
    struct frames frames;
    kvconn_conn_t conn;
    enum read read = read_id(args[1], &manager);
    if (read == READ)
        read = read_text(args[2], &endpoint);
    if (read == READ)
        read = read_waits(state, args[4], &waits);
    if (read == READ && state->find(manager, endpoint, &conn, NULL) != KVCONN_OK)
        read = DECLINED;
    if (read == READ)
        read = read_frames(state, args[3], &frames, 0);
    if (read != READ)
        return declined(read);
    kvconn_error_t error;
    error.struct_size = sizeof error;
    kvconn_status_t status;
    CALL(is_short(&frames), status,
         state->send_to(manager, endpoint, frames.list, frames.count, 0, &conn, &sequence, &error));
    PyObject *result;
    if (status == KVCONN_OK)
        result = leave(args[0], Py_BuildValue("(KK)", (unsigned long long)conn, (unsigned long long)sequence));
    else if (status == KVCONN_TIMEOUT && waits)
        result = PyBool_FromLong(0);
    else
        result = leave_error(args[0], &error);
    drop(state, &frames);
    return result;
}

/* The results of a batch: [(status, sequence), ...], and the error of the call or None. */
static PyObject *batch_results(const kvconn_batch_item_t *items, size_t count, kvconn_status_t status,
                               const kvconn_error_t *error) {
    PyObject *results = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; results != NULL && i < count; i++) {
        PyObject *one = Py_BuildValue("(iK)", (int)items[i].status, (unsigned long long)items[i].sequence);
        if (one == NULL || PyList_SetItem(results, (Py_ssize_t)i, one) < 0)
            Py_CLEAR(results);
    }
    if (results == NULL)
        return NULL;
    if (status == KVCONN_OK)
        return Py_BuildValue("(NO)", results, Py_None);
    return Py_BuildValue("(Ny#)", results, (const char *)error, (Py_ssize_t)sizeof *error);
}

/* send_batch(cell, items, timeout_ms) -> ([(status, sequence), ...], error or None)
 *
 * Also when some of them must wait: the Python code sends those again. */
static PyObject *fast_send_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    struct state *state = state_of(module);
    if (state == NULL || !is_called_well(args, nargs, 3))
        return NULL;
    int waits = 0;
    enum read read = read_waits(state, args[2], &waits);
    if (read != READ || !PyList_CheckExact(args[1]) || PyList_Size(args[1]) < 1 || PyList_Size(args[1]) > MOST_FRAMES)
        return declined(read == READ ? DECLINED : read);
    size_t count = (size_t)PyList_Size(args[1]), done = 0, bytes = 0, all = 0;
    kvconn_batch_item_t *items = PyMem_Malloc(count * sizeof *items);
    struct frames *frames = PyMem_Malloc(count * sizeof *frames);
    if (items == NULL || frames == NULL) {
        PyErr_NoMemory();
        read = FAILED;
    }
    while (read == READ && done < count) {
        PyObject *pair = item_of(args[1], (Py_ssize_t)done);
        if (pair == NULL || !PyTuple_CheckExact(pair) || PyTuple_Size(pair) != 2) {
            read = DECLINED;
            break;
        }
        Py_INCREF(pair);
        read = read_id(PyTuple_GetItem(pair, 0), &items[done].conn);
        if (read == READ)
            read = read_frames(state, PyTuple_GetItem(pair, 1), &frames[done], 1);
        Py_DECREF(pair);
        if (read == READ) {
            items[done].frames = frames[done].list;
            items[done].frame_count = frames[done].count;
            bytes += frames[done].bytes;
            all += frames[done].count;
            done++;
        }
    }
    PyObject *result = NULL;
    if (read == READ) {
        kvconn_error_t error;
        error.struct_size = sizeof error;
        kvconn_status_t status;
        CALL(bytes <= MOST_BYTES && all <= MOST_FRAMES, status, state->send_batch(items, count, 0, &error));
        if (status == KVCONN_OK || status == KVCONN_PARTIAL)
            result = leave(args[0], batch_results(items, count, status, &error));
        else
            result = leave_error(args[0], &error);
    }
    for (size_t i = 0; i < done; i++)
        drop(state, &frames[i]);
    PyMem_Free(items);
    PyMem_Free(frames);
    return read == READ ? result : declined(read);
}

static enum read read_node_and_request(PyObject *const *args, uint64_t *node, uint64_t *request) {
    enum read read = read_id(args[1], node);
    return read == READ ? read_uint64(args[2], request) : read;
}

/* track(cell, node, request) -> True */
static PyObject *fast_track(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    struct state *state = state_of(module);
    if (state == NULL || !is_called_well(args, nargs, 3))
        return NULL;
    uint64_t node = 0, request = 0;
    enum read read = read_node_and_request(args, &node, &request);
    if (read != READ)
        return declined(read);
    kvconn_error_t error;
    error.struct_size = sizeof error;
    if (state->track(node, request, &error) != KVCONN_OK)
        return leave_error(args[0], &error);
    return leave(args[0], PyBool_FromLong(1));
}

/* untrack(cell, node, request) -> 1 if it was tracked, else 0 */
static PyObject *fast_untrack(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    struct state *state = state_of(module);
    if (state == NULL || !is_called_well(args, nargs, 3))
        return NULL;
    uint64_t node = 0, request = 0;
    enum read read = read_node_and_request(args, &node, &request);
    if (read != READ)
        return declined(read);
    kvconn_error_t error;
    int32_t was_tracked;
    error.struct_size = sizeof error;
    if (state->untrack(node, request, &was_tracked, &error) != KVCONN_OK)
        return leave_error(args[0], &error);
    return leave(args[0], PyLong_FromLong(was_tracked != 0));
}

/* next_event(cell, manager) -> the kvconn_event_t as a bytearray; False if there is none */
static PyObject *fast_next_event(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    struct state *state = state_of(module);
    if (state == NULL || !is_called_well(args, nargs, 2))
        return NULL;
    uint64_t manager = 0;
    enum read read = read_id(args[1], &manager);
    if (read != READ)
        return declined(read);
    kvconn_error_t error;
    kvconn_event_t event;
    error.struct_size = sizeof error;
    event.struct_size = sizeof event;
    if (state->next_event(manager, 0, &event, &error) != KVCONN_OK)
        return leave_error(args[0], &error);
    if (event.kind == KVCONN_EVENT_NONE)
        return PyBool_FromLong(0);
    return leave(args[0], PyByteArray_FromStringAndSize((const char *)&event, sizeof event));
}

/* ---- Module ---------------------------------------------------------------------------------------------------- */

/* bind(names): takes the address of each function out of a dict {name: address} */
static PyObject *fast_bind(PyObject *module, PyObject *names) {
    struct state *state = PyModule_GetState(module);
    if (state == NULL)
        return NULL;
    /* One loop for function pointers of all types: a function pointer has the size of a data pointer here. */
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"PyObject_GetBuffer", &state->get_buffer},
        {"PyBuffer_Release", &state->release_buffer},
        {"kvconn_send", &state->send},
        {"kvconn_send_to", &state->send_to},
        {"kvconn_send_batch", &state->send_batch},
        {"kvconn_find", &state->find},
        {"kvconn_node_track_request", &state->track},
        {"kvconn_node_untrack_request", &state->untrack},
        {"kvconn_next_event", &state->next_event},
    };
    state->bound = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *address = PyMapping_GetItemString(names, wanted[i].name);
        void *pointer = address == NULL ? NULL : PyLong_AsVoidPtr(address);
        Py_XDECREF(address);
        if (pointer == NULL) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "%s has no address", wanted[i].name);
            return NULL;
        }
        memcpy(wanted[i].place, &pointer, sizeof pointer);
    }
    if (state->default_timeout == NULL)
        state->default_timeout = PyLong_FromLong(KVCONN_DEFAULT_TIMEOUT);
    state->bound = state->default_timeout != NULL;
    if (!state->bound)
        return NULL;
    Py_RETURN_NONE;
}

#define FAST(name) #name, (PyCFunction)(void (*)(void))fast_##name, METH_FASTCALL, NULL
static PyMethodDef functions[] = {
    {"bind", fast_bind, METH_O, NULL}, {FAST(send)},    {FAST(send_to)},    {FAST(send_batch)}, {FAST(track)},
    {FAST(untrack)},                   {FAST(next_event)}, {NULL, NULL, 0, NULL},
};

static int begin(PyObject *module) { return PyModule_AddIntConstant(module, "LEVEL", LEVEL); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)begin}, {0, NULL}};

static void end(void *module) {
    struct state *state = PyModule_GetState(module);
    if (state != NULL)
        Py_CLEAR(state->default_timeout);
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_fast", .m_size = sizeof(struct state), .m_methods = functions, .m_slots = slots,
    .m_free = end,
};

PyMODINIT_FUNC PyInit__fast(void) { return PyModuleDef_Init(&definition); }
