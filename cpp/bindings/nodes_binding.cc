// The server and the scheduler processes, and the server's Python updaters.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "bindings/support.h"
#include "node/scheduler.h"
#include "node/server.h"

namespace mxrdma::bindings {
namespace {

constexpr std::chrono::milliseconds kInterruptPoll{100};

// run() of a node on a thread of its own, so that this one can run Python's signal handlers.
template <typename Node>
void run_node(Node* node) {
  Status result;
  Status interrupted;
  {
    py::gil_scoped_release release;
    std::mutex mutex;
    std::condition_variable condition;
    bool ended = false;
    std::thread thread([&] {
      Status status = node->run();
      std::lock_guard<std::mutex> lock(mutex);
      result = status;
      ended = true;
      condition.notify_all();
    });
    std::unique_lock<std::mutex> lock(mutex);
    while (!condition.wait_for(lock, kInterruptPoll, [&] { return ended; })) {
      if (!interrupted.is_ok()) continue;
      lock.unlock();
      interrupted = check_signals();
      if (!interrupted.is_ok()) node->stop();
      lock.lock();
    }
    lock.unlock();
    thread.join();
  }
  raise_if_failed(result);
}

// "ValueError: text", the last line of the traceback that Python would print.
std::string last_line(const py::error_already_set& error) {
  const std::string name = py::str(error.type().attr("__name__"));
  std::string text;
  try {
    text = py::str(error.value());
  } catch (py::error_already_set&) {
    text = "(an exception that cannot be printed)";
  }
  return text.empty() ? name : name + ": " + text;
}

template <typename Function>
std::shared_ptr<Function> hold(Function function) {
  return std::shared_ptr<Function>(new Function(std::move(function)), [](Function* held) {
    py::gil_scoped_acquire acquire;
    delete held;
  });
}

class PythonUpdater final : public store::WholeTensorUpdater {
 public:
  explicit PythonUpdater(std::shared_ptr<py::function> update) : update_(std::move(update)) {}

  Status update(const wire::KeyRequest& key, const void* gradient, void* weights,
                const store::Hyper& hyper) override {
    const auto bytes = static_cast<py::ssize_t>(key.elements * dtype_bytes(key.dtype));
    py::gil_scoped_acquire acquire;
    try {
      py::memoryview gradient_view =
          py::memoryview::from_memory(const_cast<void*>(gradient), bytes);
      py::memoryview weights_view = py::memoryview::from_memory(weights, bytes);
      (*update_)(key.name, key.updater_index, static_cast<int>(key.dtype),
                 py::tuple(py::cast(key.shape)), gradient_view, weights_view, hyper);
      // Views that outlive the call would be views of freed memory: a use of them raises instead.
      gradient_view.attr("release")();
      weights_view.attr("release")();
      return Status::ok();
    } catch (py::error_already_set& error) {
      return Status(Code::updater, "the updater failed at key " + wire::shown_name(key.name) +
                                       ": " + last_line(error));
    }
  }

 private:
  std::shared_ptr<py::function> update_;
};

node::UpdaterFactory factory_of(const py::function& make_updater) {
  return
      [make = hold(make_updater)](
          const wire::OptimizerSpec& spec) -> Result<std::shared_ptr<store::WholeTensorUpdater>> {
        py::gil_scoped_acquire acquire;
        try {
          py::bytes pickle(reinterpret_cast<const char*>(spec.pickle.data()), spec.pickle.size());
          py::function update = (*make)(spec.name, pickle);
          return std::shared_ptr<store::WholeTensorUpdater>(
              std::make_shared<PythonUpdater>(hold(std::move(update))));
        } catch (py::error_already_set& error) {
          return Status(Code::updater, "the optimizer " + spec.name +
                                           " cannot be rebuilt on the server: " + last_line(error));
        }
      };
}

py::dict report_dict(const node::ServerReport& report) {
  py::dict dict;
  dict["weights_bytes"] = report.bytes.weights;
  dict["accumulators_bytes"] = report.bytes.accumulators;
  dict["accumulators_peak_bytes"] = report.bytes.accumulators_peak;
  dict["optimizer_state_bytes"] = report.bytes.optimizer_state;
  dict["ring_bytes"] = report.ring_bytes;
  dict["writes"] = report.fabric.writes;
  dict["write_bytes"] = report.fabric.write_bytes;
  dict["arrivals"] = report.fabric.arrivals;
  dict["arrival_bytes"] = report.fabric.arrival_bytes;
  dict["sends"] = report.fabric.sends;
  dict["send_bytes"] = report.fabric.send_bytes;
  dict["copied_bytes"] = report.fabric.copied_bytes;
  dict["busy"] = report.fabric.busy;
  dict["sleeps"] = report.fabric.sleeps;
  dict["wakes"] = report.fabric.wakes;
  return dict;
}

}  // namespace

void bind_nodes(py::module_& module) {
  using node::Server;
  py::class_<Server>(module, "Server")
      .def(py::init([](const node::NodeOptions& options, const py::function& make_updater) {
             return std::make_unique<Server>(options, factory_of(make_updater));
           }),
           py::arg("options"), py::arg("make_updater"))
      .def("run", &run_node<Server>)
      .def("stop", &Server::stop)
      .def("report", [](const Server& server) { return report_dict(server.report()); });

  using node::Scheduler;
  py::class_<Scheduler>(module, "Scheduler")
      .def(py::init<const node::NodeOptions&, const wire::JobConfig&>(), py::arg("options"),
           py::arg("config"))
      .def("listen",
           [](Scheduler& scheduler) {
             fabric::Address address =
                 value_or_raise(without_gil([&] { return scheduler.listen(); }));
             return std::make_pair(address.host, address.port);
           })
      .def("run", &run_node<Scheduler>)
      .def("stop", &Scheduler::stop)
      .def("joined", &Scheduler::joined)
      .def("failure", [](const Scheduler& scheduler) -> std::optional<std::string> {
        const Status status = scheduler.failure();
        if (status.is_ok()) return std::nullopt;
        return status.message();
      });
}

}  // namespace mxrdma::bindings
