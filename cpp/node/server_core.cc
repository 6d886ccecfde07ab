#include "node/server_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace mxrdma::node {

using fabric::Event;

namespace {

constexpr int kWatchIntervalMs = 500;
// Ids of weight writes: the key and slice to report to the store when the write has left. Sends
// have id 0.
constexpr uint64_t kWeightWrite = 1ull << 63;
static_assert(kMaxKeys <= (1u << 31), "a key id fits above the slice in a write's id");

uint64_t weight_write_id(uint32_t key, uint32_t slice) {
  return kWeightWrite | (uint64_t{key} << 32) | slice;
}

std::string ranks_text(const std::vector<uint32_t>& ranks, const Membership& membership) {
  std::string text;
  for (uint32_t rank : ranks)
    text += (text.empty() ? "" : ", ") + membership.name_of(wire::Role::worker, rank);
  return text;
}

}  // namespace

ServerCore::ServerCore(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options,
                       UpdaterFactory factory)
    : fabric_(fabric),
      clock_(clock),
      options_(options),
      factory_(std::move(factory)),
      membership_(fabric, clock, options, wire::Role::server),
      memory_(fabric) {}

ServerCore::~ServerCore() {
  if (updater_maker_.joinable()) updater_maker_.join();
  if (runner_) runner_->stop();
}

Status ServerCore::start_on_loop() {
  Result<fabric::Address> address = fabric_->listen({options_.bind_host, 0});
  if (!address.is_ok()) return address.status().with_context("listening on " + options_.bind_host);
  membership_.start_on_loop(address.value());
  tick_on_loop();
  return Status::ok();
}

void ServerCore::end(const Status& status) {
  if (finished_) return;
  finished_ = true;
  status_ = status;
}

void ServerCore::fail(const Status& why) {
  membership_.tell_failure_on_loop(why);
  end(why);
}

// ---- scheduler
// ---------------------------------------------------------------------------------------------------

void ServerCore::on_notices(const std::vector<Membership::Notice>& notices) {
  for (const Membership::Notice& notice : notices) {
    switch (notice.kind) {
      case Membership::Notice::Kind::book:
        on_book();
        break;
      case Membership::Notice::Kind::failed:
        end(notice.status);
        break;
      case Membership::Notice::Kind::gone:
        on_gone(notice.gone);
        break;
      case Membership::Notice::Kind::message:
        if (const auto* place = std::get_if<wire::PlaceKeys>(&notice.message))
          on_place_keys(*place);
        if (const auto* drop = std::get_if<wire::DropKeys>(&notice.message)) on_drop_keys(*drop);
        if (const auto* set = std::get_if<wire::SetOptimizer>(&notice.message))
          on_set_optimizer(*set);
        if (const auto* decide = std::get_if<wire::DecideOptimizer>(&notice.message))
          on_decide_optimizer(*decide);
        if (std::get_if<wire::Stop>(&notice.message)) end(Status::ok());
        break;
    }
  }
}

void ServerCore::on_book() {
  const wire::JobConfig& config = membership_.book().config;
  store::StoreConfig store_config;
  store_config.server = membership_.rank();
  store_config.workers = config.workers;
  store_config.slice_capacity = wire::slice_capacity(config.slot_bytes);
  store_config.staleness = config.staleness;
  store_config.hold_first = true;
  fabric::Fabric* fabric = fabric_;
  runner_ = std::make_unique<StoreRunner>(store_config, &memory_, options_.compute_threads,
                                          [fabric] { fabric->wake(); });
  std::vector<Event> early;
  early.swap(early_);
  for (const Event& event : early) accept(event);
}

void ServerCore::on_gone(const wire::NodeGone& gone) {
  if (gone.role == wire::Role::worker && gone.how == wire::GoneHow::left) {
    // Its last pushes may still lie in its connection, which the scheduler's word overtakes: they
    // count, so its end here is that of the connection.
    WorkerLink* link = link_of_rank(gone.rank);
    if (link && link->outbox)
      link->leave_deadline_ms = clock_->now_ms() + kLeaveTimeoutMs;
    else
      on_left(gone.rank);
    return;
  }
  if (gone.how == wire::GoneHow::left) return;  // another server at the end of the job
  const Code code = gone.role == wire::Role::worker ? Code::worker_lost : Code::server_lost;
  end(Status(code, membership_.loss_of(gone).message()));
}

