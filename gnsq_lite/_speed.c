/* The optional accelerator: what is done once per message, in C (see gnsq_lite/speed.py).

   It knows nothing but the layout of a message frame (WIRE-2, WIRE-3) and where the slots of Message are; it makes no
   decision: at whatever is no whole, lawful message frame it stops, and Python goes on from there.  _speed_run.c calls the
   handlers, _speed_lists.c takes whole lists. */

#include "_speed.h"

enum { FRAME_MESSAGE = 2 };
/* Offsets in a message frame, from its first byte; sizes count what follows the size field. */
enum { SIZE_LENGTH = 4, KIND_AT = 4, TIMESTAMP_AT = 8, ATTEMPTS_AT = 16, ID_AT = 18, ID_LENGTH = 16, BODY_AT = 34 };
enum { SMALLEST_SIZE = BODY_AT - SIZE_LENGTH };

static const char *const slot_names[SLOTS] = {
    "_connection", "timestamp_ns", "attempts", "id", "body", "_received_at", "_token",
};

static inline State *
state_of(PyObject *module)
{
    return (State *)PyModule_GetState(module);
}

static inline uint64_t
big_endian(const unsigned char *at, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) {
        value = value << 8 | at[i];
    }
    return value;
}

PyDoc_STRVAR(know_doc, "know($module, type, fresh, kept, /)\n--\n\n"
                       "Fill *type*'s slots directly from now on; *fresh* is a new message's token, *kept* that of one\n"
                       "whose user answers later.");

static PyObject *
know(PyObject *module, PyObject *args)
{
    State *state = state_of(module);
    PyTypeObject *type;
    PyObject *fresh, *kept;
    Py_ssize_t offset[SLOTS];
    if (!PyArg_ParseTuple(args, "O!OO:know", &PyType_Type, &type, &fresh, &kept)) {
        return NULL;
    }
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || !PyType_IS_GC(type) || type->tp_itemsize != 0) {
        PyErr_SetString(PyExc_TypeError, "know() takes a class with __slots__");
        return NULL;
    }
    for (int i = 0; i < SLOTS; i++) {
        offset[i] = slot_offset(type, slot_names[i], 0);
        if (offset[i] < 0) {
            return NULL;
        }
    }
    memcpy(state->offset, offset, sizeof(offset));
    Py_INCREF(type);
    Py_XSETREF(state->message, type);
    Py_INCREF(fresh);
    Py_XSETREF(state->fresh, fresh);
    Py_INCREF(kept);
    Py_XSETREF(state->kept, kept);
    Py_RETURN_NONE;
}

/* What *make* asks for: the class of its messages and, where it is a gnsq_lite.message.Tailed, how many bytes before the
   body go into the slot "place", and what goes into the slot "partition".  No type: *make* is to be called. */
typedef struct {
    PyTypeObject *type;
    PyObject *read_at, *partition;
    Py_ssize_t tail, place_at, partition_at;
} Kind;

/* Find the slots of messages with a tail, which are nearly always of the type that was asked for last.  -1 with an
   exception. */
static int
know_tailed(State *state, PyTypeObject *type, Kind *kind)
{
    if (type != state->tailed) {
        if ((kind->place_at = slot_offset(type, "place", 1)) < 0 ||
            (kind->partition_at = slot_offset(type, "partition", 1)) < 0) {
            return -1;
        }
        state->place_at = kind->place_at;
        state->partition_at = kind->partition_at;
        Py_XSETREF(state->tailed, (PyTypeObject *)Py_NewRef((PyObject *)type));
    }
    kind->place_at = state->place_at;
    kind->partition_at = state->partition_at;
    return 0;
}

/* Fill *kind*; *read_at* in it is the caller's.  -1 with an exception. */
static int
know_kind(State *state, PyObject *make, PyObject *owner, Kind *kind)
{
    PyObject *type = make;
    if (PyTuple_Check(make) && PyTuple_GET_SIZE(make) == 4) {
        type = PyTuple_GET_ITEM(make, 0);
        kind->tail = PyLong_AsSsize_t(PyTuple_GET_ITEM(make, 1));
        kind->partition = PyTuple_GET_ITEM(make, 2);
        if (kind->tail < 0 || state->message == NULL || !PyType_Check(type) ||
            !PyType_IsSubtype((PyTypeObject *)type, state->message)) {
            return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "Tailed() of no messages"), -1);
        }
        if (know_tailed(state, (PyTypeObject *)type, kind) < 0) {
            return -1;
        }
    }
    else if (make != (PyObject *)state->message) {
        return 0;
    }
    kind->type = (PyTypeObject *)type;
    kind->read_at = PyObject_GetAttr(owner, state->read_at_name);
    return kind->read_at == NULL ? -1 : 0;
}

