#include "node/worker_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace mxrdma::node {

using fabric::Event;
using Type = Operation::Type;

namespace {

std::string key_text(const KeyState& key) {
  return "key " + wire::shown_name(key.spec.request.name);
}

// The part of the slices that lies on one server: shares are contiguous, so it is a range (or
// several, by share).
template <typename Function>
void for_each_server_range(const std::vector<store::Slice>& slices, Function function) {
  for (size_t first = 0; first < slices.size();) {
    size_t end = first + 1;
    while (end < slices.size() && slices[end].server == slices[first].server) ++end;
    function(slices[first].server, static_cast<uint32_t>(first), static_cast<uint32_t>(end));
    first = end;
  }
}

}  // namespace

WorkerCore::WorkerCore(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options)
    : fabric_(fabric),
      clock_(clock),
      options_(options),
      membership_(fabric, clock, options, wire::Role::worker),
      arrays_(fabric),
      targets_(fabric) {}

WorkerCore::~WorkerCore() = default;

void WorkerCore::start_on_loop() {
  membership_.start_on_loop({});
  tick_on_loop();
}

void WorkerCore::tick_on_loop() {
  std::vector<Membership::Notice> notices;
  membership_.tick_on_loop(&notices);
  on_membership(notices);
  check_verdict();
  arrays_.prune_on_loop();
  if (!short_of_memory_.empty()) retry_short_of_memory();
}

// ---- events
// ------------------------------------------------------------------------------------------------------

void WorkerCore::on_event_on_loop(const Event& event) {
  std::vector<Membership::Notice> notices;
  if (membership_.on_event_on_loop(event, &notices)) {
    on_membership(notices);
    return;
  }
  switch (event.kind) {
    case Event::Kind::message:
      on_message(event);
      break;
    case Event::Kind::arrived:
      on_arrived(event);
      break;
    case Event::Kind::done:
      on_done(event);
      break;
    case Event::Kind::lost:
      if (ServerLink* link = link_of(event.peer)) fail_link(*link, event.status);
      break;
    case Event::Kind::accepted:  // workers do not listen
    case Event::Kind::connected:
      break;
  }
  if (!short_of_memory_.empty()) retry_short_of_memory();
}

void WorkerCore::on_membership(const std::vector<Membership::Notice>& notices) {
  for (const Membership::Notice& notice : notices) {
    switch (notice.kind) {
      case Membership::Notice::Kind::book:
        on_book();
        break;
      case Membership::Notice::Kind::failed:
        fail_on_loop(notice.status, false);
        break;
      case Membership::Notice::Kind::message:
        if (const auto* release = std::get_if<wire::Release>(&notice.message)) on_release(*release);
        break;
      case Membership::Notice::Kind::gone: {
        const wire::NodeGone& gone = notice.gone;
        if (gone.how == wire::GoneHow::left)
          break;  // whoever waits for it hears from the server or the scheduler
        fail_on_loop(membership_.loss_of(gone), false);
        break;
      }
    }
  }
}

void WorkerCore::on_book() {
  for (const wire::NodeInfo& node : book().nodes) {
    if (node.role != wire::Role::server) continue;
    wire::Hello hello;
    hello.role = wire::Role::worker;
    hello.rank = rank();
    hello.generation = book().generation;
    hello.host = options_.host_name;
    const fabric::Address address{node.listen_host, node.listen_port};
    Result<fabric::PeerId> peer = fabric_->connect(address, wire::encode(hello));
    if (!peer.is_ok()) {
      fail_on_loop(peer.status().with_context(membership_.name_of(wire::Role::server, node.rank) +
                                              " at " + to_string(address)),
                   true);
      return;
    }
    links_.push_back(std::make_unique<ServerLink>(fabric_, peer.value(), node.rank));
  }
  check_joined();
}

void WorkerCore::check_joined() {
  if (joined_ || !membership_.has_book()) return;
  for (const auto& link : links_)
    if (!link->has_ring()) return;
  joined_ = links_.size() == book().config.servers;
  for (const auto& link : links_)
    if (fabric_->keeps_registrations(link->peer())) keeps_registrations_ = true;
}

ServerLink* WorkerCore::link_of(fabric::PeerId peer) {
  for (const auto& link : links_)
    if (link->peer() == peer) return link.get();
  return nullptr;
}

