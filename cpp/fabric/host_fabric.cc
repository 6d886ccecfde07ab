#include "fabric/host_fabric.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/bootstrap/connection.h"
#include "fabric/bootstrap/rendezvous.h"
#include "fabric/devices.h"
#include "fabric/epoll.h"
#include "fabric/region_table.h"
#include "fabric/segment.h"
#include "fabric/socket.h"
#include "fabric/verbs/hub.h"

namespace mxrdma::fabric {
namespace {

// Peers that connected to us but have not proven the token yet, each with a deadline, so that
// strangers cannot use up our descriptors. If there are more, those that had kGraceMs make room;
// others wait in the kernel's backlog.
constexpr size_t kMaxUnproven = 256;
constexpr int kGraceMs = 1000;
constexpr int kMaxAcceptsPerPoll = 64;
constexpr int kAcceptPauseMs = 20;
constexpr int kSpinUs = 50;
constexpr unsigned kCoresToSpin =
    4;  // with fewer, a spinning process takes the core its peer needs
using Source = Epoll::Source;

class HostFabric final : public Fabric {
 public:
  explicit HostFabric(const HostFabricOptions& options);
  ~HostFabric() override;

  Result<Region> allocate(size_t bytes) override;
  Result<Region> register_memory(void* base, size_t bytes) override;
  void release(RegionId region) override;
  Result<RemoteRegion> describe(RegionId region, PeerId peer) override;

  Result<Address> listen(const Address& address) override;
  Result<PeerId> connect(const Address& address, const std::vector<std::byte>& hello) override;
  bool keeps_registrations(PeerId peer) const override;
  bool may_register_callers_memory() const override { return hub_.may_register_callers_memory(); }
  void close(PeerId peer) override;
  void be_patient_on_loop(int silent_ms) override;

  Status write(PeerId peer, const LocalSpan* spans, size_t count, const RemoteRegion& target,
               uint32_t immediate, uint64_t id) override;
  Status send(PeerId peer, const void* data, size_t bytes, uint64_t id) override;
  Status read(PeerId peer, const RemoteRegion& source, void* into, size_t bytes,
              uint64_t id) override;
  bool can_read(PeerId peer) const override;

  void poll(std::vector<Event>* events, int timeout_ms) override;
  void wake() override;

  std::string kind(PeerId peer) const override;
  std::string describe_peer(PeerId peer) const override;
  Counters counters() const override { return counters_; }

 private:
  struct Peer {
    std::unique_ptr<Connection> connection;
    int control = -1, notes = -1;  // as watched by epoll
    bool writable_wanted = false;
    bool told = false;  // `accepted` or `connected` was given
    int64_t since_ms = 0;
  };

  Peer& add_peer();
  Peer* find(PeerId id);
  const Peer* find(PeerId id) const;
  Connection* usable(PeerId id, Status* status);
  void settle(Peer* peer, const Status& status);
  void lose(Peer* peer, const Status& status);
  void finish_operations(Peer* peer, const Status& status);
  void watch(Peer* peer);
  void limit_silence_of(const Connection& connection) const;

  bool progress();
  void housekeeping();
  void reap();
  bool sleep_ready();
  int wait_limit(int timeout_ms) const;
  void spin();
  void wait(int timeout_ms);
  void on_ready(const Epoll::Ready& ready);
  void accept_peers();
  bool make_room_for_stranger();
  void pause_listening();
  void claim(uint32_t id);
  void drain_doorbell();

  Status post(PeerId peer, size_t total, size_t limit, const char* what);

