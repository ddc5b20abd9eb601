/* The optional accelerator of publishing threads: the way of a plain publish through a connection that threads share (see
   gnsq_lite/publish/shared_connection.py, whose fields these are and which tells what they mean).

   It sends commands, and settles reads of nothing but OKs.  At whatever else it stops, and Python goes on from there: each
   step leaves the fields as Python would.  The GIL guards them; the lock is taken too, because Python gives the GIL away
   in the middle of its steps.  No thread is interrupted in here, but where it waits.

   Who was answered is not woken at once: all would only wait for the GIL, and each wake-up would cost two.  One at a time
   has its turn.  When it publishes again it wakes the next one, having given the GIL away, and leaves its command to who
   comes last, who writes them all.  Whoever reads sees to it that no turn takes longer than a moment; where nobody reads,
   each wakes the next at once. */

#include "_shared.h"

#include <errno.h>
#include <sys/socket.h>

enum { NOT_BEGUN, DONE, BEGUN }; /* what carry() returns */
#define STALE 0.001              /* seconds without a read after which a connection is looked at before it is used */

static const char *const connection_fields[CONNECTION_FIELDS] = {
    "_queue", "_pending", "_followers", "_sender", "_reader", "_lent", "_ending", "_sends", "_reads",
    "read_at", "_lock", "_destination", "_taken", "_fd", "_bytes_in", "_bytes_out", "_join_queue",
};
static const char *const publication_fields[PUBLICATION_FIELDS] = {
    "decided", "gate", "sent", "_done", "_greenlet", "_wakers", "count", "cost", "request", "deadline",
};
static const char *const taken_fields[TAKEN_FIELDS] = {"messages", "on_more"};
static const char *const gathering_fields[GATHERING_FIELDS] = {"members", "waiters"};

static inline State *
state_of(PyObject *module)
{
    return (State *)PyModule_GetState(module);
}

/* Give the reading up: to the first thread that waits, or to nobody.  -1 with an exception. */
static int
leave_reading(State *state, PyObject *connection, PyObject *mine)
{
    const Py_ssize_t *at = state->connection_at;
    PyObject *followers = get(connection, at, FOLLOWERS), *arguments[1] = {followers}, *next = NULL;
    take_lock(state, connection);
    while (next == NULL && PyObject_Length(followers) > 0) {
        next = PyObject_VectorcallMethod(state->names[POPLEFT], arguments, 1, NULL);
        if (next != NULL && is_decided(state, next)) {
            Py_CLEAR(next);
        }
    }
    set(connection, at, READER, next == NULL ? Py_None : next);
    int watch = next == NULL && PyObject_Length(get(connection, at, PENDING)) > 0;
    free_lock(state, connection);
    Lock *gate = next == NULL ? NULL : (Lock *)get(next, state->publication_at, GATE);
    int *waited = NULL;
    if (gate != NULL && Py_IS_TYPE(gate, state->lock)) {
        state->watched = gate->is_carried ? connection : NULL;
        waited = lock_open(gate);
    } else {
        state->watched = NULL;
    }
    Py_XDECREF(next);
    int done = 0;
    if (state->turn == 0 && state->watched != NULL && state->first != NULL) {
        state->turn = PyThread_get_thread_ident();
        state->turn_began = monotonic();
    } else if (state->watched == NULL) {
        done = see_to_all(state, connection, mine);
    }
    lock_wake_alone(waited);
    if (done < 0) {
        return -1;
    }
    /* Python handles signals in there, and nothing is held any more. */
    return !watch ? 0 : hold(state, 0) < 0 ? -1 : call(connection, state->names[WATCH_SOON], NULL);
}

/* Wait for the answer, or to read, at a gate of its own; under the lock.  -1 with an exception. */
static int
wait_in_line(State *state, PyObject *connection, PyObject *mine)
{
    if (get(mine, state->publication_at, GATE) == Py_None) {
        PyObject *gate = (PyObject *)lock_new(state->lock, 1);
        if (gate == NULL) {
            return -1;
        }
        ((Lock *)gate)->is_carried = 1;
        set(mine, state->publication_at, GATE, gate);
        Py_DECREF(gate);
    }
    return call(get(connection, state->connection_at, FOLLOWERS), state->names[APPEND], mine);
}