void WorkerCore::fail_link(const ServerLink& link, const Status& status) {
  const std::string who = membership_.name_of(wire::Role::server, link.server());
  if (!link.has_ring()) {
    // Nothing was lost yet: a refusal is about settings or the fabric.
    fail_on_loop(Status(status.code(), who + " cannot be reached: " + status.message()), true);
    return;
  }
  if (!suspicion_.is_ok()) return;
  suspicion_ = Status(Code::server_lost, who + " was lost: " + status.message());
  verdict_deadline_ms_ = clock_->now_ms() + kVerdictMs;
}

void WorkerCore::check_verdict() {
  if (!suspicion_.is_ok() && failure_.is_ok() && clock_->now_ms() >= verdict_deadline_ms_)
    fail_on_loop(suspicion_, true);
}

void WorkerCore::on_message(const Event& event) {
  ServerLink* link = link_of(event.peer);
  if (!link || !failure_.is_ok()) return;
  Result<std::optional<wire::Message>> message =
      assemblers_[event.peer].add(event.payload.data(), event.payload.size());
  if (!message.is_ok()) {
    fail_on_loop(
        message.status().with_context("malformed message of " +
                                      membership_.name_of(wire::Role::server, link->server())),
        true);
    return;
  }
  if (message.value()) on_server_message(link, *message.value());
}

void WorkerCore::on_server_message(ServerLink* link, const wire::Message& message) {
  Status status;
  if (const auto* credits = std::get_if<wire::Credits>(&message)) {
    status = link->credits_on_loop(*credits);
    if (status.is_ok()) {
      // A connection that is going down: the scheduler names who was lost.
      Status pumped = link->pump_on_loop();
      if (!pumped.is_ok()) return fail_link(*link, pumped);
    }
  } else if (const auto* done = std::get_if<wire::RoundDone>(&message)) {
    on_round_done(*done);
  } else if (const auto* ring = std::get_if<wire::RingInfo>(&message)) {
    status = link->ring_on_loop(*ring, book().config);
    check_joined();
  } else if (const auto* failed = std::get_if<wire::RoundFailed>(&message)) {
    return fail_by_server(*link, failed->code, failed->reason);
  } else if (const auto* pull = std::get_if<wire::PullFailed>(&message)) {
    return fail_by_server(*link, pull->code, pull->reason);
  } else {
    status = Status(Code::fabric, "an unexpected kind of message");
  }
  if (!status.is_ok())
    fail_on_loop(status.with_context(membership_.name_of(wire::Role::server, link->server())),
                 true);
}

// What failed on a server, as every worker shall raise it.
void WorkerCore::fail_by_server(const ServerLink& link, uint8_t code, const std::string& reason) {
  const Status why(code == 0 ? Code::fabric : static_cast<Code>(code), reason);
  fail_on_loop(why.with_context(membership_.name_of(wire::Role::server, link.server())), true);
}

void WorkerCore::on_round_done(const wire::RoundDone& done) {
  for (const wire::RoundDone::Item& item : done.items) {
    if (item.key >= keys_.size() || !keys_[item.key]) continue;
    KeyState* key = keys_[item.key].get();
    for (Operation* operation : key->queue) {
      if (operation->type != Type::push || operation->round != item.round || !operation->started)
        continue;
      if (operation->acks_pending > 0) --operation->acks_pending;
      push_progress(operation);
      break;
    }
  }
}

void WorkerCore::on_arrived(const Event& event) {
  auto found = pulls_.find(event.immediate);
  if (found == pulls_.end()) return;  // given up meanwhile
  Operation* pull = found->second;
  KeyState* key = pull->key;
  if (event.bytes > pull->bytes_remaining) {
    fail_on_loop(Status(Code::fabric, "a server wrote more than " + key_text(*key) + " holds"),
                 true);
    return;
  }
  pull->bytes_remaining -= event.bytes;
  if (pull->bytes_remaining > 0) return;
  // All slices of the round are back, so the push that asked for them is complete too.
  for (Operation* operation : key->queue) {
    if (operation->type != Type::push || operation->fused != pull) continue;
    operation->fused = nullptr;
    operation->acks_pending = 0;
    break;
  }
  finish(pull, Status::ok());
  // push_progress may end other operations of the key, so it is looked at anew each time.
  while (failure_.is_ok()) {
    auto complete = std::find_if(key->queue.begin(), key->queue.end(), [](Operation* operation) {
      return operation->type == Type::push && operation->push_complete();
    });
    if (complete == key->queue.end()) break;
    push_progress(*complete);
  }
  advance(key);
}

