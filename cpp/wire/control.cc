#include "wire/control.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "wire/codec.h"
#include "wire/data.h"

namespace mxrdma::wire {

namespace {

constexpr uint32_t kHelloMagic = 0x4848584d;  // "MXHH"
constexpr uint8_t kLastCode = static_cast<uint8_t>(Code::internal);
constexpr size_t kChunkHeadBytes = 1 + 8 + 8 + 4;  // type, total, offset, length
constexpr size_t kChunkBytes = kMaxMessageBytes - kChunkHeadBytes;

template <typename Codec, typename T>
using Field = typename Codec::template Field<T>;

// ---- fields, in the order of the wire. One function for each type, for both directions.

template <typename Codec>
void fields(Codec& codec, Field<Codec, RemoteRegion> region) {
  codec.number(region.address);
  codec.number(region.bytes);
  codec.number(region.key);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Join> join) {
  codec.choice(join.role, Role::worker, "role");
  codec.number(join.preferred_rank);
  codec.number(join.pid);
  codec.text(join.host, kMaxHostBytes, "host name");
  codec.text(join.listen_host, kMaxHostBytes, "listening host");
  codec.number(join.listen_port);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, NodeInfo> node) {
  codec.choice(node.role, Role::worker, "role");
  codec.number(node.rank);
  codec.number(node.pid);
  codec.text(node.host, kMaxHostBytes, "host name");
  codec.text(node.listen_host, kMaxHostBytes, "listening host");
  codec.number(node.listen_port);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, JobConfig> config) {
  codec.number(config.workers);
  codec.number(config.servers);
  codec.number(config.slot_bytes);
  codec.number(config.slots_per_worker);
  codec.number(config.staleness);
  codec.number(config.heartbeat_interval_ms);
  codec.number(config.heartbeat_timeout_ms);
  codec.number(config.stall_report_ms);
  codec.number(config.round_timeout_ms);
  codec.number(config.barrier_timeout_ms);
  codec.require(config.workers <= kMaxNodes && config.servers <= kMaxNodes,
                "more workers or servers than a job can have");
}

// Nodes are found by their place in the book.
bool in_order(const AddressBook& book) {
  const JobConfig& config = book.config;
  if (book.nodes.size() != size_t{config.servers} + config.workers) return false;
  for (size_t i = 0; i < book.nodes.size(); ++i) {
    const NodeInfo& node = book.nodes[i];
    const bool server = i < config.servers;
    if (node.role != (server ? Role::server : Role::worker)) return false;
    if (node.rank != (server ? i : i - config.servers)) return false;
    if (server && (node.listen_host.empty() || node.listen_port == 0)) return false;
  }
  return true;
}

bool has_place(const AddressBook& book) {
  if (book.your_role == Role::server) return book.your_rank < book.config.servers;
  return book.your_role == Role::worker && book.your_rank < book.config.workers;
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, AddressBook> book) {
  codec.number(book.generation);
  codec.choice(book.your_role, Role::worker, "role");
  codec.number(book.your_rank);
  fields(codec, book.config);
  codec.list(book.nodes, 2 * size_t{kMaxNodes}, "nodes",
             [](Codec& each, auto& node) { fields(each, node); });
  if (codec.failed()) return;
  codec.require(book.generation != 0, "an address book of generation 0");
  codec.require(in_order(book), "the nodes are not all servers and workers of the job by rank");
  codec.require(has_place(book), "the receiver's own rank is not one of the job");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, JoinRefused> refused) {
  codec.code(refused.code, kLastCode, "code");
  codec.reason(refused.reason, "reason");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Heartbeat> heartbeat) {
  codec.number(heartbeat.count);
}

template <typename Codec>
void fields(Codec&, Field<Codec, Leave>) {}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Failed> failed) {
  codec.reason(failed.reason, "reason");
  codec.code(failed.code, kLastCode, "code");
}

template <typename Codec>
void fields(Codec&, Field<Codec, LeaveAcknowledged>) {}

template <typename Codec>
void fields(Codec& codec, Field<Codec, NodeGone> gone) {
  codec.choice(gone.role, Role::worker, "role");
  codec.number(gone.rank);
  codec.text(gone.host, kMaxHostBytes, "host name");
  codec.choice(gone.how, GoneHow::lost, "how the node went");
  codec.reason(gone.reason, "reason");
  codec.code(gone.code, kLastCode, "code");
  codec.require(gone.role != Role::scheduler && gone.rank < kMaxNodes,
                "the node that is gone cannot be one of the job");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Stop> stop) {
  codec.reason(stop.reason, "reason");
}

uint64_t product(const std::vector<int64_t>& shape) {
  uint64_t elements = 1;
  for (int64_t extent : shape) {
    if (extent < 0) return UINT64_MAX;
    if (extent == 0) return 0;
    if (elements > kMaxKeyBytes / static_cast<uint64_t>(extent)) return UINT64_MAX;
    elements *= static_cast<uint64_t>(extent);
  }
  return elements;
}

// Both are 0 or small after an error of the reader, so that the product cannot overflow.
uint64_t bytes_of(const KeyRequest& key) {
  return key.elements > kMaxKeyBytes ? UINT64_MAX : key.elements * dtype_bytes(key.dtype);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, KeyRequest> key) {
  codec.text(key.name, kMaxKeyNameBytes, "key name");
  if (!codec.failed())
    codec.require(well_formed_name(key.name), "a key name that starts with neither i: nor s:");
  codec.number(key.updater_index);
  codec.choice(key.dtype, DType::int64, "dtype");
  codec.number(key.elements);
  codec.list(key.shape, kMaxDimensions, "dimensions",
             [](Codec& each, auto& extent) { each.number(extent); });
  if (codec.failed()) return;
  codec.require(bytes_of(key) <= kMaxKeyBytes, "key is larger than a key can be");
  codec.require(key.shape.empty() || product(key.shape) == key.elements,
                "shape and number of elements disagree");
}

bool covers(const std::vector<Share>& shares, uint64_t bytes) {
  uint64_t end = 0;
  for (const Share& share : shares) {
    if (share.server >= kMaxNodes || share.offset_bytes != end || share.bytes > bytes - end)
      return false;
    end += share.bytes;
  }
  return end == bytes;
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Share> share) {
  codec.number(share.server);
  codec.number(share.offset_bytes);
  codec.number(share.bytes);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, KeySpec> key) {
  codec.number(key.id);
  fields(codec, key.request);
  codec.flag(key.whole, "whole");
  codec.list(key.shares, kMaxNodes, "shares",
             [](Codec& each, auto& share) { fields(each, share); });
  if (codec.failed()) return;
  codec.require(key.id < kMaxKeys, "key id beyond the number of keys that a job can have");
  codec.require(covers(key.shares, bytes_of(key.request)), "shares do not cover the key in order");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, std::vector<KeySpec>> keys) {
  codec.list(keys, kMaxKeys, "keys", [](Codec& each, auto& key) { fields(each, key); });
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, OptimizerSpec> optimizer) {
  codec.choice(optimizer.kind, OptimizerKind::python, "optimizer");
  codec.number(optimizer.momentum);
  codec.number(optimizer.beta1);
  codec.number(optimizer.beta2);
  codec.number(optimizer.epsilon);
  codec.number(optimizer.clip_gradient);
  codec.flag(optimizer.multi_precision, "multi_precision");
  codec.text(optimizer.name, kMaxKeyNameBytes, "optimizer name");
  codec.blob(optimizer.pickle, kMaxBlobBytes, "pickled optimizer");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Enter> enter) {
  codec.number(enter.sequence);
  codec.choice(enter.kind, CollectiveKind::set_optimizer, "kind of collective");
  codec.reason(enter.label, "label");
  codec.list(enter.keys, kMaxKeys, "keys", [](Codec& each, auto& key) { fields(each, key); });
  fields(codec, enter.optimizer);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Release> release) {
  codec.number(release.sequence);
  codec.code(release.code, kLastCode, "code");
  codec.reason(release.reason, "reason");
  fields(codec, release.keys);
  fields(codec, release.moved);
  codec.choice(release.optimizer, OptimizerKind::python, "optimizer");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, PlaceKeys> place) {
  codec.number(place.sequence);
  fields(codec, place.keys);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, DropKeys> drop) {
  codec.list(drop.keys, kMaxKeys, "keys", [](Codec& each, auto& key) {
    each.number(key);
    each.require(key < kMaxKeys, "key id beyond the number of keys that a job can have");
  });
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, SetOptimizer> set) {
  codec.number(set.sequence);
  fields(codec, set.optimizer);
  fields(codec, set.moved);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, DecideOptimizer> decide) {
  codec.number(decide.sequence);
  codec.flag(decide.use, "use");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, ServerAck> ack) {
  codec.number(ack.sequence);
  codec.code(ack.code, kLastCode, "code");
  codec.reason(ack.reason, "reason");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, RingInfo> info) {
  fields(codec, info.ring);
  codec.number(info.slot_bytes);
  codec.number(info.slots);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Credits> credits) {
  codec.list(credits.slots, kMaxSlotsPerPeer, "credits",
             [](Codec& each, auto& slot) { each.number(slot); });
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, PullRequest> request) {
  codec.number(request.key);
  codec.number(request.round);
  codec.number(request.pull_op);
  fields(codec, request.target);
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, RoundDone> done) {
  codec.list(done.items, kMaxBlobBytes, "finished rounds", [](Codec& each, auto& item) {
    each.number(item.key);
    each.number(item.slice);
    each.number(item.round);
  });
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, RoundFailed> failed) {
  codec.number(failed.key);
  codec.number(failed.round);
  codec.code(failed.code, kLastCode, "code");
  codec.reason(failed.reason, "reason");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, PullFailed> failed) {
  codec.number(failed.pull_op);
  codec.number(failed.key);
  codec.code(failed.code, kLastCode, "code");
  codec.reason(failed.reason, "reason");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Chunk> chunk) {
  codec.number(chunk.total);
  codec.number(chunk.offset);
  codec.blob(chunk.bytes, kMaxMessageBytes, "chunk");
}

template <typename Codec>
void fields(Codec& codec, Field<Codec, Hello> hello) {
  codec.choice(hello.role, Role::worker, "role");
  codec.number(hello.rank);
  codec.number(hello.generation);
  codec.number(hello.pid);
  codec.text(hello.host, kMaxHostBytes, "host name");
}

// ---- types. The type byte is the alternative's index + 1, so that no message starts with 0.

constexpr const char* kTypeNames[] = {
    "Join",    "AddressBook",       "JoinRefused",    "Heartbeat",   "Leave",
    "Failed",  "LeaveAcknowledged", "NodeGone",       "Stop",        "Enter",
    "Release", "PlaceKeys",         "SetOptimizer",   "ServerAck",   "RingInfo",
    "Credits", "PullRequest",       "RoundDone",      "RoundFailed", "PullFailed",
    "Chunk",   "DropKeys",          "DecideOptimizer"};
constexpr size_t kTypes = std::variant_size_v<Message>;
static_assert(sizeof kTypeNames / sizeof kTypeNames[0] == kTypes, "each type has its name");

template <size_t index = 0>
Message read_body(Reader& reader, size_t type) {
  if constexpr (index < kTypes) {
    if (type != index) return read_body<index + 1>(reader, type);
    std::variant_alternative_t<index, Message> body;
    fields(reader, body);
    return body;
  } else {
    reader.fail("unknown type");
    return Leave{};
  }
}

std::vector<std::byte> encode_one(const Message& message) {
  Writer writer;
  writer.number(static_cast<uint8_t>(message.index() + 1));
  std::visit([&writer](const auto& body) { fields(writer, body); }, message);
  return writer.take();
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::scheduler:
      return "scheduler";
    case Role::server:
      return "server";
    case Role::worker:
      return "worker";
  }
  return "unknown";
}

