// What all binding files share: errors, Ctrl-C, buffers.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <utility>

#include "base/status.h"
#include "node/worker.h"

namespace mxrdma::bindings {

namespace py = pybind11;

// Becomes the exception class of mxrdma.errors that belongs to the code.
class CodedError : public std::exception {
 public:
  explicit CodedError(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return status_.message().c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

void register_errors();

// With the GIL held. A Python exception that a signal handler raised meanwhile (Ctrl-C) goes before
// the status.
void raise_if_failed(const Status& status);
template <typename T>
T value_or_raise(Result<T> result) {
  raise_if_failed(result.status());
  return std::move(result.value());
}

// For waits with the GIL released: runs Python's signal handlers; an error ends the wait.
Status check_signals();

// Runs `wait` with the GIL released and raises its failure.
template <typename Function>
auto without_gil(Function wait) {
  py::gil_scoped_release release;
  return wait();
}

// A C-contiguous buffer, held while it is in use. Anything else raises BufferError.
class Buffer {
 public:
  Buffer(const py::handle& object, bool writable);
  ~Buffer();
  Buffer(Buffer&& other) noexcept : view_(other.view_), held_(std::exchange(other.held_, false)) {}
  Buffer& operator=(Buffer&&) = delete;
  void* data() const { return view_.buf; }
  size_t bytes() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

void bind_options(py::module_& module);
void bind_worker(py::module_& module);
void bind_nodes(py::module_& module);
void bind_devices(py::module_& module);
void bind_pair(py::module_& module);

}  // namespace mxrdma::bindings
