#include "fabric/sim/sim_network.h"

#include <algorithm>

#include "base/check.h"
#include "fabric/sim/sim_endpoint.h"

namespace mxrdma::fabric {

SimNetwork::SimNetwork(uint64_t seed, const SimLatency& latency)
    : generator_(seed), latency_(latency) {}

SimNetwork::~SimNetwork() = default;

std::unique_ptr<Fabric> SimNetwork::make_fabric(const std::string& name) {
  return std::make_unique<SimEndpoint>(this, name);
}

int64_t SimNetwork::latency_us() {
  const auto spread = static_cast<uint64_t>(latency_.max_us - latency_.min_us + 1);
  return latency_.min_us + static_cast<int64_t>(random(spread));
}

void SimNetwork::at(int64_t time_us, std::function<void()> run) {
  actions_.push_back({std::max(time_us, now_us_), next_sequence_++, std::move(run)});
  std::push_heap(actions_.begin(), actions_.end(), Later());
}

void SimNetwork::across(SimConnection* connection, int64_t time_us, std::function<void()> run) {
  at(time_us, [this, connection, run = std::move(run)] {
    // Behind what is held already, so that order stays when the ends meet again.
    if (apart(*connection) || !connection->held.empty())
      connection->held.push_back(run);
    else
      run();
  });
}

std::optional<int64_t> SimNetwork::next_due_us() const {
  if (actions_.empty()) return std::nullopt;
  return actions_.front().time_us;
}

void SimNetwork::run_due() {
  while (!actions_.empty() && actions_.front().time_us <= now_us_) {
    std::pop_heap(actions_.begin(), actions_.end(), Later());
    std::function<void()> run = std::move(actions_.back().run);
    actions_.pop_back();
    run();
  }
}

bool SimNetwork::advance() {
  if (actions_.empty()) return false;
  now_us_ = std::max(now_us_, actions_.front().time_us);
  run_due();
  return true;
}

void SimNetwork::advance_to(int64_t time_us) {
  while (!actions_.empty() && actions_.front().time_us <= time_us) advance();
  now_us_ = std::max(now_us_, time_us);
}

size_t SimNetwork::regions(const Fabric& endpoint) {
  const auto* sim = dynamic_cast<const SimEndpoint*>(&endpoint);
  MXRDMA_CHECK(sim, "not an endpoint of a simulated network");
  return sim->region_count();
}

void SimNetwork::kill(Fabric* endpoint) {
  auto* sim = dynamic_cast<SimEndpoint*>(endpoint);
  MXRDMA_CHECK(sim, "not an endpoint of a simulated network");
  sim->die(true);
}

void SimNetwork::partition(Fabric* one, Fabric* other) { cuts_.emplace_back(one, other); }

void SimNetwork::isolate(Fabric* endpoint) { cuts_.emplace_back(endpoint, nullptr); }

void SimNetwork::heal() {
  cuts_.clear();
  for (const auto& connection : connections_) {
    std::vector<std::function<void()>> held;
    held.swap(connection->held);
    for (std::function<void()>& run : held) at(now_us_, std::move(run));
  }
}

bool SimNetwork::apart(const SimConnection& connection) const {
  const Fabric* one = connection.names[0];
  const Fabric* other = connection.names[1];
  for (const auto& cut : cuts_) {
    const bool touches_one = one == cut.first || one == cut.second;
    const bool touches_other = other == cut.first || other == cut.second;
    if (cut.second ? touches_one && touches_other : one == cut.first || other == cut.first)
      return true;
  }
  return false;
}

}  // namespace mxrdma::fabric
