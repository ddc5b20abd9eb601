/* Functions of a list of messages: keep them open, finish them, or read their fields as columns.

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
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(messages); i++) {
        if (!is_plain(state, PyList_GET_ITEM(messages, i), most)) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

PyObject *
keep_open(PyObject *module, PyObject *args)
{
    const State *state = PyModule_GetState(module);
    PyObject *messages;
    if (!PyArg_ParseTuple(args, "O!:keep_open", &PyList_Type, &messages)) {
        return NULL;
    }
    PyObject *others = PyList_New(0);
    for (Py_ssize_t i = 0; others != NULL && i < PyList_GET_SIZE(messages); i++) {
        PyObject *message = PyList_GET_ITEM(messages, i);
        if (is_known(&state->message, message) && *slot(&state->message, message, TOKEN) == state->fresh) {
            Py_SETREF(*slot(&state->message, message, TOKEN), Py_NewRef(state->kept));
        }
        else if (PyList_Append(others, message) < 0) {
            Py_CLEAR(others);
        }
    }
    return others;
}

/* Finish *message* if it is unanswered, or append it to *others* for Python.  Return -1 for an exception, else 0. */
static int
finish_one(const State *state, PyObject *message, int kept_too, Target *target, PyObject *others)
{
    if (!is_known(&state->message, message)) {
        return PyList_Append(others, message);
    }
    PyObject **place = slot(&state->message, message, TOKEN), *token = *place;
    if (token == NULL) {
        return 0;
    }
    if (token != state->fresh && !(kept_too && token == state->kept)) {
        return kept_too ? PyList_Append(others, message) : 0;
    }
    *place = NULL;
    Py_DECREF(token);
    return queue_fin(state, message, target, kept_too ? "finish" : "handled");
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
    PyObject *others = PyList_New(0);
    for (Py_ssize_t i = 0; others != NULL && i < PyList_GET_SIZE(messages); i++) {
        PyObject *message = PyList_GET_ITEM(messages, i);
        Py_INCREF(message); /* queue_fin() may call Python code that changes the list */
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

/* Return the total bytes of the bodies, or -1 if an object or field has another type or the total is too large. */
static Py_ssize_t
measure(const State *state, PyObject *messages)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(messages); i++) {
        PyObject *message = PyList_GET_ITEM(messages, i);
        if (!Py_IS_TYPE(message, state->message.type)) {
            return -1;
        }
        PyObject *body = *slot(&state->message, message, BODY), *id = *slot(&state->message, message, ID);
        PyObject *stamp = *slot(&state->message, message, TIMESTAMP), *attempts = *slot(&state->message, message, ATTEMPTS);
        if (body == NULL || !PyBytes_CheckExact(body) || id == NULL || !PyBytes_CheckExact(id) ||
            PyBytes_GET_SIZE(id) != ID_LENGTH || stamp == NULL || !PyLong_CheckExact(stamp) || attempts == NULL ||
            !PyLong_CheckExact(attempts) || PyBytes_GET_SIZE(body) > INT32_MAX - total) {
            return -1;
        }
        total += PyBytes_GET_SIZE(body);
    }
    return total;
}

/* Copy the fields of *message* to row *i*.  Return -1 if a number does not fit. */
static int
put(const State *state, PyObject *message, Py_ssize_t i, char *columns[5], int32_t *used)
{
    PyObject *body = *slot(&state->message, message, BODY);
    long long stamp = PyLong_AsLongLong(*slot(&state->message, message, TIMESTAMP));
    long attempts = PyLong_AsLong(*slot(&state->message, message, ATTEMPTS));
    if (PyErr_Occurred() || attempts > INT32_MAX || attempts < INT32_MIN) {
        PyErr_Clear();
        return -1;
    }
    int64_t wide = stamp;
    int32_t narrow = (int32_t)attempts;
    memcpy(columns[0] + i * (Py_ssize_t)sizeof(wide), &wide, sizeof(wide));
    memcpy(columns[1] + i * (Py_ssize_t)sizeof(narrow), &narrow, sizeof(narrow));
    memcpy(columns[2] + i * ID_LENGTH, PyBytes_AS_STRING(*slot(&state->message, message, ID)), ID_LENGTH);
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
    PyObject *owner = *slot(&state->message, PyList_GET_ITEM(messages, 0), CONNECTION);
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
    for (Py_ssize_t i = 0; i < count; i++) { /* no Python code runs here, so the list does not change */
        PyObject *message = PyList_GET_ITEM(messages, i);
        if (*slot(&state->message, message, CONNECTION) != owner) {
            owner = NULL;
        }
        if (put(state, message, i, places, &used) < 0) {
            found = Py_NewRef(Py_None);
            goto done;
        }
    }
    found = PyTuple_Pack(6, owner == NULL ? Py_None : owner, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]);
done:
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(bytes[i]);
    }
    return found;
}
