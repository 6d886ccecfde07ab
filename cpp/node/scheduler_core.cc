#include "node/scheduler_core.h"

#include <utility>

#include "base/log.h"

namespace mxrdma::node {

using fabric::Event;
using fabric::PeerId;

namespace {

// Every node of a job that is as large as it can be, and as many again that are to be refused.
constexpr size_t kMaxPeers = 4 * size_t{kMaxNodes};

cluster::SchedulerConfig make_config(const NodeOptions& options, const wire::JobConfig& job,
                                     uint64_t generation) {
  cluster::SchedulerConfig config;
  config.job = job;
  config.join_timeout_ms = options.join_timeout_ms;
  config.leave_timeout_ms = kLeaveTimeoutMs;
  config.generation = generation;
  return config;
}

}  // namespace

SchedulerCore::SchedulerCore(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options,
                             const wire::JobConfig& config, uint64_t generation)
    : fabric_(fabric),
      clock_(clock),
      config_(config),
      state_(make_config(options, config, generation), clock->now_ms()),
      directory_(config.servers) {
  fabric_->be_patient_on_loop(patience_ms(config));
}

std::string SchedulerCore::name_of(PeerId id) const {
  const cluster::Node* node = state_.roster().find(id);
  return node ? cluster::name_of(*node) : fabric_->describe_peer(id);
}

// ---- events

void SchedulerCore::on_event_on_loop(const Event& event) {
  if (event.kind == Event::Kind::accepted) return accept(event);
  auto found = peers_.find(event.peer);
  if (found == peers_.end()) return;
  switch (event.kind) {
    case Event::Kind::message:
      on_message(event.peer, &found->second, event);
      break;
    case Event::Kind::done:
      if (found->second.sends_left > 0) --found->second.sends_left;
      if (event.status.is_ok()) {
        // Not ok: the connection is going down, `lost` says why.
        Status status = found->second.outbox->flush_on_loop();
        if (!status.is_ok()) log_debug("to " + name_of(event.peer) + ": " + status.message());
      }
      break;
    case Event::Kind::lost:
      peers_.erase(found);
      state_.connection_lost(event.peer, event.status.message(), clock_->now_ms(), &effects_);
      break;
    case Event::Kind::arrived:
      state_.protocol_broken(event.peer, "it wrote into the scheduler's memory", clock_->now_ms(),
                             &effects_);
      break;
    case Event::Kind::accepted:
    case Event::Kind::connected:
      break;
  }
  settle();
}

void SchedulerCore::accept(const Event& event) {
  Result<wire::Hello> hello = wire::decode_hello(event.payload.data(), event.payload.size());
  std::string refusal;
  if (!hello.is_ok())
    refusal = hello.status().message();
  else if (hello.value().role == wire::Role::scheduler || hello.value().generation != 0)
    refusal = "it takes this scheduler for a server";
  else if (peers_.size() >= kMaxPeers)
    refusal = "there are " + std::to_string(peers_.size()) + " connections already";
  if (!refusal.empty()) {
    log_warning("refused " + fabric_->describe_peer(event.peer) + ": " + refusal);
    fabric_->close(event.peer);
    return;
  }
  Peer& peer = peers_[event.peer];
  peer.hello = hello.value();
  peer.outbox = std::make_unique<Outbox>(fabric_, event.peer);
  peer.close_at_ms = clock_->now_ms() + kHandshakeTimeoutMs;  // unless it joins
}

void SchedulerCore::on_message(PeerId id, Peer* peer, const Event& event) {
  if (peer->leaving) return;
  const int64_t now_ms = clock_->now_ms();
  Result<std::optional<wire::Message>> decoded =
      peer->assembler.add(event.payload.data(), event.payload.size());
  if (!decoded.is_ok())
    return state_.protocol_broken(id, decoded.status().message(), now_ms, &effects_);
  if (!decoded.value()) return state_.heard(id, now_ms);
  wire::Message& message = *decoded.value();
  if (const auto* join = std::get_if<wire::Join>(&message)) {
    if (join->role != peer->hello.role)
      return state_.protocol_broken(id, "it joins in another role than it connected", now_ms,
                                    &effects_);
    if (!peer->joined) peer->close_at_ms = 0;
    peer->joined = true;
  }
  peer->leaving =
      std::holds_alternative<wire::Leave>(message) || std::holds_alternative<wire::Failed>(message);
  if (const auto* ack = std::get_if<wire::ServerAck>(&message)) {
    state_.heard(id, now_ms);
    if (state_.is_server(id)) return on_ack(id, *ack);
  }
  state_.on_message(id, std::move(message), now_ms, &effects_);
}

void SchedulerCore::close(PeerId id) {
  fabric_->close(id);
  peers_.erase(id);
}

// ---- collectives

void SchedulerCore::refuse(uint64_t sequence, const Status& why) {
  wire::Release release;
  release.code = static_cast<uint8_t>(why.code());
  release.reason = why.message();
  state_.release(sequence, std::move(release), &effects_);
}

void SchedulerCore::give_up(const Status& why) {
  const Decision decision = std::move(*decision_);
  decision_.reset();
  const std::vector<PeerId> servers = state_.roster().present(wire::Role::server);
  if (decision.in_use) {
    // The others use the optimizer: without these servers the job cannot go on.
    for (PeerId server : decision.pending)
      state_.protocol_broken(server, why.message(), clock_->now_ms(), &effects_);
    return;
  }
  if (!decision.release.keys.empty()) {
    // Some servers may have them. What they are told next comes after this word.
    wire::DropKeys drop;
    for (const wire::KeySpec& key : decision.release.keys) drop.keys.push_back(key.id);
    send(servers, drop);
    directory_.withdraw(decision.release.keys);
  }
  if (decision.change) send(servers, wire::DecideOptimizer{decision.sequence, false});
  refuse(decision.sequence, why);
}

void SchedulerCore::decide_next() {
  while (!decision_ && !complete_.empty()) {
    cluster::Effect complete = std::move(complete_.front());
    complete_.pop_front();
    decide(&complete);
  }
}

void SchedulerCore::decide(cluster::Effect* complete) {
  const uint64_t sequence = complete->sequence;
  Decision decision;
  decision.sequence = sequence;
  decision.what = complete->enters[0].label;
  switch (complete->collective) {
    case wire::CollectiveKind::barrier:
      return state_.release(sequence, wire::Release{}, &effects_);
    case wire::CollectiveKind::register_keys: {
      std::vector<std::vector<wire::KeyRequest>> requests;
      for (wire::Enter& enter : complete->enters) requests.push_back(std::move(enter.keys));
      Result<std::vector<wire::KeySpec>> placed = directory_.register_keys(requests);
      if (!placed.is_ok()) return refuse(sequence, placed.status());
      decision.release.keys = placed.value();
      return begin(std::move(decision), wire::PlaceKeys{sequence, std::move(placed.value())});
    }
    case wire::CollectiveKind::set_optimizer: {
      std::vector<wire::OptimizerSpec> optimizers;
      for (wire::Enter& enter : complete->enters) optimizers.push_back(std::move(enter.optimizer));
      Result<store::Directory::OptimizerChange> change = directory_.plan_optimizer(optimizers);
      if (!change.is_ok()) return refuse(sequence, change.status());
      decision.release.moved = change.value().moved;
      decision.release.optimizer = change.value().optimizer.kind;
      wire::SetOptimizer question{sequence, std::move(change.value().optimizer),
                                  change.value().moved};
      change.value().optimizer.kind = decision.release.optimizer;  // all of it that is kept
      decision.change = std::move(change.value());
      return begin(std::move(decision), question);
    }
  }
}

void SchedulerCore::begin(Decision decision, const wire::Message& question) {
  decision.since_ms = clock_->now_ms();
  decision.next_report_ms = config_.stall_report_ms;
  decision_ = std::move(decision);
  ask_servers(question);
}

void SchedulerCore::ask_servers(const wire::Message& question) {
  const std::vector<PeerId> servers = state_.roster().present(wire::Role::server);
  decision_->pending.insert(servers.begin(), servers.end());
  send(servers, question);
}

void SchedulerCore::on_ack(PeerId id, const wire::ServerAck& ack) {
  if (!decision_ || decision_->sequence != ack.sequence || decision_->pending.count(id) == 0) {
    // An answer to what was given up meanwhile.
    log_debug(name_of(id) + " answered collective " + std::to_string(ack.sequence) + " late");
    return;
  }
  if (ack.code != 0)
    give_up(Status(static_cast<Code>(ack.code),
                   decision_->what + ": " + name_of(id) + ": " + ack.reason));
  else if (decision_->pending.erase(id); decision_->pending.empty())
    all_have_answered();
}

void SchedulerCore::all_have_answered() {
  if (decision_->change) {
    directory_.set_optimizer(std::move(*decision_->change));
    decision_->change.reset();
    decision_->in_use = true;
    return ask_servers(wire::DecideOptimizer{decision_->sequence, true});
  }
  state_.release(decision_->sequence, std::move(decision_->release), &effects_);
  decision_.reset();
}

void SchedulerCore::watch_decision() {
  if (!decision_) return;
  const int64_t age_ms = clock_->now_ms() - decision_->since_ms;
  std::string missing;
  for (PeerId id : decision_->pending) missing += (missing.empty() ? "" : ", ") + name_of(id);
  if (age_ms >= config_.barrier_timeout_ms) {
    give_up(Status(Code::barrier_timeout, decision_->what + ": no answer within " +
                                              std::to_string(age_ms / 1000) + " s from " +
                                              missing));
  } else if (age_ms >= decision_->next_report_ms) {
    decision_->next_report_ms = 2 * age_ms;
    log_warning(decision_->what + ": all workers wait since " + std::to_string(age_ms / 1000) +
                " s for " + missing);
  }
}

// ---- effects

void SchedulerCore::settle() {
  // By index: carrying out appends.
  for (size_t i = 0; i < effects_.size(); ++i) {
    cluster::Effect effect = std::move(effects_[i]);
    carry_out(&effect);
    if (i + 1 == effects_.size()) decide_next();
  }
  effects_.clear();
  // Whoever waited has been released by the state.
  if (state_.phase() != cluster::SchedulerState::Phase::running) {
    decision_.reset();
    complete_.clear();
  }
  if (state_.over() && flush_deadline_ms_ == 0) flush_deadline_ms_ = clock_->now_ms() + kVerdictMs;
}

void SchedulerCore::carry_out(cluster::Effect* effect) {
  using Kind = cluster::Effect::Kind;
  using Severity = cluster::Effect::Severity;
  switch (effect->kind) {
    case Kind::send:
      send(effect->to, effect->message);
      break;
    case Kind::drop:
      for (PeerId id : effect->to) {
        auto found = peers_.find(id);
        // It reads why, says goodbye and closes; if it does not, we do.
        if (found != peers_.end()) found->second.close_at_ms = clock_->now_ms() + kLeaveTimeoutMs;
      }
      break;
    case Kind::close:
      for (PeerId id : effect->to) close(id);
      break;
    case Kind::complete:
      complete_.push_back(std::move(*effect));
      break;
    case Kind::log:
      log(effect->severity == Severity::error     ? LogLevel::error
          : effect->severity == Severity::warning ? LogLevel::warning
                                                  : LogLevel::info,
          effect->text);
      break;
  }
}

void SchedulerCore::send(const std::vector<PeerId>& to, const wire::Message& message) {
  if (to.empty()) return;
  const std::vector<std::vector<std::byte>> parts = wire::encode(message);
  for (PeerId id : to) {
    auto found = peers_.find(id);
    if (found == peers_.end()) continue;
    for (const std::vector<std::byte>& part : parts) {
      Status status = found->second.outbox->send(part, 0);
      if (!status.is_ok()) {
        // The connection is going down; `lost` follows and names it.
        log_debug("to " + name_of(id) + ": " + status.message());
        break;
      }
      ++found->second.sends_left;
    }
  }
}

// ---- time

void SchedulerCore::watch_peers() {
  std::vector<PeerId> late;
  for (const auto& entry : peers_)
    if (entry.second.close_at_ms != 0 && clock_->now_ms() >= entry.second.close_at_ms)
      late.push_back(entry.first);
  for (PeerId id : late) {
    if (!peers_[id].joined)
      log_warning(fabric_->describe_peer(id) + " connected but did not join within " +
                  std::to_string(kHandshakeTimeoutMs / 1000) + " s");
    close(id);
  }
}

void SchedulerCore::tick_on_loop() {
  state_.tick(clock_->now_ms(), &effects_);
  watch_peers();
  watch_decision();
  settle();
}

bool SchedulerCore::finished() const {
  if (!state_.over()) return false;
  if (clock_->now_ms() >= flush_deadline_ms_) return true;
  for (const auto& entry : peers_)
    if (entry.second.sends_left > 0) return false;
  return true;
}

}  // namespace mxrdma::node
