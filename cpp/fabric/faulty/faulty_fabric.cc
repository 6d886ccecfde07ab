#include "fabric/faulty/faulty_fabric.h"

#include <algorithm>
#include <utility>

namespace mxrdma::fabric {

std::string FaultPlan::to_string() const {
  std::string text = "faults of seed " + std::to_string(seed);
  auto add = [&text](const char* name, uint64_t value) {
    text += std::string(", ") + name + " " + std::to_string(value);
  };
  if (delay_one_in != 0) add("delay_one_in", delay_one_in);
  if (delay_done_one_in != 0) add("delay_done_one_in", delay_done_one_in);
  if (delay_one_in != 0 || delay_done_one_in != 0) add("max_delay_polls", max_delay_polls);
  if (busy_one_in != 0) add("busy_one_in", busy_one_in);
  if (break_after_operations) add("break_after_operations", *break_after_operations);
  if (break_after_bytes) add("break_after_bytes", *break_after_bytes);
  if (silence_after_operations) add("silence_after_operations", *silence_after_operations);
  return text;
}

FaultyFabric::FaultyFabric(std::unique_ptr<Fabric> inner, const FaultPlan& plan)
    : inner_(std::move(inner)), plan_(plan), generator_(plan.seed) {}

Counters FaultyFabric::counters() const {
  Counters counters = inner_->counters();
  counters.busy += refused_;
  return counters;
}

// ---- posts

void FaultyFabric::break_connection(PeerId id, Peer* peer) {
  broke_ = true;
  peer->broken = true;
  Event lost;
  lost.kind = Event::Kind::lost;
  lost.peer = id;
  lost.status =
      Status(Code::fabric, inner_->describe_peer(id) + ": broken by " + plan_.to_string());
  peer->held.push_back(std::move(lost));
  inner_->close(id);
}

std::optional<Status> FaultyFabric::meet(PeerId id, uint64_t bytes, uint64_t operation) {
  Peer& peer = peers_[id];
  if (peer.broken || peer.closed)
    return Status(Code::fabric, inner_->describe_peer(id) + " is not connected");
  // The bound counts what we hold back too.
  if (peer.outstanding.size() >= kMaxOutstandingPerPeer ||
      (!peer.outstanding.empty() && one_in(plan_.busy_one_in))) {
    ++refused_;
    return Status(Code::busy, "refused by " + plan_.to_string());
  }
  if (silent_ ||
      (plan_.silence_after_operations && operations_ >= *plan_.silence_after_operations)) {
    silent_ = true;
    peer.outstanding.push_back(operation);
    return Status::ok();
  }
  const bool breaks =
      (plan_.break_after_operations && operations_ >= *plan_.break_after_operations) ||
      (plan_.break_after_bytes && bytes_ + bytes > *plan_.break_after_bytes);
  if (breaks && !broke_) {
    break_connection(id, &peer);
    return Status(Code::fabric, inner_->describe_peer(id) + " is not connected");
  }
  return std::nullopt;
}

Status FaultyFabric::write(PeerId peer, const LocalSpan* spans, size_t count,
                           const RemoteRegion& target, uint32_t immediate, uint64_t id) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += spans[i].bytes;
  if (std::optional<Status> met = meet(peer, bytes, id)) return *met;
  Status status = inner_->write(peer, spans, count, target, immediate, id);
  if (!status.is_ok()) return status;
  peers_[peer].outstanding.push_back(id);
  ++operations_;
  bytes_ += bytes;
  return status;
}

Status FaultyFabric::send(PeerId peer, const void* data, size_t bytes, uint64_t id) {
  if (std::optional<Status> met = meet(peer, bytes, id)) return *met;
  Status status = inner_->send(peer, data, bytes, id);
  if (!status.is_ok()) return status;
  peers_[peer].outstanding.push_back(id);
  ++operations_;
  bytes_ += bytes;
  return status;
}

Status FaultyFabric::read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
                          uint64_t id) {
  if (std::optional<Status> met = meet(peer, bytes, id)) return *met;
  Status status = inner_->read(peer, source, into, bytes, id);
  if (!status.is_ok()) return status;
  peers_[peer].outstanding.push_back(id);
  ++operations_;
  bytes_ += bytes;
  return status;
}

void FaultyFabric::close(PeerId id) {
  auto found = peers_.find(id);
  if (found == peers_.end()) return inner_->close(id);
  Peer& peer = found->second;
  if (peer.closed) return;
  peer.closed = true;
  peer.held.erase(
      std::remove_if(peer.held.begin(), peer.held.end(),
                     [](const Event& event) { return event.kind != Event::Kind::done; }),
      peer.held.end());
  inner_->close(id);
  if (!silent_) return;
  // What the silence swallowed ends here; the inner fabric has given up the rest.
  peer.held.clear();
  for (uint64_t operation : peer.outstanding) {
    Event done;
    done.kind = Event::Kind::done;
    done.peer = id;
    done.id = operation;
    done.status = Status(Code::cancelled, inner_->describe_peer(id) + " was closed by us");
    peer.held.push_back(std::move(done));
  }
}

// ---- events

void FaultyFabric::take(Event event) {
  Peer& peer = peers_[event.peer];
  if (silent_) return;
  const bool is_done = event.kind == Event::Kind::done;
  if (peer.broken) {
    if (!is_done) return;
    if (event.status.code() == Code::cancelled && !peer.closed)
      event.status = Status(Code::fabric,
                            inner_->describe_peer(event.peer) + ": broken by " + plan_.to_string());
  } else if (peer.closed && !is_done) {
    return;
  }
  if (peer.held.empty() && !peer.closed && plan_.max_delay_polls > 0 &&
      (one_in(plan_.delay_one_in) || (is_done && one_in(plan_.delay_done_one_in))))
    peer.polls_left = 1 + static_cast<uint32_t>(generator_() % plan_.max_delay_polls);
  peer.held.push_back(std::move(event));
}

void FaultyFabric::hand_out(Peer* peer, std::vector<Event>* events) {
  if (silent_ && !peer->closed) return;
  if (peer->polls_left > 0 && !peer->closed && --peer->polls_left > 0) return;
  while (!peer->held.empty()) {
    Event event = std::move(peer->held.front());
    peer->held.pop_front();
    if (event.kind == Event::Kind::done) {
      auto found = std::find(peer->outstanding.begin(), peer->outstanding.end(), event.id);
      if (found != peer->outstanding.end()) peer->outstanding.erase(found);
    }
    events->push_back(std::move(event));
    if (peer->held.empty() || peer->closed || !one_in(plan_.delay_one_in)) continue;
    peer->polls_left = 1 + static_cast<uint32_t>(generator_() % plan_.max_delay_polls);
    return;
  }
}

bool FaultyFabric::holding() const {
  for (const auto& entry : peers_)
    if (!entry.second.held.empty() && (!silent_ || entry.second.closed)) return true;
  return false;
}

void FaultyFabric::poll(std::vector<Event>* events, int timeout_ms) {
  incoming_.clear();
  // What is held is due in some polls: the inner fabric must not sleep meanwhile.
  inner_->poll(&incoming_, holding() ? 0 : timeout_ms);
  for (Event& event : incoming_) take(std::move(event));
  for (auto& entry : peers_) hand_out(&entry.second, events);
}

}  // namespace mxrdma::fabric
