/* The optional extension: code that runs once per message (see gnsq_lite/_core/__init__.py).

   This file turns message frames (WIRE-2, WIRE-3) into messages.  It stops at the first frame that is incomplete,
   invalid or not a message, and Python continues there.  rows.c turns frames into columns, drain.c calls handlers,
   lists.c handles lists of messages, packing.c encodes an MPUB, exchange.c sends and reads for a publishing thread. */

#include "native.h"

/* -- offsets of slots ----------------------------------------------------------------------------------------------- */

/* Return the offset of the slot *name* of *type* or a base; -1 with an exception set if there is none. */
static Py_ssize_t
slot_offset(PyTypeObject *type, const char *name)
{
    Py_ssize_t offset = -1;
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) {
        return -1;
    }
    if (Py_IS_TYPE(found, &PyMemberDescr_Type) && PyType_IsSubtype(type, PyDescr_TYPE(found))) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == Py_T_OBJECT_EX && member->flags == 0 && member->offset >= (Py_ssize_t)sizeof(PyObject) &&
            member->offset + (Py_ssize_t)sizeof(PyObject *) <= type->tp_basicsize) {
            offset = member->offset;
        }
    }
    Py_DECREF(found);
    if (offset < 0) {
        PyErr_Format(PyExc_TypeError, "%s is no slot of %s", name, type->tp_name);
    }
    return offset;
}

static int
know(Known *known, PyTypeObject *type, const char *const names[], int count)
{
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || !PyType_IS_GC(type) || type->tp_itemsize != 0) {
        PyErr_SetString(PyExc_TypeError, "a class with __slots__ is needed");
        return -1;
    }
    Known found = {type, {0}};
    for (int i = 0; i < count; i++) {
        if ((found.offset[i] = slot_offset(type, names[i])) < 0) {
            return -1;
        }
    }
    Py_INCREF(type);
    Py_XDECREF(known->type);
    *known = found;
    return 0;
}

static PyObject *
know_message(PyObject *module, PyObject *args)
{
    static const char *const names[MESSAGE_SLOTS] = {
        "_connection", "timestamp_ns", "attempts", "id", "body", "_received_at", "_token",
    };
    State *state = PyModule_GetState(module);
    PyTypeObject *type;
    PyObject *fresh, *kept;
    if (!PyArg_ParseTuple(args, "O!OO:know_message", &PyType_Type, &type, &fresh, &kept) ||
        know(&state->message, type, names, MESSAGE_SLOTS) < 0) {
        return NULL;
    }
    Py_XSETREF(state->fresh, Py_NewRef(fresh));
    Py_XSETREF(state->kept, Py_NewRef(kept));
    Py_RETURN_NONE;
}

static PyObject *
know_classes(PyObject *module, PyObject *args)
{
    static const char *const of_fins[FINS_SLOTS] = {"ids", "_wake", "due", "_write", "is_alone", "is_held"};
    static const char *const of_runner[RUNNER_SLOTS] = {
        "handler", "most", "run", "failed", "returned", "surplus", "slice_ends", "writes_fins",
    };
    State *state = PyModule_GetState(module);
    PyTypeObject *fins, *runner;
    if (!PyArg_ParseTuple(args, "O!O!:know_classes", &PyType_Type, &fins, &PyType_Type, &runner) ||
        know(&state->fins, fins, of_fins, FINS_SLOTS) < 0 || know(&state->runner, runner, of_runner, RUNNER_SLOTS) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- frames to messages --------------------------------------------------------------------------------------------- */

/* Return the message of the complete frame at *at*.  If *read_at* is NULL, call make(owner, timestamp_ns, attempts, id,
   body).  If not, *make* is Message, and this function fills the slots.  *read_at* is the attribute of *owner*. */
static PyObject *
make_one(const State *state, const unsigned char *at, Py_ssize_t size, PyObject *make, PyObject *owner,
         PyObject *read_at)
{
    const Known *known = &state->message;
    PyObject *message = NULL;
    PyObject *fields[5] = {
        owner,
        PyLong_FromLongLong((int64_t)big_endian(at + TIMESTAMP_AT, 8)),
        PyLong_FromLong((long)big_endian(at + ATTEMPTS_AT, 2)),
        PyBytes_FromStringAndSize((const char *)at + ID_AT, ID_LENGTH),
        PyBytes_FromStringAndSize((const char *)at + BODY_AT, size - SMALLEST_SIZE),
    };
    if (!fields[1] || !fields[2] || !fields[3] || !fields[4]) {
        goto done;
    }
    if (read_at == NULL) {
        message = PyObject_Vectorcall(make, fields, 5, NULL);
        goto done;
    }
    if ((message = known->type->tp_alloc(known->type, 0)) == NULL) {
        goto done;
    }
    *slot(known, message, CONNECTION) = Py_NewRef(owner);
    for (int i = TIMESTAMP; i <= BODY; i++) { /* the slots and the arguments have the same order */
        *slot(known, message, i) = fields[i];
    }
    *slot(known, message, RECEIVED_AT) = Py_NewRef(read_at);
    *slot(known, message, TOKEN) = Py_NewRef(state->fresh);
    return message;
done:
    for (int i = 1; i < 5; i++) {
        Py_XDECREF(fields[i]);
    }
    return message;
}

static PyObject *
scan(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const State *state = PyModule_GetState(module);
    if (count != 6 || !PyBytes_Check(args[0]) || !PyList_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "scan(data: bytes, at: int, limit: int, make, owner, found: list)");
        return NULL;
    }
    PyObject *data = args[0], *make = args[3], *owner = args[4], *found = args[5], *read_at = NULL;
    int is_known = make == (PyObject *)state->message.type;
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    long long limit = PyLong_AsLongLong(args[2]);
    if (at < 0 || PyErr_Occurred()) {
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "scan() from a negative place"), NULL);
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t length = PyBytes_GET_SIZE(data);
    for (int32_t size; (size = message_size(start + at, length - at, limit)) >= 0; at += SIZE_LENGTH + size) {
        if (is_known && read_at == NULL && (read_at = PyObject_GetAttrString(owner, "read_at")) == NULL) {
            return NULL;
        }
        PyObject *message = make_one(state, start + at, size, make, owner, read_at);
        if (message == NULL || PyList_Append(found, message) < 0) {
            Py_XDECREF(message);
            Py_XDECREF(read_at);
            return NULL;
        }
        Py_DECREF(message);
    }
    Py_XDECREF(read_at);
    return PyLong_FromSsize_t(at);
}

