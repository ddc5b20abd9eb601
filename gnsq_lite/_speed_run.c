/* The accelerator's second half: Fins, which gathers the FINs of a connection, and Runner, which calls the handler for
   one queued message after the other and answers those it simply returned from.

   Whatever is not that plain case - an exception, an expired message, too many attempts, an answer kept for later - is
   left to the Python functions that Runner was given.  A handler may switch greenlets or release the GIL: nothing here
   is held in a place that another call of drain() would change. */

#include "_speed.h"
#include <math.h>
#include <time.h>

enum { FIN_OVERHEAD = 5, FIRST_ROOM = 32 * 21, KEPT_ROOM = 512 * 21 };

/* -- Fins ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *wake;
    char *bytes;
    Py_ssize_t used, room, count;
    char due;
} Fins;

static int
make_room(Fins *self, Py_ssize_t more)
{
    if (more <= self->room - self->used) {
        return 0;
    }
    if (more > PY_SSIZE_T_MAX / 4 || self->used > PY_SSIZE_T_MAX / 4) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t room = self->room > 0 ? self->room : FIRST_ROOM;
    while (room < self->used + more) {
        room *= 2;
    }
    char *bytes = PyMem_Realloc(self->bytes, (size_t)room);
    if (bytes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->bytes = bytes;
    self->room = room;
    return 0;
}

/* Queue the FIN of *id*, bytes; wake who sends them unless that was done.  -1 with an exception. */
static int
fins_add(Fins *self, PyObject *id)
{
    if (id == NULL || !PyBytes_Check(id)) {
        PyErr_SetString(PyExc_TypeError, "a message's id is bytes");
        return -1;
    }
    Py_ssize_t length = PyBytes_GET_SIZE(id);
    if (length > PY_SSIZE_T_MAX / 8 || make_room(self, length + FIN_OVERHEAD) < 0) {
        return PyErr_Occurred() ? -1 : (PyErr_NoMemory(), -1);
    }
    char *at = self->bytes + self->used;
    memcpy(at, "FIN ", 4);
    memcpy(at + 4, PyBytes_AS_STRING(id), (size_t)length);
    at[4 + length] = '\n';
    self->used += length + FIN_OVERHEAD;
    self->count++;
    if (!self->due) {
        self->due = 1;
        PyObject *result = PyObject_CallNoArgs(self->wake);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    return 0;
}

PyDoc_STRVAR(add_doc, "add($self, id, /)\n--\n\nQueue the FIN of *id*; call wake unless it is due.");

static PyObject *
fins_add_method(PyObject *self, PyObject *id)
{
    if (fins_add((Fins *)self, id) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc, "take($self, /)\n--\n\nReturn the bytes of the queued FINs, and their number; forget them.");

static PyObject *
fins_take(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    Fins *self = (Fins *)object;
    /* Neither of the two is known to the collector, so making them runs no code that could call add(). */
    PyObject *bytes = PyBytes_FromStringAndSize(self->bytes, self->used);
    PyObject *count = PyLong_FromSsize_t(self->count);
    PyObject *result = NULL;
    if (bytes != NULL && count != NULL) {
        self->used = self->count = 0;
        if (self->room > KEPT_ROOM) {
            PyMem_Free(self->bytes);
            self->bytes = NULL;
            self->room = 0;
        }
        result = PyTuple_Pack(2, bytes, count);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(count);
    return result;
}

static PyObject *
fins_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *wake;
    if ((keywords != NULL && PyDict_GET_SIZE(keywords) != 0) || !PyArg_ParseTuple(args, "O:Fins", &wake)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "Fins() takes no keywords");
        }
        return NULL;
    }
    Fins *self = (Fins *)type->tp_alloc(type, 0);
    if (self != NULL) {
        Py_INCREF(wake);
        self->wake = wake;
    }
    return (PyObject *)self;
}

static int
fins_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Fins *)self)->wake);
    return 0;
}

