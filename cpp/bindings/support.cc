#include "bindings/support.h"

namespace mxrdma::bindings {
namespace {

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const CodedError& error) {
    try {
      py::object classes = py::module_::import("mxrdma.errors").attr("BY_CODE");
      py::object type = classes[py::str(code_name(error.status().code()))];
      PyErr_SetObject(type.ptr(), py::str(error.status().message()).ptr());
    } catch (py::error_already_set& failure) {
      failure.discard_as_unraisable("mxrdma.errors");
      PyErr_SetString(PyExc_RuntimeError, error.status().to_string().c_str());
    }
  }
}

}  // namespace

void register_errors() { py::register_exception_translator(&translate); }

void raise_if_failed(const Status& status) {
  if (PyErr_Occurred()) throw py::error_already_set();
  if (!status.is_ok()) throw CodedError(status);
}

Status check_signals() {
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return Status::ok();
  return Status(Code::cancelled, "interrupted");
}

Buffer::Buffer(const py::handle& object, bool writable) {
  if (PyObject_GetBuffer(object.ptr(), &view_,
                         PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0)
    throw py::error_already_set();
  held_ = true;
}

Buffer::~Buffer() {
  if (held_) PyBuffer_Release(&view_);
}

}  // namespace mxrdma::bindings
