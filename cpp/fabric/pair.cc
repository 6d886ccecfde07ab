#include "fabric/pair.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "base/clock.h"

namespace mxrdma::fabric {
namespace {

constexpr char kHello[] = "mxrdma-pair 1";
constexpr char kThrough[] = "through";
// Of the immediate: the listener writes the same bytes back, or only a byte of them.
constexpr uint32_t kEcho = 1u << 31, kAcknowledge = 1u << 30;
constexpr int kPollMs = 100;
constexpr size_t kMaxEchoes = 2 * kPairWindow;  // of one peer, not yet accepted by the fabric

using Time = std::chrono::steady_clock::time_point;
double us_since(Time start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

std::vector<std::byte> bytes_of(const char* text) {
  const auto* first = reinterpret_cast<const std::byte*>(text);
  return std::vector<std::byte>(first, first + std::strlen(text));
}

Status read_region(const std::vector<std::byte>& payload, RemoteRegion* region) {
  if (payload.size() != sizeof(*region))
    return Status(Code::fabric, "the other end is no mxrdma-doctor pair of this version");
  std::memcpy(region, payload.data(), sizeof(*region));
  if (region->bytes < kMaxPairBytes)
    return Status(Code::fabric, "the other end offers too little memory");
  return Status::ok();
}

Status send_region(Fabric* fabric, PeerId peer, RegionId region, uint64_t id) {
  Result<RemoteRegion> description = fabric->describe(region, peer);
  if (!description.is_ok()) return description.status();
  return fabric->send(peer, &description.value(), sizeof(RemoteRegion), id);
}

}  // namespace

// ---- the listener

struct PairListener::Implementation {
  struct Peer {
    Region memory;
    RemoteRegion target;
    bool gone = false;  // its memory is kept until all that names it is done
    uint32_t outstanding = 0;
    bool known = false;           // its memory was described to us
    std::deque<uint64_t> echoes;  // bytes of each, in order
    std::deque<uint32_t> immediates;
  };

  std::unique_ptr<Fabric> fabric;
  std::map<PeerId, Peer> peers;
  std::atomic<bool> stopping{false};
  bool through = false;
  mutable std::mutex mutex;
  std::vector<std::string> lines;

  void say(const std::string& line) {
    std::lock_guard<std::mutex> lock(mutex);
    if (lines.size() < 1000) lines.push_back(line);
  }

  void drop(PeerId id, const std::string& reason) {
    say("peer dropped: " + reason);
    fabric->close(id);
    leave(id);
  }

  void leave(PeerId id) {
    const auto found = peers.find(id);
    if (found == peers.end()) return;
    found->second.gone = true;
    found->second.echoes.clear();
    found->second.immediates.clear();
    forget_if_done(id);
  }

  void forget_if_done(PeerId id) {
    const auto found = peers.find(id);
    if (found == peers.end() || !found->second.gone || found->second.outstanding > 0) return;
    fabric->release(found->second.memory.id);
    peers.erase(found);
  }

  void accept(const Event& event) {
    if (event.payload != bytes_of(kHello)) return drop(event.peer, "it is no pair of this version");
    Result<Region> memory = fabric->allocate(kMaxPairBytes);
    if (!memory.is_ok()) return drop(event.peer, memory.status().message());
    peers[event.peer].memory = memory.value();
    const Status status = send_region(fabric.get(), event.peer, memory.value().id, 0);
    if (!status.is_ok()) return drop(event.peer, status.message());
    ++peers[event.peer].outstanding;
    say("connected over " + fabric->kind(event.peer) + ": " + fabric->describe_peer(event.peer));
  }

  void arrived(const Event& event) {
    const auto found = peers.find(event.peer);
    if (found == peers.end() || !(event.immediate & (kEcho | kAcknowledge))) return;
    Peer& peer = found->second;
    if (!peer.known || peer.echoes.size() >= kMaxEchoes)
      return drop(event.peer, "it asks for more echoes than it may");
    peer.echoes.push_back(event.immediate & kEcho ? event.bytes
                                                  : std::min<uint64_t>(event.bytes, 1));
    peer.immediates.push_back(event.immediate);
  }

  void message(const Event& event) {
    const auto found = peers.find(event.peer);
    if (found == peers.end()) return;
    if (event.payload == bytes_of(kThrough)) {
      through = true;
      return;
    }
    const Status status = read_region(event.payload, &found->second.target);
    if (!status.is_ok()) return drop(event.peer, status.message());
    found->second.known = true;
  }