bool well_formed_name(const std::string& name) {
  return name.size() >= 2 && name.size() <= kMaxKeyNameBytes &&
         (name[0] == 'i' || name[0] == 's') && name[1] == ':';
}

std::string shown_name(const std::string& name) {
  return well_formed_name(name) ? name.substr(2) : name;
}

std::vector<std::byte> encode(const Hello& hello) {
  Writer writer;
  writer.number(kHelloMagic);
  writer.number(kWireVersion);
  fields(writer, hello);
  return writer.take();
}

Result<Hello> decode_hello(const void* data, size_t bytes) {
  if (bytes > kMaxHelloBytes)
    return Status(Code::fabric, "hello of " + std::to_string(bytes) + " bytes, the limit is " +
                                    std::to_string(kMaxHelloBytes));
  Reader reader(data, bytes);
  uint32_t magic = 0;
  uint16_t version = 0;
  reader.number(magic);
  reader.number(version);
  if (!reader.failed() && magic != kHelloMagic) reader.fail("not a hello");
  if (!reader.failed() && version != kWireVersion)
    return Status(Code::config, "the peer speaks wire version " + std::to_string(version) +
                                    ", this node version " + std::to_string(kWireVersion) +
                                    "; install the same mxrdma on all hosts");
  Hello hello;
  fields(reader, hello);
  if (!reader.failed() && reader.left() > 0)
    reader.fail(std::to_string(reader.left()) + " bytes too many");
  if (reader.failed()) return Status(Code::fabric, "malformed hello: " + reader.error());
  return hello;
}

