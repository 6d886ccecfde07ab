#include "cluster/scheduler_state.h"

#include <utility>

#include "base/limits.h"

namespace mxrdma::cluster {

using Severity = Effect::Severity;

namespace {
constexpr uint64_t kMostMs = 7ull * 24 * 3600 * 1000;  // a week is a typing error
}  // namespace

std::optional<std::string> invalid(const wire::JobConfig& config) {
  const auto range = [](const char* what, uint64_t value, uint64_t least, uint64_t most) {
    return std::string(what) + " is " + std::to_string(value) + ", it must be from " +
           std::to_string(least) + " to " + std::to_string(most);
  };
  const auto outside = [](uint64_t value, uint64_t least, uint64_t most) {
    return value < least || value > most;
  };
  if (outside(config.workers, 1, kMaxNodes))
    return range("the number of workers", config.workers, 1, kMaxNodes);
  if (outside(config.servers, 1, kMaxNodes))
    return range("the number of servers", config.servers, 1, kMaxNodes);
  if (outside(config.slot_bytes, kMinSlotBytes, kMaxSlotBytes))
    return range("slot_bytes", config.slot_bytes, kMinSlotBytes, kMaxSlotBytes);
  if (outside(config.slots_per_worker, 1, kMaxSlotsPerPeer))
    return range("slots_per_worker", config.slots_per_worker, 1, kMaxSlotsPerPeer);
  const struct {
    const char* what;
    uint32_t value;
  } waits[] = {{"heartbeat_interval_ms", config.heartbeat_interval_ms},
               {"heartbeat_timeout_ms", config.heartbeat_timeout_ms},
               {"stall_report_ms", config.stall_report_ms},
               {"round_timeout_ms", config.round_timeout_ms},
               {"barrier_timeout_ms", config.barrier_timeout_ms}};
  for (const auto& wait : waits)
    if (outside(wait.value, 1, kMostMs)) return range(wait.what, wait.value, 1, kMostMs);
  if (config.heartbeat_timeout_ms < 2 * config.heartbeat_interval_ms)
    return "heartbeat_timeout_ms (" + std::to_string(config.heartbeat_timeout_ms) +
           ") must be at least twice heartbeat_interval_ms (" +
           std::to_string(config.heartbeat_interval_ms) + ")";
  return std::nullopt;
}

SchedulerState::SchedulerState(const SchedulerConfig& config, int64_t now_ms)
    : config_(config),
      roster_(config.job.workers, config.job.servers),
      collectives_(&roster_, config.job.stall_report_ms, config.job.barrier_timeout_ms),
      deadline_ms_(now_ms + config.join_timeout_ms),
      last_tick_ms_(now_ms) {}

void SchedulerState::heard(Member member, int64_t now_ms) {
  if (Node* node = roster_.find(member)) node->heard_ms = now_ms;
}

bool SchedulerState::is_server(Member member) const {
  const Node* node = roster_.find(member);
  return node && node->present && node->join.role == wire::Role::server;
}

void SchedulerState::on_message(Member member, wire::Message message, int64_t now_ms,
                                Effects* effects) {
  heard(member, now_ms);
  if (const auto* join = std::get_if<wire::Join>(&message))
    return on_join(member, *join, now_ms, effects);
  Node* node = roster_.find(member);
  const bool leaves =
      std::holds_alternative<wire::Leave>(message) || std::holds_alternative<wire::Failed>(message);
  // Whoever wants to go is let go, a refused peer too: it waits for this word.
  if (leaves) effects->push_back(Effect::send({member}, wire::LeaveAcknowledged{}));
  if (!node || !node->present) {
    if (node || leaves) return;
    effects->push_back(Effect::log(Severity::warning, "a peer speaks before it has joined"));
    effects->push_back(Effect::close(member));
    return;
  }
  if (std::holds_alternative<wire::Heartbeat>(message)) {
    // The node too wants to know that somebody is there.
    effects->push_back(Effect::send({member}, std::move(message)));
    return;
  }
  if (std::holds_alternative<wire::Leave>(message)) return on_leave(node, now_ms, effects);
  if (const auto* failed = std::get_if<wire::Failed>(&message))
    return gone(node, wire::GoneHow::failed, failed->reason, now_ms, effects, failed->code);
  if (auto* enter = std::get_if<wire::Enter>(&message)) {
    if (node->join.role == wire::Role::worker && phase_ != Phase::joining) {
      Status status = collectives_.enter(*node, std::move(*enter), now_ms, effects);
      if (status.is_ok()) return;
      return protocol_broken(member, status.message(), now_ms, effects);
    }
  }
  protocol_broken(member, "it sent a message that only others may send", now_ms, effects);
}

// ---- joining

void SchedulerState::on_join(Member member, const wire::Join& join, int64_t now_ms,
                             Effects* effects) {
  if (roster_.find(member)) return protocol_broken(member, "it joined twice", now_ms, effects);
  std::optional<std::string> refusal = roster_.refusal(join);
  Code code = Code::config;
  if (!status_.is_ok()) {
    refusal = "the job has failed already: " + status_.message();
    code = status_.code();
  } else if (!refusal && phase_ != Phase::joining) {
    refusal = "the job is over";
  }
  if (refusal) {
    const std::string who = std::string(wire::role_name(join.role)) + " on host " + join.host +
                            " (pid " + std::to_string(join.pid) + ")";
    effects->push_back(Effect::log(Severity::warning, "refused " + who + ": " + *refusal));
    effects->push_back(Effect::send(
        {member}, wire::JoinRefused{static_cast<uint8_t>(code), who + ": " + *refusal}));
    effects->push_back(Effect::drop(member));
    return;
  }
  roster_.add(member, join, now_ms);
  if (roster_.complete()) start(now_ms, effects);
}

void SchedulerState::start(int64_t now_ms, Effects* effects) {
  roster_.assign_ranks();
  phase_ = Phase::running;
  wire::AddressBook book;
  book.generation = config_.generation;
  book.config = config_.job;
  book.nodes = roster_.book();
  for (Node& node : roster_.nodes()) {
    node.heard_ms = now_ms;
    book.your_role = node.join.role;
    book.your_rank = node.rank;
    effects->push_back(Effect::send({node.member}, book));
  }
  effects->push_back(Effect::log(Severity::info, roster_.summary()));
}

// ---- going

void SchedulerState::on_leave(Node* node, int64_t now_ms, Effects* effects) {
  if (phase_ == Phase::joining)
    return gone(node, wire::GoneHow::failed, "it left before all had joined", now_ms, effects);
  if (phase_ == Phase::running && node->join.role == wire::Role::server)
    return gone(node, wire::GoneHow::failed, "it left while workers still need it", now_ms,
                effects);
  node->present = false;
  if (phase_ == Phase::running) {
    wire::NodeGone notice;
    notice.role = node->join.role;
    notice.rank = node->rank;
    notice.host = node->join.host;
    notice.how = wire::GoneHow::left;
    effects->push_back(Effect::send(roster_.present(), std::move(notice)));
    collectives_.worker_gone(*node, Status(Code::worker_left, name_of(*node) + " has left the job"),
                             effects);
  }
  check_end(now_ms, effects);
}

void SchedulerState::gone(Node* node, wire::GoneHow how, const std::string& reason, int64_t now_ms,
                          Effects* effects, uint8_t cause) {
  node->present = false;
  const std::string text =
      name_of(*node) + (how == wire::GoneHow::failed ? " failed: " : " was lost: ") + reason;
  if (phase_ == Phase::ending || phase_ == Phase::failing || phase_ == Phase::over) {
    // What goes down after the end has been decided follows from it.
    effects->push_back(Effect::log(Severity::info, "then " + text));
    return check_end(now_ms, effects);
  }
  effects->push_back(Effect::log(Severity::error, text));
  const Code code = node->join.role == wire::Role::worker ? Code::worker_lost : Code::server_lost;
  if (phase_ == Phase::running) {
    wire::NodeGone notice;
    notice.role = node->join.role;
    notice.rank = node->rank;
    notice.host = node->join.host;
    notice.how = how;
    notice.reason = reason;
    notice.code = cause;
    effects->push_back(Effect::send(roster_.present(), std::move(notice)));
  }
  const Code told = cause == 0 ? code : static_cast<Code>(cause);
  begin_failing(Status(code, text), Status(told, text), now_ms, effects);
}

void SchedulerState::begin_failing(const Status& why, const Status& told, int64_t now_ms,
                                   Effects* effects) {
  if (phase_ == Phase::joining) {
    // Nobody has a rank yet: a refusal is what they can understand.
    wire::JoinRefused refused;
    refused.code = static_cast<uint8_t>(why.code());
    refused.reason = why.message();
    effects->push_back(Effect::send(roster_.present(), std::move(refused)));
  }
  status_ = why;
  phase_ = Phase::failing;
  deadline_ms_ = now_ms + config_.leave_timeout_ms;
  collectives_.fail(told, effects);
  check_end(now_ms, effects);
}

void SchedulerState::give_up(const Status& why, int64_t now_ms, Effects* effects) {
  if (phase_ != Phase::joining && phase_ != Phase::running) return;
  effects->push_back(Effect::log(Severity::error, why.message()));
  begin_failing(why, why, now_ms, effects);
}

void SchedulerState::protocol_broken(Member member, const std::string& what, int64_t now_ms,
                                     Effects* effects) {
  Node* node = roster_.find(member);
  if (node && node->present)
    gone(node, wire::GoneHow::lost, "it broke the protocol: " + what, now_ms, effects);
  effects->push_back(Effect::close(member));
}

void SchedulerState::connection_lost(Member member, const std::string& reason, int64_t now_ms,
                                     Effects* effects) {
  Node* node = roster_.find(member);
  if (!node || !node->present) return;
  if (phase_ == Phase::joining)
    return gone(node, wire::GoneHow::lost, reason + " (before all had joined)", now_ms, effects);
  gone(node, wire::GoneHow::lost, reason, now_ms, effects);
}

void SchedulerState::check_end(int64_t now_ms, Effects* effects) {
  if (phase_ == Phase::running && roster_.present(wire::Role::worker).empty()) {
    phase_ = Phase::ending;
    deadline_ms_ = now_ms + config_.leave_timeout_ms;
    effects->push_back(
        Effect::send(roster_.present(wire::Role::server), wire::Stop{"all workers have left"}));
  }
  if ((phase_ == Phase::ending || phase_ == Phase::failing) && roster_.present().empty())
    phase_ = Phase::over;
}

// ---- time

void SchedulerState::check_heartbeats(int64_t now_ms, Effects* effects) {
  // If this process itself stood still (stopped, swapped out), everybody seems silent though their
  // messages wait to be read: what we missed is not theirs.
  const int64_t missed_ms = now_ms - last_tick_ms_ - config_.job.heartbeat_interval_ms;
  if (missed_ms > 0)
    for (Node& node : roster_.nodes()) node.heard_ms += missed_ms;
  if (phase_ != Phase::running) return;
  std::vector<Member> silent;
  for (const Node& node : roster_.nodes())
    if (node.present && now_ms - node.heard_ms >= config_.job.heartbeat_timeout_ms)
      silent.push_back(node.member);
  for (Member member : silent) {
    Node* node = roster_.find(member);
    const std::string reason =
        "no sign of life for " + std::to_string((now_ms - node->heard_ms) / 1000) + " s";
    if (phase_ == Phase::running) {
      gone(node, wire::GoneHow::lost, reason, now_ms, effects);
      continue;
    }
    // Several at once: each is named to everybody, the first one counts.
    node->present = false;
    effects->push_back(Effect::log(Severity::error, name_of(*node) + " was lost: " + reason));
    wire::NodeGone notice;
    notice.role = node->join.role;
    notice.rank = node->rank;
    notice.host = node->join.host;
    notice.reason = reason;
    effects->push_back(Effect::send(roster_.present(), std::move(notice)));
    check_end(now_ms, effects);
  }
}

void SchedulerState::release(uint64_t sequence, wire::Release release, Effects* effects) {
  collectives_.release(sequence, std::move(release), effects);
}

void SchedulerState::tick(int64_t now_ms, Effects* effects) {
  check_heartbeats(now_ms, effects);
  last_tick_ms_ = now_ms;
  if (phase_ == Phase::running) collectives_.tick(now_ms, effects);
  if (phase_ == Phase::over || phase_ == Phase::running || now_ms < deadline_ms_) return;
  if (phase_ == Phase::joining) {
    give_up(Status(Code::join_timeout, "not all nodes joined within " +
                                           std::to_string(config_.join_timeout_ms / 1000) +
                                           " s: " + roster_.progress() +
                                           "; check that the numbers of workers and servers are "
                                           "the same everywhere and that all were started"),
            now_ms, effects);
    return;
  }
  for (Node& node : roster_.nodes()) {
    if (!node.present) continue;
    node.present = false;
    effects->push_back(
        Effect::log(Severity::warning, name_of(node) + " has not gone within " +
                                           std::to_string(config_.leave_timeout_ms / 1000) + " s"));
  }
  phase_ = Phase::over;
}

}  // namespace mxrdma::cluster