  // A failure comes as `lost` too.
  void done(const Event& event) {
    const auto found = peers.find(event.peer);
    if (found == peers.end()) return;
    --found->second.outstanding;
    forget_if_done(event.peer);
  }

  void on(const Event& event) {
    switch (event.kind) {
      case Event::Kind::accepted:
        return accept(event);
      case Event::Kind::arrived:
        return arrived(event);
      case Event::Kind::message:
        return message(event);
      case Event::Kind::lost:
        return leave(event.peer);
      case Event::Kind::done:
        return done(event);
      case Event::Kind::connected:
        return;
    }
  }

  void send_echoes() {
    for (auto next = peers.begin(); next != peers.end();) {
      const auto current = next++;
      Peer& peer = current->second;
      while (!peer.echoes.empty()) {
        const LocalSpan span{peer.memory.base, static_cast<size_t>(peer.echoes.front()),
                             peer.memory.id};
        const Status status =
            fabric->write(current->first, &span, 1, peer.target, peer.immediates.front(), 1);
        if (status.code() == Code::busy) break;
        if (!status.is_ok()) {
          drop(current->first, status.message());
          break;
        }
        ++peer.outstanding;
        peer.echoes.pop_front();
        peer.immediates.pop_front();
      }
    }
  }
};

PairListener::PairListener(const HostFabricOptions& options)
    : implementation_(std::make_unique<Implementation>()) {
  implementation_->fabric = make_host_fabric(options);
}

PairListener::~PairListener() = default;

Result<Address> PairListener::listen(const Address& address) {
  return implementation_->fabric->listen(address);
}

Status PairListener::run(bool once) {
  Implementation& self = *implementation_;
  std::vector<Event> events;
  while (!self.stopping && !(once && self.through && self.peers.empty())) {
    events.clear();
    self.fabric->poll(&events, kPollMs);
    for (const Event& event : events) self.on(event);
    self.send_echoes();
  }
  return Status::ok();
}

void PairListener::stop() {
  implementation_->stopping = true;
  implementation_->fabric->wake();
}

std::vector<std::string> PairListener::log() const {
  std::lock_guard<std::mutex> lock(implementation_->mutex);
  return implementation_->lines;
}

// ---- the client

namespace {

class Client {
 public:
  Client(const HostFabricOptions& options, const std::function<Status()>& interrupt)
      : fabric_(make_host_fabric(options)), interrupt_(interrupt) {}

  Status connect(const Address& address, PairResult* result) {
    const Time start = std::chrono::steady_clock::now();
    Result<PeerId> peer = fabric_->connect(address, bytes_of(kHello));
    if (!peer.is_ok()) return peer.status();
    peer_ = peer.value();
    // The fabric ends the attempt by itself after kHandshakeTimeoutMs, with a better reason.
    Status status = wait([this] { return connected_; }, 2 * kHandshakeTimeoutMs);
    if (!status.is_ok()) return status;
    result->connect_ms = us_since(start) / 1000;
    result->fabric = fabric_->kind(peer_);
    result->path = fabric_->describe_peer(peer_);
    Result<Region> source = fabric_->allocate(kMaxPairBytes),
                   sink = fabric_->allocate(kMaxPairBytes);
    if (!source.is_ok()) return source.status();
    if (!sink.is_ok()) return sink.status();
    source_ = source.value();
    sink_ = sink.value();
    for (size_t i = 0; i < kMaxPairBytes; ++i)
      source_.base[i] = static_cast<std::byte>(i * 7 + i / 251);
    status = send_region(fabric_.get(), peer_, sink_.id, 0);
    if (!status.is_ok()) return status;
    ++outstanding_;
    return wait([this] { return target_.bytes > 0 && outstanding_ == 0; });
  }

  Status measure(uint64_t bytes, PairStep* step) {
    step->bytes = bytes;
    Status status = latency(bytes, step);
    return status.is_ok() ? bandwidth(bytes, step) : status;
  }

  Status leave(bool last) {
    if (last) {
      Status status = fabric_->send(peer_, kThrough, std::strlen(kThrough), 0);
      if (!status.is_ok()) return status;
      ++outstanding_;
      status = wait([this] { return outstanding_ == 0; });
      if (!status.is_ok()) return status;
    }
    fabric_->close(peer_);
    return Status::ok();
  }

 private:
  Status post(uint64_t bytes, uint32_t immediate) {
    const LocalSpan span{source_.base, static_cast<size_t>(bytes), source_.id};
    Status status = fabric_->write(peer_, &span, 1, target_, immediate, 1);
    if (status.is_ok()) ++outstanding_;
    return status;
  }

