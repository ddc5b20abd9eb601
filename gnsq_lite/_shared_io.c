/* How a thread sends and reads for all (see gnsq_lite/_shared.c). */

#include "_shared.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum { MOST_WRITES = 8 }; /* of a thread for others, before another does them */
enum { SHORT = 65536 };   /* bytes of a write for which the GIL is kept */
#define MOMENT 200e-6     /* seconds until a turn takes too long, and until few answers do */
/* With so many publishes unanswered, that part of the answers, of so many at most, is waited for at once; while others
   have their turns, who would only wait for the GIL too, all are. */
enum { MANY = 8, SHARE = 4, MOST = 400 };
enum { READ_LENGTH = 400 * OK_LENGTH };

int
add(PyObject *of, const Py_ssize_t *at, int which, Py_ssize_t count)
{
    long long before = PyLong_AsLongLong(get(of, at, which));
    if (before == -1 && PyErr_Occurred()) {
        return -1;
    }
    PyObject *value = PyLong_FromLongLong(before + count);
    if (value == NULL) {
        return -1;
    }
    set(of, at, which, value);
    Py_DECREF(value);
    return 0;
}

int
call(PyObject *of, PyObject *name, PyObject *argument)
{
    PyObject *arguments[2] = {of, argument};
    PyObject *got = PyObject_VectorcallMethod(name, arguments, argument == NULL ? 1 : 2, NULL);
    Py_XDECREF(got);
    return got == NULL ? -1 : 0;
}

/* -- sending */

int
is_left(const State *state, PyObject *connection)
{
    return get(connection, state->connection_at, SENDER) == Py_None &&
           PyList_GET_SIZE(get(connection, state->connection_at, QUEUE)) > 0;
}

/* How many bytes of the queue are to be written. */
static Py_ssize_t
size_of(const State *state, PyObject *queue)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(queue); i++) {
        PyObject *publication = PyTuple_GET_ITEM(PyList_GET_ITEM(queue, i), 0);
        if (publication == Py_None || !is_decided(state, publication)) {
            size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(PyList_GET_ITEM(queue, i), 1));
        }
    }
    return size;
}

/* Expect the answers of what is queued, and copy it; -1 with an exception. */
static int
empty_queue(const State *state, PyObject *connection, PyObject *queue, char *at)
{
    PyObject *pending = get(connection, state->connection_at, PENDING);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(queue); i++) {
        PyObject *publication = PyTuple_GET_ITEM(PyList_GET_ITEM(queue, i), 0);
        PyObject *command = PyTuple_GET_ITEM(PyList_GET_ITEM(queue, i), 1);
        if (publication != Py_None) {
            if (is_decided(state, publication)) { /* given up before its turn */
                continue;
            }
            if (call(pending, state->names[APPEND], publication) < 0) {
                (void)PyList_SetSlice(queue, 0, i, NULL);
                set(connection, state->connection_at, SENDS, Py_True); /* answers are expected to what is not sent */
                return -1;
            }
            set(publication, state->publication_at, SENT, Py_True);
        }
        memcpy(at, PyBytes_AS_STRING(command), (size_t)PyBytes_GET_SIZE(command));
        at += PyBytes_GET_SIZE(command);
    }
    return 0;
}

/* Join neighbours in the queue to MPUBs, where the connection does that, and return the queue; NULL with an exception. */
static PyObject *
join_queue(const State *state, PyObject *connection)
{
    PyObject *queue = get(connection, state->connection_at, QUEUE);
    PyObject *join = get(connection, state->connection_at, JOIN_QUEUE);
    if (join == Py_None ||
        (PyList_GET_SIZE(queue) == 1 && PyBytes_GET_SIZE(PyTuple_GET_ITEM(PyList_GET_ITEM(queue, 0), 1)) > 0)) {
        return queue;
    }
    PyObject *joined = PyObject_CallOneArg(join, queue);
    if (joined != NULL) {
        set(connection, state->connection_at, QUEUE, joined);
        Py_DECREF(joined);
    }
    return joined;
}

