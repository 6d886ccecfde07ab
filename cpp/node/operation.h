// A worker's operations and the per-key queue that keeps their order.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "fabric/fabric.h"
#include "node/worker.h"
#include "store/placement.h"

namespace mxrdma::node {

struct KeyState;

struct Operation {
  enum class Type : uint8_t { push, pull };
  Type type = Type::push;
  Ticket ticket = 0;
  KeyState* key = nullptr;
  uint32_t round = 0;  // push: the round it belongs to; pull: the worker's last push before it
  int priority = 0;
  Completion done;
  bool ready = false;   // supplied or granted
  Hold hold;            // of the array, if it may stay registered
  bool cached = false;  // the region is the cache's
  fabric::RegionId region = fabric::kNoRegion;

  // push
  wire::PushKind kind = wire::PushKind::gradient;
  store::Hyper hyper;
  const std::byte* data = nullptr;
  bool started = false;          // its slices are in the send queues
  bool memory_returned = false;  // `done` was called
  uint32_t slices_unsent = 0;
  uint32_t writes_in_flight = 0;
  uint32_t acks_pending = 0;   // slices whose round is not known to be complete
  Operation* fused = nullptr;  // the pull whose target travels in this push's records

  // pull
  std::byte* out = nullptr;
  bool requested = false;
  uint32_t index = 0;                       // immediate of the weights
  std::byte* landing = nullptr;             // memory of ours that the weights come to first
  std::vector<wire::RemoteRegion> targets;  // by server rank
  uint64_t bytes_remaining = 0;

  bool push_sent() const { return started && slices_unsent == 0; }
  bool push_complete() const { return push_sent() && writes_in_flight == 0 && acks_pending == 0; }
};

struct KeyState {
  wire::KeySpec spec;
  uint64_t bytes = 0;
  std::vector<store::Slice> slices;
  uint32_t last_round = 0;  // of the pushes opened so far
  bool initial_opened = false;
  std::deque<Operation*> queue;  // in the order of the user's calls; complete ones are removed
};

}  // namespace mxrdma::node
