/* What the accelerator's files share.  See gnsq_lite/speed.py for what it is. */

#ifndef GNSQ_LITE_SPEED_H
#define GNSQ_LITE_SPEED_H

#include "_slots.h"

#include <stddef.h>
#include <stdint.h>

enum { CONNECTION, TIMESTAMP, ATTEMPTS, ID, BODY, RECEIVED_AT, TOKEN, SLOTS };

typedef struct {
    PyTypeObject *message;    /* NULL until know() */
    PyObject *fresh;          /* what its token is at first */
    PyObject *kept;           /* and when its user answers later */
    Py_ssize_t offset[SLOTS]; /* where its slots are */
    PyTypeObject *tailed;     /* the last one whose slots "place" and "partition" were asked for; NULL: none */
    Py_ssize_t place_at, partition_at;
    PyTypeObject *fins; /* the types of _speed_run.c */
    PyTypeObject *runner;
    PyObject *popleft, *finish, *handled, *fins_name, *read_at_name; /* names it looks up */
} State;

static inline PyObject **
slot(const State *state, PyObject *message, int which)
{
    return (PyObject **)((char *)message + state->offset[which]);
}

/* The connection that was answered last, and where its FINs go: None where it wants to be called. */
typedef struct {
    PyObject *connection, *fins;
} Target;

/* Queue the FIN of *message*, which was claimed, or call that method of its connection; -1 with an exception. */
int queue_fin(const State *state, PyObject *message, Target *target, PyObject *method);

/* Of _speed_lists.c. */
PyObject *all_new(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *keep_open(PyObject *module, PyObject *messages);
PyObject *finish_open(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *columns(PyObject *module, PyObject *messages);

/* Add Fins and Runner to *module*; -1 with an exception. */
int add_run_types(PyObject *module, State *state);

#endif