void WorkerCore::on_done(const Event& event) {
  ServerLink* link = link_of(event.peer);
  if (!link || !failure_.is_ok()) return;
  if (!event.status.is_ok()) {
    fail_link(*link, event.status);
    return;
  }
  if (event.id != 0) {
    std::vector<Operation*> progressed;
    link->written_on_loop(static_cast<uint32_t>(event.id - 1), [&](Operation* push) {
      --push->writes_in_flight;
      progressed.push_back(push);
    });
    // The same push may stand here several times, and push_progress may end it.
    std::sort(progressed.begin(), progressed.end());
    progressed.erase(std::unique(progressed.begin(), progressed.end()), progressed.end());
    for (Operation* push : progressed) push_progress(push);
  }
  Status status = link->pump_on_loop();
  if (!status.is_ok()) fail_link(*link, status);
}

// ---- operations
// --------------------------------------------------------------------------------------------------

Operation* WorkerCore::find(Ticket ticket, Type type) {
  auto found = operations_.find(ticket);
  if (found == operations_.end() || found->second->type != type) return nullptr;
  return found->second.get();
}

Operation* WorkerCore::open(Ticket ticket, Type type, uint32_t key, int priority,
                            Completion* done) {
  Status status = failure_;
  if (status.is_ok() && (key >= keys_.size() || !keys_[key]))
    status =
        Status(Code::invalid_argument, "key id " + std::to_string(key) + " was not registered");
  if (!status.is_ok()) {
    (*done)(status);
    return nullptr;
  }
  auto operation = std::make_unique<Operation>();
  operation->type = type;
  operation->ticket = ticket;
  operation->key = keys_[key].get();
  operation->priority = priority;
  operation->done = std::move(*done);
  Operation* raw = operation.get();
  raw->key->queue.push_back(raw);
  operations_[ticket] = std::move(operation);
  return raw;
}

void WorkerCore::open_push_on_loop(Ticket ticket, uint32_t key, wire::PushKind kind,
                                   const store::Hyper& hyper, int priority, Completion done) {
  Operation* push = open(ticket, Type::push, key, priority, &done);
  if (!push) return;
  ++pushes_;
  push->kind = kind;
  push->hyper = hyper;
  push->round = kind == wire::PushKind::initial ? 0 : ++push->key->last_round;
}

void WorkerCore::open_pull_on_loop(Ticket ticket, uint32_t key, int priority, Completion done) {
  Operation* pull = open(ticket, Type::pull, key, priority, &done);
  if (!pull) return;
  ++pulled_;
  pull->round = pull->key->last_round;
  // Immediates wrap around; one that is still in use is passed over.
  while (pulls_.count(next_pull_index_) != 0 || next_pull_index_ == 0) ++next_pull_index_;
  pull->index = next_pull_index_++;
  pull->bytes_remaining = pull->key->bytes;
  unrequested_pulls_.insert(ticket);
}

void WorkerCore::supply_on_loop(Ticket ticket, const void* data, size_t bytes, const Hold& hold) {
  Operation* push = find(ticket, Type::push);
  if (!push) return;
  if (bytes != push->key->bytes) {
    abandon_on_loop(
        ticket, Status(Code::invalid_argument, "push of " + std::to_string(bytes) + " bytes to " +
                                                   key_text(*push->key) + ", which has " +
                                                   std::to_string(push->key->bytes)));
    return;
  }
  push->data = static_cast<const std::byte*>(data);
  push->hold = hold;
  push->ready = true;
  advance(push->key);
}

void WorkerCore::grant_on_loop(Ticket ticket, void* data, size_t bytes, const Hold& hold) {
  Operation* pull = find(ticket, Type::pull);
  if (!pull) return;
  if (bytes != pull->key->bytes) {
    abandon_on_loop(ticket,
                    Status(Code::invalid_argument, "pull of " + key_text(*pull->key) + " into " +
                                                       std::to_string(bytes) + " bytes, it has " +
                                                       std::to_string(pull->key->bytes)));
    return;
  }
  pull->out = static_cast<std::byte*>(data);
  pull->hold = hold;
  pull->ready = true;
  advance(pull->key);
  if (!short_of_memory_.empty()) retry_short_of_memory();
}