/* What type(owner, timestamp_ns, attempts, id, body) makes; takes the references over. */
static PyObject *
fill(const State *state, const Kind *kind, PyObject *owner, PyObject *fields[3], PyObject *body, PyObject *place)
{
    PyObject *message = kind->type->tp_alloc(kind->type, 0);
    if (message == NULL) {
        for (int i = 0; i < 3; i++) {
            Py_DECREF(fields[i]);
        }
        Py_DECREF(body);
        Py_XDECREF(place);
        return NULL;
    }
    *slot(state, message, CONNECTION) = Py_NewRef(owner);
    *slot(state, message, TIMESTAMP) = fields[0];
    *slot(state, message, ATTEMPTS) = fields[1];
    *slot(state, message, ID) = fields[2];
    *slot(state, message, BODY) = body;
    *slot(state, message, RECEIVED_AT) = Py_NewRef(kind->read_at);
    *slot(state, message, TOKEN) = Py_NewRef(state->fresh);
    if (place != NULL) {
        *(PyObject **)((char *)message + kind->place_at) = place;
        *(PyObject **)((char *)message + kind->partition_at) = Py_NewRef(kind->partition);
    }
    return message;
}

/* The message of the whole frame at *at*. */
static PyObject *
make_one(const State *state, const unsigned char *at, Py_ssize_t size, PyObject *make, PyObject *owner,
         const Kind *kind)
{
    PyObject *fields[3] = {NULL, NULL, NULL}, *body = NULL, *place = NULL, *message = NULL;
    const char *rest = (const char *)at + BODY_AT;
    Py_ssize_t length = size - SMALLEST_SIZE;
    Py_ssize_t tail = kind->type != NULL && kind->tail <= length ? kind->tail : 0;
    if ((fields[0] = PyLong_FromLongLong((int64_t)big_endian(at + TIMESTAMP_AT, 8))) == NULL ||
        (fields[1] = PyLong_FromLong((long)big_endian(at + ATTEMPTS_AT, 2))) == NULL ||
        (fields[2] = PyBytes_FromStringAndSize((const char *)at + ID_AT, ID_LENGTH)) == NULL ||
        (body = PyBytes_FromStringAndSize(rest + tail, length - tail)) == NULL ||
        (tail != 0 && (place = PyBytes_FromStringAndSize(rest, tail)) == NULL)) {
        goto done;
    }
    if (kind->type != NULL && tail == kind->tail) {
        return fill(state, kind, owner, fields, body, place);
    }
    PyObject *arguments[5] = {owner, fields[0], fields[1], fields[2], body};
    message = PyObject_Vectorcall(make, arguments, 5, NULL);
done:
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(fields[i]);
    }
    Py_XDECREF(body);
    return message;
}

PyDoc_STRVAR(scan_doc, "scan($module, data, at, limit, make, owner, found, /)\n--\n\n"
                       "Append to *found* what make(owner, timestamp_ns, attempts, id, body) returns for each whole\n"
                       "message frame from *at* on; return where the first other frame is.");

static PyObject *
scan(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of(module);
    if (count != 6) {
        PyErr_Format(PyExc_TypeError, "scan() takes 6 arguments, not %zd", count);
        return NULL;
    }
    PyObject *data = args[0], *make = args[3], *owner = args[4], *found = args[5];
    Kind kind = {NULL, NULL, NULL, 0, 0, 0};
    if (!PyBytes_Check(data) || !PyList_Check(found)) {
        PyErr_SetString(PyExc_TypeError, "scan() takes bytes, and a list to append to");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "scan() from a negative place");
        }
        return NULL;
    }
    long long limit = PyLong_AsLongLong(args[2]);
    if (limit == -1 && PyErr_Occurred()) {
        return NULL;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t length = PyBytes_GET_SIZE(data);
    while (at <= length - BODY_AT) {
        const unsigned char *frame = start + at;
        int32_t size = (int32_t)big_endian(frame, SIZE_LENGTH);
        if (big_endian(frame + KIND_AT, 4) != FRAME_MESSAGE || size < SMALLEST_SIZE || size > limit ||
            size > length - at - SIZE_LENGTH) {
            break;
        }
        if (kind.type == NULL && know_kind(state, make, owner, &kind) < 0) {
            return NULL;
        }
        PyObject *message = make_one(state, frame, size, make, owner, &kind);
        if (message == NULL || PyList_Append(found, message) < 0) {
            Py_XDECREF(message);
            Py_XDECREF(kind.read_at);
            return NULL;
        }
        Py_DECREF(message);
        at += SIZE_LENGTH + size;
    }
    Py_XDECREF(kind.read_at);
    return PyLong_FromSsize_t(at);
}