static PyObject *
all_answered(PyObject *module, PyObject *messages)
{
    const State *state = PyModule_GetState(module);
    if (!PyList_Check(messages)) {
        PyErr_SetString(PyExc_TypeError, "all_answered(messages: list)");
        return NULL;
    }
    PyObject *message;
    for (Py_ssize_t at = 0; (message = item(messages, at)) != NULL; at++) {
        int is_open = !is_known(&state->message, message) || peek(&state->message, message, TOKEN) != NULL;
        Py_DECREF(message);
        if (is_open) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

static PyObject *
swap_token(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const State *state = PyModule_GetState(module);
    if (count != 3 || !is_known(&state->message, args[0])) {
        PyErr_SetString(PyExc_TypeError, "swap_token(message: Message, expected, token)");
        return NULL;
    }
    return PyBool_FromLong(swap(&state->message, args[0], TOKEN, args[1], args[2] == Py_None ? NULL : args[2]));
}

/* -- the module ----------------------------------------------------------------------------------------------------- */

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->message.type);
    Py_VISIT(state->fins.type);
    Py_VISIT(state->runner.type);
    Py_VISIT(state->fresh);
    Py_VISIT(state->kept);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->message.type);
    Py_CLEAR(state->fins.type);
    Py_CLEAR(state->runner.type);
    Py_CLEAR(state->fresh);
    Py_CLEAR(state->kept);
    return 0;
}

static void
release(void *module)
{
    (void)clear((PyObject *)module);
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

/* twin.py documents these functions. */
static PyMethodDef methods[] = {
    {"know_message", know_message, METH_VARARGS, "know_message($module, type, fresh, kept, /)\n--\n\n"},
    {"know_classes", know_classes, METH_VARARGS, "know_classes($module, fins, runner, /)\n--\n\n"},
    {"scan", FAST(scan), "scan($module, data, at, limit, make, owner, found, /)\n--\n\n"},
    {"all_answered", all_answered, METH_O, "all_answered($module, messages, /)\n--\n\n"},
    {"swap_token", FAST(swap_token), "swap_token($module, message, expected, token, /)\n--\n\n"},
    {"drain", FAST(drain), "drain($module, runner, queue, worker, /)\n--\n\n"},
    {"all_new", all_new, METH_VARARGS, "all_new($module, messages, most, /)\n--\n\n"},
    {"finish_open", finish_open, METH_VARARGS, "finish_open($module, messages, kept_too, /)\n--\n\n"},
    {"columns", columns, METH_VARARGS, "columns($module, messages, /)\n--\n\n"},
    {"scan_rows", scan_rows, METH_VARARGS, "scan_rows($module, data, at, limit, make, owner, found, most, /)\n--\n\n"},
    {"frame_columns", frame_columns, METH_VARARGS, "frame_columns($module, parts, /)\n--\n\n"},
    {"pack", pack, METH_VARARGS, "pack($module, head, bodies, most, /)\n--\n\n"},
    {"murmur3_32", murmur3_32, METH_VARARGS, "murmur3_32($module, data, seed=0, /)\n--\n\n"},
    {"receive", receive, METH_VARARGS, "receive($module, descriptor, received, /)\n--\n\n"},
    {"exchange", FAST(exchange), "exchange($module, descriptor, command, counts, received, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED}, /* the module object holds all state */
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gnsq_lite._core.native",
    .m_doc = "The optional extension; gnsq_lite._core chooses between it and Python.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC
PyInit_native(void)
{
    return PyModuleDef_Init(&definition);
}
