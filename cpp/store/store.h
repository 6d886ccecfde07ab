// A server's store: slices of keys, their open rounds, the optimizer. Pure state: no I/O, no
// threads, no clock. What must happen outside is appended to an Effects list by each call and
// carried out by the node.
//
// Rounds. The k-th push of a slice by each rank forms round k. A round is complete when every rank
// pushed once; then the weights take the round's result (the sum, or what the optimizer makes of
// it). The accumulator of a slice exists only while its round is open. Ranks are counted once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "store/placement.h"
#include "wire/control.h"
#include "wire/data.h"

namespace mxrdma::store {

using SlotRef = uint64_t;  // opaque to the store: which slot of which peer holds the payload

struct Memory {
  std::byte* base = nullptr;  // 64-byte aligned, zeroed
  size_t bytes = 0;
  fabric::RegionId region = fabric::kNoRegion;
};

// Where weights live: memory that peers can be written from with the fewest copies.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual Result<Memory> allocate(size_t bytes) = 0;
  virtual void release(const Memory& memory) = 0;
};

struct Hyper {
  float lr = 0, wd = 0, rescale_grad = 1;
  uint32_t update_count = 0;
};

// An updater that needs whole tensors (any Python updater). Called with the whole key's sum and
// weights, which stay the store's. Errors end the round with Code::updater and the message.
class WholeTensorUpdater {
 public:
  virtual ~WholeTensorUpdater() = default;
  virtual Status update(const wire::KeyRequest& key, const void* gradient, void* weights,
                        const Hyper& hyper) = 0;
};

struct Effect {
  enum class Kind : uint8_t {
    release_slot,   // the payload in `slot` is consumed (once for each record)
    round_done,     // tell `rank` that its push of key/slice/round took effect; it asked for no
                    // weights
    write_weights,  // write data to `target` at `rank` with immediate pull_op; then call
                    // write_done(key, slice)
    round_failed,   // tell `rank`: key/round ended in `status`
    pull_failed,    // tell `rank`: pull_op ended in `status`
  };
  Kind kind = Kind::release_slot;
  uint32_t rank = 0;
  uint32_t key = 0, slice = 0, round = 0;
  SlotRef slot = 0;
  uint32_t pull_op = 0;
  fabric::LocalSpan data;
  wire::RemoteRegion target;
  Status status;
};
using Effects = std::vector<Effect>;

struct StoreConfig {
  uint32_t server = 0;  // our rank
  uint32_t workers = 0;
  size_t slice_capacity = 0;
  uint32_t staleness = 0;
  bool hold_first = false;
};

// An open round that waits for ranks, for reports and time-outs.
struct Waiting {
  uint32_t key = 0;
  std::string name;
  uint32_t round = 0;
  int64_t since_ms = 0;  // when the first rank's push came
  std::vector<uint32_t> missing;
};

struct StoreBytes {
  uint64_t weights = 0, accumulators = 0, accumulators_peak = 0, optimizer_state = 0;
};

class Store {
 public:
  Store(const StoreConfig& config, MemorySource* memory);
  ~Store();

  // Allocates weights for our shares. Error: memory refused, or a second spec for the same id.
  Status add_key(const wire::KeySpec& key);
  // Forgets a key that no worker has used; an unknown one is fine.
  void drop_key(uint32_t id);
  // Replaces the placement of a key without an open round: the old weights are dropped; rank 0
  // sends them again, and rounds count anew from there. Old memory is released only when no write
  // of it is left.
  Status move_key(const wire::KeySpec& key);
  // Optimizer state starts anew. For OptimizerKind::python, `updater` is what runs; it must be
  // given.
  Status set_optimizer(const wire::OptimizerSpec& spec,
                       std::shared_ptr<WholeTensorUpdater> updater);

  // One record of a slot. The payload stays valid until its release_slot effect. An error is the
  // peer's fault (unknown key, wrong size or dtype, a round out of order): nothing changed, the
  // message names key, slice, rank and both values.
  Status push(uint32_t rank, const wire::PushRecord& record, const std::byte* payload, SlotRef slot,
              int64_t now_ms, Effects* effects);
  // Answers with write_weights for each of our slices of the key as soon as `round` is complete
  // (round 0: initialised).
  Status pull(uint32_t rank, const wire::PullRequest& request, int64_t now_ms, Effects* effects);
  // A write of this slice has left our memory (or failed).
  void write_done(uint32_t key, uint32_t slice, Effects* effects);
  // The first payload of a round stays in its slot until the second comes, if `hold_first` is set:
  // no accumulator, and early workers wait for late ones. This gives back all slots of `rank` that
  // are held so; it is for the node to call when that has left a worker without slots for a while.
  // Until the others have caught up, nothing of this rank is held again.
  void fold_held(uint32_t rank, Effects* effects);
  // The rank will send nothing more. Rounds that wait for it end in `why` (context added); its own
  // pulls are dropped, its slots released. Later pushes of rounds that need it fail at once.
  void worker_gone(uint32_t rank, const Status& why, Effects* effects);
  // Ends an open round (time-out).
  void fail_round(uint32_t key, uint32_t round, const Status& why, Effects* effects);

  std::vector<Waiting> waiting() const;
  StoreBytes bytes() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace mxrdma::store
