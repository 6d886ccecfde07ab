// mxrdma-doctor pair.
#include <pybind11/stl.h>

#include "bindings/support.h"
#include "fabric/pair.h"
#include "node/options.h"

namespace mxrdma::bindings {
namespace {

fabric::HostFabricOptions options_of(const node::NodeOptions& options) {
  fabric::HostFabricOptions made;
  made.policy = options.policy;
  made.token = options.token;
  made.devices = options.devices;
  made.gid_index = options.gid_index;
  made.spin_us = options.spin_us;
  return made;
}

py::dict measure(const node::NodeOptions& options, const std::string& host, uint16_t port,
                 const std::vector<uint64_t>& sizes, bool last) {
  const fabric::PairResult result = value_or_raise(without_gil([&] {
    return fabric::measure_pair(options_of(options), {host, port}, sizes, last, &check_signals);
  }));
  py::list steps;
  for (const fabric::PairStep& step : result.steps) {
    py::dict made;
    made["bytes"] = step.bytes;
    made["latency_us"] = step.latency_us;
    made["slowest_us"] = step.slowest_us;
    made["bytes_per_s"] = step.bytes_per_s;
    steps.append(made);
  }
  py::dict made;
  made["fabric"] = result.fabric;
  made["path"] = result.path;
  made["connect_ms"] = result.connect_ms;
  made["steps"] = steps;
  return made;
}

}  // namespace

void bind_pair(py::module_& module) {
  using fabric::PairListener;
  py::class_<PairListener>(module, "PairListener")
      .def(py::init([](const node::NodeOptions& options) {
             return std::make_unique<PairListener>(options_of(options));
           }),
           py::arg("options"))
      .def("listen",
           [](PairListener& listener, const std::string& host, uint16_t port) {
             const fabric::Address address = value_or_raise(without_gil([&] {
               return listener.listen({host, port});
             }));
             return std::make_pair(address.host, address.port);
           })
      .def("run",
           [](PairListener& listener, bool once) {
             raise_if_failed(without_gil([&] { return listener.run(once); }));
           })
      .def("stop", &PairListener::stop)
      .def("log", &PairListener::log);
  module.def("measure_pair", &measure, py::arg("options"), py::arg("host"), py::arg("port"),
             py::arg("sizes"), py::arg("last"));
}

}  // namespace mxrdma::bindings