void ServerCore::on_left(uint32_t rank) {
  if (!runner_ || rank >= membership_.book().config.workers) return;
  const Status why(Code::worker_left,
                   membership_.name_of(wire::Role::worker, rank) +
                       " has left the job: its script came to its end, so this round cannot become "
                       "complete; give every rank the same number of steps (batches)");
  for (size_t part = 0; part < runner_->parts(); ++part)
    runner_->run_part(part, [rank, why](store::Store* store, store::Effects* effects) {
      store->worker_gone(rank, why, effects);
    });
}

void ServerCore::defer(std::function<void()> action) {
  {
    std::lock_guard<std::mutex> lock(deferred_mutex_);
    deferred_.push_back(std::move(action));
  }
  fabric_->wake();
}

// ---- workers
// -----------------------------------------------------------------------------------------------------

ServerCore::WorkerLink* ServerCore::link_of_peer(fabric::PeerId peer) {
  auto found = links_.find(peer);
  return found == links_.end() ? nullptr : found->second.get();
}

ServerCore::WorkerLink* ServerCore::link_of_rank(uint32_t rank) {
  for (auto& entry : links_)
    if (entry.second->rank == rank) return entry.second.get();
  return nullptr;
}

void ServerCore::on_event_on_loop(const Event& event) {
  std::vector<Membership::Notice> notices;
  if (membership_.on_event_on_loop(event, &notices)) {
    on_notices(notices);
    return;
  }
  if (event.kind == Event::Kind::accepted) return accept(event);
  WorkerLink* link = link_of_peer(event.peer);
  if (!link) return;
  switch (event.kind) {
    case Event::Kind::arrived:
      on_arrived(link, event);
      break;
    case Event::Kind::message:
      on_message(link, event);
      break;
    case Event::Kind::done:
      on_done(link, event);
      break;
    case Event::Kind::lost:
      on_lost(link, event.status);
      break;
    case Event::Kind::accepted:
    case Event::Kind::connected:
      break;
  }
}

void ServerCore::accept(const Event& event) {
  if (!membership_.has_book()) {
    if (early_.size() < kMaxNodes)
      early_.push_back(event);
    else
      fabric_->close(event.peer);
    return;
  }
  const wire::AddressBook& book = membership_.book();
  Result<wire::Hello> hello = wire::decode_hello(event.payload.data(), event.payload.size());
  std::string refusal;
  if (!hello.is_ok())
    refusal = "malformed hello: " + hello.status().message();
  else if (hello.value().role != wire::Role::worker || hello.value().rank >= book.config.workers)
    refusal = "not a worker of this job";
  else if (hello.value().generation != book.generation)
    refusal = "its address book is of another generation";
  else if (link_of_rank(hello.value().rank))
    refusal = "worker " + std::to_string(hello.value().rank) + " is connected already";
  if (!refusal.empty()) {
    log_warning("refused " + fabric_->describe_peer(event.peer) + ": " + refusal);
    fabric_->close(event.peer);
    return;
  }
  auto link = std::make_unique<WorkerLink>();
  link->rank = hello.value().rank;
  link->peer = event.peer;
  link->outbox = std::make_unique<Outbox>(fabric_, event.peer);
  const uint32_t slots = book.config.slots_per_worker;
  Result<fabric::Region> ring = fabric_->allocate(size_t{slots} * book.config.slot_bytes);
  Result<wire::RemoteRegion> remote = ring.is_ok() ? fabric_->describe(ring.value().id, event.peer)
                                                   : Result<wire::RemoteRegion>(ring.status());
  if (!remote.is_ok()) {
    log_error("ring for " + membership_.name_of(wire::Role::worker, link->rank) + ": " +
              remote.status().message());
    if (ring.is_ok()) fabric_->release(ring.value().id);
    fabric_->close(event.peer);
    return;
  }
  link->ring = ring.value();
  link->records_pending.resize(slots);
  WorkerLink* raw = link.get();
  links_[event.peer] = std::move(link);
  send(raw, wire::RingInfo{remote.value(), book.config.slot_bytes, slots});
}

