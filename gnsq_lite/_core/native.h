/* Declarations that the files of the extension share; gnsq_lite/_core/__init__.py describes the extension. */

#ifndef GNSQ_LITE_NATIVE_H
#define GNSQ_LITE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

/* Slots of Message, Fins and Runner that C reads and sets directly. */
enum { CONNECTION, TIMESTAMP, ATTEMPTS, ID, BODY, RECEIVED_AT, TOKEN, MESSAGE_SLOTS };
enum { IDS, WAKE, DUE, WRITE, IS_ALONE, IS_HELD, FINS_SLOTS };
enum { HANDLER, MOST, RUN, FAILED, RETURNED, SURPLUS_OF_WORKERS, SLICE_ENDS, WRITES_FINS, RUNNER_SLOTS };

enum { ID_LENGTH = 16 };

/* A class with __slots__, and the offsets of its slots.  The type is NULL until know_message() or know_classes(). */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t offset[8];
} Known;

typedef struct {
    Known message, fins, runner;
    PyObject *fresh, *kept; /* the tokens NEW and ASYNC */
} State;

static inline PyObject **
slot(const Known *known, PyObject *object, int which)
{
    return (PyObject **)((char *)object + known->offset[which]);
}

static inline int
is_known(const Known *known, PyObject *object)
{
    return known->type != NULL && PyObject_TypeCheck(object, known->type);
}

/* Whether *message* is a new Message with at most *most* attempts. */
static inline int
is_plain(const State *state, PyObject *message, long most)
{
    if (!is_known(&state->message, message) || *slot(&state->message, message, TOKEN) != state->fresh) {
        return 0;
    }
    PyObject *attempts = *slot(&state->message, message, ATTEMPTS);
    int overflow = 1;
    return attempts != NULL && PyLong_CheckExact(attempts) &&
           PyLong_AsLongAndOverflow(attempts, &overflow) <= most && !overflow;
}

/* Cache of the connection of the last answer, and of its attribute fins.  If *may_hold*, the caller writes the FINs that
   queue_fin() leaves unwritten.  *held_since* is the time of the first such FIN, or 0.0. */
typedef struct {
    PyObject *connection, *fins;
    int may_hold;
    double held_since;
} Target;

/* Queue the FIN of *message*, or call *method* of its connection if fins is no Fins.  The caller has deleted the token.
   Return 0, or -1 with an exception set. */
int queue_fin(const State *state, PyObject *message, Target *target, const char *method);

PyObject *drain(PyObject *module, PyObject *const *args, Py_ssize_t count);

PyObject *all_new(PyObject *module, PyObject *args);
PyObject *keep_open(PyObject *module, PyObject *args);
PyObject *finish_open(PyObject *module, PyObject *args);
PyObject *columns(PyObject *module, PyObject *args);

PyObject *pack(PyObject *module, PyObject *args);
PyObject *murmur3_32(PyObject *module, PyObject *args);

PyObject *receive(PyObject *module, PyObject *args);
PyObject *exchange(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