/* Whether hasattr(message, "_token"); -1 with an exception. */
static int
has_token(const State *state, PyObject *message)
{
    if (state->message != NULL && PyObject_TypeCheck(message, state->message)) {
        return *slot(state, message, TOKEN) != NULL;
    }
    PyObject *token = PyObject_GetAttrString(message, "_token");
    if (token != NULL) {
        Py_DECREF(token);
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

PyDoc_STRVAR(skip_answered_doc, "skip_answered($module, messages, at, /)\n--\n\n"
                                "Return the place, from *at* on, of the first message that still has its token.");

static PyObject *
skip_answered(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const State *state = state_of(module);
    if (count != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "skip_answered() takes a list and a place in it");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "skip_answered() from a negative place");
        }
        return NULL;
    }
    while (at < PyList_GET_SIZE(args[0])) {
        PyObject *message = PyList_GET_ITEM(args[0], at);
        Py_INCREF(message);
        int open = has_token(state, message);
        Py_DECREF(message);
        if (open < 0) {
            return NULL;
        }
        if (open) {
            break;
        }
        at++;
    }
    return PyLong_FromSsize_t(at);
}

PyDoc_STRVAR(all_new_doc, "all_new($module, messages, most, /)\n--\n\n"
                          "Return whether all are new, and none was sent more than *most* times.");
PyDoc_STRVAR(keep_open_doc, "keep_open($module, messages, /)\n--\n\n"
                            "Keep those that are new open, as enable_async() does; return the others.");
PyDoc_STRVAR(finish_open_doc, "finish_open($module, messages, kept_too, /)\n--\n\n"
                              "Finish those that are new, and, with *kept_too*, those whose user answers later; return\n"
                              "what Python has to look at.");
PyDoc_STRVAR(columns_doc, "columns($module, messages, /)\n--\n\n"
                          "Return the one connection of all messages, or None, and as bytes their timestamps in ns, int64,\n"
                          "attempts, int32, ids, the ends of the bodies behind a 0, int32, and the bodies.  None: they are\n"
                          "for Python.");

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = state_of(module);
    Py_VISIT(state->message);
    Py_VISIT(state->tailed);
    Py_VISIT(state->fresh);
    Py_VISIT(state->kept);
    Py_VISIT(state->fins);
    Py_VISIT(state->runner);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = state_of(module);
    Py_CLEAR(state->message);
    Py_CLEAR(state->tailed);
    Py_CLEAR(state->fresh);
    Py_CLEAR(state->kept);
    Py_CLEAR(state->fins);
    Py_CLEAR(state->runner);
    Py_CLEAR(state->popleft);
    Py_CLEAR(state->finish);
    Py_CLEAR(state->handled);
    Py_CLEAR(state->fins_name);
    Py_CLEAR(state->read_at_name);
    return 0;
}

static void
release(void *module)
{
    (void)clear((PyObject *)module);
}

static PyMethodDef methods[] = {
    {"know", know, METH_VARARGS, know_doc},
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, scan_doc},
    {"skip_answered", (PyCFunction)(void (*)(void))skip_answered, METH_FASTCALL, skip_answered_doc},
    {"all_new", (PyCFunction)(void (*)(void))all_new, METH_FASTCALL, all_new_doc},
    {"keep_open", keep_open, METH_O, keep_open_doc},
    {"finish_open", (PyCFunction)(void (*)(void))finish_open, METH_FASTCALL, finish_open_doc},
    {"columns", columns, METH_O, columns_doc},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    return add_run_types(module, state_of(module));
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED}, /* all state is the module's */
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED}, /* fills slots and takes tokens without a lock */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gnsq_lite._speed",
    .m_doc = "The optional accelerator; gnsq_lite.speed is its home in Python.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC
PyInit__speed(void)
{
    return PyModuleDef_Init(&definition);
}
