#include "fabric/host_fabric.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <list>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "fabric/bootstrap/connection.h"
#include "fabric/region_table.h"
#include "fabric/segment.h"
#include "fabric/socket.h"

namespace mxrdma::fabric {
namespace {

// Peers that connected but have not proven the token yet, and Unix connections that have not shown
// a cookie: more are turned away, so that strangers cannot exhaust file descriptors.
constexpr size_t kMaxUnproven = 256;
constexpr int kSpinUs = 50;
constexpr unsigned kCoresToSpin =
    4;  // with fewer, a spinning process takes the core its peer needs
constexpr int kMaxEpollEvents = 64;

enum class Source : uint32_t {
  control = 0,
  notes = 1,
  listener = 2,
  doorbell = 3,
  unix_listener = 4,
  unclaimed = 5
};

uint64_t epoll_key(Source source, uint32_t id) {
  return (static_cast<uint64_t>(source) << 32) | id;
}

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
  void close(PeerId peer) override;

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
    int control = -1, notes = -1;  // as registered with epoll
    bool writable_wanted = false;
    bool told = false;  // `accepted` or `connected` was given
  };
  struct Unclaimed {
    uint32_t id = 0;
    Fd fd;
    int64_t deadline_ms = 0;
  };

  Peer& add_peer();
  Peer* find(PeerId id);
  const Peer* find(PeerId id) const;
  Connection* usable(PeerId id, Status* status);
  void settle(Peer* peer, const Status& status);
  void lose(Peer* peer, const Status& status);
  void finish_operations(Peer* peer, const Status& status);
  void watch(Peer* peer);
  void add_to_epoll(int fd, uint64_t key, uint32_t events);

  bool progress();
  void housekeeping();
  void reap();
  bool sleep_ready();
  int wait_limit(int timeout_ms) const;
  void spin();
  void wait(int timeout_ms);
  void on_epoll(const epoll_event& event);
  void accept_peers();
  void accept_unix();
  void claim(uint32_t id);
  void forget_unclaimed(uint32_t id);

  Status post(PeerId peer, size_t total, size_t limit, const char* what);

  SteadyClock clock_;
  Counters counters_;
  RegionTable regions_;
  std::vector<Event> pending_;
  Surroundings surroundings_;
  Fd epoll_, doorbell_, listener_, unix_listener_;
  std::atomic<bool> woken_{false};
  PeerId next_peer_ = 1;
  std::map<PeerId, Peer> peers_;
  size_t handshakes_ = 0;  // peers that are not told yet: they have deadlines
  uint32_t next_unclaimed_ = 1;
  std::list<Unclaimed> unclaimed_;
  int spin_us_ = 0;
};

// ---- life
// --------------------------------------------------------------------------------------------------------

HostFabric::HostFabric(const HostFabricOptions& options)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), doorbell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  MXRDMA_CHECK(epoll_.valid() && doorbell_.valid(), "a process has file descriptors left");
  surroundings_.options = options;
  surroundings_.identity = host_identity();
  surroundings_.context = {&regions_, &counters_, &pending_};
  surroundings_.doorbell = doorbell_.get();
  add_to_epoll(doorbell_.get(), epoll_key(Source::doorbell, 0), EPOLLIN);
  spin_us_ = options.spin_us >= 0
                 ? options.spin_us
                 : (std::thread::hardware_concurrency() < kCoresToSpin ? 0 : kSpinUs);
}

HostFabric::~HostFabric() {
  for (auto& entry : peers_) entry.second.connection->end_on_loop();
}

void HostFabric::add_to_epoll(int fd, uint64_t key, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  MXRDMA_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0,
               "an open descriptor can be watched");
}

// ---- memory
// ------------------------------------------------------------------------------------------------------

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
  for (auto& entry : peers_) {
    Channel* channel = entry.second.connection->channel();
    if (channel != nullptr && channel->receiving_into(region))
      lose(&entry.second,
           Status(Code::fabric,
                  "remote access error: the peer wrote into a region while it was released"));
  }
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
  status = connection->channel()->share_on_loop(region);
  if (!status.is_ok()) return status;
  return regions_.name(region, *entry);
}

// ---- connections
// -------------------------------------------------------------------------------------------------