void WorkerCore::abandon_on_loop(Ticket ticket, const Status& why) {
  auto found = operations_.find(ticket);
  if (found == operations_.end()) return;
  Operation* operation = found->second.get();
  const std::string what =
      (operation->type == Type::push ? "push of " : "pull of ") + key_text(*operation->key);
  if (operation->type == Type::push) {
    // The other workers wait for it.
    fail_on_loop(why.with_context(what), true);
  } else {
    KeyState* key = operation->key;
    finish(operation, why.with_context(what));
    advance(key);  // pushes behind it have waited for its request
  }
}

// Starts what the order of the key's operations allows. See operation.h and the design's order of
// rounds: a push goes on the wire when all pulls before it were requested and at most `staleness`
// rounds before it are open; a pull is requested when all pushes before it were sent.
void WorkerCore::advance(KeyState* key) {
  if (!failure_.is_ok() || !suspicion_.is_ok() || !joined_) return;
  uint32_t open_rounds = 0;
  bool pulls_requested = true;
  for (size_t i = 0; i < key->queue.size() && failure_.is_ok(); ++i) {
    Operation* operation = key->queue[i];
    if (operation->type == Type::push) {
      if (!operation->started) {
        if (!operation->ready || !pulls_requested || open_rounds > book().config.staleness) return;
        Operation* next = i + 1 < key->queue.size() ? key->queue[i + 1] : nullptr;
        const bool fuse = operation->kind == wire::PushKind::gradient && next &&
                          next->type == Type::pull && next->ready && !next->requested;
        start_push(operation, fuse ? next : nullptr);
        if (!failure_.is_ok()) return;
      }
      if (!operation->push_sent()) return;
      if (operation->kind == wire::PushKind::gradient && !operation->push_complete()) ++open_rounds;
    } else if (!operation->requested) {
      if (operation->ready) request_pull(operation);
      // Not ready, or without memory to come to: no later push may overtake it.
      if (!operation->requested) pulls_requested = false;
    }
  }
}

// Where the weights of this pull shall come to.
Result<fabric::RegionId> WorkerCore::target_memory(Operation* pull) {
  const size_t bytes = pull->key->bytes;
  if (!fabric_->may_register_callers_memory()) {
    Result<fabric::Region> region = targets_.take(bytes);
    if (!region.is_ok()) return region.status();
    pull->landing = region.value().base;
    return region.value().id;
  }
  if (keeps_registrations_) {
    const fabric::RegionId region = arrays_.take(pull->out, bytes, pull->hold);
    pull->cached = region != fabric::kNoRegion;
    if (pull->cached) return region;
  }
  Result<fabric::Region> region = fabric_->register_memory(pull->out, bytes);
  if (!region.is_ok()) return region.status();
  return region.value().id;
}

void WorkerCore::land(Operation* pull) {
  std::memcpy(pull->out, pull->landing, pull->key->bytes);
  landed_bytes_ += pull->key->bytes;
}

// The operation is through with its memory.
void WorkerCore::return_memory(Operation* operation) {
  if (operation->region == fabric::kNoRegion) return;
  if (operation->cached)
    arrays_.give_back(operation->region);
  else if (operation->landing != nullptr)
    targets_.give_back({operation->region, operation->landing, operation->key->bytes});
  else
    fabric_->release(operation->region);
  operation->region = fabric::kNoRegion;
  operation->cached = false;
  operation->landing = nullptr;
}

// Other operations hold memory that they will give back: the pull is tried again then. From now on
// pulls are served in the order of the user's calls, whether their arrays are ready or not, so that
// workers that make the same calls do not wait for each other: what a pull waits for then never
// waits for memory that a later one holds.
bool WorkerCore::wait_for_memory(Operation* pull) {
  memory_was_short_ = true;
  return_memory(pull);
  const bool others_hold =
      std::any_of(operations_.begin(), operations_.end(),
                  [](const auto& entry) { return entry.second->region != fabric::kNoRegion; });
  if (others_hold) short_of_memory_.insert(pull->ticket);
  return others_hold;
}

void WorkerCore::retry_short_of_memory() {
  while (!short_of_memory_.empty() && failure_.is_ok()) {
    const Ticket first = *short_of_memory_.begin();
    short_of_memory_.erase(short_of_memory_.begin());
    Operation* pull = find(first, Type::pull);
    if (pull) advance(pull->key);
    if (short_of_memory_.count(first) != 0) return;
  }
}