  SteadyClock clock_;
  Counters counters_;
  RegionTable regions_;
  std::vector<Event> pending_;
  Surroundings surroundings_;
  Epoll epoll_;
  Fd doorbell_, listener_;
  Rendezvous rendezvous_;
  verbs::Hub hub_;
  std::atomic<bool> woken_{false};
  PeerId next_peer_ = 1;
  std::map<PeerId, Peer> peers_;
  size_t handshakes_ = 0;        // peers that are not told yet: they have deadlines
  size_t unproven_ = 0;          // of those, peers that connected to us
  int64_t listen_again_ms_ = 0;  // 0: listening
  int spin_us_ = 0;
  int silent_ms_ = kUnacknowledgedMs;
};

Status no_token() {
  return Status(Code::config,
                "the job has no token; set MXRDMA_TOKEN to the same secret in all "
                "roles, or start the job by mxrdma-launch");
}

// ---- life

HostFabric::HostFabric(const HostFabricOptions& options)
    : doorbell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      rendezvous_(&epoll_, options.handshake_timeout_ms),
      hub_(options, {&regions_, &counters_, &pending_}, &epoll_) {
  MXRDMA_CHECK(epoll_.valid() && doorbell_.valid(), "a process has file descriptors left");
  surroundings_.options = options;
  surroundings_.identity = host_identity();
  surroundings_.context = {&regions_, &counters_, &pending_};
  surroundings_.doorbell = doorbell_.get();
  surroundings_.rendezvous = &rendezvous_;
  surroundings_.hub = &hub_;
  epoll_.watch(doorbell_.get(), Source::doorbell, 0);
  spin_us_ = options.spin_us >= 0
                 ? options.spin_us
                 : (std::thread::hardware_concurrency() < kCoresToSpin ? 0 : kSpinUs);
}

HostFabric::~HostFabric() {
  for (auto& entry : peers_) entry.second.connection->end_on_loop();
}

// ---- memory

Result<Region> HostFabric::allocate(size_t bytes) {
  if (bytes == 0) return Status(Code::invalid_argument, "a region of no bytes");
  Result<std::shared_ptr<Segment>> segment = Segment::create(bytes);
  if (!segment.is_ok()) return segment.status();
  return regions_.add(segment.value()->base(), bytes, segment.value());
}

Result<Region> HostFabric::register_memory(void* base, size_t bytes) {
  if (base == nullptr || bytes == 0) return Status(Code::invalid_argument, "a region of no bytes");
  return regions_.add(static_cast<std::byte*>(base), bytes, nullptr);
}

void HostFabric::release(RegionId region) {
  const RegionTable::Entry* entry = regions_.find(region);
  if (entry == nullptr) return;
  for (auto& peer : peers_) {
    Channel* channel = peer.second.connection->channel();
    if (channel == nullptr) continue;
    if (channel->receiving_into(region))
      lose(&peer.second,
           Status(Code::fabric,
                  "remote access error: the peer wrote into a region while it was released"));
    else if (entry->segment)
      channel->forget_on_loop(*entry);
  }
  hub_.release_on_loop(region);
  regions_.remove(region);
}

Result<RemoteRegion> HostFabric::describe(RegionId region, PeerId peer) {
  const RegionTable::Entry* entry = regions_.find(region);
  if (entry == nullptr)
    return Status(Code::invalid_argument,
                  "memory region " + std::to_string(region) + " is unknown");
  Status status;
  Connection* connection = usable(peer, &status);
  if (connection == nullptr) return status;
  return connection->channel()->name_on_loop(region, *entry);
}

// ---- connections

HostFabric::Peer& HostFabric::add_peer() {
  const PeerId id = next_peer_++;
  Peer& peer = peers_[id];
  peer.since_ms = clock_.now_ms();
  peer.connection = std::make_unique<Connection>(
      id, &surroundings_, peer.since_ms + surroundings_.options.handshake_timeout_ms);
  ++handshakes_;
  return peer;
}

HostFabric::Peer* HostFabric::find(PeerId id) {
  auto found = peers_.find(id);
  return found == peers_.end() || found->second.connection->stage() == Connection::Stage::dead
             ? nullptr
             : &found->second;
}

const HostFabric::Peer* HostFabric::find(PeerId id) const {
  return const_cast<HostFabric*>(this)->find(id);
}

Connection* HostFabric::usable(PeerId id, Status* status) {
  Peer* peer = find(id);
  if (peer != nullptr && peer->connection->channel() != nullptr) return peer->connection.get();
  *status = Status(Code::fabric, "peer " + std::to_string(id) +
                                     (peer == nullptr ? " is lost" : " is not connected yet"));
  return nullptr;
}

Result<Address> HostFabric::listen(const Address& address) {
  if (listener_.valid()) return Status(Code::invalid_argument, "this fabric listens already");
  if (surroundings_.options.token.empty()) return no_token();
  Address actual;
  Result<Fd> fd = listen_tcp(address, &actual);
  if (!fd.is_ok()) return fd.status();
  if (surroundings_.options.policy != Policy::tcp) {
    surroundings_.shm_problem = rendezvous_.listen();
    if (!surroundings_.shm_problem.is_ok() && surroundings_.options.policy == Policy::shm)
      return surroundings_.shm_problem;
  }
  listener_ = std::move(fd.value());
  epoll_.watch(listener_.get(), Source::listener, 0);
  return actual;
}

Result<PeerId> HostFabric::connect(const Address& address, const std::vector<std::byte>& hello) {
  if (hello.size() > kMaxHelloBytes)
    return Status(Code::invalid_argument, "a hello of " + std::to_string(hello.size()) + " bytes");
  if (surroundings_.options.token.empty()) return no_token();
  Peer& peer = add_peer();
  const PeerId id = peer.connection->peer();
  Status status = peer.connection->connect_on_loop(address, hello, clock_.now_ms());
  if (!status.is_ok()) {
    peers_.erase(id);
    --handshakes_;
    return status;
  }
  watch(&peer);
  return id;
}

void HostFabric::finish_operations(Peer* peer, const Status& status) {
  Connection* connection = peer->connection.get();
  if (!peer->told) {
    --handshakes_;
    if (connection->is_acceptor()) --unproven_;
  }
  for (uint64_t id : connection->end_on_loop()) {
    Event event;
    event.kind = Event::Kind::done;
    event.peer = connection->peer();
    event.id = id;
    event.status = status;
    pending_.push_back(std::move(event));
  }
}

void HostFabric::close(PeerId id) {
  // Nothing of it is to be heard any more, except how its operations end.
  if (peers_.count(id) != 0)
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(),
                                  [id](const Event& event) {
                                    return event.peer == id && event.kind != Event::Kind::done;
                                  }),
                   pending_.end());
  if (Peer* peer = find(id))
    finish_operations(peer, Status(Code::cancelled, "the connection was closed here"));
}

