#include "fabric/bootstrap/handshake.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "wire/codec.h"

namespace mxrdma::fabric {
namespace {

constexpr size_t kMaxTextBytes = 512;
constexpr size_t kMaxDeviceBytes = 64;  // IB_DEVICE_NAME_MAX
constexpr uint32_t kMaxMtu = 65536;
constexpr uint32_t kMaxTwentyFourBits = 0xffffff;

void append(std::vector<std::byte>* to, const void* data, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  to->insert(to->end(), from, from + bytes);
}

}  // namespace

Status fill_random(void* data, size_t bytes) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t count = getrandom(to, bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Status(Code::fabric, "getrandom: " + errno_text(errno));
    to += count;
    bytes -= static_cast<size_t>(count);
  }
  return Status::ok();
}

Digest hmac_sha256(const std::string& token, const std::vector<std::byte>& data) {
  Digest digest{};
  unsigned int bytes = 0;
  const unsigned char* made = HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                                   reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                                   reinterpret_cast<unsigned char*>(digest.data()), &bytes);
  MXRDMA_CHECK(made != nullptr && bytes == digest.size(), "HMAC-SHA256 cannot fail on memory");
  return digest;
}

HostIdentity host_identity() {
  HostIdentity identity;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, identity.boot_id);
  struct stat facts {};
  if (stat("/proc/self/ns/net", &facts) == 0) identity.network_namespace = facts.st_ino;
  identity.pid = static_cast<uint64_t>(getpid());
  return identity;
}

Handshake::Handshake(bool connector, const std::string& token)
    : connector_(connector), token_(token) {}

Status Handshake::start() {
  Status status = fill_random(own_.data(), own_.size());
  if (!status.is_ok()) return status;
  const Prologue prologue{kHandshakeMagic, kHandshakeVersion, 0, own_};
  append(&output_, &prologue, sizeof prologue);
  return Status::ok();
}

Status Handshake::fail(Code code, const std::string& text) {
  stage_ = Stage::failed;
  return Status(code, text);
}

Digest Handshake::proof(bool of_connector) const {
  const std::string label = of_connector ? "mxrdma connector" : "mxrdma acceptor";
  std::vector<std::byte> data;
  append(&data, label.data(), label.size());
  append(&data, &kHandshakeVersion, sizeof kHandshakeVersion);
  const Nonce& connector = connector_ ? own_ : peer_;
  const Nonce& acceptor = connector_ ? peer_ : own_;
  append(&data, connector.data(), connector.size());
  append(&data, acceptor.data(), acceptor.size());
  return hmac_sha256(token_, data);
}

Status Handshake::read_prologue() {
  Prologue prologue;
  std::memcpy(&prologue, input_.data(), sizeof prologue);
  input_.erase(input_.begin(), input_.begin() + sizeof prologue);
  if (prologue.magic != kHandshakeMagic)
    return fail(Code::fabric, "the peer is not a node of mxrdma; check host and port");
  if (prologue.version != kHandshakeVersion)
    return fail(Code::config, "the peer speaks version " + std::to_string(prologue.version) +
                                  " of the handshake, we " + std::to_string(kHandshakeVersion) +
                                  "; install the same mxrdma on all hosts");
  // A reflected nonce would make our own proof pass for the peer's.
  if (prologue.nonce == own_) return fail(Code::auth, "the peer repeats our nonce");
  peer_ = prologue.nonce;
  stage_ = Stage::proof;
  if (connector_) {
    const Digest digest = proof(true);
    append(&output_, digest.data(), digest.size());
    proof_sent_ = true;
  }
  return Status::ok();
}

Status Handshake::read_proof() {
  const Digest expected = proof(!connector_);
  const bool same = CRYPTO_memcmp(expected.data(), input_.data(), expected.size()) == 0;
  input_.erase(input_.begin(), input_.begin() + static_cast<long>(expected.size()));
  if (!same)
    return fail(Code::auth,
                "the peer could not prove the job's token; check that MXRDMA_TOKEN is the same in "
                "all roles");
  stage_ = Stage::body;
  if (!connector_) {
    const Digest digest = proof(false);
    append(&output_, digest.data(), digest.size());
    proof_sent_ = true;
  }
  return Status::ok();
}

size_t Handshake::wanted() const {
  size_t whole = 0;
  switch (stage_) {
    case Stage::prologue:
      whole = sizeof(Prologue);
      break;
    case Stage::proof:
      whole = sizeof(Digest);
      break;
    case Stage::body: {
      uint32_t size = 0;
      whole = sizeof size;
      if (input_.size() < sizeof size) break;
      std::memcpy(&size, input_.data(), sizeof size);
      whole += std::min<size_t>(size, kMaxBodyBytes);
      break;
    }
    case Stage::failed:
      break;
  }
  return whole > input_.size() ? whole - input_.size() : 0;
}

Status Handshake::feed(const std::byte* data, size_t bytes) {
  if (stage_ == Stage::failed) return Status(Code::fabric, "the handshake has failed");
  append(&input_, data, bytes);
  if (stage_ == Stage::prologue && input_.size() >= sizeof(Prologue)) {
    Status status = read_prologue();
    if (!status.is_ok()) return status;
  }
  if (stage_ == Stage::proof && input_.size() >= sizeof(Digest)) {
    Status status = read_proof();
    if (!status.is_ok()) return status;
  }
  if (stage_ == Stage::body && input_.size() >= sizeof(uint32_t)) {
    uint32_t size = 0;
    std::memcpy(&size, input_.data(), sizeof size);
    if (size > kMaxBodyBytes)
      return fail(Code::fabric,
                  "malformed handshake: a body of " + std::to_string(size) + " bytes");
  }
  return Status::ok();
}