/* What to write now; its answers are expected.  None: nothing is left, and the sender is done.  NULL with an exception. */
static PyObject *
take_queue(const State *state, PyObject *connection)
{
    PyObject *fresh = PyList_New(0), *data = NULL;
    if (fresh == NULL) {
        return NULL;
    }
    take_lock(state, connection);
    PyObject *queue = get(connection, state->connection_at, QUEUE);
    if (PyList_GET_SIZE(queue) == 0 || get(connection, state->connection_at, LENT) != Py_True) {
        set(connection, state->connection_at, SENDER, Py_None);
        data = Py_None;
        Py_INCREF(data);
    } else if ((queue = join_queue(state, connection)) != NULL &&
               (data = PyBytes_FromStringAndSize(NULL, size_of(state, queue))) != NULL) {
        if (empty_queue(state, connection, queue, PyBytes_AS_STRING(data)) < 0) {
            Py_CLEAR(data);
        } else {
            PyObject *emptied = queue;
            Py_INCREF(emptied);
            set(connection, state->connection_at, QUEUE, fresh);
            free_lock(state, connection);
            Py_DECREF(emptied);
            Py_DECREF(fresh);
            return data;
        }
    }
    free_lock(state, connection);
    Py_DECREF(fresh);
    return data;
}

/* Send what is taken now of *data*, and set *error* to the errno. */
static ssize_t
write_some(int fd, PyObject *data, int *error)
{
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    size_t size = (size_t)PyBytes_GET_SIZE(data);
    ssize_t sent;
    if (size <= SHORT) { /* it does not wait: to get the GIL back would take longer */
        sent = send(fd, PyBytes_AS_STRING(data), size, flags);
        *error = errno;
        return sent;
    }
    Py_BEGIN_ALLOW_THREADS
    sent = send(fd, PyBytes_AS_STRING(data), size, flags);
    *error = errno;
    Py_END_ALLOW_THREADS
    return sent;
}

int
send_for_all(const State *state, PyObject *connection)
{
    int fd = (int)PyLong_AsLong(get(connection, state->connection_at, FD));
    for (int i = 0; i < MOST_WRITES; i++) {
        PyObject *data = take_queue(state, connection);
        if (data == NULL || data == Py_None) {
            Py_XDECREF(data);
            return data == NULL ? -1 : 0;
        }
        int error;
        ssize_t sent = write_some(fd, data, &error);
        if (sent != PyBytes_GET_SIZE(data)) {
            set(connection, state->connection_at, SENDS, Py_True); /* from here on it may be interrupted */
            PyObject *result = PyObject_CallMethod(connection, "_on_short_write", "Oni", data, (Py_ssize_t)sent, error);
            Py_DECREF(data);
            Py_XDECREF(result);
            return result == NULL ? -1 : 0;
        }
        Py_DECREF(data);
        if (add(connection, state->connection_at, BYTES_OUT, sent) < 0) {
            return -1;
        }
    }
    return call(connection, state->names[HAND_ON_SENDING], NULL);
}

int
see_to_all(State *state, PyObject *connection, PyObject *mine)
{
    if (state->watched == NULL) {
        lock_wake_alone(give_turn(state, next_answered(state))); /* who does the same */
    } else {
        end_turn(state);
    }
    if (!is_left(state, connection)) {
        return 0;
    }
    set(connection, state->connection_at, SENDER, mine);
    return send_for_all(state, connection);
}

/* -- reading */