void ServerCore::on_arrived(WorkerLink* link, const Event& event) {
  Status status = read_slot(link, event.immediate, event.bytes);
  if (!status.is_ok()) drop(link, status);
}

Status ServerCore::read_slot(WorkerLink* link, uint32_t slot, size_t bytes) {
  const size_t slot_bytes = membership_.book().config.slot_bytes;
  if (slot >= link->records_pending.size())
    return Status(Code::fabric, "slot " + std::to_string(slot) + " of its ring");
  if (link->records_pending[slot] != 0)
    return Status(Code::fabric, "slot " + std::to_string(slot) + " overwritten while in use");
  if (bytes > slot_bytes) return Status(Code::fabric, "more than a slot");
  // On shm the worker can still write here: copy each structure out before it is checked.
  const std::byte* base = link->ring.base + size_t{slot} * slot_bytes;
  wire::SlotHeader header{};
  std::memcpy(&header, base, std::min(bytes, sizeof header));
  if (auto reason = wire::invalid(header, bytes)) return Status(Code::fabric, *reason);
  link->records_pending[slot] = header.records;
  ++link->busy_slots;
  size_t at = sizeof header;
  const store::SlotRef reference = (uint64_t{link->peer} << 32) | slot;
  const int64_t now_ms = clock_->now_ms();
  for (uint32_t i = 0; i < header.records; ++i) {
    at = wire::padded(at);
    if (at + sizeof(wire::PushRecord) > bytes)
      return Status(Code::fabric, "a record lies beyond the message");
    wire::PushRecord record;
    std::memcpy(&record, base + at, sizeof record);
    at += sizeof record;
    if (auto reason = wire::invalid(record, bytes - at)) return Status(Code::fabric, *reason);
    const std::byte* payload = base + at;
    at += record.payload_bytes;
    runner_->run(record.key, [rank = link->rank, record, payload, reference, now_ms](
                                 store::Store* store, store::Effects* effects) {
      Status status = store->push(rank, record, payload, reference, now_ms, effects);
      if (status.is_ok()) return;
      store::Effect failed;
      failed.kind = store::Effect::Kind::round_failed;
      failed.rank = rank;
      failed.key = record.key;
      failed.round = record.round;
      failed.status = status;
      effects->push_back(failed);
      failed.kind = store::Effect::Kind::release_slot;
      failed.slot = reference;
      effects->push_back(std::move(failed));
    });
  }
  return at == bytes ? Status::ok() : Status(Code::fabric, "bytes behind the last record");
}

void ServerCore::on_message(WorkerLink* link, const Event& event) {
  Result<std::optional<wire::Message>> message =
      link->assembler.add(event.payload.data(), event.payload.size());
  if (!message.is_ok()) return drop(link, message.status());
  if (!message.value()) return;
  const auto* request = std::get_if<wire::PullRequest>(&*message.value());
  if (!request) return drop(link, Status(Code::fabric, "an unexpected kind of message"));
  runner_->run(request->key, [rank = link->rank, request = *request, now_ms = clock_->now_ms()](
                                 store::Store* store, store::Effects* effects) {
    Status status = store->pull(rank, request, now_ms, effects);
    if (status.is_ok()) return;
    store::Effect failed;
    failed.kind = store::Effect::Kind::pull_failed;
    failed.rank = rank;
    failed.key = request.key;
    failed.pull_op = request.pull_op;
    failed.status = status;
    effects->push_back(std::move(failed));
  });
}

void ServerCore::on_done(WorkerLink* link, const Event& event) {
  if ((event.id & kWeightWrite) != 0) {
    const uint32_t key = static_cast<uint32_t>((event.id & ~kWeightWrite) >> 32);
    const uint32_t slice = static_cast<uint32_t>(event.id);
    runner_->run(key, [key, slice](store::Store* store, store::Effects* effects) {
      store->write_done(key, slice, effects);
    });
  }
  if (!event.status.is_ok()) return;  // `lost` says why
  Status status = link->outbox->flush_on_loop();
  if (!status.is_ok()) drop(link, status);
}