bool Handshake::take_body(std::vector<std::byte>* body) {
  uint32_t size = 0;
  if (stage_ != Stage::body || input_.size() < sizeof size) return false;
  std::memcpy(&size, input_.data(), sizeof size);
  if (size > kMaxBodyBytes || input_.size() < sizeof size + size) return false;
  const auto first = input_.begin() + sizeof size;
  body->assign(first, first + size);
  input_.erase(input_.begin(), first + size);
  return true;
}

void Handshake::put_body(const std::vector<std::byte>& body) {
  MXRDMA_CHECK(body.size() <= kMaxBodyBytes, "hello was checked");
  const uint32_t size = static_cast<uint32_t>(body.size());
  append(&output_, &size, sizeof size);
  append(&output_, body.data(), body.size());
}

std::string Handshake::describe_end() const {
  if (stage_ == Stage::proof && proof_sent_)
    return "the peer closed the connection instead of accepting our token; check that MXRDMA_TOKEN "
           "is the same in all "
           "roles";
  return "the peer closed the connection during the handshake";
}

// ---- bodies

namespace {

template <typename Coder>
void fields(Coder& coder, typename Coder::template Field<Offer> offer) {
  coder.choice(offer.policy, Policy::control, "policy");
  coder.text(offer.identity.boot_id, kMaxTextBytes, "boot id");
  coder.number(offer.identity.network_namespace);
  coder.number(offer.identity.pid);
  coder.blob(offer.hello, kMaxHelloBytes, "hello");
}

template <typename Coder>
void fields(Coder& coder, typename Coder::template Field<Answer> answer) {
  coder.choice(answer.policy, Policy::control, "policy");
  coder.number(answer.pid);
  coder.flag(answer.shm, "shm");
  coder.text(answer.reason, kMaxTextBytes, "reason");
  coder.text(answer.socket_name, kMaxTextBytes, "socket name");
  coder.number(answer.cookie[0]);
  coder.number(answer.cookie[1]);
  coder.flag(answer.verbs, "verbs");
  coder.text(answer.why_not_verbs, kMaxTextBytes, "reason");
}

template <typename Coder>
void rail_fields(Coder& coder, typename Coder::template Field<VerbsRail> rail) {
  coder.text(rail.device, kMaxDeviceBytes, "device");
  coder.number(rail.port);
  coder.flag(rail.ethernet, "ethernet");
  coder.flag(rail.iwarp, "iwarp");
  coder.number(rail.lid);
  coder.number(rail.gid[0]);
  coder.number(rail.gid[1]);
  coder.number(rail.gid_type);
  coder.number(rail.gid_index);
  coder.number(rail.mtu);
  coder.require(rail.mtu <= kMaxMtu, "mtu");
  coder.text(rail.rate, kMaxDeviceBytes, "rate");
  coder.number(rail.queue_pair);
  coder.number(rail.first_packet);
  coder.require(rail.queue_pair <= kMaxTwentyFourBits && rail.first_packet <= kMaxTwentyFourBits,
                "a queue pair's number of more than 24 bits");
  coder.number(rail.reads);
  coder.number(rail.probe_address);
  coder.number(rail.probe_key);
  coder.text(rail.cm_host, kMaxHostBytes, "rdma_cm host");
  coder.number(rail.cm_port);
  coder.number(rail.cm_cookie);
}

template <typename Coder>
void fields(Coder& coder, typename Coder::template Field<VerbsEnd> end) {
  coder.number(end.generation);
  coder.number(end.window);
  coder.require(end.window <= kVerbsWindow, "window");
  coder.number(end.max_write_bytes);
  coder.list(end.rails, kMaxVerbsRails, "rails",
             [](auto& inner, auto& rail) { rail_fields(inner, rail); });
}

template <typename Coder>
void fields(Coder& coder, typename Coder::template Field<Choice> choice) {
  coder.choice(choice.path, Path::verbs, "path");
  coder.text(choice.reason, kMaxTextBytes, "reason");
  fields(coder, choice.end);
}

template <typename Coder>
void fields(Coder& coder, typename Coder::template Field<Ready> ready) {
  coder.flag(ready.ok, "ok");
  coder.text(ready.reason, kMaxTextBytes, "reason");
  coder.number(ready.peer_generation);
  fields(coder, ready.end);
}

template <typename Body>
std::vector<std::byte> written(const Body& body) {
  wire::Writer writer;
  fields(writer, body);
  return writer.take();
}

template <typename Body>
Result<Body> parsed(const std::vector<std::byte>& bytes, const char* what) {
  wire::Reader reader(bytes.data(), bytes.size());
  Body body;
  fields(reader, body);
  if (!reader.failed() && reader.left() > 0) reader.fail("bytes behind its end");
  if (reader.failed())
    return Status(Code::fabric, std::string("malformed ") + what + ": " + reader.error());
  return body;
}

}  // namespace

std::vector<std::byte> encode(const Offer& offer) { return written(offer); }
std::vector<std::byte> encode(const Answer& answer) { return written(answer); }
std::vector<std::byte> encode(const Choice& choice) { return written(choice); }
std::vector<std::byte> encode(const Ready& ready) { return written(ready); }
Result<Offer> decode_offer(const std::vector<std::byte>& body) {
  return parsed<Offer>(body, "offer");
}
Result<Answer> decode_answer(const std::vector<std::byte>& body) {
  return parsed<Answer>(body, "answer");
}
Result<Choice> decode_choice(const std::vector<std::byte>& body) {
  return parsed<Choice>(body, "choice");
}
Result<Ready> decode_ready(const std::vector<std::byte>& body) {
  return parsed<Ready>(body, "ready");
}

}  // namespace mxrdma::fabric