void HostFabric::limit_silence_of(const Connection& connection) const {
  Status status = limit_silence(connection.control(), silent_ms_);
  if (!status.is_ok()) log_warning(connection.where() + ": " + status.message());
}

void HostFabric::be_patient_on_loop(int silent_ms) {
  silent_ms_ = silent_ms;
  for (const auto& entry : peers_)
    if (entry.second.told && entry.second.connection->stage() == Connection::Stage::up)
      limit_silence_of(*entry.second.connection);
}

// What a step with the connection led to.
void HostFabric::settle(Peer* peer, const Status& status) {
  Connection* connection = peer->connection.get();
  if (connection->stage() == Connection::Stage::dead) return;
  if (!status.is_ok()) return lose(peer, status);
  if (connection->stage() == Connection::Stage::up && !peer->told) {
    peer->told = true;
    --handshakes_;
    if (connection->is_acceptor()) --unproven_;
    Event event;
    event.kind = connection->is_acceptor() ? Event::Kind::accepted : Event::Kind::connected;
    event.peer = connection->peer();
    if (connection->is_acceptor()) event.payload = connection->take_hello();
    pending_.push_back(std::move(event));
    if (silent_ms_ != kUnacknowledgedMs) limit_silence_of(*connection);
    connection->channel()->open_on_loop();
  }
  watch(peer);
}

void HostFabric::lose(Peer* peer, const Status& status) {
  Connection* connection = peer->connection.get();
  const bool stranger = connection->is_acceptor() && !peer->told;
  const Status named = status.with_context(connection->where());
  if (stranger) {
    log_warning("refused a connection: " + named.message());
  } else {
    Event event;
    event.kind = Event::Kind::lost;
    event.peer = connection->peer();
    event.status = named;
    pending_.push_back(std::move(event));
  }
  finish_operations(peer, named);
}

