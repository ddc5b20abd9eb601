/* What the files of the publishing threads' accelerator share.  See gnsq_lite/_shared.c for what it is. */

#ifndef GNSQ_LITE_SHARED_H
#define GNSQ_LITE_SHARED_H

#include "_slots.h"

#include <math.h>
#include <time.h>

enum {
    QUEUE, PENDING, FOLLOWERS, SENDER, READER, LENT, ENDING, SENDS, READS,
    READ_AT, LOCK, DESTINATION, TAKEN, FD, BYTES_IN, BYTES_OUT, JOIN_QUEUE, CONNECTION_FIELDS
};
enum { DECIDED, GATE, SENT, IS_DONE, GREENLET, WAKERS, COUNT, COST, REQUEST, DEADLINE, PUBLICATION_FIELDS };
enum { MESSAGES, ON_MORE, TAKEN_FIELDS };
enum { TOO_LATE, TAKEN_NOW, INTERRUPTED }; /* what lock_wait() returns */
enum { MEMBERS, WAITERS, GATHERING_FIELDS };

/* A lock of the operating system's threads whose state can be seen with the GIL held. */
typedef struct Lock {
    PyObject_HEAD
    int state;         /* a futex: open, held, or held and waited for */
    int is_carried;    /* whose it is is in carry() */
    int is_parked;     /* and waits at it */
    int has_turn;      /* and is woken because its turn has come */
    struct Lock *next; /* among those that were answered */
} Lock;

enum { OK_LENGTH = 10 }; /* bytes of the frame */
#define NOBODY_YET ((unsigned long)-1) /* whose turn it is, until that thread is awake */
/* Names that are looked up. */
enum { APPEND, POPLEFT, SILENT, KEEP_DEADLINE, HAND_ON_SENDING, WATCH_SOON, REMOVE, NAMES };

typedef struct {
    PyTypeObject *lock, *connection, *publication, *taken, *gathering; /* but for the lock NULL until know() */
    PyObject *holding; /* the threads that hold something, by ident: see gnsq_lite/net/nested.py */
    Py_ssize_t connection_at[CONNECTION_FIELDS], publication_at[PUBLICATION_FIELDS], taken_at[TAKEN_FIELDS];
    Py_ssize_t gathering_at[GATHERING_FIELDS];
    PyObject *ok; /* what an OK decides */
    PyObject *names[NAMES];
    Lock *first, *last;  /* those that were answered and are not awake */
    unsigned long turn;  /* the thread whose turn it is; 0: nobody's */
    double turn_began;   /* monotonic seconds */
    int at_once;         /* how many are woken when a turn takes too long */
    PyObject *watched;   /* the connection whose reader, in carry(), sees to them; not owned, only compared */
} State;

/* Of _shared_lock.c. */

/* Wait, at most until *deadline* in monotonic seconds, and hold *lock*; who waits at *turn* is woken once the GIL is given
   away. */
int lock_wait(Lock *lock, double deadline, int *turn);
/* Wait and hold it, whatever signals come. */
void lock_take(Lock *lock);
/* Wait, have signals handled, and hold it: 1, 0: the time is over.  -1 with an exception. */
int lock_acquire(Lock *lock, double deadline);
/* Open *lock*; return where its waiter is to be woken, NULL if there is none. */
int *lock_open(Lock *lock);
/* Wake who waits there, with the GIL or without: the memory is not looked at.  NULL: nobody. */
void lock_wake(int *waited);
/* Give the GIL away for that: who was woken with it held may have the core at once, and would only wait for the GIL. */
void lock_wake_alone(int *waited);
/* Return an open or held lock, or NULL with an exception. */
Lock *lock_new(PyTypeObject *type, int held);
extern PyType_Spec lock_spec;

/* The first that was answered and whose thread still waits, or NULL. */
Lock *next_answered(State *state);
void add_answered(State *state, Lock *gate);
/* Open *gate*, whose thread has its turn, and return where to wake it, with the GIL or without. */
int *give_turn(State *state, Lock *gate);
/* The turn took too long: wake the next, and twice as many as the last time. */
void end_turn(State *state);
/* Nobody has a turn any more, and who was answered goes on. */
void forget_turns(State *state);

/* Of _shared.c and _shared_io.c; -1 with an exception. */

/* Add *count* to a field that is an int. */
int add(PyObject *of, const Py_ssize_t *at, int which, Py_ssize_t count);
/* Say that this thread holds something, or does no more; what nests in it is told so. */
int hold(const State *state, int holds);
/* Call a method of no or one argument for its effect. */
int call(PyObject *of, PyObject *name, PyObject *argument);
/* Whether commands wait that nobody sends. */
int is_left(const State *state, PyObject *connection);
/* Send for all; what nsqd does not take is for Python. */
int send_for_all(const State *state, PyObject *connection);
/* Wake the next that was answered, and send what was left to be sent. */
int see_to_all(State *state, PyObject *connection, PyObject *mine);
/* Give its thread up if its deadline has passed. */
int keep_deadline(const State *state, PyObject *connection, PyObject *mine);
/* Have signals handled, by a thread that has no role meanwhile: a handler may publish, flush, close, or take its time.
   *at_once*: one is sure to be. */
int handle_signals(State *state, PyObject *connection, PyObject *mine, int at_once);
/* Read once for all; *turn* is where to wake who has the next turn. */
int read_for_all(State *state, PyObject *connection, PyObject *mine, int *turn);
/* Of _shared_settle.c: settle what a read answers if it is nothing but OKs to plain publishes, or to MPUBs of them; return
   whether it was.  -1: an exception. */
int settle_oks(State *state, PyObject *connection, const char *data, Py_ssize_t length);
/* Monotonic seconds, as Python's. */
double monotonic(void);

static inline PyObject **
field(PyObject *of, const Py_ssize_t *at, int which)
{
    return (PyObject **)((char *)of + at[which]);
}

static inline PyObject *
get(PyObject *of, const Py_ssize_t *at, int which)
{
    PyObject *value = *field(of, at, which);
    return value == NULL ? Py_None : value;
}

static inline void
set(PyObject *of, const Py_ssize_t *at, int which, PyObject *value)
{
    PyObject **where = field(of, at, which), *before = *where;
    Py_INCREF(value);
    *where = value;
    Py_XDECREF(before);
}

static inline int
is_decided(const State *state, PyObject *publication)
{
    PyObject *decided = get(publication, state->publication_at, DECIDED);
    return !PyList_Check(decided) || PyList_GET_SIZE(decided) > 0;
}

static inline Lock *
lock_of(const State *state, PyObject *connection)
{
    return (Lock *)get(connection, state->connection_at, LOCK);
}

/* No signal is handled meanwhile: a handler that publishes would wait for what this thread does for all. */
static inline void
take_lock(const State *state, PyObject *connection)
{
    lock_take(lock_of(state, connection));
}

static inline void
free_lock(const State *state, PyObject *connection)
{
    lock_wake(lock_open(lock_of(state, connection)));
}

#endif
