// Which exit code the interpreter is about to return for a SystemExit that nobody caught.
#pragma once

#include "bindings/support.h"

namespace mxrdma::bindings {

void bind_exit_watch(py::module_& module);

}  // namespace mxrdma::bindings
