#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "bindings/exit_watch.h"
#include "bindings/support.h"

namespace mxrdma::bindings {
namespace {

std::atomic<int> forced_exit_code{0};

// Python offers no later moment: the interpreter has ended and has flushed its own streams.
void end_with_forced_code() {
  const int code = forced_exit_code;
  if (code == 0) return;
  fflush(nullptr);
  _exit(code);
}

void force_exit_code(int code) {
  static bool registered = false;
  if (!registered && Py_AtExit(&end_with_forced_code) != 0)
    throw CodedError(Status(Code::internal, "Python refuses another exit function"));
  registered = true;
  forced_exit_code = code;
}

}  // namespace
}  // namespace mxrdma::bindings

PYBIND11_MODULE(_core, module) {
  using namespace mxrdma::bindings;
  module.attr("__version__") = MXRDMA_VERSION;
  register_errors();
  bind_options(module);
  bind_worker(module);
  bind_nodes(module);
  bind_devices(module);
  bind_pair(module);
  bind_exit_watch(module);
  module.def("force_exit_code", &force_exit_code,
             "The process ends with this code, whatever Python would return; 0 takes it back.");
}
