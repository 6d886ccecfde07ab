#include "cluster/collectives.h"

#include <utility>

namespace mxrdma::cluster {
namespace {

const char* kind_name(wire::CollectiveKind kind) {
  switch (kind) {
    case wire::CollectiveKind::barrier:
      return "barrier";
    case wire::CollectiveKind::register_keys:
      return "init of keys";
    case wire::CollectiveKind::set_optimizer:
      return "set_optimizer";
  }
  return "unknown";
}

std::string call_text(wire::CollectiveKind kind, const std::string& label) {
  return label.empty() ? kind_name(kind) : label;
}

constexpr size_t kMaxNamed = 16;  // ranks in one sentence

}  // namespace

Status Collectives::enter(const Node& worker, wire::Enter enter, int64_t now_ms, Effects* effects) {
  const uint32_t rank = worker.rank;
  const uint64_t sequence = enter.sequence;
  uint64_t& last = last_sequence_[rank];
  if (sequence != last + 1)
    return Status(Code::fabric, "it entered collective " + std::to_string(sequence) + " after " +
                                    std::to_string(last));
  uint64_t waits = 0;
  for (const auto& entry : open_) waits += entry.second.enters.count(rank);
  if (waits >= kMaxOpenCollectives)
    return Status(Code::fabric, "it is in " + std::to_string(waits) + " collectives at once");
  last = sequence;
  if (!failure_.is_ok()) {
    answer(rank, sequence, failure_.with_context(call_text(enter.kind, enter.label)), effects);
    return Status::ok();
  }

  auto found = open_.find(sequence);
  if (found == open_.end()) {
    Collective fresh;
    fresh.kind = enter.kind;
    fresh.label = enter.label;
    fresh.since_ms = now_ms;
    fresh.next_report_ms = stall_report_ms_;
    found = open_.emplace(sequence, std::move(fresh)).first;
  }
  Collective& collective = found->second;
  collective.entered.insert(rank);
  if (!collective.ended.is_ok()) {
    answer(rank, sequence, collective.ended, effects);
    forget_if_over(sequence);
    return Status::ok();
  }
  const bool agrees = enter.kind == collective.kind && enter.label == collective.label;
  const std::string call = call_text(enter.kind, enter.label);
  collective.enters.emplace(rank, std::move(enter));
  if (!agrees) {
    const uint32_t first_rank = collective.enters.begin()->first == rank
                                    ? collective.enters.rbegin()->first
                                    : collective.enters.begin()->first;
    const Node* first = roster_->worker(first_rank);
    end(sequence, &collective,
        Status(Code::invalid_argument,
               "workers disagree on their call number " + std::to_string(sequence) + ": " +
                   (first ? name_of(*first) : "another") + " called " +
                   call_text(collective.kind, collective.label) + ", " + name_of(worker) +
                   " called " + call + "; every worker must make the same calls in the same order"),
        effects);
    return Status::ok();
  }
  if (collective.entered.size() == roster_->workers()) {
    collective.deciding = true;
    Effect complete;
    complete.kind = Effect::Kind::complete;
    complete.sequence = sequence;
    complete.collective = collective.kind;
    for (auto& entry : collective.enters) {
      complete.enters.push_back(std::move(entry.second));
      entry.second = wire::Enter{};  // only who waits is of interest from now on
    }
    effects->push_back(std::move(complete));
    return Status::ok();
  }
  for (const auto& entry : gone_) {
    if (collective.entered.count(entry.first) != 0) continue;
    end(sequence, &collective, entry.second.with_context(call), effects);
    break;
  }
  return Status::ok();
}

void Collectives::answer(uint32_t rank, uint64_t sequence, const Status& why,
                         Effects* effects) const {
  const Node* node = roster_->worker(rank);
  if (!node || !node->present) return;
  wire::Release release;
  release.sequence = sequence;
  release.code = static_cast<uint8_t>(why.code());
  release.reason = why.message();
  effects->push_back(Effect::send({node->member}, std::move(release)));
}

void Collectives::end(uint64_t sequence, Collective* collective, const Status& why,
                      Effects* effects) {
  collective->ended = why;
  collective->deciding = false;
  for (const auto& entry : collective->enters) answer(entry.first, sequence, why, effects);
  collective->enters.clear();
  forget_if_over(sequence);
}

// An ended collective is remembered for those who have still to come.
void Collectives::forget_if_over(uint64_t sequence) {
  auto found = open_.find(sequence);
  if (found == open_.end() || !found->second.enters.empty()) return;
  for (uint32_t rank = 0; rank < roster_->workers(); ++rank)
    if (found->second.entered.count(rank) == 0 && gone_.count(rank) == 0) return;
  open_.erase(found);
}

void Collectives::release(uint64_t sequence, wire::Release release, Effects* effects) {
  auto found = open_.find(sequence);
  if (found == open_.end() || !found->second.deciding) return;
  release.sequence = sequence;
  std::vector<Member> to;
  for (const auto& entry : found->second.enters) {
    const Node* node = roster_->worker(entry.first);
    if (node && node->present) to.push_back(node->member);
  }
  open_.erase(found);
  effects->push_back(Effect::send(std::move(to), std::move(release)));
}

void Collectives::worker_gone(const Node& worker, const Status& why, Effects* effects) {
  gone_.emplace(worker.rank, why);
  std::vector<uint64_t> sequences;
  for (const auto& entry : open_) sequences.push_back(entry.first);
  for (uint64_t sequence : sequences) {
    Collective& collective = open_[sequence];
    const bool was_in = collective.entered.count(worker.rank) != 0;
    collective.enters.erase(worker.rank);
    if (!was_in && collective.ended.is_ok())
      end(sequence, &collective, why.with_context(call_text(collective.kind, collective.label)),
          effects);
    else
      forget_if_over(sequence);
  }
}

void Collectives::fail(const Status& why, Effects* effects) {
  if (!failure_.is_ok()) return;
  failure_ = why;
  std::vector<uint64_t> sequences;
  for (const auto& entry : open_) sequences.push_back(entry.first);
  for (uint64_t sequence : sequences) {
    Collective& collective = open_[sequence];
    if (collective.ended.is_ok())
      end(sequence, &collective, why.with_context(call_text(collective.kind, collective.label)),
          effects);
  }
  open_.clear();
}

std::string Collectives::missing_text(const Collective& collective) const {
  std::string text;
  size_t named = 0;
  for (uint32_t rank = 0; rank < roster_->workers(); ++rank) {
    if (collective.entered.count(rank) != 0) continue;
    if (named++ == kMaxNamed) return text + ", ...";
    const Node* node = roster_->worker(rank);
    text += (text.empty() ? "" : ", ") + (node ? name_of(*node) : std::to_string(rank));
  }
  return text;
}

void Collectives::tick(int64_t now_ms, Effects* effects) {
  std::vector<uint64_t> late;
  for (auto& entry : open_) {
    Collective& collective = entry.second;
    // While the node decides, the workers are all there; it has limits of its own.
    if (collective.deciding || !collective.ended.is_ok()) continue;
    const int64_t age_ms = now_ms - collective.since_ms;
    if (age_ms >= timeout_ms_) {
      late.push_back(entry.first);
    } else if (age_ms >= collective.next_report_ms) {
      collective.next_report_ms = 2 * age_ms;
      effects->push_back(Effect::log(Effect::Severity::warning,
                                     call_text(collective.kind, collective.label) + ": " +
                                         std::to_string(collective.enters.size()) + " of " +
                                         std::to_string(roster_->workers()) +
                                         " workers wait since " + std::to_string(age_ms / 1000) +
                                         " s for " + missing_text(collective)));
    }
  }
  for (uint64_t sequence : late) {
    Collective& collective = open_[sequence];
    const Status why(Code::barrier_timeout, call_text(collective.kind, collective.label) +
                                                ": not all workers came within " +
                                                std::to_string(timeout_ms_ / 1000) +
                                                " s; missing: " + missing_text(collective));
    effects->push_back(Effect::log(Effect::Severity::error, why.message()));
    end(sequence, &collective, why, effects);
  }
}

size_t Collectives::waiting() const {
  size_t waiting = 0;
  for (const auto& entry : open_) waiting += entry.second.enters.size();
  return waiting;
}

}  // namespace mxrdma::cluster