// The link stays until the dones of what was posted have come; it only takes no new work.
void ServerCore::on_lost(WorkerLink* link, const Status& why) {
  log_debug("connection of " + membership_.name_of(wire::Role::worker, link->rank) + ": " +
            why.message());
  for (uint64_t id : link->outbox->abandon_writes()) {
    const uint32_t key = static_cast<uint32_t>((id & ~kWeightWrite) >> 32);
    const uint32_t slice = static_cast<uint32_t>(id);
    runner_->run(key, [key, slice](store::Store* store, store::Effects* effects) {
      store->write_done(key, slice, effects);
    });
  }
  link->outbox.reset();
  if (link->leave_deadline_ms >= 0) on_left(link->rank);
}

void ServerCore::drop(WorkerLink* link, const Status& why) {
  const std::string who = membership_.name_of(wire::Role::worker, link->rank);
  end(Status(Code::fabric, who + " broke the protocol: " + why.message()));
  membership_.tell_failure_on_loop(status_);
  fabric_->close(link->peer);
}

void ServerCore::send(WorkerLink* link, const wire::Message& message) {
  if (!link->outbox) return;
  for (std::vector<std::byte>& part : wire::encode(message)) {
    Status status = link->outbox->send(std::move(part), 0);
    if (status.is_ok()) continue;
    log_debug("send to worker " + std::to_string(link->rank) + ": " + status.message());
    return;  // the connection is going down; `lost` follows
  }
}

// ---- effects
// -----------------------------------------------------------------------------------------------------

void ServerCore::carry_out(store::Effect* effect) {
  using Kind = store::Effect::Kind;
  if (effect->kind == Kind::release_slot) {
    WorkerLink* link = link_of_peer(static_cast<fabric::PeerId>(effect->slot >> 32));
    const uint32_t slot = static_cast<uint32_t>(effect->slot);
    if (link && --link->records_pending[slot] == 0) {
      --link->busy_slots;
      link->credits.slots.push_back(static_cast<uint16_t>(slot));
    }
    return;
  }
  WorkerLink* link = link_of_rank(effect->rank);
  const bool reachable = link && link->outbox;
  switch (effect->kind) {
    case Kind::write_weights: {
      const uint64_t id = weight_write_id(effect->key, effect->slice);
      Status status = reachable
                          ? link->outbox->write(effect->data, effect->target, effect->pull_op, id)
                          : Status(Code::worker_lost, "gone");
      if (!status.is_ok())
        runner_->run(effect->key, [key = effect->key, slice = effect->slice](store::Store* store,
                                                                             store::Effects* more) {
          store->write_done(key, slice, more);
        });
      break;
    }
    case Kind::round_done:
      if (reachable) link->rounds_done.items.push_back({effect->key, effect->slice, effect->round});
      break;
    case Kind::round_failed:
      if (reachable)
        send(link, wire::RoundFailed{effect->key, effect->round,
                                     static_cast<uint8_t>(effect->status.code()),
                                     effect->status.message()});
      break;
    case Kind::pull_failed:
      if (reachable)
        send(link, wire::PullFailed{effect->pull_op, effect->key,
                                    static_cast<uint8_t>(effect->status.code()),
                                    effect->status.message()});
      break;
    case Kind::release_slot:
      break;
  }
}

// A ring that has been full for a while holds first slices whose seconds do not come: empties it.
void ServerCore::relieve(WorkerLink* link) {
  if (!link->outbox || link->busy_slots < link->records_pending.size()) {
    link->full_since_ms = -1;
    return;
  }
  const int64_t now_ms = clock_->now_ms();
  if (link->full_since_ms < 0) link->full_since_ms = now_ms;
  if (now_ms - link->full_since_ms < kHoldMs) return;
  link->full_since_ms = now_ms;
  for (size_t part = 0; part < runner_->parts(); ++part)
    runner_->run_part(part, [rank = link->rank](store::Store* store, store::Effects* effects) {
      store->fold_held(rank, effects);
    });
}