bool WorkerCore::prepare_target(Operation* pull) {
  if (memory_was_short_ && *unrequested_pulls_.begin() != pull->ticket) {
    short_of_memory_.insert(pull->ticket);
    return false;
  }
  Result<fabric::RegionId> region = target_memory(pull);
  if (!region.is_ok()) {
    fail_on_loop(region.status().with_context("array for " + key_text(*pull->key)), true);
    return false;
  }
  pull->region = region.value();
  pull->targets.resize(links_.size());
  for (const auto& link : links_) {
    Result<wire::RemoteRegion> target = fabric_->describe(pull->region, link->peer());
    // Arrays that stay registered may have used up what the system allows.
    if (!target.is_ok() && arrays_.drop_idle())
      target = fabric_->describe(pull->region, link->peer());
    if (!target.is_ok()) {
      if (target.status().code() != Code::busy)
        fail_link(*link, target.status());
      else if (!wait_for_memory(pull))
        fail_on_loop(Status(Code::fabric, target.status().message())
                         .with_context("array for " + key_text(*pull->key)),
                     true);
      return false;
    }
    pull->targets[link->server()] = target.value();
  }
  pulls_[pull->index] = pull;
  pull->requested = true;
  unrequested_pulls_.erase(pull->ticket);
  return true;
}

void WorkerCore::start_push(Operation* push, Operation* next_pull) {
  // A pull that has to wait for memory is not waited for: others need this push, and what they push
  // then frees the memory.
  if (next_pull && prepare_target(next_pull)) push->fused = next_pull;
  if (!failure_.is_ok() || !suspicion_.is_ok()) return;
  push->started = true;
  if (keeps_registrations_ && fabric_->may_register_callers_memory() &&
      push->key->bytes >= kMinCachedGradientBytes) {
    push->region = arrays_.take(push->data, push->key->bytes, push->hold);
    push->cached = push->region != fabric::kNoRegion;
  }
  push->slices_unsent = static_cast<uint32_t>(push->key->slices.size());
  push->acks_pending = push->kind == wire::PushKind::initial ? 0 : push->slices_unsent;
  for_each_server_range(push->key->slices, [&](uint32_t server, uint32_t first, uint32_t end) {
    links_[server]->enqueue_on_loop(push, first, end);
  });
  pump_all();
}

void WorkerCore::pump_all() {
  for (const auto& link : links_) {
    Status status = link->pump_on_loop();
    if (!status.is_ok()) return fail_link(*link, status);
  }
}

void WorkerCore::request_pull(Operation* pull) {
  if (!prepare_target(pull)) return;
  for_each_server_range(pull->key->slices, [&](uint32_t server, uint32_t, uint32_t) {
    if (!failure_.is_ok()) return;
    wire::PullRequest request;
    request.key = pull->key->spec.id;
    request.round = pull->round;
    request.pull_op = pull->index;
    request.target = pull->targets[server];
    Status status = links_[server]->send_on_loop(request);
    if (!status.is_ok()) fail_link(*links_[server], status);
  });
}

// After a slice was written or a round's end was heard.
void WorkerCore::push_progress(Operation* push) {
  if (!failure_.is_ok()) return;
  KeyState* key = push->key;
  if (push->push_sent() && push->writes_in_flight == 0 && !push->memory_returned) {
    push->memory_returned = true;
    return_memory(push);
    Completion done = std::move(push->done);
    push->done = nullptr;
    done(Status::ok());
  }
  const bool sent = push->push_sent();
  if (push->push_complete()) finish(push, Status::ok());
  if (sent) advance(key);
}

void WorkerCore::finish(Operation* operation, const Status& status) {
  KeyState* key = operation->key;
  key->queue.erase(std::find(key->queue.begin(), key->queue.end(), operation));
  auto found = operations_.find(operation->ticket);
  MXRDMA_CHECK(found != operations_.end(), "an operation ended twice");
  std::unique_ptr<Operation> owned = std::move(found->second);
  operations_.erase(found);
  if (owned->type == Type::pull && owned->requested) pulls_.erase(owned->index);
  unrequested_pulls_.erase(owned->ticket);
  if (owned->landing != nullptr && status.is_ok()) land(owned.get());
  return_memory(owned.get());
  if (owned->done) owned->done(status);
}

// ---- collectives
// -------------------------------------------------------------------------------------------------

void WorkerCore::enter_on_loop(wire::Enter enter, Released released) {
  if (!failure_.is_ok()) {
    released(failure_);
    return;
  }
  enter.sequence = next_sequence_++;
  collectives_[enter.sequence] = std::move(released);
  Status status = membership_.send_on_loop(enter);
  if (!status.is_ok()) fail_on_loop(Status(Code::scheduler_lost, status.message()), false);
}

