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

enum { FRAME_MESSAGE = 2 };
/* Offsets in a message frame, from its first byte.  A size counts the bytes after the size field. */
enum { SIZE_LENGTH = 4, KIND_AT = 4, TIMESTAMP_AT = 8, ATTEMPTS_AT = 16, ID_AT = 18, BODY_AT = 34 };
enum { SMALLEST_SIZE = BODY_AT - SIZE_LENGTH };

static inline uint64_t
big_endian(const unsigned char *at, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) {
        value = value << 8 | at[i];
    }
    return value;
}

/* Return the size field of the complete, valid message frame at *frame*, of which *left* bytes are known, or -1. */
static inline int32_t
message_size(const unsigned char *frame, Py_ssize_t left, long long limit)
{
    if (left < BODY_AT || big_endian(frame + KIND_AT, 4) != FRAME_MESSAGE) {
        return -1;
    }
    int32_t size = (int32_t)big_endian(frame, SIZE_LENGTH);
    return size < SMALLEST_SIZE || size > limit || size > left - SIZE_LENGTH ? -1 : size;
}

/* Without the GIL, another thread may change a slot or a list at any time.  Therefore all code reads them with the
   functions below, which return new references.  In a build with the GIL, critical sections are empty blocks. */
#if PY_VERSION_HEX < 0x030D0000
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

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

/* Return the object in a slot, or NULL. */
static inline PyObject *
read_slot(const Known *known, PyObject *object, int which)
{
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(object);
    found = Py_XNewRef(*slot(known, object, which));
    Py_END_CRITICAL_SECTION();
    return found;
}

/* Return the pointer in a slot, only to compare it. */
static inline void *
peek(const Known *known, PyObject *object, int which)
{
    return __atomic_load_n(slot(known, object, which), __ATOMIC_ACQUIRE);
}

/* Replace the object in a slot by *value*, which may be NULL, if it is *expected*.  Return whether it was. */
static inline int
swap(const Known *known, PyObject *object, int which, PyObject *expected, PyObject *value)
{
    int was;
    Py_BEGIN_CRITICAL_SECTION(object);
    PyObject **place = slot(known, object, which);
    was = *place == expected;
    if (was) {
        __atomic_store_n(place, Py_XNewRef(value), __ATOMIC_RELEASE);
    }
    Py_END_CRITICAL_SECTION();
    if (was) {
        Py_XDECREF(expected);
    }
    return was;
}

/* Return item *i* of a list, or NULL without an exception if the list is shorter. */
static inline PyObject *
item(PyObject *list, Py_ssize_t i)
{
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(list);
    found = i < PyList_GET_SIZE(list) ? Py_NewRef(PyList_GET_ITEM(list, i)) : NULL;
    Py_END_CRITICAL_SECTION();
    return found;
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
    if (!is_known(&state->message, message) || peek(&state->message, message, TOKEN) != state->fresh) {
        return 0;
    }
    PyObject *attempts = read_slot(&state->message, message, ATTEMPTS);
    int overflow = 1;
    int is_allowed = attempts != NULL && PyLong_CheckExact(attempts) &&
                     PyLong_AsLongAndOverflow(attempts, &overflow) <= most && !overflow;
    Py_XDECREF(attempts);
    return is_allowed;
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
PyObject *finish_open(PyObject *module, PyObject *args);
PyObject *columns(PyObject *module, PyObject *args);

PyObject *scan_rows(PyObject *module, PyObject *args);
PyObject *frame_columns(PyObject *module, PyObject *args);

PyObject *pack(PyObject *module, PyObject *args);
PyObject *murmur3_32(PyObject *module, PyObject *args);

PyObject *receive(PyObject *module, PyObject *args);
PyObject *exchange(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
