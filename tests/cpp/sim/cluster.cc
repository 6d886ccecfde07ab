#include "cluster.h"

#include <algorithm>
#include <utility>

namespace mxrdma::node {

Process::Process(fabric::SimNetwork* network, std::string name, const fabric::FaultPlan& plan)
    : network_(network),
      name_(std::move(name)),
      faulty_(std::make_unique<fabric::FaultyFabric>(network->make_fabric(name_), plan)),
      next_tick_ms_(network->now_ms()) {}

void Process::kill() {
  killed_ = exited_ = true;
  network_->kill(endpoint());
}

bool Process::turn() {
  if (exited_) return false;
  events_.clear();
  faulty_->poll(&events_, 0);
  bool happened = !events_.empty() || faulty_->holding();
  for (const fabric::Event& event : events_) on_event(event);
  happened = act() || happened;
  if (!exited_ && network_->now_ms() >= next_tick_ms_) {
    next_tick_ms_ = network_->now_ms() + kTickMs;
    on_tick();
    happened = true;
  }
  if (exited_ && !killed_) network_->kill(endpoint());
  return happened;
}

// ---- scheduler

SchedulerProcess::SchedulerProcess(fabric::SimNetwork* network, const NodeOptions& options,
                                   const wire::JobConfig& config, const fabric::FaultPlan& plan)
    : Process(network, "scheduler", plan), core_(fabric(), network, options, config, 4711) {
  Result<fabric::Address> address = fabric()->listen(options.scheduler);
  if (!address.is_ok()) exit_process();
}

bool SchedulerProcess::act() {
  if (!core_.finished()) return false;
  exit_process();
  return true;
}

// ---- server

ServerProcess::ServerProcess(fabric::SimNetwork* network, const NodeOptions& options,
                             const fabric::FaultPlan& plan)
    : Process(network, options.host_name, plan),
      core_(std::make_unique<ServerCore>(fabric(), network, options, UpdaterFactory())) {
  if (!core_->start_on_loop().is_ok()) exit_process();
}

ServerProcess::~ServerProcess() { core_.reset(); }

bool ServerProcess::act() {
  core_->settle_on_loop();
  const int64_t now_ms = network_->now_ms();
  if (core_->finished() && !leaving_) {
    leaving_ = true;
    core_->leave_on_loop();
    leave_deadline_ms_ = now_ms + kLeaveTimeoutMs;
  }
  if (!leaving_ || !(core_->membership().left() || now_ms >= leave_deadline_ms_)) return false;
  exit_process();
  return true;
}

// ---- cluster

Cluster::Cluster(const ClusterConfig& config)
    : config_(config),
      network_(config.seed, config.latency),
      random_(config.seed ^ 0xc1u),
      start_ms_(network_.now_ms()) {
  network_.set_memory(config.script.keeps_registrations, !config.script.lands_in_own_memory,
                      config.script.most_regions);
  size_t next = 0;
  auto plan = [&] {
    fabric::FaultPlan plan;
    if (next < config.plans.size()) plan = config.plans[next];
    ++next;
    return plan;
  };
  NodeOptions options;
  options.scheduler = {"scheduler", 9000};
  options.bind_host = "server";
  auto scheduler = std::make_unique<SchedulerProcess>(&network_, options, config.job, plan());
  scheduler_ = scheduler.get();
  processes_.push_back(std::move(scheduler));
  for (uint32_t i = 0; i < config.servers; ++i) {
    options.host_name = "s" + std::to_string(i);
    auto server = std::make_unique<ServerProcess>(&network_, options, plan());
    servers_.push_back(server.get());
    processes_.push_back(std::move(server));
  }
  for (uint32_t i = 0; i < config.workers; ++i) {
    options.host_name = "w" + std::to_string(i);
    auto worker = std::make_unique<WorkerProcess>(&network_, options, config.script, config.workers,
                                                  config.seed * 31 + i, plan());
    workers_.push_back(worker.get());
    processes_.push_back(std::move(worker));
  }
}

std::vector<Process*> Cluster::all() const {
  std::vector<Process*> all;
  for (const auto& process : processes_) all.push_back(process.get());
  return all;
}

bool Cluster::run(int64_t limit_ms, const std::function<void()>& each_turn) {
  std::vector<Process*> order = all();
  while (elapsed_ms() < limit_ms) {
    if (each_turn) each_turn();
    if (std::all_of(order.begin(), order.end(), [](Process* p) { return p->exited(); }))
      return true;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    bool happened = false;
    for (Process* process : order) happened = process->turn() || happened;
    if (happened) continue;
    int64_t next_us = (start_ms_ + limit_ms) * 1000;
    if (std::optional<int64_t> due = network_.next_due_us()) next_us = std::min(next_us, *due);
    for (Process* process : order) {
      if (process->exited()) continue;
      next_us = std::min(next_us, process->next_tick_ms() * 1000);
      if (std::optional<int64_t> wish = process->wants_turn_at_ms())
        next_us = std::min(next_us, *wish * 1000);
    }
    network_.advance_to(next_us);
  }
  return false;
}

std::string Cluster::describe() const {
  std::string text = "seed " + std::to_string(config_.seed) + ", after " +
                     std::to_string(elapsed_ms()) + " ms: scheduler " +
                     (scheduler_->exited() ? "exited" : "runs") + " (" +
                     scheduler_->status().to_string() + ")";
  for (const ServerProcess* server : servers_)
    text += "\n  " + server->name() + (server->exited() ? " exited" : " runs") + " (" +
            server->core().status().to_string() + ")";
  for (const WorkerProcess* worker : workers_)
    text += "\n  " + worker->name() + (worker->exited() ? " exited" : " runs") + ": " +
            worker->progress();
  return text;
}

}  // namespace mxrdma::node