// Tells epoll what the connection waits for.
void HostFabric::watch(Peer* peer) {
  const Connection& connection = *peer->connection;
  if (connection.stage() == Connection::Stage::dead) return;
  const int control = connection.control();
  const bool writable = connection.wants_writable();
  // While it connects, the same number can be another socket at each retry.
  const bool renewed = connection.stage() == Connection::Stage::connecting;
  if (control >= 0 && (renewed || control != peer->control || writable != peer->writable_wanted))
    epoll_.watch(control, Source::control, connection.peer(), writable);
  peer->control = control;
  peer->writable_wanted = writable;
  const int notes = connection.notes();
  if (notes == peer->notes) return;
  if (peer->notes >= 0) epoll_.forget(peer->notes);
  if (notes >= 0) epoll_.watch(notes, Source::notes, connection.peer());
  peer->notes = notes;
}

// ---- data

Status HostFabric::post(PeerId id, size_t total, size_t limit, const char* what) {
  Status status;
  Connection* connection = usable(id, &status);
  if (connection == nullptr) return status;
  if (total > limit)
    return Status(Code::invalid_argument, std::string(what) + " of " + std::to_string(total) +
                                              " bytes, at most " + std::to_string(limit) + " fit");
  if (connection->channel()->outstanding() >= kMaxOutstandingPerPeer) {
    ++counters_.busy;
    return Status(Code::busy, "too many operations are outstanding");
  }
  return status;
}

Status HostFabric::write(PeerId id, const LocalSpan* spans, size_t count,
                         const RemoteRegion& target, uint32_t immediate, uint64_t operation) {
  if (count > kMaxSpans)
    return Status(Code::invalid_argument,
                  std::to_string(count) + " spans, at most " + std::to_string(kMaxSpans));
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += spans[i].bytes;
  Status status = post(id, bytes, target.bytes, "a write");
  if (!status.is_ok()) return status;
  status =
      peers_[id].connection->channel()->write(spans, count, bytes, target, immediate, operation);
  if (!status.is_ok()) return status;
  ++counters_.writes;
  counters_.write_bytes += bytes;
  return status;
}

Status HostFabric::send(PeerId id, const void* data, size_t bytes, uint64_t operation) {
  Status status = post(id, bytes, kMaxMessageBytes, "a message");
  if (!status.is_ok()) return status;
  status = peers_[id].connection->channel()->send(data, bytes, operation);
  if (!status.is_ok()) return status;
  ++counters_.sends;
  counters_.send_bytes += bytes;
  return status;
}

Status HostFabric::read(PeerId id, const RemoteRegion& source, void* into, size_t bytes,
                        uint64_t operation) {
  Status status = post(id, bytes, source.bytes, "a read");
  if (!status.is_ok()) return status;
  status = peers_[id].connection->channel()->read(source, into, bytes, operation);
  if (!status.is_ok()) return status;
  ++counters_.reads;
  counters_.read_bytes += bytes;
  return status;
}

bool HostFabric::can_read(PeerId id) const {
  const Peer* peer = find(id);
  return peer != nullptr && peer->connection->channel() != nullptr &&
         peer->connection->channel()->can_read();
}

bool HostFabric::keeps_registrations(PeerId id) const {
  const Peer* peer = find(id);
  return peer != nullptr && peer->connection->channel() != nullptr &&
         peer->connection->channel()->keeps_registrations();
}

// ---- progress

bool HostFabric::progress() {
  hub_.progress_on_loop();
  for (auto& entry : peers_) {
    Peer& peer = entry.second;
    Channel* channel = peer.connection->channel();
    if (channel == nullptr) continue;
    Status status = channel->progress_on_loop();
    if (!status.is_ok())
      lose(&peer, status);
    else if (channel->wants_writable() != peer.writable_wanted)
      watch(&peer);
  }
  return !pending_.empty();
}