double
monotonic(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Read, without the GIL, as recv(), once what there is to be read has come; *watching*, wait no longer than a moment.

   nsqd answers one by one.  Where many answers are owed, *least* bytes of them are waited for, but for a moment at most:
   a wake-up for each would cost more than the publish. */
static ssize_t
receive(int fd, char *into, int watching, int least)
{
    const struct timespec moment = {.tv_nsec = (long)(MOMENT * 1e9)};
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    int came = 0, one = 1;
    if (least > 1) {
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least));
    }
    if (watching || least > 1) {
        came = ppoll(&polled, 1, &moment, NULL) < 0 ? -errno : polled.revents;
    }
    if (least > 1) {
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
    }
    if (came < 0) {
        return came;
    }
    ssize_t got = recv(fd, into, READ_LENGTH, watching || came > 0 ? MSG_DONTWAIT : 0);
    return got < 0 ? -errno : got;
}

/* Give a read, or what became of it, to Python.  -1 with an exception. */
static int
hand_read(const State *state, PyObject *connection, PyObject *mine, const char *data, ssize_t got)
{
    PyObject *result;
    if (got < 0) {
        result = PyObject_CallMethod(connection, "_on_failed_read", "iO", (int)-got, mine);
    } else {
        set(connection, state->connection_at, READS, Py_True); /* from here on it may be interrupted */
        result = PyObject_CallMethod(connection, "_take_read", "y#O", data, (Py_ssize_t)got, mine);
    }
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

int
keep_deadline(const State *state, PyObject *connection, PyObject *mine)
{
    if (monotonic() < PyFloat_AsDouble(get(mine, state->publication_at, DEADLINE))) {
        return 0;
    }
    return call(connection, state->names[KEEP_DEADLINE], mine);
}

/* Settle what a read answers and count it; 0: it is for Python.  -1 with an exception. */
static int
take_answers(State *state, PyObject *connection, const char *data, ssize_t got)
{
    take_lock(state, connection);
    int settled = settle_oks(state, connection, data, got);
    PyObject *read_at = settled > 0 ? PyFloat_FromDouble(monotonic()) : NULL;
    if (read_at != NULL) {
        set(connection, state->connection_at, READ_AT, read_at);
        Py_DECREF(read_at);
    }
    free_lock(state, connection);
    if (settled <= 0) {
        return settled;
    }
    return read_at == NULL || add(connection, state->connection_at, BYTES_IN, got) < 0 ? -1 : 1;
}

/* Take what was read: a number of bytes, or the negative errno.  -1 with an exception. */
static int
take_read(State *state, PyObject *connection, PyObject *mine, const char *data, ssize_t got)
{
    int nothing = got == -EINTR || got == -EAGAIN || got == -EWOULDBLOCK;
    if (nothing && handle_signals(state, connection, mine, got == -EINTR) < 0) {
        return -1;
    }
    if (!nothing) {
        int taken = got > 0 ? take_answers(state, connection, data, got) : 0;
        if (taken < 0) {
            set(connection, state->connection_at, READS, Py_True); /* what was read is lost */
            return -1;
        }
        if (taken == 0 && hand_read(state, connection, mine, data, got) < 0) {
            return -1;
        }
    }
    return is_decided(state, mine) ? 0 : keep_deadline(state, connection, mine);
}

int
read_for_all(State *state, PyObject *connection, PyObject *mine, int *turn)
{
    char data[READ_LENGTH];
    int fd = (int)PyLong_AsLong(get(connection, state->connection_at, FD));
    int watching = state->first != NULL || is_left(state, connection);
    Py_ssize_t owed = PyObject_Length(get(connection, state->connection_at, PENDING));
    int least = owed < MANY ? 1 : (int)(owed < MOST ? owed : MOST) / (watching ? 1 : SHARE) * OK_LENGTH;
    ssize_t got;
    state->watched = connection;
    Py_BEGIN_ALLOW_THREADS
    lock_wake(turn);
    got = receive(fd, data, watching, least);
    Py_END_ALLOW_THREADS
    if (take_read(state, connection, mine, data, got) < 0) {
        return -1;
    }
    if (get(connection, state->connection_at, READER) != mine) {
        state->watched = NULL; /* the reading is the loop's */
    } else if (!watching || monotonic() - state->turn_began < MOMENT) {
        return 0; /* who has the turn may yet publish */
    }
    return see_to_all(state, connection, mine);
}
