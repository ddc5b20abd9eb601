/* The optional accelerator of publishing: an MPUB's bytes in one pass over its bodies, and the hash of a key (see
   gnsq_lite/packing.py).

   Of a batch it decides nothing: where a body is not exactly bytes, is empty or too large, it says None, and Python finds
   out what is wrong and says so. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { SIZE_LENGTH = 4 };
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

/* Bytes that the bodies take with their sizes, and count before them; -1 where one is not lawful. */
static Py_ssize_t
payload_of(PyObject *bodies, Py_ssize_t most)
{
    Py_ssize_t payload = SIZE_LENGTH;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bodies); i++) {
        PyObject *body = PyList_GET_ITEM(bodies, i);
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

PyDoc_STRVAR(pack_doc, "pack($module, head, bodies, most, /)\n--\n\n"
                       "Return *head*, the size, the count, and each of *bodies* with its size; None where one is not\n"
                       "exactly bytes, is empty or has more than *most* bytes, where all are too large, or are none.");

static PyObject *
pack(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !PyBytes_Check(args[0]) || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "pack(head: bytes, bodies: list, most: int)");
        return NULL;
    }
    Py_ssize_t most = PyLong_AsSsize_t(args[2]);
    if (most == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *head = args[0], *bodies = args[1];
    Py_ssize_t payload = PyList_GET_SIZE(bodies) == 0 ? -1 : payload_of(bodies, most);
    if (payload < 0 || PyBytes_GET_SIZE(head) > PY_SSIZE_T_MAX - SIZE_LENGTH - payload) {
        Py_RETURN_NONE;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(head) + SIZE_LENGTH + payload);
    if (packed == NULL) {
        return NULL;
    }
    char *at = PyBytes_AS_STRING(packed);
    memcpy(at, PyBytes_AS_STRING(head), (size_t)PyBytes_GET_SIZE(head));
    at = put_size(at + PyBytes_GET_SIZE(head), payload);
    at = put_size(at, PyList_GET_SIZE(bodies));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bodies); i++) { /* the GIL is held: nobody changed the list meanwhile */
        PyObject *body = PyList_GET_ITEM(bodies, i);
        at = put_size(at, PyBytes_GET_SIZE(body));
        memcpy(at, PyBytes_AS_STRING(body), (size_t)PyBytes_GET_SIZE(body));
        at += PyBytes_GET_SIZE(body);
    }
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

PyDoc_STRVAR(murmur_doc, "murmur3_32($module, data, seed=0, /)\n--\n\n"
                         "Return the unsigned 32-bit murmur3 (x86 variant) of *data*.");

static PyObject *
murmur3_32(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count < 1 || count > 2 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "murmur3_32(data: bytes, seed: int = 0)");
        return NULL;
    }
    unsigned long seed = count == 2 ? PyLong_AsUnsignedLongMask(args[1]) : 0;
    if (seed == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), left = size;
    uint32_t h = (uint32_t)seed;
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

static PyMethodDef methods[] = {
    {"murmur3_32", (PyCFunction)(void (*)(void))murmur3_32, METH_FASTCALL, murmur_doc},
    {"pack", (PyCFunction)(void (*)(void))pack, METH_FASTCALL, pack_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED}, /* there is no state */
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED}, /* reads a list twice, which must not change meanwhile */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gnsq_lite._pack",
    .m_doc = "The optional accelerator of publishing; gnsq_lite.packing is its home in Python.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__pack(void)
{
    return PyModuleDef_Init(&definition);
}
