/* What becomes of plain publishes that nsqd answers with OK (see gnsq_lite/_shared.c). */

#include "_shared.h"

#include <string.h>

static const char ok_frame[OK_LENGTH + 1] = "\0\0\0\6\0\0\0\0OK";

static int
is_empty(PyObject *list)
{
    return PyList_CheckExact(list) && PyList_GET_SIZE(list) == 0;
}

static inline PyObject *
member(PyObject *members, Py_ssize_t place)
{
    return PyTuple_GET_ITEM(PyList_GET_ITEM(members, place), 1);
}

/* Whether an OK is all that there is to *publication*: nobody but its thread, if at all, is to be told. */
static int
is_plain(const State *state, PyObject *publication)
{
    const Py_ssize_t *at = state->publication_at;
    PyObject *gate = get(publication, at, GATE);
    if (get(publication, at, REQUEST) != Py_None || get(publication, at, GREENLET) != Py_None ||
        (gate != Py_None && !Py_IS_TYPE(gate, state->lock)) || !is_empty(get(publication, at, WAKERS)) ||
        PyLong_AsLong(get(publication, at, COST)) != 0) {
        return 0;
    }
    if (!Py_IS_TYPE(publication, state->gathering)) {
        return Py_IS_TYPE(publication, state->publication);
    }
    PyObject *members = get(publication, state->gathering_at, MEMBERS);
    int plain = PyList_CheckExact(members) && is_empty(get(publication, state->gathering_at, WAITERS));
    for (Py_ssize_t i = 0; plain && i < PyList_GET_SIZE(members); i++) {
        plain = Py_IS_TYPE(member(members, i), state->publication) && is_plain(state, member(members, i));
    }
    return plain;
}

/* Whether the *count* oldest are all plain; -1 with an exception. */
static int
are_plain(const State *state, PyObject *pending, Py_ssize_t count)
{
    int plain = 1;
    for (Py_ssize_t i = 0; plain && i < count; i++) {
        PyObject *publication = PySequence_GetItem(pending, i);
        if (publication == NULL) {
            return -1;
        }
        plain = is_plain(state, publication);
        Py_DECREF(publication);
    }
    return plain;
}

/* Give a publish its OK, and its thread its turn; -1 with an exception. */
static int
succeed(State *state, PyObject *publication)
{
    const Py_ssize_t *at = state->publication_at;
    if (is_decided(state, publication)) {
        return 0;
    }
    if (PyList_Append(get(publication, at, DECIDED), state->ok) < 0) {
        return -1;
    }
    set(publication, at, IS_DONE, Py_True);
    PyObject *gate = get(publication, at, GATE);
    if (gate != Py_None && ((Lock *)gate)->is_parked) {
        add_answered(state, (Lock *)gate);
    } else if (gate != Py_None) {
        int *waited = lock_open((Lock *)gate);
        lock_wake(((Lock *)gate)->is_carried ? NULL : waited); /* who is in carry() reads, or is awake */
    }
    return 0;
}

/* Settle the oldest with an OK; return how many messages it was, 0 if it has an outcome.  -1 with an exception. */
static Py_ssize_t
settle(State *state, PyObject *pending)
{
    PyObject *arguments[1] = {pending};
    PyObject *publication = PyObject_VectorcallMethod(state->names[POPLEFT], arguments, 1, NULL);
    Py_ssize_t count = publication == NULL ? -1 : 0;
    if (publication != NULL && !is_decided(state, publication)) {
        count = succeed(state, publication) < 0 ? -1 : PyLong_AsSsize_t(get(publication, state->publication_at, COUNT));
        PyObject *members = Py_IS_TYPE(publication, state->gathering)
                                ? get(publication, state->gathering_at, MEMBERS) : Py_None;
        for (Py_ssize_t i = 0; members != Py_None && i < PyList_GET_SIZE(members); i++) {
            count = succeed(state, member(members, i)) < 0 ? -1 : count;
        }
    }
    Py_XDECREF(publication);
    return count;
}

int
settle_oks(State *state, PyObject *connection, const char *data, Py_ssize_t length)
{
    const Py_ssize_t *at = state->connection_at;
    PyObject *pending = get(connection, at, PENDING), *taken = get(connection, at, TAKEN);
    Py_ssize_t count = length / OK_LENGTH, messages = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (memcmp(data + i * OK_LENGTH, ok_frame, OK_LENGTH) != 0) {
            return 0;
        }
    }
    if (count * OK_LENGTH != length || get(taken, state->taken_at, ON_MORE) != Py_None) {
        return 0;
    }
    PyObject *silent = PyObject_GetAttr(get(connection, at, DESTINATION), state->names[SILENT]);
    Py_XDECREF(silent);
    Py_ssize_t waiting = silent == NULL ? -1 : PyObject_Length(pending);
    int plain = waiting < 0 ? -1 : silent != Py_False || waiting < count ? 0 : are_plain(state, pending, count);
    for (Py_ssize_t i = 0; plain > 0 && i < count; i++) {
        Py_ssize_t settled = settle(state, pending);
        plain = settled < 0 ? -1 : 1;
        messages += settled < 0 ? 0 : settled;
    }
    return plain > 0 && add(taken, state->taken_at, MESSAGES, messages) < 0 ? -1 : plain;
}
