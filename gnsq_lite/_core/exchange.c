/* Sends a command and reads the answer for a publishing thread.

   Python's socket methods begin again after each signal, with their whole time limit, so timer signals could delay the
   end of a publish for ever.  They also take the GIL between the send and the read.  Both functions store their results
   in lists before they return, so an exception that another thread raises in this thread loses neither. */

#include "native.h"

#include <errno.h>
#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { READ_SIZE = 4096 }; /* EXCHANGE_SIZE in net/stream.py */

static int
append(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Append the result of a read to *received*: the bytes, or nothing after the time limit or a signal. */
static PyObject *
store(PyObject *received, const char *data, Py_ssize_t size, int error)
{
    if (size >= 0) {
        if (append(received, PyBytes_FromStringAndSize(data, size)) < 0) {
            return NULL;
        }
    }
    else if (error != EAGAIN && error != EWOULDBLOCK && error != EINTR) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

PyObject *
receive(PyObject *Py_UNUSED(module), PyObject *args)
{
    char data[READ_SIZE];
    int descriptor;
    PyObject *received;
    if (!PyArg_ParseTuple(args, "iO!:receive", &descriptor, &PyList_Type, &received)) {
        return NULL;
    }
    Py_ssize_t size;
    Py_BEGIN_ALLOW_THREADS
    size = recv(descriptor, data, sizeof data, 0);
    Py_END_ALLOW_THREADS
    return store(received, data, size, errno);
}

PyObject *
exchange(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    char data[READ_SIZE];
    if (count != 4 || !PyLong_Check(args[0]) || !PyBytes_Check(args[1]) || !PyList_Check(args[2]) ||
        !PyList_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "exchange(descriptor: int, command: bytes, counts: list, received: list)");
        return NULL;
    }
    int descriptor = (int)PyLong_AsLong(args[0]), error = 0;
    const char *command = PyBytes_AS_STRING(args[1]);
    Py_ssize_t length = PyBytes_GET_SIZE(args[1]), sent, size = -1;
    Py_BEGIN_ALLOW_THREADS
    sent = send(descriptor, command, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    error = errno;
    if (sent == length) {
        size = recv(descriptor, data, sizeof data, 0);
        error = errno;
    }
    Py_END_ALLOW_THREADS
    if (append(args[2], PyLong_FromSsize_t(sent < 0 ? 0 : sent)) < 0) {
        return NULL;
    }
    return sent >= 0 && sent < length ? Py_NewRef(Py_None) : store(args[3], data, size, error);
}