HostFabric::Peer& HostFabric::add_peer() {
  const PeerId id = next_peer_++;
  Peer& peer = peers_[id];
  peer.connection = std::make_unique<Connection>(
      id, &surroundings_, clock_.now_ms() + surroundings_.options.handshake_timeout_ms);
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
  Address actual;
  Result<Fd> fd = listen_tcp(address, &actual);
  if (!fd.is_ok()) return fd.status();
  if (surroundings_.options.policy != Policy::tcp) {
    uint64_t random[2];
    Status status = fill_random(random, sizeof random);
    char name[64];
    std::snprintf(name, sizeof name, "mxrdma-%016llx%016llx",
                  static_cast<unsigned long long>(random[0]),
                  static_cast<unsigned long long>(random[1]));
    Result<Fd> unix_fd = status.is_ok() ? listen_abstract(name) : Result<Fd>(status);
    if (unix_fd.is_ok()) {
      unix_listener_ = std::move(unix_fd.value());
      surroundings_.shm_socket = name;
      add_to_epoll(unix_listener_.get(), epoll_key(Source::unix_listener, 0), EPOLLIN);
    } else if (surroundings_.options.policy == Policy::shm) {
      return unix_fd.status();
    } else {
      surroundings_.shm_problem = unix_fd.status();
    }
  }
  listener_ = std::move(fd.value());
  add_to_epoll(listener_.get(), epoll_key(Source::listener, 0), EPOLLIN);
  return actual;
}

Result<PeerId> HostFabric::connect(const Address& address, const std::vector<std::byte>& hello) {
  if (hello.size() > kMaxHelloBytes)
    return Status(Code::invalid_argument, "a hello of " + std::to_string(hello.size()) + " bytes");
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
  if (!peer->told) --handshakes_;
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
  Peer* peer = find(id);
  if (peer == nullptr) return;
  // Nothing of it is to be heard any more, except how its operations end.
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(),
                                [id](const Event& event) {
                                  return event.peer == id && event.kind != Event::Kind::done;
                                }),
                 pending_.end());
  finish_operations(peer, Status(Code::cancelled, "the connection was closed here"));
}

// What a step with the connection led to.
void HostFabric::settle(Peer* peer, const Status& status) {
  Connection* connection = peer->connection.get();
  if (connection->stage() == Connection::Stage::dead) return;
  if (!status.is_ok()) return lose(peer, status);
  if (connection->stage() == Connection::Stage::up && !peer->told) {
    peer->told = true;
    --handshakes_;
    Event event;
    event.kind = connection->is_acceptor() ? Event::Kind::accepted : Event::Kind::connected;
    event.peer = connection->peer();
    if (connection->is_acceptor()) event.payload = connection->take_hello();
    pending_.push_back(std::move(event));
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

// Registers what the connection waits for. A closed descriptor leaves epoll by itself.
void HostFabric::watch(Peer* peer) {
  const Connection& connection = *peer->connection;
  if (connection.stage() == Connection::Stage::dead) return;
  const int control = connection.control();
  const bool writable = connection.wants_writable();
  if (control >= 0 && (control != peer->control || writable != peer->writable_wanted)) {
    epoll_event event{};
    event.events = EPOLLIN | (writable ? static_cast<uint32_t>(EPOLLOUT) : 0u);
    event.data.u64 = epoll_key(Source::control, connection.peer());
    // The same number may belong to a new socket after a retry, so the kernel is asked rather than
    // our memory.
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, control, &event) != 0)
      add_to_epoll(control, event.data.u64, event.events);
    peer->control = control;
    peer->writable_wanted = writable;
  }
  if (control < 0) peer->control = -1;
  const int notes = connection.notes();
  if (notes >= 0 && peer->notes == -1) {
    peer->notes = notes;
    add_to_epoll(notes, epoll_key(Source::notes, connection.peer()), EPOLLIN);
  } else if (connection.stage() == Connection::Stage::up && peer->notes >= 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer->notes, nullptr);
    peer->notes = -2;  // not to be watched again
  }
}

// ---- data
// --------------------------------------------------------------------------------------------------------

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

// ---- progress
// ----------------------------------------------------------------------------------------------------

bool HostFabric::progress() {
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
  unclaimed_.remove_if([now_ms](const Unclaimed& one) { return now_ms >= one.deadline_ms; });
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
  if (handshakes_ == 0) return timeout_ms;
  int64_t until_ms = timeout_ms;
  const int64_t now_ms = clock_.now_ms();
  for (const auto& entry : peers_) {
    const Connection& connection = *entry.second.connection;
    if (connection.stage() == Connection::Stage::up ||
        connection.stage() == Connection::Stage::dead)
      continue;
    int64_t next_ms = connection.deadline_ms();
    if (connection.stage() == Connection::Stage::waiting_to_retry)
      next_ms = std::min(next_ms, connection.retry_at_ms());
    until_ms = std::min(until_ms, std::max<int64_t>(0, next_ms - now_ms));
  }
  return static_cast<int>(until_ms);
}

