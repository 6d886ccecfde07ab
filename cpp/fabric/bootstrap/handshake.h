// The handshake on a fresh TCP connection, as a state machine over bytes: no I/O. Both ends prove
// the job's token before any other byte of theirs is parsed; then they agree on the data path.
//
//   both          Prologue: magic, version, nonce               (40 bytes)
//   connector     Proof: HMAC-SHA256(token, "connector", nonces) (32 bytes)
//   acceptor      Proof: HMAC-SHA256(token, "acceptor", nonces)
//   connector     Offer: policy, host identity, hello
//   acceptor      Answer: shm rendezvous, whether it has verbs, or why not
//   connector     Choice: the path, after it has tried; with verbs its queue pairs
//   and with verbs:
//   acceptor      Ready: its queue pairs, which can receive; or why not
//   (over the queue pairs a probe of the connector, then one of the acceptor)
//   connector     Choice: verbs, or tcp and why
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "fabric/host_fabric.h"

namespace mxrdma::fabric {

using Nonce = std::array<std::byte, 32>;
using Digest = std::array<std::byte, 32>;

Status fill_random(void* data, size_t bytes);
Digest hmac_sha256(const std::string& token, const std::vector<std::byte>& data);

struct Prologue {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  Nonce nonce;
};
static_assert(sizeof(Prologue) == 40);

constexpr uint32_t kHandshakeMagic = 0x4d585248;
constexpr uint16_t kHandshakeVersion = 3;
// A frame of the agreement: a hello and a few names.
constexpr size_t kMaxBodyBytes = kMaxHelloBytes + 2048;

// Which kernel and which namespaces a process lives in: shared memory works where these agree.
struct HostIdentity {
  std::string boot_id;
  uint64_t network_namespace = 0;
  uint64_t pid = 0;
};
HostIdentity host_identity();

// One end of a queue pair, as the other end needs it.
struct VerbsRail {
  std::string device;
  uint8_t port = 0;
  bool ethernet = false;  // RoCE; else InfiniBand
  bool iwarp = false;
  uint32_t lid = 0;
  uint64_t gid[2] = {0, 0};  // as it lies in memory
  uint8_t gid_type = 0;      // GidType
  uint32_t gid_index = 0;
  uint32_t mtu = 0;  // bytes
  std::string rate;  // for people
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;
  uint32_t reads = 0;  // that it can serve at a time
  // Memory for the probe's payload.
  uint64_t probe_address = 0;
  uint32_t probe_key = 0;
  // iWARP: where rdma_cm listens, and what opens the door. (CmPort)
  std::string cm_host;
  uint16_t cm_port = 0;
  uint64_t cm_cookie = 0;
};
struct VerbsEnd {
  uint32_t generation = 0;  // in each packet to this end
  uint32_t window = 0;      // receives that it keeps posted for the peer
  uint64_t max_write_bytes = 0;
  std::vector<VerbsRail> rails;
};

enum class Path : uint8_t { tcp, shm, verbs };

struct Offer {
  Policy policy = Policy::automatic;
  HostIdentity identity;
  std::vector<std::byte> hello;
};
struct Answer {
  Policy policy = Policy::automatic;
  uint64_t pid = 0;
  bool shm = false;         // a rendezvous is offered
  std::string reason;       // why not
  std::string socket_name;  // abstract Unix socket
  uint64_t cookie[2] = {0, 0};
  bool verbs = false;
  std::string why_not_verbs;
};
struct Choice {
  Path path = Path::tcp;
  std::string reason;  // why not a better one
  VerbsEnd end;        // with verbs, at the first time
};
struct Ready {
  bool ok = false;
  std::string reason;            // why not
  uint32_t peer_generation = 0;  // of the Choice that this answers
  VerbsEnd end;
};

std::vector<std::byte> encode(const Offer& offer);
std::vector<std::byte> encode(const Answer& answer);
std::vector<std::byte> encode(const Choice& choice);
std::vector<std::byte> encode(const Ready& ready);
Result<Offer> decode_offer(const std::vector<std::byte>& body);
Result<Answer> decode_answer(const std::vector<std::byte>& body);
Result<Choice> decode_choice(const std::vector<std::byte>& body);
Result<Ready> decode_ready(const std::vector<std::byte>& body);

class Handshake {
 public:
  enum class Stage { prologue, proof, body, failed };

  Handshake(bool connector, const std::string& token);
  Status start();  // draws the nonce; puts the first bytes into output()

  // How many more bytes belong to the current step for certain: read no more, what follows is the
  // data path's.
  size_t wanted() const;
  Status feed(const std::byte* data, size_t bytes);
  // A complete body of the peer, or false.
  bool take_body(std::vector<std::byte>* body);
  void put_body(const std::vector<std::byte>& body);
  // To be sent; the caller erases what it has sent.
  std::vector<std::byte>& output() { return output_; }

  bool proven() const { return stage_ == Stage::body; }
  Stage stage() const { return stage_; }
  // For the text when the peer ends the connection here.
  std::string describe_end() const;

 private:
  Status fail(Code code, const std::string& text);
  Status read_prologue();
  Status read_proof();
  Digest proof(bool of_connector) const;

  bool connector_;
  std::string token_;
  Stage stage_ = Stage::prologue;
  Nonce own_{}, peer_{};
  bool proof_sent_ = false;
  std::vector<std::byte> input_, output_;
};

}  // namespace mxrdma::fabric
