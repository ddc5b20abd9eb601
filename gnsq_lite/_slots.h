/* Where the slots of a Python class are, for the accelerators that fill and read them directly. */

#ifndef GNSQ_LITE_SLOTS_H
#define GNSQ_LITE_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_BOOL T_BOOL
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

/* The offset of the slot *name* of *type*, its own or, with *inherited*, of a base; -1 with an exception: TypeError where
   it has none. */
static inline Py_ssize_t
slot_offset(PyTypeObject *type, const char *name, int inherited)
{
    Py_ssize_t offset = -1;
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) {
        return -1;
    }
    if (Py_IS_TYPE(found, &PyMemberDescr_Type) &&
        (inherited ? PyType_IsSubtype(type, PyDescr_TYPE(found)) : PyDescr_TYPE(found) == type)) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == Py_T_OBJECT_EX && member->flags == 0 && member->offset >= (Py_ssize_t)sizeof(PyObject) &&
            member->offset + (Py_ssize_t)sizeof(PyObject *) <= type->tp_basicsize) {
            offset = member->offset;
        }
    }
    Py_DECREF(found);
    if (offset < 0) {
        PyErr_Format(PyExc_TypeError, "%s is no slot of %s", name, type->tp_name);
    }
    return offset;
}

#endif
