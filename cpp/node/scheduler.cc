#include "node/scheduler.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/log.h"
#include "node/scheduler_core.h"

namespace mxrdma::node {
namespace {

constexpr int kLoopTickMs = 200;

uint64_t random_generation() {
  std::random_device device;
  uint64_t generation = 0;
  while (generation == 0) generation = (uint64_t{device()} << 32) | device();
  return generation;
}

}  // namespace

struct Scheduler::Implementation {
  NodeOptions options;
  wire::JobConfig config;
  std::unique_ptr<fabric::Fabric> fabric;
  std::atomic<bool> stopping{false};
  std::atomic<fabric::Fabric*> waker{nullptr};  // for stop() from another thread
  std::atomic<bool> joined{false};
  mutable std::mutex failure_mutex;
  Status failure;  // guarded; what failure() tells other threads

  void publish(const Status& status) {
    std::lock_guard<std::mutex> lock(failure_mutex);
    if (failure.is_ok()) failure = status;
  }
};

Scheduler::Scheduler(const NodeOptions& options, const wire::JobConfig& config)
    : implementation_(new Implementation) {
  implementation_->options = options;
  implementation_->config = config;
}

Scheduler::~Scheduler() = default;

Result<fabric::Address> Scheduler::listen() {
  Implementation& self = *implementation_;
  if (auto reason = cluster::invalid(self.config)) return Status(Code::config, *reason);
  Status status = fabric::viable(fabric::Policy::control);
  if (!status.is_ok()) return status;
  fabric::HostFabricOptions fabric_options;
  fabric_options.policy = fabric::Policy::control;
  fabric_options.token = self.options.token;
  fabric_options.spin_us = 0;  // nothing here is worth a busy core
  std::unique_ptr<fabric::Fabric> fabric = fabric::make_host_fabric(fabric_options);
  Result<fabric::Address> address = fabric->listen(self.options.scheduler);
  if (!address.is_ok())
    return address.status().with_context("the scheduler cannot listen on " +
                                         to_string(self.options.scheduler));
  self.fabric = std::move(fabric);
  self.waker = self.fabric.get();
  return address;
}

Status Scheduler::run() {
  Implementation& self = *implementation_;
  if (!self.fabric) {
    Result<fabric::Address> address = listen();
    if (!address.is_ok()) return address.status();
  }
  set_log_identity("scheduler");
  SteadyClock clock;
  SchedulerCore core(self.fabric.get(), &clock, self.options, self.config, random_generation());
  const int64_t tick_ms = std::min<int64_t>(kLoopTickMs, self.config.heartbeat_interval_ms);
  int64_t next_tick_ms = clock.now_ms() + tick_ms;
  std::vector<fabric::Event> events;
  while (!core.finished() && !self.stopping) {
    events.clear();
    const int64_t wait_ms = std::max<int64_t>(0, next_tick_ms - clock.now_ms());
    self.fabric->poll(&events, static_cast<int>(wait_ms));
    for (const fabric::Event& event : events) core.on_event_on_loop(event);
    if (!core.status().is_ok()) self.publish(core.status());
    if (core.state().phase() == cluster::SchedulerState::Phase::running) self.joined = true;
    if (clock.now_ms() < next_tick_ms) continue;
    next_tick_ms = clock.now_ms() + tick_ms;
    core.tick_on_loop();
  }
  if (!core.finished() && core.status().is_ok())
    return Status(Code::cancelled, "the scheduler was stopped before the job's end");
  return core.status();
}

Status Scheduler::failure() const {
  std::lock_guard<std::mutex> lock(implementation_->failure_mutex);
  return implementation_->failure;
}

bool Scheduler::joined() const { return implementation_->joined; }

void Scheduler::stop() {
  implementation_->stopping = true;
  if (fabric::Fabric* fabric = implementation_->waker) fabric->wake();
}

}  // namespace mxrdma::node