int ServerCore::wait_limit_ms() const {
  for (const auto& entry : links_)
    if (entry.second->full_since_ms >= 0) return kHoldMs;
  return kHeartbeatIntervalMs;
}

void ServerCore::flush(WorkerLink* link) {
  if (!link->credits.slots.empty()) {
    send(link, link->credits);
    link->credits.slots.clear();
  }
  if (!link->rounds_done.items.empty()) {
    send(link, link->rounds_done);
    link->rounds_done.items.clear();
  }
}

void ServerCore::carry_out_all() {
  store::Effects effects;
  // Carrying out an effect may make more (a write that cannot be posted frees its slice), but each
  // only once.
  for (runner_->collect_on_loop(&effects); !effects.empty(); runner_->collect_on_loop(&effects)) {
    for (store::Effect& effect : effects) carry_out(&effect);
    effects.clear();
  }
}

void ServerCore::settle_on_loop() {
  std::vector<std::function<void()>> deferred;
  {
    std::lock_guard<std::mutex> lock(deferred_mutex_);
    deferred.swap(deferred_);
  }
  for (std::function<void()>& action : deferred) action();
  if (!runner_) return;
  carry_out_all();
  for (auto& entry : links_) relieve(entry.second.get());
  carry_out_all();
  for (auto& entry : links_) flush(entry.second.get());
}

void ServerCore::tick_on_loop() {
  std::vector<Membership::Notice> notices;
  membership_.tick_on_loop(&notices);
  on_notices(notices);
  const int64_t now_ms = clock_->now_ms();
  for (auto& entry : links_) {
    WorkerLink* link = entry.second.get();
    if (!link->outbox || link->leave_deadline_ms < 0 || now_ms < link->leave_deadline_ms) continue;
    link->leave_deadline_ms = -1;  // it has left, but its connection does not end
    on_left(link->rank);
  }
  if (runner_ && now_ms >= next_watch_ms_) {
    next_watch_ms_ = now_ms + kWatchIntervalMs;
    watch_rounds();
  }
}

// Late ranks are reported at first and ended in the end.
void ServerCore::watch_rounds() {
  const wire::JobConfig& config = membership_.book().config;
  for (size_t part = 0; part < runner_->parts(); ++part)
    runner_->run_part(part, [this, part, &config](store::Store* store, store::Effects*) {
      std::vector<store::Waiting> waiting = store->waiting();
      if (waiting.empty()) return;
      defer([this, part, &config, waiting = std::move(waiting)] {
        StallWatch::Verdicts verdicts = stalls_.look(
            part, waiting, clock_->now_ms(), config.stall_report_ms, config.round_timeout_ms);
        for (const store::Waiting& round : verdicts.report)
          log_warning("round " + std::to_string(round.round) + " of key " +
                      wire::shown_name(round.name) + " has waited " +
                      std::to_string((clock_->now_ms() - round.since_ms) / 1000) + " s for " +
                      ranks_text(round.missing, membership_));
        for (const store::Waiting& round : verdicts.expired) {
          const Status why(Code::round_timeout,
                           "round " + std::to_string(round.round) + " of key " +
                               wire::shown_name(round.name) + " was not complete within " +
                               std::to_string(config.round_timeout_ms / 1000) +
                               " s; missing: " + ranks_text(round.missing, membership_));
          runner_->run(round.key, [key = round.key, number = round.round, why](store::Store* s,
                                                                               store::Effects* e) {
            s->fail_round(key, number, why, e);
          });
        }
      });
    });
}

ServerReport ServerCore::report_on_loop() const {
  ServerReport report;
  if (runner_) report.bytes = runner_->bytes();
  for (const auto& entry : links_) report.ring_bytes += entry.second->ring.bytes;
  report.fabric = fabric_->counters();
  return report;
}

std::string ServerCore::summary() const {
  std::string text = "server " + std::to_string(membership_.rank()) + " on " + options_.host_name;
  for (const auto& entry : links_)
    text += "; worker " + std::to_string(entry.second->rank) + ": " +
            fabric_->describe_peer(entry.first);
  return text;
}

}  // namespace mxrdma::node