// Deadlines and retries; only while somebody is not up yet.
void HostFabric::housekeeping() {
  const int64_t now_ms = clock_.now_ms();
  if (handshakes_ > 0) {
    for (auto& entry : peers_) {
      const Connection::Stage stage = entry.second.connection->stage();
      if (stage == Connection::Stage::up || stage == Connection::Stage::dead) continue;
      settle(&entry.second, entry.second.connection->retry_on_loop(now_ms));
    }
  }
  rendezvous_.drop_late_on_loop(now_ms);
  if (listen_again_ms_ != 0 && now_ms >= listen_again_ms_) {
    listen_again_ms_ = 0;
    epoll_.watch(listener_.get(), Source::listener, 0);
  }
}

void HostFabric::reap() {
  for (auto entry = peers_.begin(); entry != peers_.end();) {
    if (entry->second.connection->stage() == Connection::Stage::dead)
      entry = peers_.erase(entry);
    else
      ++entry;
  }
}

int HostFabric::wait_limit(int timeout_ms) const {
  if (handshakes_ == 0 && listen_again_ms_ == 0) return timeout_ms;
  const int64_t now_ms = clock_.now_ms();
  int64_t until_ms = now_ms + timeout_ms;
  if (listen_again_ms_ != 0) until_ms = std::min(until_ms, listen_again_ms_);
  for (const auto& entry : peers_) {
    const Connection& connection = *entry.second.connection;
    if (!entry.second.told && connection.stage() != Connection::Stage::dead)
      until_ms = std::min(until_ms, connection.next_step_ms());
  }
  return static_cast<int>(std::max<int64_t>(0, until_ms - now_ms));
}

void HostFabric::spin() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
  while (!progress() && !woken_.load(std::memory_order_relaxed) &&
         std::chrono::steady_clock::now() < end)
    wait(0);
}

// Asks all peers for doorbells. False: something came meanwhile.
bool HostFabric::sleep_ready() {
  bool idle = true;
  for (auto& entry : peers_) {
    Channel* channel = entry.second.connection->channel();
    if (channel != nullptr && !channel->arm_on_loop()) idle = false;
  }
  if (!hub_.arm_on_loop()) idle = false;
  return idle;
}

void HostFabric::wait(int timeout_ms) {
  Epoll::Ready ready[Epoll::kMaxEvents];
  if (timeout_ms > 0) ++counters_.sleeps;
  const int count = epoll_.wait(ready, timeout_ms);
  for (int i = 0; i < count; ++i) on_ready(ready[i]);
}

void HostFabric::poll(std::vector<Event>* events, int timeout_ms) {
  const int64_t deadline_ms = clock_.now_ms() + timeout_ms;
  while (true) {
    housekeeping();
    progress();
    if (pending_.empty() && timeout_ms > 0 && spin_us_ > 0 && !woken_) spin();
    const bool may_sleep = pending_.empty() && timeout_ms > 0 && !woken_ && sleep_ready();
    const int64_t left_ms = std::max<int64_t>(0, deadline_ms - clock_.now_ms());
    wait(may_sleep ? wait_limit(static_cast<int>(left_ms)) : 0);
    progress();
    if (!pending_.empty() || woken_ || clock_.now_ms() >= deadline_ms) break;
  }
  woken_ = false;
  events->insert(events->end(), std::make_move_iterator(pending_.begin()),
                 std::make_move_iterator(pending_.end()));
  pending_.clear();
  reap();
}

void HostFabric::wake() {
  if (woken_.exchange(true)) return;
  const uint64_t one = 1;
  ssize_t count;
  do {
    count = ::write(doorbell_.get(), &one, sizeof one);
  } while (count < 0 && errno == EINTR);
}