std::vector<std::vector<std::byte>> encode(const Message& message) {
  std::vector<std::vector<std::byte>> parts;
  std::vector<std::byte> body = encode_one(message);
  if (body.size() <= kMaxMessageBytes) {
    parts.push_back(std::move(body));
    return parts;
  }
  Chunk chunk;
  chunk.total = body.size();
  for (size_t offset = 0; offset < body.size(); offset += chunk.bytes.size()) {
    chunk.offset = offset;
    const auto first = body.begin() + static_cast<ptrdiff_t>(offset);
    chunk.bytes.assign(first,
                       first + static_cast<ptrdiff_t>(std::min(kChunkBytes, body.size() - offset)));
    parts.push_back(encode_one(chunk));
  }
  return parts;
}

Result<Message> decode(const void* data, size_t bytes) {
  if (bytes > kMaxBlobBytes)
    return Status(Code::fabric, "message of " + std::to_string(bytes) + " bytes, the limit is " +
                                    std::to_string(kMaxBlobBytes));
  Reader reader(data, bytes);
  uint8_t type = 0;
  reader.number(type);
  if (reader.failed()) return Status(Code::fabric, "empty message");
  if (type == 0 || type > kTypes)
    return Status(Code::fabric, "message of unknown type " + std::to_string(type));
  Message message = read_body(reader, type - 1u);
  if (!reader.failed() && reader.left() > 0)
    reader.fail(std::to_string(reader.left()) + " bytes too many");
  if (reader.failed())
    return Status(Code::fabric,
                  std::string("malformed ") + kTypeNames[type - 1] + ": " + reader.error());
  return message;
}

