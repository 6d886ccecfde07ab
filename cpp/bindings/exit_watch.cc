// Python tells nobody with which code it ends: an uncaught SystemExit reaches no hook, and is gone
// before the first atexit function runs. But the interpreter asks the exception for its `code` just
// then, with no Python frame on the stack, where everybody else who asks has one. So `code` becomes
// a descriptor of ours that notes this one question and is otherwise what it was.
#include "bindings/exit_watch.h"

#include <pybind11/stl.h>

#include <optional>

namespace mxrdma::bindings {
namespace {

// The interpreter lock guards these.
PyObject* original_code = nullptr;  // SystemExit's own descriptor; never freed, like the type
unsigned long main_thread = 0;
std::optional<int> noted;

// As the interpreter makes an exit status of it, and the kernel keeps the low byte.
int status_of(PyObject* code) {
  if (code == Py_None) return 0;
  if (!PyLong_Check(code)) return 1;  // it is printed
  const long value = PyLong_AsLong(code);
  if (value == -1) PyErr_Clear();  // too large
  return static_cast<int>(static_cast<unsigned long>(value) & 0xff);
}

PyObject* get_code(PyObject* self, void*) {
  PyObject* code =
      Py_TYPE(original_code)
          ->tp_descr_get(original_code, self, reinterpret_cast<PyObject*>(Py_TYPE(self)));
  if (code && !PyEval_GetFrame() && PyThread_get_thread_ident() == main_thread)
    noted = status_of(code);
  return code;
}

int set_code(PyObject* self, PyObject* value, void*) {
  return Py_TYPE(original_code)->tp_descr_set(original_code, self, value);
}

PyGetSetDef code_definition = {"code", get_code, set_code, "exception code", nullptr};

void watch_system_exit(unsigned long thread) {
  main_thread = thread;
  if (original_code) return;
  auto* type = reinterpret_cast<PyTypeObject*>(PyExc_SystemExit);
  PyObject* found = PyDict_GetItemString(type->tp_dict, "code");
  // Another interpreter than we know: then the code stays unknown.
  if (!found || !Py_TYPE(found)->tp_descr_get || !Py_TYPE(found)->tp_descr_set) return;
  PyObject* ours = PyDescr_NewGetSet(type, &code_definition);
  if (!ours) throw py::error_already_set();
  Py_INCREF(found);
  original_code = found;
  const int stored = PyDict_SetItemString(type->tp_dict, "code", ours);
  Py_DECREF(ours);
  if (stored != 0) throw py::error_already_set();
  PyType_Modified(type);
}

}  // namespace

void bind_exit_watch(py::module_& module) {
  module.def("watch_system_exit", &watch_system_exit, py::arg("main_thread"),
             "From now on, system_exit_code() knows. main_thread: threading.main_thread().ident");
  module.def(
      "system_exit_code", [] { return noted; },
      "The exit status if the interpreter is ending by a SystemExit, else None.");
}

}  // namespace mxrdma::bindings