void HostFabric::spin() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
  while (!progress() && !woken_.load(std::memory_order_relaxed) &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
}

// Asks all peers for doorbells. False: something came meanwhile.
bool HostFabric::sleep_ready() {
  bool idle = true;
  for (auto& entry : peers_) {
    Channel* channel = entry.second.connection->channel();
    if (channel != nullptr && !channel->arm_on_loop()) idle = false;
  }
  return idle;
}

void HostFabric::wait(int timeout_ms) {
  epoll_event ready[kMaxEpollEvents];
  if (timeout_ms > 0) ++counters_.sleeps;
  const int count = epoll_wait(epoll_.get(), ready, kMaxEpollEvents, timeout_ms);
  for (int i = 0; i < count; ++i) on_epoll(ready[i]);
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

void HostFabric::on_epoll(const epoll_event& event) {
  const auto source = static_cast<Source>(event.data.u64 >> 32);
  const uint32_t id = static_cast<uint32_t>(event.data.u64);
  const bool readable = (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
  const bool writable = (event.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
  switch (source) {
    case Source::control:
      if (Peer* peer = find(id))
        settle(peer, peer->connection->control_ready_on_loop(readable, writable, clock_.now_ms()));
      break;
    case Source::notes:
      if (Peer* peer = find(id)) settle(peer, peer->connection->notes_ready_on_loop());
      break;
    case Source::listener:
      accept_peers();
      break;
    case Source::unix_listener:
      accept_unix();
      break;
    case Source::unclaimed:
      claim(id);
      break;
    case Source::doorbell: {
      uint64_t count = 0;
      const ssize_t bytes = ::read(doorbell_.get(), &count, sizeof count);
      MXRDMA_CHECK(bytes == sizeof count || errno == EAGAIN || errno == EINTR,
                   "an eventfd can be read");
      break;
    }
  }
}

void HostFabric::accept_peers() {
  while (true) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) log_error("accept: " + errno_text(errno));
      return;
    }
    if (handshakes_ >= kMaxUnproven) {
      log_warning("turned a connection away: " + std::to_string(handshakes_) +
                  " peers have not proven the token yet");
      continue;
    }
    Peer& peer = add_peer();
    settle(&peer, peer.connection->accepted_on_loop(std::move(fd)));
  }
}

void HostFabric::accept_unix() {
  while (true) {
    Fd fd(accept4(unix_listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) log_error("accept: " + errno_text(errno));
      return;
    }
    if (unclaimed_.size() >= kMaxUnproven) continue;
    const uint32_t id = next_unclaimed_++;
    add_to_epoll(fd.get(), epoll_key(Source::unclaimed, id), EPOLLIN);
    unclaimed_.push_back(
        {id, std::move(fd), clock_.now_ms() + surroundings_.options.handshake_timeout_ms});
  }
}

void HostFabric::forget_unclaimed(uint32_t id) {
  unclaimed_.remove_if([id](const Unclaimed& one) { return one.id == id; });
}

// The first note of a Unix connection says by its cookie whose it is.
void HostFabric::claim(uint32_t id) {
  auto found = std::find_if(unclaimed_.begin(), unclaimed_.end(),
                            [id](const Unclaimed& one) { return one.id == id; });
  if (found == unclaimed_.end()) return;
  Result<std::optional<shm::ReceivedNote>> note = shm::receive_note(found->fd.get());
  if (note.is_ok() && !note.value()) return;
  if (!note.is_ok()) return forget_unclaimed(id);
  Fd fd = std::move(found->fd);
  forget_unclaimed(id);
  for (auto& entry : peers_) {
    Peer& peer = entry.second;
    if (!peer.connection->has_cookie(note.value()->note.cookie)) continue;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
    settle(&peer, peer.connection->take_notes_on_loop(std::move(fd), std::move(*note.value())));
    return;
  }
}

// ---- facts
// -------------------------------------------------------------------------------------------------------

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

}  // namespace

Status viable(Policy policy) {
  if (policy == Policy::tcp) return Status::ok();
  Result<std::shared_ptr<Segment>> probe = Segment::create(4096);
  if (probe.is_ok() || policy == Policy::automatic) return Status::ok();
  return probe.status().with_context("shm cannot be used on this host");
}

std::unique_ptr<Fabric> make_host_fabric(const HostFabricOptions& options) {
  return std::make_unique<HostFabric>(options);
}

}  // namespace mxrdma::fabric