/* Leave the line, if it is there; under the lock.  -1 with an exception. */
static int
leave_line(const State *state, PyObject *connection, PyObject *mine)
{
    PyObject *followers = get(connection, state->connection_at, FOLLOWERS);
    int waits = PySequence_Contains(followers, mine);
    return waits > 0 ? call(followers, state->names[REMOVE], mine) : waits;
}

int
handle_signals(State *state, PyObject *connection, PyObject *mine, int at_once)
{
    const Py_ssize_t *at = state->connection_at;
    if (get(connection, at, SENDER) == mine && send_for_all(state, connection) < 0) {
        return -1;
    }
    take_lock(state, connection);
    int reads = get(connection, at, READER) == mine, failed = reads ? 0 : leave_line(state, connection, mine);
    if (reads && !at_once) {
        set(connection, at, READER, Py_None);
    }
    free_lock(state, connection);
    if (failed < 0 || (reads && at_once && leave_reading(state, connection, mine) < 0)) {
        return -1;
    }
    /* Another thread may have left the sending to this one meanwhile. */
    if (get(connection, at, SENDER) == mine && (hold(state, 1) < 0 || send_for_all(state, connection) < 0)) {
        return -1;
    }
    if (hold(state, 0) < 0 || PyErr_CheckSignals() < 0 || hold(state, 1) < 0) {
        return -1;
    }
    take_lock(state, connection);
    if (get(connection, at, READER) == Py_None && get(connection, at, LENT) == Py_True) {
        set(connection, at, READER, mine);
    } else if (!is_decided(state, mine)) {
        failed = wait_in_line(state, connection, mine);
    }
    free_lock(state, connection);
    return failed;
}

/* -- the way of a publish */

int
hold(const State *state, int holds)
{
    PyObject *me = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    int failed = me == NULL ? -1 : holds ? PySet_Add(state->holding, me) : PySet_Discard(state->holding, me);
    Py_XDECREF(me);
    return failed < 0 ? -1 : 0;
}

/* Wait until it is answered, or is to read.  -1 with an exception. */
static int
follow(State *state, PyObject *connection, PyObject *mine, int *turn)
{
    Lock *gate = (Lock *)get(mine, state->publication_at, GATE);
    double deadline = PyFloat_AsDouble(get(mine, state->publication_at, DEADLINE));
    Py_INCREF(gate);
    gate->is_parked = 1;
    int opened = lock_wait(gate, deadline, turn);
    gate->is_parked = 0;
    if (gate->has_turn) {
        gate->has_turn = 0;
        state->turn = PyThread_get_thread_ident();
        if (state->watched == NULL) { /* it may never publish again */
            lock_wake_alone(give_turn(state, next_answered(state)));
        }
    }
    Py_DECREF(gate);
    if (opened == INTERRUPTED && handle_signals(state, connection, mine, 1) < 0) {
        return -1;
    }
    return opened == TAKEN_NOW ? 1 : keep_deadline(state, connection, mine);
}

