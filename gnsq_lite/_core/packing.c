/* Encoding of an MPUB, and the hash of a key.

   pack() returns None if there is no body, if a body is empty, too large or not exactly bytes, or if the MPUB is too
   large.  Python then raises the error. */

#include "native.h"

#define MOST_PAYLOAD ((Py_ssize_t)0x7fffffff)

static inline char *
put_size(char *at, Py_ssize_t size)
{
    uint32_t value = (uint32_t)size;
    at[0] = (char)(value >> 24);
    at[1] = (char)(value >> 16);
    at[2] = (char)(value >> 8);
    at[3] = (char)value;
    return at + SIZE_LENGTH;
}

/* Return the total bytes of the count, the sizes and the bodies, or -1 if a body is invalid or the total too large. */
static Py_ssize_t
payload_of(PyObject *bodies, Py_ssize_t most)
{
    Py_ssize_t payload = SIZE_LENGTH;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bodies); i++) {
        PyObject *body = PyTuple_GET_ITEM(bodies, i);
        if (!PyBytes_CheckExact(body)) {
            return -1;
        }
        Py_ssize_t size = PyBytes_GET_SIZE(body);
        if (size == 0 || size > most || size > MOST_PAYLOAD - payload - SIZE_LENGTH) {
            return -1;
        }
        payload += SIZE_LENGTH + size;
    }
    return payload;
}

PyObject *
pack(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *head, *list, *packed = NULL;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "SO!n:pack", &head, &PyList_Type, &list, &most)) {
        return NULL;
    }
    PyObject *bodies = PyList_AsTuple(list); /* without the GIL, another thread may change the caller's list */
    if (bodies == NULL) {
        return NULL;
    }
    Py_ssize_t payload = PyTuple_GET_SIZE(bodies) == 0 ? -1 : payload_of(bodies, most);
    if (payload < 0 || PyBytes_GET_SIZE(head) > PY_SSIZE_T_MAX - SIZE_LENGTH - payload) {
        packed = Py_NewRef(Py_None);
        goto done;
    }
    packed = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(head) + SIZE_LENGTH + payload);
    if (packed == NULL) {
        goto done;
    }
    char *at = PyBytes_AS_STRING(packed);
    memcpy(at, PyBytes_AS_STRING(head), (size_t)PyBytes_GET_SIZE(head));
    at = put_size(at + PyBytes_GET_SIZE(head), payload);
    at = put_size(at, PyTuple_GET_SIZE(bodies));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bodies); i++) {
        PyObject *body = PyTuple_GET_ITEM(bodies, i);
        at = put_size(at, PyBytes_GET_SIZE(body));
        memcpy(at, PyBytes_AS_STRING(body), (size_t)PyBytes_GET_SIZE(body));
        at += PyBytes_GET_SIZE(body);
    }
done:
    Py_DECREF(bodies);
    return packed;
}

static inline uint32_t
rotated(uint32_t value, int bits)
{
    return (value << bits) | (value >> (32 - bits));
}

static inline uint32_t
scrambled(uint32_t k)
{
    return rotated(k * 0xcc9e2d51u, 15) * 0x1b873593u;
}

PyObject *
murmur3_32(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *data, *seed = NULL;
    if (!PyArg_ParseTuple(args, "S|O!:murmur3_32", &data, &PyLong_Type, &seed)) {
        return NULL;
    }
    /* Modulo 2**32, as in Python.  The format "I" does the same, but Python 3.15 warns if a seed is out of range. */
    uint32_t h = seed == NULL ? 0 : (uint32_t)PyLong_AsUnsignedLongMask(seed);
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data), left = size;
    for (; left >= 4; at += 4, left -= 4) {
        uint32_t k = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        h = rotated(h ^ scrambled(k), 13) * 5 + 0xe6546b64u;
    }
    uint32_t rest = 0;
    while (left > 0) {
        rest = rest << 8 | at[--left];
    }
    h ^= scrambled(rest) ^ (uint32_t)size;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return PyLong_FromUnsignedLong(h ^ h >> 16);
}
