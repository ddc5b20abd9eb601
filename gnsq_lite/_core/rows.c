/* Rows: the frames of several messages of one read, which become columns (see gnsq_lite/consume/rows.py).

   A read costs one object, not one for each message, and each body is copied once. */

#include "native.h"

#include <limits.h>

enum { MICROSECOND = 1000, FIN_LENGTH = ID_LENGTH + 5 };

/* Return "ID\nFIN ID\nFIN ID" of *count* frames that message_size() has accepted. */
static PyObject *
join_ids(const unsigned char *frame, Py_ssize_t count)
{
    PyObject *joined = PyBytes_FromStringAndSize(NULL, count * FIN_LENGTH - (FIN_LENGTH - ID_LENGTH));
    if (joined == NULL) {
        return NULL;
    }
    char *out = PyBytes_AS_STRING(joined);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i > 0) {
            memcpy(out, "\nFIN ", FIN_LENGTH - ID_LENGTH);
            out += FIN_LENGTH - ID_LENGTH;
        }
        memcpy(out, frame + ID_AT, ID_LENGTH);
        out += ID_LENGTH;
        frame += SIZE_LENGTH + big_endian(frame, SIZE_LENGTH);
    }
    return joined;
}

PyObject *
scan_rows(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *make, *owner, *found;
    Py_ssize_t at;
    long long limit, most;
    if (!PyArg_ParseTuple(args, "SnLOOO!L:scan_rows", &data, &at, &limit, &make, &owner, &PyList_Type, &found, &most)) {
        return NULL;
    }
    if (at < 0 || most < 1) {
        return PyErr_Format(PyExc_ValueError, "scan_rows() from %zd, at most %lld rows", at, most);
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t length = PyBytes_GET_SIZE(data);
    int32_t size = 0;
    while (size >= 0 && at < length) {
        Py_ssize_t first = at, count = 0;
        int64_t oldest = INT64_MAX, newest = INT64_MIN;
        int attempts = 0;
        while (count < most && (size = message_size(start + at, length - at, limit)) >= 0) {
            int64_t stamp = (int64_t)big_endian(start + at + TIMESTAMP_AT, 8);
            int tried = (int)big_endian(start + at + ATTEMPTS_AT, 2);
            oldest = stamp < oldest ? stamp : oldest;
            newest = stamp > newest ? stamp : newest;
            attempts = tried > attempts ? tried : attempts;
            count++;
            at += SIZE_LENGTH + size;
        }
        if (count > 0) {
            PyObject *ids = join_ids(start + first, count);
            PyObject *rows = ids == NULL ? NULL
                                         : PyObject_CallFunction(make, "OOnnnLLiN", owner, data, first, at, count,
                                                                 (long long)oldest, (long long)newest, attempts, ids);
            int failed = rows == NULL || PyList_Append(found, rows) < 0;
            Py_XDECREF(rows);
            if (failed) {
                return NULL;
            }
        }
    }
    return PyLong_FromSsize_t(at);
}

/* Read the part (data, at, end) at *index* of *parts*.  Return the data, or NULL with an exception set. */
static const unsigned char *
read_part(PyObject *parts, Py_ssize_t index, Py_ssize_t *at, Py_ssize_t *end)
{
    PyObject *data, *part = PyTuple_GET_ITEM(parts, index);
    if (!PyTuple_Check(part) || !PyArg_ParseTuple(part, "Snn", &data, at, end)) {
        PyErr_SetString(PyExc_TypeError, "a part is (data: bytes, at: int, end: int)");
        return NULL;
    }
    if (*at < 0 || *end < *at || *end > PyBytes_GET_SIZE(data)) {
        PyErr_SetString(PyExc_ValueError, "a part is outside its data");
        return NULL;
    }
    return (const unsigned char *)PyBytes_AS_STRING(data); /* *parts* keeps the data alive */
}

/* Count the messages of *parts* and the bytes of their bodies.  Return -1 with an exception set for other frames. */
static int
count_parts(PyObject *parts, Py_ssize_t *count, Py_ssize_t *total)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
        Py_ssize_t at, end;
        const unsigned char *data = read_part(parts, i, &at, &end);
        while (data != NULL && at < end) {
            int32_t size = message_size(data + at, end - at, INT32_MAX);
            if (size < 0) {
                PyErr_SetString(PyExc_ValueError, "a part has more than complete message frames");
                return -1;
            }
            *count += 1;
            *total += size - SMALLEST_SIZE;
            at += SIZE_LENGTH + size;
        }
        if (data == NULL) {
            return -1;
        }
    }
    if (*total > INT32_MAX || *count > INT32_MAX / ID_LENGTH - 1) {
        PyErr_SetString(PyExc_OverflowError, "more than 2 GiB of bodies or ids");
        return -1;
    }
    return 0;
}

PyObject *
frame_columns(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *parts, *bytes[5] = {NULL, NULL, NULL, NULL, NULL}, *found = NULL;
    Py_ssize_t count = 0, total = 0, at = 0, end = 0;
    if (!PyArg_ParseTuple(args, "O!:frame_columns", &PyTuple_Type, &parts) || count_parts(parts, &count, &total) < 0) {
        return NULL;
    }
    Py_ssize_t sizes[5] = {count * 8, count * 4, count * ID_LENGTH, (count + 1) * 4, total};
    char *places[5];
    for (int i = 0; i < 5; i++) {
        if ((bytes[i] = PyBytes_FromStringAndSize(NULL, sizes[i])) == NULL) {
            goto done;
        }
        places[i] = PyBytes_AS_STRING(bytes[i]);
    }
    int32_t used = 0;
    memcpy(places[3], &used, sizeof(used));
    for (Py_ssize_t part = 0, row = 0; part < PyTuple_GET_SIZE(parts); part++) {
        const unsigned char *data = read_part(parts, part, &at, &end);
        for (; at < end; row++) {
            const unsigned char *frame = data + at;
            int32_t size = (int32_t)big_endian(frame, SIZE_LENGTH), attempts = (int32_t)big_endian(frame + ATTEMPTS_AT, 2);
            int64_t stamp = (int64_t)big_endian(frame + TIMESTAMP_AT, 8) / MICROSECOND;
            memcpy(places[0] + row * 8, &stamp, sizeof(stamp));
            memcpy(places[1] + row * 4, &attempts, sizeof(attempts));
            memcpy(places[2] + row * ID_LENGTH, frame + ID_AT, ID_LENGTH);
            memcpy(places[4] + used, frame + BODY_AT, (size_t)(size - SMALLEST_SIZE));
            used += size - SMALLEST_SIZE;
            memcpy(places[3] + (row + 1) * 4, &used, sizeof(used));
            at += SIZE_LENGTH + size;
        }
    }
    found = PyTuple_Pack(5, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]);
done:
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(bytes[i]);
    }
    return found;
}