/* Whether the connection turns out to have something to be read although nobody owes it anything. */
static int
is_stale(const State *state, PyObject *connection)
{
    const Py_ssize_t *at = state->connection_at;
    char byte;
    if (PyObject_Length(get(connection, at, PENDING)) != 0 ||
        monotonic() - PyFloat_AsDouble(get(connection, at, READ_AT)) <= STALE) {
        return 0;
    }
    ssize_t got = recv((int)PyLong_AsLong(get(connection, at, FD)), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Queue it and take what role is free, but leave the sending to who has the next turn; under the lock.  -1: an exception. */
static int
join(State *state, PyObject *connection, PyObject *mine, PyObject *command, int leaves_it)
{
    const Py_ssize_t *at = state->connection_at;
    PyObject *item = PyTuple_Pack(2, mine, command);
    int failed = item == NULL || PyList_Append(get(connection, at, QUEUE), item) < 0;
    Py_XDECREF(item);
    if (failed) {
        return -1;
    }
    if (get(connection, at, SENDER) == Py_None && !leaves_it) {
        set(connection, at, SENDER, mine);
    }
    if (get(connection, at, READER) == Py_None) {
        set(connection, at, READER, mine);
        return 0;
    }
    return wait_in_line(state, connection, mine);
}

/* Begin it, and say where who has the next turn is to be woken; 0: nothing was done.  -1 with an exception. */
static int
begin(State *state, PyObject *connection, PyObject *mine, PyObject *command, int **turn)
{
    const Py_ssize_t *at = state->connection_at;
    if (lock_acquire(lock_of(state, connection), INFINITY) < 0) {
        return -1;
    }
    if (hold(state, 1) < 0) {
        free_lock(state, connection);
        return -1;
    }
    int begun = get(connection, at, LENT) == Py_True;
    PyObject *silent = begun ? PyObject_GetAttr(get(connection, at, DESTINATION), state->names[SILENT]) : NULL;
    Py_XDECREF(silent);
    if (begun) {
        begun = silent == NULL ? -1 : silent == Py_False;
    }
    if (begun > 0 && get(connection, at, READER) == Py_None && is_stale(state, connection)) {
        begun = 0;
    }
    if (begun > 0) {
        int passes = state->turn == PyThread_get_thread_ident();
        if (passes) {
            state->at_once = 1;
            *turn = give_turn(state, next_answered(state));
        }
        begun = join(state, connection, mine, command, passes && state->turn != 0 && state->watched == connection);
        begun = begun < 0 ? -1 : 1;
    }
    free_lock(state, connection);
    return begun;
}

/* Send, read and follow until it has an outcome; 0: Python is to go on.  -1 with an exception. */
static int
go_on(State *state, PyObject *connection, PyObject *mine, int **turn)
{
    const Py_ssize_t *at = state->connection_at;
    while (!is_decided(state, mine)) {
        int done, *next = *turn;
        if (get(connection, at, SENDER) == mine) {
            if (send_for_all(state, connection) < 0) {
                return -1;
            }
            continue;
        }
        *turn = NULL;
        if (get(connection, at, READER) == mine) {
            done = read_for_all(state, connection, mine, next);
            if (done >= 0 && state->turn == 0 && state->first != NULL && !is_decided(state, mine)) {
                *turn = give_turn(state, next_answered(state));
            }
        } else if (Py_IS_TYPE(get(mine, state->publication_at, GATE), state->lock)) {
            done = follow(state, connection, mine, next);
        } else {
            lock_wake(next);
            return 0;
        }
        if (done < 0) {
            return -1;
        }
    }
    if (get(connection, at, READER) == mine && get(connection, at, LENT) == Py_True &&
        leave_reading(state, connection, mine) < 0) {
        return -1;
    }
    return get(connection, at, READER) != mine && get(connection, at, SENDER) != mine &&
           get(connection, at, ENDING) != Py_True;
}

/* Whether the fields that C looks into are what it takes them for. */
static int
is_known(const State *state, PyObject *connection)
{
    const Py_ssize_t *at = state->connection_at;
    return Py_IS_TYPE(get(connection, at, LOCK), state->lock) && PyList_CheckExact(get(connection, at, QUEUE)) &&
           Py_IS_TYPE(get(connection, at, TAKEN), state->taken);
}

PyDoc_STRVAR(carry_doc, "carry($module, connection, publication, command, /)\n--\n\n"
                        "Publish, and wait for the outcome.  Return 1: it has one; 2: it was begun, and Python goes on as\n"
                        "the fields say; 0: nothing was done.");

static PyObject *
carry(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of(module);
    if (count != 3 || state->connection == NULL || !PyObject_TypeCheck(args[0], state->connection) ||
        !PyObject_TypeCheck(args[1], state->publication) || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "carry(connection, publication, command: bytes)");
        return NULL;
    }
    if (!Py_IS_TYPE(args[1], state->publication) || !is_known(state, args[0])) {
        return PyLong_FromLong(NOT_BEGUN);
    }
    int *turn = NULL, done = NOT_BEGUN, begun = begin(state, args[0], args[1], args[2], &turn);
    if (begun > 0) {
        begun = go_on(state, args[0], args[1], &turn);
        done = begun > 0 && hold(state, 0) == 0 ? DONE : BEGUN;
    }
    lock_wake(turn);
    if (done == BEGUN) {
        PyObject *gate = get(args[1], state->publication_at, GATE);
        if (Py_IS_TYPE(gate, state->lock)) {
            ((Lock *)gate)->is_carried = 0;
        }
        state->watched = NULL; /* Python's readers do not look after them */
        lock_wake(give_turn(state, next_answered(state)));
        if (is_left(state, args[0])) {
            set(args[0], state->connection_at, SENDER, args[1]);
        }
    }
    return begun < 0 ? NULL : PyLong_FromLong(done);
}

/* Find the fields *names* of *type*, which are slots; -1 with an exception. */
static int
find(PyTypeObject *type, const char *const *names, Py_ssize_t *at, int count)
{
    for (int i = 0; i < count; i++) {
        at[i] = slot_offset(type, names[i], 1);
        if (at[i] < 0) {
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(know_doc, "know($module, connection, publication, taken, gathering, holding, /)\n--\n\n"
                       "Use the slots of these four classes, and that set, from now on.");

static PyObject *
know(PyObject *module, PyObject *args)
{
    State *state = state_of(module), found;
    PyTypeObject *types[4];
    PyObject *holding;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!:know", &PyType_Type, &types[0], &PyType_Type, &types[1], &PyType_Type,
                          &types[2], &PyType_Type, &types[3], &PySet_Type, &holding) ||
        find(types[0], connection_fields, found.connection_at, CONNECTION_FIELDS) < 0 ||
        find(types[1], publication_fields, found.publication_at, PUBLICATION_FIELDS) < 0 ||
        find(types[2], taken_fields, found.taken_at, TAKEN_FIELDS) < 0 ||
        find(types[3], gathering_fields, found.gathering_at, GATHERING_FIELDS) < 0) {
        return NULL;
    }
    memcpy(state->connection_at, found.connection_at, sizeof(found.connection_at));
    memcpy(state->publication_at, found.publication_at, sizeof(found.publication_at));
    memcpy(state->taken_at, found.taken_at, sizeof(found.taken_at));
    memcpy(state->gathering_at, found.gathering_at, sizeof(found.gathering_at));
    PyTypeObject **kept[4] = {&state->connection, &state->publication, &state->taken, &state->gathering};
    for (int i = 0; i < 4; i++) {
        Py_INCREF(types[i]);
        Py_XSETREF(*kept[i], types[i]);
    }
    Py_INCREF(holding);
    Py_XSETREF(state->holding, holding);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(forget_doc, "forget($module, /)\n--\n\n"
                         "In a forked child: whose turn it was, and who waited for one, are the parent's threads.");

static PyObject *
forget(PyObject *module, PyObject *unused)
{
    (void)unused;
    forget_turns(state_of(module));
    Py_RETURN_NONE;
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = state_of(module);
    Py_VISIT(state->lock);
    Py_VISIT(state->connection);
    Py_VISIT(state->publication);
    Py_VISIT(state->taken);
    Py_VISIT(state->gathering);
    Py_VISIT(state->holding);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = state_of(module);
    Py_CLEAR(state->lock);
    Py_CLEAR(state->connection);
    Py_CLEAR(state->publication);
    Py_CLEAR(state->taken);
    Py_CLEAR(state->gathering);
    Py_CLEAR(state->holding);
    Py_CLEAR(state->ok);
    for (int i = 0; i < NAMES; i++) {
        Py_CLEAR(state->names[i]);
    }
    forget_turns(state);
    return 0;
}

static void
release(void *module)
{
    (void)clear((PyObject *)module);
}

static int
execute(PyObject *module)
{
    State *state = state_of(module);
    static const char *const names[NAMES] = {"append", "popleft", "silent", "_keep_deadline", "_hand_on_sending",
                                             "_watch_soon", "remove"};
    for (int i = 0; i < NAMES; i++) {
        if ((state->names[i] = PyUnicode_InternFromString(names[i])) == NULL) {
            return -1;
        }
    }
    state->at_once = 1;
    state->lock = (PyTypeObject *)PyType_FromModuleAndSpec(module, &lock_spec, NULL);
    state->ok = PyTuple_Pack(2, Py_None, Py_None);
    if (state->lock == NULL || state->ok == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->lock);
}

static PyMethodDef methods[] = {
    {"know", know, METH_VARARGS, know_doc},
    {"carry", (PyCFunction)(void (*)(void))carry, METH_FASTCALL, carry_doc},
    {"forget", forget, METH_NOARGS, forget_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED}, /* all state is the module's */
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED}, /* it is the lock */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gnsq_lite._shared",
    .m_doc = "The optional accelerator of publishing threads; gnsq_lite.publish.shared_connection has the same in Python.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC
PyInit__shared(void)
{
    return PyModuleDef_Init(&definition);
}