Result<std::optional<Message>> Assembler::add(const void* data, size_t bytes) {
  Result<Message> decoded = decode(data, bytes);
  if (!decoded.is_ok()) return decoded.status();
  const Chunk* chunk = std::get_if<Chunk>(&decoded.value());
  const auto out_of_order = [this](const std::string& what) {
    return Status(Code::fabric, what + " after " + std::to_string(body_.size()) + " of " +
                                    std::to_string(total_) + " bytes of a body in chunks");
  };
  if (!chunk) {
    if (total_ != 0)
      return out_of_order(std::string(kTypeNames[decoded.value().index()]) + " came");
    return std::optional<Message>(std::move(decoded.value()));
  }
  if (chunk->bytes.empty() || chunk->total > kMaxBlobBytes)
    return Status(Code::fabric, "chunk of " + std::to_string(chunk->bytes.size()) +
                                    " bytes of a body of " + std::to_string(chunk->total) +
                                    "; the limit is " + std::to_string(kMaxBlobBytes));
  if ((total_ != 0 && chunk->total != total_) || chunk->offset != body_.size() ||
      chunk->bytes.size() > chunk->total - chunk->offset)
    return out_of_order("chunk of " + std::to_string(chunk->bytes.size()) + " bytes at " +
                        std::to_string(chunk->offset) + " of " + std::to_string(chunk->total) +
                        " came");
  total_ = chunk->total;
  body_.insert(body_.end(), chunk->bytes.begin(), chunk->bytes.end());
  if (body_.size() < total_) return std::optional<Message>();
  std::vector<std::byte> body;
  body.swap(body_);
  total_ = 0;
  Result<Message> whole = decode(body.data(), body.size());
  if (!whole.is_ok()) return whole.status();
  if (std::holds_alternative<Chunk>(whole.value()))
    return Status(Code::fabric, "chunks within chunks");
  return std::optional<Message>(std::move(whole.value()));
}

}  // namespace mxrdma::wire