static int
fins_clear(PyObject *self)
{
    /* None, not NULL: another object of the dying cycle may still call add(). */
    PyObject *wake = ((Fins *)self)->wake;
    Py_INCREF(Py_None);
    ((Fins *)self)->wake = Py_None;
    Py_XDECREF(wake);
    return 0;
}

static void
fins_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Fins *)self)->wake);
    PyMem_Free(((Fins *)self)->bytes);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
fins_length(PyObject *self)
{
    return ((Fins *)self)->count;
}

static PyMethodDef fins_methods[] = {
    {"add", fins_add_method, METH_O, add_doc},
    {"take", fins_take, METH_NOARGS, take_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef fins_members[] = {
    {"due", Py_T_BOOL, offsetof(Fins, due), 0, "Whether wake was called, or need not be."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot fins_slots[] = {
    {Py_tp_doc, (void *)"The FINs of one connection that are not sent yet."},
    {Py_tp_new, (void *)fins_new},
    {Py_tp_dealloc, (void *)fins_dealloc},
    {Py_tp_traverse, (void *)fins_traverse},
    {Py_tp_clear, (void *)fins_clear},
    {Py_tp_methods, fins_methods},
    {Py_tp_members, fins_members},
    {Py_sq_length, (void *)fins_length},
    {0, NULL},
};

static PyType_Spec fins_spec = {
    .name = "gnsq_lite._speed.Fins",
    .basicsize = sizeof(Fins),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = fins_slots,
};

/* -- Runner -------------------------------------------------------------------------------------------------------- */

enum { QUEUE_EMPTY, TURN_OVER, SURPLUS };
enum { HANDLER, RUN, FAILED, SETTLED, CALLABLES };

typedef struct {
    PyObject_HEAD
    PyObject *call[CALLABLES];
    long most;
    double turn_ends;
    Py_ssize_t surplus;
} Runner;

static double
seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Take over the exception that is set, its traceback in it. */
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

static int
call_and_forget(PyObject *callable, PyObject *first, PyObject *second)
{
    PyObject *result = PyObject_CallFunctionObjArgs(callable, first, second, NULL);
    if (result == NULL) {
        return -1;
    }
    Py_DECREF(result);
    return 0;
}

int
queue_fin(const State *state, PyObject *message, Target *target, PyObject *method)
{
    PyObject *connection = *slot(state, message, CONNECTION);
    if (connection == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_connection");
        return -1;
    }
    if (connection != target->connection) {
        Py_INCREF(connection);
        PyObject *fins = PyObject_GetAttr(connection, state->fins_name);
        if (fins == NULL) {
            Py_DECREF(connection);
            return -1;
        }
        Py_XSETREF(target->fins, fins);
        Py_XSETREF(target->connection, connection);
    }
    if (Py_IS_TYPE(target->fins, state->fins)) {
        return fins_add((Fins *)target->fins, *slot(state, message, ID));
    }
    PyObject *result = PyObject_CallMethodOneArg(target->connection, method, message);
    if (result == NULL) {
        return -1;
    }
    Py_DECREF(result);
    return 0;
}

/* Whether *job* is a message whose handler may be called with no more ado. */
static int
is_plain(const Runner *self, const State *state, PyObject *job)
{
    if (state->message == NULL || !PyObject_TypeCheck(job, state->message) ||
        *slot(state, job, TOKEN) != state->fresh) {
        return 0;
    }
    PyObject *attempts = *slot(state, job, ATTEMPTS);
    if (attempts == NULL || !PyLong_CheckExact(attempts)) {
        return 0;
    }
    int overflow;
    long count = PyLong_AsLongAndOverflow(attempts, &overflow);
    return !overflow && count <= self->most;
}

/* Whether a handler returned what nobody runs; then NULL with a TypeError, and *returned* is given back.

   False, which was a failure to pynsq, gets a warning, by default once. */
static PyObject *
refuse_unrun(PyObject *returned)
{
    if (returned == Py_False) {
        const char *text = "the handler returned False, but its message is finished anyway:"
                           " raise Requeue() to requeue it";
        if (PyErr_WarnEx(PyExc_RuntimeWarning, text, 1) < 0) {
            Py_DECREF(returned);
            return NULL;
        }
        return returned;
    }
    int has_close = PyCoro_CheckExact(returned) || PyGen_CheckExact(returned);
    if (!has_close && !PyAsyncGen_CheckExact(returned)) {
        return returned;
    }
    PyObject *closed = has_close ? PyObject_CallMethod(returned, "close", NULL) : Py_NewRef(Py_None);
    if (closed != NULL) {
        Py_DECREF(closed);
        PyErr_Format(PyExc_TypeError, "the handler returned a %s, which is never run", Py_TYPE(returned)->tp_name);
    }
    Py_DECREF(returned);
    return NULL;
}

static int
handle(Runner *self, const State *state, PyObject *job, Target *target)
{
    if (!is_plain(self, state, job)) {
        return call_and_forget(self->call[RUN], job, NULL);
    }
    PyObject *result = PyObject_CallOneArg(self->call[HANDLER], job);
    if (result != NULL && result != Py_None) {
        result = refuse_unrun(result);
    }
    if (result == NULL) {
        PyObject *error = take_error();
        if (error == NULL) {
            PyErr_SetString(PyExc_SystemError, "the handler failed without an exception");
            return -1;
        }
        int done = call_and_forget(self->call[FAILED], job, error);
        Py_DECREF(error);
        return done;
    }
    Py_DECREF(result);
    PyObject **place = slot(state, job, TOKEN), *token = *place;
    if (token == NULL) {
        return 0; /* the handler has answered */
    }
    if (token != state->fresh) {
        return call_and_forget(self->call[SETTLED], job, NULL);
    }
    *place = NULL;
    Py_DECREF(token);
    return queue_fin(state, job, target, state->handled);
}

/* Show *job* in *seat*, a worker's list of itself and what it is at; -1 with an exception. */
static int
show(PyObject *seat, PyObject *job)
{
    Py_INCREF(job);
    return PyList_SetItem(seat, 1, job); /* which takes the reference, and fails where there is no such place */
}

/* At the end of a drain: no job, whatever exception is set. */
static int
show_none(PyObject *seat)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int done = show(seat, Py_None);
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
    }
    return done;
}

PyDoc_STRVAR(drain_doc, "drain($self, queue, seat=None, /)\n--\n\n"
                        "Handle the jobs of *queue*, a deque, one after the other; return why it stopped.");

static PyObject *
drain(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Runner *self = (Runner *)object;
    const State *state = PyType_GetModuleState(Py_TYPE(object));
    Target target = {NULL, NULL};
    long why = QUEUE_EMPTY;
    if (count < 1 || count > 2 || (count == 2 && !PyList_Check(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "drain() takes a queue, and a list of two places");
        return NULL;
    }
    PyObject *queue = args[0], *seat = count == 2 ? args[1] : NULL;
    int failed = state == NULL;
    while (!failed) {
        Py_ssize_t left = PyObject_Size(queue);
        if (left <= 0) {
            failed = left < 0;
            break;
        }
        if (self->surplus > 0) {
            why = SURPLUS;
            break;
        }
        PyObject *job = PyObject_CallMethodNoArgs(queue, state->popleft);
        if (job == NULL) {
            if (PyErr_ExceptionMatches(PyExc_IndexError)) {
                PyErr_Clear(); /* another thread took it */
            }
            else {
                failed = 1;
            }
            break;
        }
        failed = (seat != NULL && show(seat, job) < 0) || handle(self, state, job, &target) < 0;
        Py_DECREF(job);
        if (!failed && self->turn_ends != HUGE_VAL && seconds() > self->turn_ends) {
            why = TURN_OVER;
            break;
        }
    }
    Py_XDECREF(target.connection);
    Py_XDECREF(target.fins);
    failed = (seat != NULL && show_none(seat) < 0) || failed;
    return failed ? NULL : PyLong_FromLong(why);
}

PyDoc_STRVAR(begin_turn_doc, "begin_turn($self, seconds, /)\n--\n\nLet drain() return *seconds* from now.");

static PyObject *
begin_turn(PyObject *self, PyObject *length)
{
    double value = PyFloat_AsDouble(length);
    if (value == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    ((Runner *)self)->turn_ends = seconds() + value;
    Py_RETURN_NONE;
}

static PyObject *
runner_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"handler", "most", "run", "failed", "settled", NULL};
    PyObject *call[CALLABLES];
    long most;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OlOOO:Runner", names, &call[HANDLER], &most, &call[RUN],
                                     &call[FAILED], &call[SETTLED])) {
        return NULL;
    }
    Runner *self = (Runner *)type->tp_alloc(type, 0);
    if (self != NULL) {
        for (int i = 0; i < CALLABLES; i++) {
            Py_INCREF(call[i]);
            self->call[i] = call[i];
        }
        self->most = most;
        self->turn_ends = HUGE_VAL;
    }
    return (PyObject *)self;
}

