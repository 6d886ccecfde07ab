// Control messages: what nodes say to the scheduler and to each other besides tensors. Each message
// is one `send`: a MessageType byte, then the body. encode() and decode() are in control.cc; decode
// checks every length and bound and returns a Status that says what is wrong. Bodies larger than
// kMaxMessageBytes travel as Chunk messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "wire/region.h"

namespace mxrdma::wire {

enum class Role : uint8_t { scheduler = 0, server = 1, worker = 2 };
const char* role_name(Role role);

constexpr uint32_t kAnyRank = 0xffffffff;

// A key's name as people know it: without the mark of its kind (see KeyRequest).
std::string shown_name(const std::string& name);
// Canonical, as KeyRequest says, and not too long.
bool well_formed_name(const std::string& name);

// ---- hello: the payload of fabric connect()
// ---------------------------------------------------------------------- To the scheduler: a node
// that wants to join (generation 0). To a server: a worker of the address book.
struct Hello {
  Role role = Role::worker;
  uint32_t rank = kAnyRank;  // to the scheduler: the preferred rank
  uint64_t generation = 0;   // of the address book; a hello of another generation is refused
  uint64_t pid = 0;
  std::string host;  // as people know it
};

// ---- joining
// -----------------------------------------------------------------------------------------------------
struct Join {
  Role role = Role::worker;
  uint32_t preferred_rank = kAnyRank;
  uint64_t pid = 0;
  std::string host;
  std::string listen_host;  // where workers reach this server; empty for workers
  uint16_t listen_port = 0;
};

struct NodeInfo {
  Role role = Role::worker;
  uint32_t rank = 0;
  uint64_t pid = 0;
  std::string host;
  std::string listen_host;
  uint16_t listen_port = 0;
};

// Settings on which all nodes must agree: the scheduler's count.
struct JobConfig {
  uint32_t workers = 0;
  uint32_t servers = 0;
  uint32_t slot_bytes = 0;
  uint32_t slots_per_worker = 0;
  uint32_t staleness =
      0;  // unfinished rounds of a key beyond one that a worker may have on the wire
  uint32_t heartbeat_interval_ms = 0;
  uint32_t heartbeat_timeout_ms = 0;
  uint32_t stall_report_ms = 0;
  uint32_t round_timeout_ms = 0;
  uint32_t barrier_timeout_ms = 0;
};

struct AddressBook {
  uint64_t generation = 0;  // random, not 0
  Role your_role = Role::worker;
  uint32_t your_rank = 0;
  JobConfig config;
  std::vector<NodeInfo> nodes;  // servers by rank, then workers by rank; decode() sees to it
};

struct JoinRefused {
  uint8_t code = 0;
  std::string reason;
};

// ---- liveness
// ----------------------------------------------------------------------------------------------------
struct Heartbeat {
  uint64_t count = 0;
};
struct Leave {};  // a node ends normally
struct Failed {   // a node ends because of an error
  std::string reason;
  // The Code that every worker shall raise. 0: nothing but this node itself has failed, so to the
  // others it is lost.
  uint8_t code = 0;
};
struct LeaveAcknowledged {};  // the scheduler has taken note: the node may close
enum class GoneHow : uint8_t { left = 0, failed = 1, lost = 2 };
struct NodeGone {  // scheduler to all
  Role role = Role::worker;
  uint32_t rank = 0;
  std::string host;
  GoneHow how = GoneHow::lost;
  std::string reason;
  uint8_t code = 0;  // failed: as it said
};
struct Stop {
  std::string reason;
};  // scheduler to servers: no worker is left

// ---- collectives of all workers, decided by the scheduler
// --------------------------------------------------------- A worker enters its n-th collective
// with sequence n. All ranks must enter the same kind with agreeing contents.
enum class CollectiveKind : uint8_t { barrier = 0, register_keys = 1, set_optimizer = 2 };

struct KeyRequest {
  std::string name;  // canonical: "i:<int>" for integer keys, "s:<str>" for string keys
  int64_t updater_index =
      0;  // what an updater sees as the key: the integer, or the order of init of a string key
  DType dtype = DType::float32;
  uint64_t elements = 0;
  std::vector<int64_t> shape;
};

// A contiguous part of a key on one server. Shares of a key cover it without gaps, in order.
struct Share {
  uint32_t server = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

struct KeySpec {
  uint32_t id = 0;  // dense from 0 in order of registration
  KeyRequest request;
  bool whole = false;  // all on one server because the updater needs whole tensors
  std::vector<Share> shares;
};

enum class OptimizerKind : uint8_t { none = 0, sgd = 1, nag = 2, adam = 3, python = 4 };

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::none;
  float momentum = 0;
  float beta1 = 0, beta2 = 0, epsilon = 0;  // adam
  float clip_gradient = -1;                 // <= 0: none (as MXNet)
  bool multi_precision = false;
  std::string name;               // class name, for messages and to compare ranks
  std::vector<std::byte> pickle;  // python: cloudpickle of the updater (rank 0's counts)
};

struct Enter {  // worker to scheduler
  uint64_t sequence = 0;
  CollectiveKind kind = CollectiveKind::barrier;
  std::string label;             // for reports: "barrier", "init of key 3"
  std::vector<KeyRequest> keys;  // register_keys
  OptimizerSpec optimizer;       // set_optimizer
};

struct Release {  // scheduler to workers: the collective ended
  uint64_t sequence = 0;
  uint8_t code = 0;  // Code; 0 is ok
  std::string reason;
  std::vector<KeySpec> keys;  // register_keys: placed
  std::vector<KeySpec>
      moved;  // set_optimizer: keys whose placement changed (rank 0 moves their values)
  OptimizerKind optimizer = OptimizerKind::none;
};

// ---- scheduler to servers
// ------------------------------------------------------------------------------------------
struct PlaceKeys {
  uint64_t sequence = 0;
  std::vector<KeySpec> keys;
};
struct DropKeys {  // of an init that another server refused: nobody knows them any more
  std::vector<uint32_t> keys;
};
// In two steps, so that no server updates by an optimizer that another one refused: each makes all
// ready and acknowledges; then all are told to use it, and acknowledge again, or to forget it.
struct SetOptimizer {
  uint64_t sequence = 0;
  OptimizerSpec optimizer;
  std::vector<KeySpec> moved;
};
struct DecideOptimizer {
  uint64_t sequence = 0;  // of the SetOptimizer
  bool use = false;
};
struct ServerAck {
  uint64_t sequence = 0;
  uint8_t code = 0;
  std::string reason;
};  // server to scheduler

// ---- worker and server
// ---------------------------------------------------------------------------------------------
struct RingInfo {
  RemoteRegion ring;
  uint32_t slot_bytes = 0;
  uint32_t slots = 0;
};  // server, once after accept
struct Credits {
  std::vector<uint16_t> slots;
};                    // server: free again
struct PullRequest {  // all slices of the key that this server holds
  uint32_t key = 0;
  uint32_t round = 0;    // the worker's own last push; answered when that round is complete
  uint32_t pull_op = 0;  // immediate of the writes
  RemoteRegion target;   // the whole key's array; a slice goes to its offset
};
struct RoundDone {
  struct Item {
    uint32_t key = 0, slice = 0, round = 0;
  };
  std::vector<Item> items;
};
struct RoundFailed {
  uint32_t key = 0;
  uint32_t round = 0;
  uint8_t code = 0;
  std::string reason;
};
struct PullFailed {
  uint32_t pull_op = 0;
  uint32_t key = 0;
  uint8_t code = 0;
  std::string reason;
};

// ---- bodies above one message
// ----------------------------------------------------------------------------------------
struct Chunk {
  uint64_t total = 0;
  uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

using Message = std::variant<Join, AddressBook, JoinRefused, Heartbeat, Leave, Failed,
                             LeaveAcknowledged, NodeGone, Stop, Enter, Release, PlaceKeys,
                             SetOptimizer, ServerAck, RingInfo, Credits, PullRequest, RoundDone,
                             RoundFailed, PullFailed, Chunk, DropKeys, DecideOptimizer>;

std::vector<std::byte> encode(const Hello& hello);
Result<Hello> decode_hello(const void* data, size_t bytes);

// One or more messages for `send`: more than one (Chunks) only if the body exceeds
// kMaxMessageBytes.
std::vector<std::vector<std::byte>> encode(const Message& message);
Result<Message> decode(const void* data, size_t bytes);

// Puts Chunks together again; one for each connection. Anything else passes through.
class Assembler {
 public:
  // ok with a message: complete. ok without: more chunks are to come. Error: malformed (drop the
  // peer).
  Result<std::optional<Message>> add(const void* data, size_t bytes);

 private:
  std::vector<std::byte> body_;
  uint64_t total_ = 0;
};

}  // namespace mxrdma::wire