  Status echo(uint64_t bytes, uint32_t immediate) {
    echoes_ = 0;
    Status status = post(bytes, immediate);
    if (!status.is_ok()) return status;
    return wait([this] { return echoes_ == 1 && outstanding_ == 0; });
  }

  Status latency(uint64_t bytes, PairStep* step) {
    std::vector<double> times;
    const Time start = std::chrono::steady_clock::now();
    while (times.size() < 10 || (us_since(start) < kPairLatencyMs * 1000 && times.size() < 1000)) {
      std::memset(sink_.base, 0, bytes);
      const Time posted = std::chrono::steady_clock::now();
      Status status = echo(bytes, kEcho);
      if (!status.is_ok()) return status;
      times.push_back(us_since(posted) / 2);
      if (std::memcmp(sink_.base, source_.base, bytes) != 0)
        return Status(Code::fabric, "an echo of " + std::to_string(bytes) + " bytes over " +
                                        fabric_->describe_peer(peer_) +
                                        " came back with other content: the path corrupts data");
    }
    std::sort(times.begin(), times.end());
    step->latency_us = times[times.size() / 2];
    step->slowest_us = times.back();
    return Status::ok();
  }

  Status bandwidth(uint64_t bytes, PairStep* step) {
    uint64_t sent = 0;
    const Time start = std::chrono::steady_clock::now();
    while (us_since(start) < kPairBandwidthMs * 1000) {
      Status status = post(bytes, 0);
      if (!status.is_ok() && status.code() != Code::busy) return status;
      if (status.is_ok()) ++sent;
      if (!status.is_ok() || outstanding_ >= kPairWindow) {
        const uint32_t before = outstanding_;
        status = wait([this, before] { return outstanding_ < before; });
        if (!status.is_ok()) return status;
      }
    }
    // Its acknowledgement says that all before it arrived.
    Status status = wait([this] { return outstanding_ == 0; });
    if (status.is_ok()) status = echo(bytes, kAcknowledge);
    step->bytes_per_s = static_cast<double>((sent + 1) * bytes) / (us_since(start) / 1e6);
    return status;
  }

  template <typename Condition>
  Status wait(Condition condition, int limit_ms = kHandshakeTimeoutMs) {
    const int64_t deadline = clock_.now_ms() + limit_ms;
    while (!condition()) {
      events_.clear();
      fabric_->poll(&events_, kPollMs);
      for (const Event& event : events_) {
        Status status = on(event);
        if (!status.is_ok()) return status;
      }
      Status status = interrupt_();
      if (!status.is_ok()) return status;
      if (!condition() && clock_.now_ms() > deadline)
        return Status(Code::fabric, "no answer from " + fabric_->describe_peer(peer_) + " within " +
                                        std::to_string(limit_ms / 1000) + " s");
    }
    return Status::ok();
  }

  Status on(const Event& event) {
    switch (event.kind) {
      case Event::Kind::connected:
        connected_ = true;
        return Status::ok();
      case Event::Kind::message:
        return read_region(event.payload, &target_);
      case Event::Kind::arrived:
        ++echoes_;
        return Status::ok();
      case Event::Kind::done:
        --outstanding_;
        return event.status;
      case Event::Kind::lost:
        return event.status;
      case Event::Kind::accepted:
        return Status::ok();
    }
    return Status::ok();
  }

  std::unique_ptr<Fabric> fabric_;
  std::function<Status()> interrupt_;
  SteadyClock clock_;
  std::vector<Event> events_;
  PeerId peer_ = 0;
  Region source_, sink_;
  RemoteRegion target_;
  bool connected_ = false;
  uint32_t outstanding_ = 0, echoes_ = 0;
};

}  // namespace

Result<PairResult> measure_pair(const HostFabricOptions& options, const Address& address,
                                const std::vector<uint64_t>& sizes, bool last,
                                const std::function<Status()>& interrupt) {
  PairResult result;
  Client client(options, interrupt);
  Status status = client.connect(address, &result);
  for (uint64_t bytes : sizes) {
    if (!status.is_ok()) return status;
    if (bytes > kMaxPairBytes)
      return Status(Code::invalid_argument, "messages of at most 4 MiB are measured");
    PairStep step;
    status = client.measure(bytes, &step);
    result.steps.push_back(step);
  }
  if (status.is_ok()) status = client.leave(last);
  if (!status.is_ok()) return status;
  return result;
}

}  // namespace mxrdma::fabric