static int
runner_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < CALLABLES; i++) {
        Py_VISIT(((Runner *)self)->call[i]);
    }
    return 0;
}

static int
runner_clear(PyObject *self)
{
    for (int i = 0; i < CALLABLES; i++) {
        PyObject *old = ((Runner *)self)->call[i];
        Py_INCREF(Py_None);
        ((Runner *)self)->call[i] = Py_None; /* as in fins_clear() */
        Py_XDECREF(old);
    }
    return 0;
}

static void
runner_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < CALLABLES; i++) {
        Py_CLEAR(((Runner *)self)->call[i]);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef runner_methods[] = {
    {"drain", (PyCFunction)(void (*)(void))drain, METH_FASTCALL, drain_doc},
    {"begin_turn", begin_turn, METH_O, begin_turn_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef runner_members[] = {
    {"run", Py_T_OBJECT_EX, offsetof(Runner, call) + RUN * sizeof(PyObject *), Py_READONLY, "Handles one job."},
    {"surplus", Py_T_PYSSIZET, offsetof(Runner, surplus), 0, "Above 0: drain() returns after its job."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_doc, (void *)"Calls a handler for one queued message after the other."},
    {Py_tp_new, (void *)runner_new},
    {Py_tp_dealloc, (void *)runner_dealloc},
    {Py_tp_traverse, (void *)runner_traverse},
    {Py_tp_clear, (void *)runner_clear},
    {Py_tp_methods, runner_methods},
    {Py_tp_members, runner_members},
    {0, NULL},
};

static PyType_Spec runner_spec = {
    .name = "gnsq_lite._speed.Runner",
    .basicsize = sizeof(Runner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = runner_slots,
};

int
add_run_types(PyObject *module, State *state)
{
    state->popleft = PyUnicode_InternFromString("popleft");
    state->finish = PyUnicode_InternFromString("finish");
    state->handled = PyUnicode_InternFromString("handled");
    state->fins_name = PyUnicode_InternFromString("fins");
    state->read_at_name = PyUnicode_InternFromString("read_at");
    if (state->popleft == NULL || state->finish == NULL || state->handled == NULL || state->fins_name == NULL ||
        state->read_at_name == NULL) {
        return -1;
    }
    state->fins = (PyTypeObject *)PyType_FromModuleAndSpec(module, &fins_spec, NULL);
    if (state->fins == NULL || PyModule_AddType(module, state->fins) < 0) {
        return -1;
    }
    state->runner = (PyTypeObject *)PyType_FromModuleAndSpec(module, &runner_spec, NULL);
    return state->runner == NULL ? -1 : PyModule_AddType(module, state->runner);
}