void WorkerCore::adopt(const wire::KeySpec& spec) {
  if (spec.id >= kMaxKeys) return;
  if (keys_.size() <= spec.id) keys_.resize(spec.id + 1);
  auto key = std::make_unique<KeyState>();
  key->spec = spec;
  key->bytes = spec.request.elements * dtype_bytes(spec.request.dtype);
  key->slices = store::cut(spec, wire::slice_capacity(book().config.slot_bytes));
  for (const store::Slice& slice : key->slices) {
    if (slice.server < links_.size()) continue;
    fail_on_loop(Status(Code::internal,
                        key_text(*key) + " was placed on server " + std::to_string(slice.server)),
                 true);
    return;
  }
  keys_[spec.id] = std::move(key);
}

void WorkerCore::on_release(const wire::Release& release) {
  auto found = collectives_.find(release.sequence);
  if (found == collectives_.end() || !failure_.is_ok()) return;
  Released released = std::move(found->second);
  collectives_.erase(found);
  if (release.code != 0) {
    released(Status(static_cast<Code>(release.code), release.reason));
    return;
  }
  for (const wire::KeySpec& spec : release.keys) adopt(spec);
  // A moved key starts anew: its rounds count from the value that rank 0 sends again.
  for (const wire::KeySpec& spec : release.moved) adopt(spec);
  if (!failure_.is_ok()) {
    released(failure_);
    return;
  }
  released(release);
}

std::vector<std::pair<uint32_t, size_t>> WorkerCore::split_keys() const {
  std::vector<std::pair<uint32_t, size_t>> split;
  for (const auto& key : keys_)
    if (key && key->spec.shares.size() > 1) split.emplace_back(key->spec.id, key->bytes);
  return split;
}

// ---- ends
// --------------------------------------------------------------------------------------------------------

void WorkerCore::fail_on_loop(const Status& why, bool tell) {
  if (!failure_.is_ok()) return;
  failure_ = why;
  short_of_memory_.clear();
  if (tell) membership_.tell_failure_on_loop(why);
  // Nothing may touch the users' arrays any more: drop the connections before the operations end.
  for (const auto& link : links_) fabric_->close(link->peer());
  std::vector<Ticket> tickets;
  for (const auto& entry : operations_) tickets.push_back(entry.first);
  std::sort(tickets.begin(), tickets.end());
  for (Ticket ticket : tickets) {
    auto found = operations_.find(ticket);
    if (found != operations_.end()) finish(found->second.get(), why);
  }
  arrays_.drop_idle();
  targets_.clear();
  std::map<uint64_t, Released> waiting;
  waiting.swap(collectives_);
  for (auto& entry : waiting) entry.second(why);
  if (failure_callback_) failure_callback_(why);
}

void WorkerCore::leave_on_loop() {
  if (failure_.is_ok())
    for (const auto& link : links_) fabric_->close(link->peer());
  membership_.leave_on_loop();
}

std::string WorkerCore::describe_outstanding() const {
  std::string text;
  size_t shown = 0;
  for (const auto& entry : operations_) {
    if (++shown > 5) return text + ", ...";
    const Operation& operation = *entry.second;
    text += std::string(text.empty() ? "" : ", ") +
            (operation.type == Type::push ? "push" : "pull") + " of " + key_text(*operation.key) +
            " (round " + std::to_string(operation.round) +
            (operation.ready ? "" : ", array not ready") + ")";
  }
  return text;
}

std::string WorkerCore::summary() const {
  std::string text = "worker " + std::to_string(rank()) + " of " +
                     std::to_string(book().config.workers) + " on " + options_.host_name;
  for (const auto& link : links_)
    text +=
        "; server " + std::to_string(link->server()) + ": " + fabric_->describe_peer(link->peer());
  return text;
}

WorkerCounters WorkerCore::counters() const {
  WorkerCounters counters;
  counters.pushes = pushes_;
  counters.pulls = pulled_;
  for (const auto& link : links_) {
    counters.messages += link->counters().messages;
    counters.packed_records += link->counters().packed_records;
    counters.waited_for_credit += link->counters().waited_for_credit;
  }
  counters.fabric = fabric_->counters();
  counters.fabric.copied_bytes += landed_bytes_;
  return counters;
}

}  // namespace mxrdma::node
