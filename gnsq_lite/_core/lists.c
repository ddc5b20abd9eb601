/* Functions of a list of messages: finish them, or read their fields as columns.

   C handles only instances of Message.  A function returns the other objects, or refuses the whole list, and the caller
   handles them in Python. */

#include "native.h"

PyObject *
all_new(PyObject *module, PyObject *args)
{
    const State *state = PyModule_GetState(module);
    PyObject *messages;
    long most;
    if (!PyArg_ParseTuple(args, "O!l:all_new", &PyList_Type, &messages, &most)) {
        return NULL;
    }
    PyObject *message;
    for (Py_ssize_t i = 0; (message = item(messages, i)) != NULL; i++) {
        int plain = is_plain(state, message, most);
        Py_DECREF(message);
        if (!plain) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

/* Finish *message* if it is unanswered, or append it to *others* for Python.  Return -1 for an exception, else 0. */
static int
finish_one(const State *state, PyObject *message, int kept_too, Target *target, PyObject *others)
{
    if (!is_known(&state->message, message)) {
        return PyList_Append(others, message);
    }
    const Known *known = &state->message;
    if (swap(known, message, TOKEN, state->fresh, NULL) || (kept_too && swap(known, message, TOKEN, state->kept, NULL))) {
        return queue_fin(state, message, target, kept_too ? "finish" : "handled");
    }
    return kept_too && peek(known, message, TOKEN) != NULL ? PyList_Append(others, message) : 0;
}

PyObject *
finish_open(PyObject *module, PyObject *args)
{
    const State *state = PyModule_GetState(module);
    PyObject *messages;
    int kept_too;
    Target target = {NULL, NULL, 0, 0.0};
    if (!PyArg_ParseTuple(args, "O!p:finish_open", &PyList_Type, &messages, &kept_too)) {
        return NULL;
    }
    PyObject *others = PyList_New(0), *message;
    for (Py_ssize_t i = 0; others != NULL && (message = item(messages, i)) != NULL; i++) {
        if (finish_one(state, message, kept_too, &target, others) < 0) {
            Py_CLEAR(others);
        }
        Py_DECREF(message);
    }
    Py_XDECREF(target.connection);
    Py_XDECREF(target.fins);
    return others;
}

/* -- columns ------------------------------------------------------------------------------------------------------- */

/* References to the fields of one message. */
typedef struct {
    PyObject *id, *body, *stamp, *attempts;
} Fields;

static void
drop(Fields *fields)
{
    Py_XDECREF(fields->id);
    Py_XDECREF(fields->body);
    Py_XDECREF(fields->stamp);
    Py_XDECREF(fields->attempts);
}

/* Read the fields of *message*.  Return 0, and no references, if an object or field has another type. */
static int
read_fields(const State *state, PyObject *message, Fields *fields)
{
    const Known *known = &state->message;
    if (!Py_IS_TYPE(message, known->type)) {
        return 0;
    }
    *fields = (Fields){read_slot(known, message, ID), read_slot(known, message, BODY),
                       read_slot(known, message, TIMESTAMP), read_slot(known, message, ATTEMPTS)};
    if (fields->id != NULL && PyBytes_CheckExact(fields->id) && PyBytes_GET_SIZE(fields->id) == ID_LENGTH &&
        fields->body != NULL && PyBytes_CheckExact(fields->body) && fields->stamp != NULL &&
        PyLong_CheckExact(fields->stamp) && fields->attempts != NULL && PyLong_CheckExact(fields->attempts)) {
        return 1;
    }
    drop(fields);
    return 0;
}

/* Return the total bytes of the bodies, or -1 if an object or field has another type or the total is too large. */
static Py_ssize_t
measure(const State *state, PyObject *messages)
{
    Py_ssize_t total = 0;
    PyObject *message;
    for (Py_ssize_t i = 0; total >= 0 && (message = item(messages, i)) != NULL; i++) {
        Fields fields;
        if (!read_fields(state, message, &fields)) {
            total = -1;
        }
        else {
            Py_ssize_t size = PyBytes_GET_SIZE(fields.body);
            total = size > INT32_MAX - total ? -1 : total + size;
            drop(&fields);
        }
        Py_DECREF(message);
    }
    return total;
}

/* Copy the fields to row *i*.  Return -1 if a number or the body, of *total* bytes in all, does not fit. */
static int
put(const Fields *fields, Py_ssize_t i, char *columns[5], int32_t *used, Py_ssize_t total)
{
    PyObject *body = fields->body;
    long long stamp = PyLong_AsLongLong(fields->stamp);
    long attempts = PyLong_AsLong(fields->attempts);
    if (PyErr_Occurred() || attempts > INT32_MAX || attempts < INT32_MIN || PyBytes_GET_SIZE(body) > total - *used) {
        PyErr_Clear();
        return -1;
    }
    int64_t wide = stamp;
    int32_t narrow = (int32_t)attempts;
    memcpy(columns[0] + i * (Py_ssize_t)sizeof(wide), &wide, sizeof(wide));
    memcpy(columns[1] + i * (Py_ssize_t)sizeof(narrow), &narrow, sizeof(narrow));
    memcpy(columns[2] + i * ID_LENGTH, PyBytes_AS_STRING(fields->id), ID_LENGTH);
    memcpy(columns[4] + *used, PyBytes_AS_STRING(body), (size_t)PyBytes_GET_SIZE(body));
    *used += (int32_t)PyBytes_GET_SIZE(body);
    memcpy(columns[3] + (i + 1) * (Py_ssize_t)sizeof(*used), used, sizeof(*used));
    return 0;
}

PyObject *
columns(PyObject *module, PyObject *args)
{
    const State *state = PyModule_GetState(module);
    PyObject *messages;
    if (!PyArg_ParseTuple(args, "O!:columns", &PyList_Type, &messages)) {
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(messages);
    Py_ssize_t total = count == 0 || count > INT32_MAX / ID_LENGTH ? -1 : measure(state, messages);
    if (total < 0) {
        Py_RETURN_NONE;
    }
    PyObject *owner = NULL, *message;
    Py_ssize_t sizes[5] = {count * 8, count * 4, count * ID_LENGTH, (count + 1) * 4, total};
    PyObject *bytes[5] = {NULL, NULL, NULL, NULL, NULL}, *found = NULL;
    char *places[5];
    int32_t used = 0;
    for (int i = 0; i < 5; i++) {
        if ((bytes[i] = PyBytes_FromStringAndSize(NULL, sizes[i])) == NULL) {
            goto done;
        }
        places[i] = PyBytes_AS_STRING(bytes[i]);
    }
    memset(places[3], 0, sizeof(used));
    for (Py_ssize_t i = 0; i < count; i++) { /* the list may change without the GIL, so each field is checked again */
        Fields fields;
        message = item(messages, i);
        int is_put = message != NULL && read_fields(state, message, &fields);
        if (is_put) {
            PyObject *connection = read_slot(&state->message, message, CONNECTION);
            if (i == 0) {
                owner = Py_XNewRef(connection);
            }
            else if (connection != owner) {
                Py_CLEAR(owner);
            }
            Py_XDECREF(connection);
            is_put = put(&fields, i, places, &used, total) == 0;
            drop(&fields);
        }
        Py_XDECREF(message);
        if (!is_put) {
            found = Py_NewRef(Py_None);
            goto done;
        }
    }
    if (used != total) { /* another thread has replaced a body */
        found = Py_NewRef(Py_None);
        goto done;
    }
    found = PyTuple_Pack(6, owner == NULL ? Py_None : owner, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]);
done:
    Py_XDECREF(owner);
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(bytes[i]);
    }
    return found;
}
