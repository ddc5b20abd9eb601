/* A lock of the operating system's threads, as _thread's, that C can look at, and whose turn it is at those locks (see
   gnsq_lite/_shared.c). */

#include "_shared.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN, HELD, WAITED };
enum { MOST_AT_ONCE = 1 << 20 };
#define LONGEST 1e9 /* seconds */

static int
futex(int *at, int operation, int value, const struct timespec *until)
{
    return (int)syscall(SYS_futex, at, operation | FUTEX_PRIVATE_FLAG, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

int *
lock_open(Lock *lock)
{
    return __atomic_exchange_n(&lock->state, OPEN, __ATOMIC_ACQ_REL) == WAITED ? &lock->state : NULL;
}

void
lock_wake(int *waited)
{
    if (waited != NULL) {
        (void)futex(waited, FUTEX_WAKE, 1, NULL);
    }
}

void
lock_wake_alone(int *waited)
{
    if (waited != NULL) {
        Py_BEGIN_ALLOW_THREADS
        lock_wake(waited);
        Py_END_ALLOW_THREADS
    }
}

/* Wait, without the GIL; return 0, or an errno. */
static int
wait_for(Lock *lock, const struct timespec *until)
{
    while (__atomic_exchange_n(&lock->state, WAITED, __ATOMIC_ACQ_REL) != OPEN) {
        if (futex(&lock->state, FUTEX_WAIT_BITSET, WAITED, until) < 0 && errno != EAGAIN) {
            return errno;
        }
    }
    return 0;
}

int
lock_wait(Lock *lock, double deadline, int *turn)
{
    int open = OPEN, error;
    if (turn == NULL &&
        __atomic_compare_exchange_n(&lock->state, &open, HELD, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        return TAKEN_NOW;
    }
    double whole = deadline < 0 ? 0 : deadline > LONGEST ? LONGEST : floor(deadline);
    struct timespec until = {.tv_sec = (time_t)whole};
    if (deadline > 0 && deadline < LONGEST) {
        until.tv_nsec = (long)((deadline - whole) * 1e9);
    }
    Py_BEGIN_ALLOW_THREADS
    lock_wake(turn);
    error = wait_for(lock, deadline < LONGEST ? &until : NULL);
    Py_END_ALLOW_THREADS
    return error == 0 ? TAKEN_NOW : error == ETIMEDOUT ? TOO_LATE : INTERRUPTED;
}

void
lock_take(Lock *lock)
{
    while (lock_wait(lock, INFINITY, NULL) != TAKEN_NOW) {
    }
}

int
lock_acquire(Lock *lock, double deadline)
{
    int taken;
    while ((taken = lock_wait(lock, deadline, NULL)) == INTERRUPTED) {
        if (PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return taken == TAKEN_NOW;
}

Lock *
lock_new(PyTypeObject *type, int held)
{
    Lock *lock = (Lock *)type->tp_alloc(type, 0);
    if (lock != NULL) {
        lock->state = held ? HELD : OPEN;
    }
    return lock;
}

/* -- turns of those that were answered */

Lock *
next_answered(State *state)
{
    Lock *gate;
    while ((gate = state->first) != NULL) {
        state->first = gate->next;
        gate->next = NULL;
        if (gate->is_parked) {
            return gate;
        }
        Py_DECREF(gate);
    }
    return NULL;
}

void
add_answered(State *state, Lock *gate)
{
    Py_INCREF(gate);
    if (state->first == NULL) {
        state->first = gate;
    } else {
        state->last->next = gate;
    }
    state->last = gate;
}

int *
give_turn(State *state, Lock *gate)
{
    if (gate == NULL) {
        state->turn = 0;
        return NULL;
    }
    state->turn = NOBODY_YET;
    state->turn_began = monotonic();
    gate->has_turn = 1;
    int *waited = lock_open(gate);
    Py_DECREF(gate);
    return waited;
}

void
end_turn(State *state)
{
    Lock *gate;
    for (int i = 1; i < state->at_once && (gate = next_answered(state)) != NULL; i++) {
        lock_wake(lock_open(gate));
        Py_DECREF(gate);
    }
    state->at_once = state->at_once < MOST_AT_ONCE ? 2 * state->at_once : MOST_AT_ONCE;
    lock_wake(give_turn(state, next_answered(state)));
}

void
forget_turns(State *state)
{
    Lock *gate;
    while ((gate = next_answered(state)) != NULL) {
        lock_wake(lock_open(gate));
        Py_DECREF(gate);
    }
    state->turn = 0;
    state->at_once = 1;
    state->watched = NULL;
}

/* -- the type */

static PyObject *
make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"held", NULL};
    int held = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|p:Lock", names, &held)) {
        return NULL;
    }
    return (PyObject *)lock_new(type, held);
}

static void
dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
acquire(PyObject *self, PyObject *args)
{
    int blocking = 1;
    double timeout = -1;
    struct timespec time;
    if (!PyArg_ParseTuple(args, "|pd:acquire", &blocking, &timeout)) {
        return NULL;
    }
    clock_gettime(CLOCK_MONOTONIC, &time);
    double deadline = (double)time.tv_sec + (double)time.tv_nsec / 1e9 + (blocking && timeout > 0 ? timeout : 0);
    int taken = lock_acquire((Lock *)self, blocking && timeout < 0 ? INFINITY : deadline);
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

static PyObject *
release(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (__atomic_load_n(&((Lock *)self)->state, __ATOMIC_ACQUIRE) == OPEN) {
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    lock_wake(lock_open((Lock *)self));
    Py_RETURN_NONE;
}

static PyObject *
enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return lock_acquire((Lock *)self, INFINITY) < 0 ? NULL : PyBool_FromLong(1);
}

static PyObject *
leave(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    return release(self, NULL);
}

static PyMethodDef methods[] = {
    {"acquire", acquire, METH_VARARGS, "acquire($self, blocking=True, timeout=-1.0, /)\n--\n\nAs _thread's."},
    {"release", release, METH_NOARGS, "release($self, /)\n--\n\nAs _thread's; from any thread."},
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Lock(held=False)\n--\n\nA lock of the operating system's threads."},
    {Py_tp_new, make},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

/* On Python 3.14 it gets an __enter__ that is no C (gnsq_lite.net.os_threads.enter). */
#if PY_VERSION_HEX >= 0x030E0000 && PY_VERSION_HEX < 0x030F0000
#define LOCK_FLAGS Py_TPFLAGS_DEFAULT
#else
#define LOCK_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE)
#endif

PyType_Spec lock_spec = {
    .name = "gnsq_lite._shared.Lock",
    .basicsize = sizeof(Lock),
    .flags = LOCK_FLAGS,
    .slots = slots,
};