void HostFabric::on_ready(const Epoll::Ready& ready) {
  Peer* peer = nullptr;
  switch (ready.source) {
    case Source::control:
      peer = find(ready.id);
      if (peer != nullptr)
        settle(peer, peer->connection->control_ready_on_loop(ready.readable, ready.writable,
                                                             clock_.now_ms()));
      break;
    case Source::notes:
      peer = find(ready.id);
      if (peer != nullptr) settle(peer, peer->connection->notes_ready_on_loop());
      break;
    case Source::listener:
      accept_peers();
      break;
    case Source::unix_listener:
      rendezvous_.accept_on_loop(clock_.now_ms());
      break;
    case Source::unclaimed:
      claim(ready.id);
      break;
    case Source::doorbell:
      drain_doorbell();
      break;
    case Source::completions:
      hub_.completion_ready_on_loop(ready.id);
      break;
    case Source::device:
      hub_.async_ready_on_loop(ready.id);
      break;
    case Source::connections:
      hub_.connections_ready_on_loop(ready.id);
      break;
  }
}

void HostFabric::drain_doorbell() {
  uint64_t count = 0;
  const ssize_t bytes = ::read(doorbell_.get(), &count, sizeof count);
  MXRDMA_CHECK(bytes == sizeof count || errno == EAGAIN || errno == EINTR,
               "an eventfd can be read");
}

// ---- strangers

void HostFabric::accept_peers() {
  for (int i = 0; i < kMaxAcceptsPerPoll; ++i) {
    if (unproven_ >= kMaxUnproven && !make_room_for_stranger()) return pause_listening();
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      log_error("cannot accept a connection: " + errno_text(errno) +
                (errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : ""));
      return pause_listening();
    }
    Peer& peer = add_peer();
    ++unproven_;
    settle(&peer, peer.connection->accepted_on_loop(std::move(fd)));
  }
}

// The one that has had the longest time to prove itself goes, if that was long enough.
bool HostFabric::make_room_for_stranger() {
  const int64_t now_ms = clock_.now_ms();
  for (auto& entry : peers_) {  // oldest first
    const Connection& connection = *entry.second.connection;
    if (entry.second.told || !connection.is_acceptor() || connection.is_proven() ||
        connection.stage() == Connection::Stage::dead)
      continue;
    if (now_ms - entry.second.since_ms < kGraceMs) return false;
    lose(&entry.second, Status(Code::auth, "it did not prove the job's token while " +
                                               std::to_string(kMaxUnproven) + " others wait"));
    return true;
  }
  return false;
}

// What waits stays in the kernel's backlog, and does not keep this loop awake.
void HostFabric::pause_listening() {
  epoll_.forget(listener_.get());
  listen_again_ms_ = clock_.now_ms() + kAcceptPauseMs;
}

void HostFabric::claim(uint32_t id) {
  std::optional<Rendezvous::Claim> claim = rendezvous_.claim_on_loop(id);
  if (!claim) return;
  for (auto& entry : peers_) {
    Peer& peer = entry.second;
    if (!peer.connection->has_cookie(claim->note.note.cookie)) continue;
    settle(&peer,
           peer.connection->take_notes_on_loop(std::move(claim->fd), std::move(claim->note)));
    return;
  }
}

// ---- facts

std::string HostFabric::kind(PeerId id) const {
  const Peer* peer = find(id);
  return peer != nullptr && peer->connection->channel() != nullptr
             ? peer->connection->channel()->kind()
             : "none";
}

std::string HostFabric::describe_peer(PeerId id) const {
  const Peer* peer = find(id);
  return peer != nullptr ? peer->connection->describe() : "a lost peer";
}

Status verbs_viable() {
  const DeviceTable table = device_table();
  for (const DeviceInfo& device : table.devices)
    if (device.usable()) return Status::ok();
  // Nothing is usable: the choice for any address says why.
  return choose_rails(table, {"0.0.0.0", "", "auto"})
      .status()
      .with_context("verbs cannot be used on this host");
}

}  // namespace

Status viable(Policy policy) {
  if (policy == Policy::tcp) return Status::ok();
  if (policy == Policy::verbs) return verbs_viable();
  Result<std::shared_ptr<Segment>> probe = Segment::create(4096);
  if (probe.is_ok() || policy != Policy::shm) return Status::ok();
  return probe.status().with_context("shm cannot be used on this host");
}

std::unique_ptr<Fabric> make_host_fabric(const HostFabricOptions& options) {
  return std::make_unique<HostFabric>(options);
}

}  // namespace mxrdma::fabric
