/* drain() calls the handler for each queued message, and queues a FIN if the handler returns None.

   The Python functions of the Runner handle all other cases: an exception, another return value, an expired message,
   too many attempts, enable_async().  A handler may switch greenlets or release the GIL, so drain() keeps its state in
   local variables. */

#include "native.h"
#include <math.h>
#include <time.h>

/* A clock that advances every 1 to 4 ms, and costs a quarter of CLOCK_MONOTONIC. */
#ifndef CLOCK_MONOTONIC_COARSE
#define CLOCK_MONOTONIC_COARSE CLOCK_MONOTONIC
#endif

static double
seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Clear and return the current exception, with its traceback. */
static PyObject *
take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL && value != NULL) {
        (void)PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Call the function in slot *which* of *object* with up to two arguments.  Return 0, or -1 with an exception set. */
static int
call(const Known *known, PyObject *object, int which, PyObject *first, PyObject *second)
{
    PyObject *callable = read_slot(known, object, which);
    if (callable == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a slot is empty");
        return -1;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(callable, first, second, NULL);
    Py_DECREF(callable);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Do the same as Fins.add(), but leave the FIN to the caller of drain() if possible. */
static int
add_fin(const Known *known, PyObject *fins, PyObject *id, Target *target)
{
    PyObject *ids = read_slot(known, fins, IDS);
    int failed = ids == NULL || !PyList_Check(ids) || id == NULL || !PyBytes_Check(id);
    if (failed) {
        PyErr_SetString(PyExc_TypeError, "the ids of Fins are bytes in a list");
    }
    failed = failed || PyList_Append(ids, id) < 0;
    Py_XDECREF(ids);
    if (failed || peek(known, fins, DUE) == Py_True) {
        return -failed;
    }
    if (target->may_hold && (peek(known, fins, IS_HELD) == Py_True || peek(known, fins, IS_ALONE) == Py_True)) {
        if (target->held_since == 0.0) {
            target->held_since = seconds(CLOCK_MONOTONIC_COARSE);
        }
        return 0;
    }
    return swap(known, fins, DUE, Py_False, Py_True) ? call(known, fins, WAKE, NULL, NULL) : 0;
}

/* Write the FINs that are held, if any. */
static int
write_held(const State *state, Target *target)
{
    if (target->held_since == 0.0) {
        return 0;
    }
    target->held_since = 0.0;
    return call(&state->fins, target->fins, WRITE, NULL, NULL);
}

/* Return whether the held FINs must be written before the next job, which may take long. */
static int
is_write_due(const State *state, const Target *target)
{
    return target->held_since != 0.0 && (peek(&state->fins, target->fins, IS_HELD) != Py_True ||
                                         seconds(CLOCK_MONOTONIC_COARSE) != target->held_since);
}

int
queue_fin(const State *state, PyObject *message, Target *target, const char *method)
{
    PyObject *connection = read_slot(&state->message, message, CONNECTION);
    if (connection == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_connection");
        return -1;
    }
    if (connection == target->connection) {
        Py_DECREF(connection);
    }
    else {
        if (write_held(state, target) < 0) {
            Py_DECREF(connection);
            return -1;
        }
        PyObject *fins = PyObject_GetAttrString(connection, "fins");
        if (fins == NULL) {
            Py_DECREF(connection);
            return -1;
        }
        Py_XSETREF(target->fins, fins);
        Py_XSETREF(target->connection, connection);
    }
    if (state->fins.type != NULL && Py_IS_TYPE(target->fins, state->fins.type)) {
        PyObject *id = read_slot(&state->message, message, ID);
        int failed = add_fin(&state->fins, target->fins, id, target);
        Py_XDECREF(id);
        return failed;
    }
    PyObject *result = PyObject_CallMethod(target->connection, method, "O", message);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int
handle(const State *state, PyObject *runner, PyObject *handler, long most, PyObject *job, Target *target)
{
    const Known *known = &state->runner;
    if (!is_plain(state, job, most)) {
        return call(known, runner, RUN, job, NULL);
    }
    PyObject *result = PyObject_CallOneArg(handler, job);
    if (result == NULL) {
        PyObject *error = take_error();
        if (error == NULL) {
            PyErr_SetString(PyExc_SystemError, "the handler failed without an exception");
            return -1;
        }
        int done = call(known, runner, FAILED, job, error);
        Py_DECREF(error);
        return done;
    }
    int done = 0;
    if (result == Py_None && swap(&state->message, job, TOKEN, state->fresh, NULL)) {
        done = queue_fin(state, job, target, "handled");
    }
    else if (result != Py_None || peek(&state->message, job, TOKEN) != NULL) { /* NULL: the handler has answered */
        done = call(known, runner, RETURNED, job, result);
    }
    Py_DECREF(result);
    return done;
}

PyObject *
drain(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const State *state = PyModule_GetState(module);
    const Known *known = &state->runner;
    Target target = {NULL, NULL, 0, 0.0};
    int is_over = 0;
    if (count != 3 || !is_known(known, args[0]) || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "drain() takes a Runner, a queue, and a list of two places");
        return NULL;
    }
    PyObject *runner = args[0], *queue = args[1], *worker = args[2];
    PyObject *limit = read_slot(known, runner, MOST), *handler = read_slot(known, runner, HANDLER);
    if (handler == NULL || limit == NULL) {
        Py_XDECREF(limit);
        Py_XDECREF(handler);
        PyErr_SetString(PyExc_AttributeError, "a slot is empty");
        return NULL;
    }
    long most = PyLong_AsLong(limit);
    Py_DECREF(limit);
    PyObject *popleft = most == -1 && PyErr_Occurred() ? NULL : PyObject_GetAttrString(queue, "popleft");
    int failed = popleft == NULL;
    target.may_hold = peek(known, runner, WRITES_FINS) == Py_True;
    while (!failed) {
        Py_ssize_t left = PyObject_Size(queue);
        PyObject *surplus = read_slot(known, runner, SURPLUS_OF_WORKERS);
        long more = surplus == NULL ? 0 : PyLong_AsLong(surplus);
        Py_XDECREF(surplus);
        if (left <= 0 || more > 0 || (more == -1 && PyErr_Occurred())) {
            failed = PyErr_Occurred() != NULL || write_held(state, &target) < 0;
            break;
        }
        if (is_write_due(state, &target) && write_held(state, &target) < 0) {
            failed = 1;
            break;
        }
        PyObject *job = PyObject_CallNoArgs(popleft);
        if (job == NULL) {
            failed = !PyErr_ExceptionMatches(PyExc_IndexError);
            if (!failed) {
                PyErr_Clear(); /* another thread took the job */
                failed = write_held(state, &target) < 0;
            }
            break;
        }
        failed = PyList_SetItem(worker, 1, Py_NewRef(job)) < 0 ||
                 handle(state, runner, handler, most, job, &target) < 0;
        Py_DECREF(job);
        PyObject *ends = read_slot(known, runner, SLICE_ENDS);
        is_over = !failed && ends != NULL && PyFloat_Check(ends) && isfinite(PyFloat_AS_DOUBLE(ends)) &&
                  seconds(CLOCK_MONOTONIC) > PyFloat_AS_DOUBLE(ends);
        Py_XDECREF(ends);
        if (is_over) {
            break;
        }
    }
    Py_DECREF(handler);
    Py_XDECREF(popleft);
    Py_XDECREF(target.connection);
    Py_XDECREF(target.fins);
    if (failed || PyList_SetItem(worker, 1, Py_NewRef(Py_None)) < 0) {
        return NULL; /* the caller reads the job from *worker*: its messages may be unanswered */
    }
    return PyBool_FromLong(is_over);
}
