#include "node/server.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "node/server_core.h"

namespace mxrdma::node {
namespace {
constexpr int kLoopTickMs = 200;
}  // namespace

struct Server::Implementation {
  NodeOptions options;
  UpdaterFactory factory;
  std::unique_ptr<fabric::Fabric> fabric;
  std::atomic<bool> stopping{false};
  mutable std::mutex mutex;  // report
  ServerReport report;

  void publish(const ServerCore& core) {
    std::lock_guard<std::mutex> lock(mutex);
    report = core.report_on_loop();
  }

  // Lets the core act for one batch of events or until the next tick.
  void turn(ServerCore* core, const Clock& clock, std::vector<fabric::Event>* events,
            int64_t* next_tick_ms) {
    events->clear();
    const int64_t wait_ms =
        std::clamp<int64_t>(*next_tick_ms - clock.now_ms(), 0, core->wait_limit_ms());
    fabric->poll(events, static_cast<int>(wait_ms));
    for (const fabric::Event& event : *events) core->on_event_on_loop(event);
    core->settle_on_loop();
    if (clock.now_ms() < *next_tick_ms) return;
    *next_tick_ms = clock.now_ms() + kLoopTickMs;
    core->tick_on_loop();
    publish(*core);
  }
};

Server::Server(const NodeOptions& options, UpdaterFactory factory)
    : implementation_(new Implementation) {
  implementation_->options = options;
  implementation_->factory = std::move(factory);
}

Server::~Server() = default;

Status Server::run() {
  Implementation& self = *implementation_;
  Status status = fabric::viable(self.options.policy);
  if (!status.is_ok()) return status;
  fabric::HostFabricOptions fabric_options;
  fabric_options.policy = self.options.policy;
  fabric_options.token = self.options.token;
  fabric_options.devices = self.options.devices;
  fabric_options.gid_index = self.options.gid_index;
  fabric_options.spin_us = self.options.spin_us;
  self.fabric = fabric::make_host_fabric(fabric_options);
  SteadyClock clock;
  ServerCore core(self.fabric.get(), &clock, self.options, self.factory);
  status = core.start_on_loop();
  if (!status.is_ok()) return status;
  std::vector<fabric::Event> events;
  int64_t next_tick_ms = clock.now_ms() + kLoopTickMs;
  bool named = false;
  while (!core.finished() && !self.stopping) {
    self.turn(&core, clock, &events, &next_tick_ms);
    if (!named && core.membership().has_book()) {
      named = true;
      set_log_identity("server " + std::to_string(core.membership().rank()));
    }
  }
  log_info(core.summary());
  self.publish(core);
  // A clean goodbye, so that the scheduler does not take our end for a loss.
  core.leave_on_loop();
  const int64_t deadline_ms = clock.now_ms() + kLeaveTimeoutMs;
  while (!core.membership().left() && clock.now_ms() < deadline_ms)
    self.turn(&core, clock, &events, &next_tick_ms);
  self.publish(core);
  return core.status();
}

void Server::stop() {
  implementation_->stopping = true;
  if (implementation_->fabric) implementation_->fabric->wake();
}

ServerReport Server::report() const {
  std::lock_guard<std::mutex> lock(implementation_->mutex);
  return implementation_->report;
}

}  // namespace mxrdma::node
