// Plain values: options, job configuration, keys, optimizers.
#include <pybind11/stl.h>

#include "base/log.h"
#include "bindings/support.h"
#include "fabric/host_fabric.h"
#include "node/options.h"
#include "store/store.h"
#include "wire/control.h"

namespace mxrdma::bindings {
namespace {

struct Named {
  const char* name;
  int value;
};

template <typename T, size_t N>
T from_name(const Named (&names)[N], const std::string& name, const char* what) {
  std::string known;
  for (const Named& entry : names) {
    if (name == entry.name) return static_cast<T>(entry.value);
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  throw CodedError(Status(
      Code::config, std::string(what) + " '" + name + "' is not known; choose one of: " + known));
}

template <typename T, size_t N>
std::string to_name(const Named (&names)[N], T value) {
  for (const Named& entry : names)
    if (static_cast<int>(value) == entry.value) return entry.name;
  return "?";
}

const Named kFabrics[] = {{"auto", static_cast<int>(fabric::Policy::automatic)},
                          {"shm", static_cast<int>(fabric::Policy::shm)},
                          {"tcp", static_cast<int>(fabric::Policy::tcp)},
                          {"verbs", static_cast<int>(fabric::Policy::verbs)}};
const Named kOptimizers[] = {{"none", static_cast<int>(wire::OptimizerKind::none)},
                             {"sgd", static_cast<int>(wire::OptimizerKind::sgd)},
                             {"nag", static_cast<int>(wire::OptimizerKind::nag)},
                             {"adam", static_cast<int>(wire::OptimizerKind::adam)},
                             {"python", static_cast<int>(wire::OptimizerKind::python)}};
const Named kLevels[] = {{"debug", static_cast<int>(LogLevel::debug)},
                         {"info", static_cast<int>(LogLevel::info)},
                         {"warning", static_cast<int>(LogLevel::warning)},
                         {"error", static_cast<int>(LogLevel::error)},
                         {"off", static_cast<int>(LogLevel::off)}};

wire::KeyRequest make_key(const std::string& name, int64_t updater_index, int dtype,
                          const std::vector<int64_t>& shape) {
  if (dtype < 0 || dtype > 255 || !dtype_valid(static_cast<uint8_t>(dtype)))
    throw CodedError(
        Status(Code::invalid_argument, "type flag " + std::to_string(dtype) + " is not supported"));
  wire::KeyRequest key;
  key.name = name;
  key.updater_index = updater_index;
  key.dtype = static_cast<DType>(dtype);
  key.shape = shape;
  key.elements = 1;
  for (int64_t size : shape) {
    if (size < 0 ||
        __builtin_mul_overflow(key.elements, static_cast<uint64_t>(size), &key.elements))
      throw CodedError(Status(Code::invalid_argument,
                              "a shape's sizes must be positive and their product fit 64 bits"));
  }
  return key;
}

}  // namespace

void bind_options(py::module_& module) {
  using node::NodeOptions;
  py::class_<NodeOptions>(module, "NodeOptions")
      .def(py::init<>())
      .def_property(
          "scheduler_host", [](const NodeOptions& o) { return o.scheduler.host; },
          [](NodeOptions& o, const std::string& host) { o.scheduler.host = host; })
      .def_property(
          "scheduler_port", [](const NodeOptions& o) { return o.scheduler.port; },
          [](NodeOptions& o, uint16_t port) { o.scheduler.port = port; })
      .def_property(
          "token", [](const NodeOptions& o) { return py::bytes(o.token); },
          [](NodeOptions& o, const py::bytes& token) { o.token = token; })
      .def_property(
          "fabric", [](const NodeOptions& o) { return to_name(kFabrics, o.policy); },
          [](NodeOptions& o, const std::string& name) {
            o.policy = from_name<fabric::Policy>(kFabrics, name, "fabric");
          })
      .def_readwrite("devices", &NodeOptions::devices)
      .def_readwrite("gid_index", &NodeOptions::gid_index)
      .def_readwrite("bind_host", &NodeOptions::bind_host)
      .def_readwrite("host_name", &NodeOptions::host_name)
      .def_property(
          "preferred_rank",
          [](const NodeOptions& o) {
            return o.preferred_rank == wire::kAnyRank ? std::nullopt
                                                      : std::optional<uint32_t>(o.preferred_rank);
          },
          [](NodeOptions& o, std::optional<uint32_t> rank) {
            o.preferred_rank = rank.value_or(wire::kAnyRank);
          })
      .def_readwrite("join_timeout_ms", &NodeOptions::join_timeout_ms)
      .def_readwrite("compute_threads", &NodeOptions::compute_threads)
      .def_readwrite("spin_us", &NodeOptions::spin_us);

  using wire::JobConfig;
  py::class_<JobConfig>(module, "JobConfig")
      .def(py::init<>())
      .def_readwrite("workers", &JobConfig::workers)
      .def_readwrite("servers", &JobConfig::servers)
      .def_readwrite("slot_bytes", &JobConfig::slot_bytes)
      .def_readwrite("slots_per_worker", &JobConfig::slots_per_worker)
      .def_readwrite("staleness", &JobConfig::staleness)
      .def_readwrite("heartbeat_interval_ms", &JobConfig::heartbeat_interval_ms)
      .def_readwrite("heartbeat_timeout_ms", &JobConfig::heartbeat_timeout_ms)
      .def_readwrite("stall_report_ms", &JobConfig::stall_report_ms)
      .def_readwrite("round_timeout_ms", &JobConfig::round_timeout_ms)
      .def_readwrite("barrier_timeout_ms", &JobConfig::barrier_timeout_ms);

  py::class_<wire::KeyRequest>(module, "KeyRequest")
      .def(py::init(&make_key), py::arg("name"), py::arg("updater_index"), py::arg("dtype"),
           py::arg("shape"));

  using wire::OptimizerSpec;
  py::class_<OptimizerSpec>(module, "OptimizerSpec")
      .def(py::init<>())
      .def_property(
          "kind", [](const OptimizerSpec& s) { return to_name(kOptimizers, s.kind); },
          [](OptimizerSpec& s, const std::string& name) {
            s.kind = from_name<wire::OptimizerKind>(kOptimizers, name, "optimizer kind");
          })
      .def_readwrite("momentum", &OptimizerSpec::momentum)
      .def_readwrite("beta1", &OptimizerSpec::beta1)
      .def_readwrite("beta2", &OptimizerSpec::beta2)
      .def_readwrite("epsilon", &OptimizerSpec::epsilon)
      .def_readwrite("clip_gradient", &OptimizerSpec::clip_gradient)
      .def_readwrite("multi_precision", &OptimizerSpec::multi_precision)
      .def_readwrite("name", &OptimizerSpec::name)
      .def_property(
          "pickle",
          [](const OptimizerSpec& s) {
            return py::bytes(reinterpret_cast<const char*>(s.pickle.data()), s.pickle.size());
          },
          [](OptimizerSpec& s, const py::bytes& bytes) {
            const std::string_view view(bytes);
            const auto* first = reinterpret_cast<const std::byte*>(view.data());
            s.pickle.assign(first, first + view.size());
          });

  using store::Hyper;
  py::class_<Hyper>(module, "Hyper")
      .def(py::init([](float lr, float wd, float rescale_grad, uint32_t update_count) {
             return Hyper{lr, wd, rescale_grad, update_count};
           }),
           py::arg("lr"), py::arg("wd"), py::arg("rescale_grad"), py::arg("update_count"))
      .def_readonly("lr", &Hyper::lr)
      .def_readonly("wd", &Hyper::wd)
      .def_readonly("rescale_grad", &Hyper::rescale_grad)
      .def_readonly("update_count", &Hyper::update_count);

  module.def("fabric_viable", [](const std::string& name) -> std::optional<std::string> {
    const Status status = fabric::viable(from_name<fabric::Policy>(kFabrics, name, "fabric"));
    if (status.is_ok()) return std::nullopt;
    return status.message();
  });
  module.def("set_log_level", [](const std::string& level) {
    set_log_level(from_name<LogLevel>(kLevels, level, "log level"));
  });
  module.def("set_log_identity", &set_log_identity);
}

}  // namespace mxrdma::bindings
