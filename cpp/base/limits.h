// Every bound of the core with its arithmetic. A queue, window or wait that is not here has no
// right to exist.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mxrdma {

// ---- cluster
// -------------------------------------------------------------------------------------------------
constexpr uint32_t kMaxNodes = 4096;     // of one role; ranks fit in 16 bits with room
constexpr uint32_t kMaxKeys = 1u << 20;  // a transformer has some thousands
constexpr size_t kMaxKeyNameBytes = 4096;
constexpr size_t kMaxHostBytes = 256;  // a DNS name has at most 253
constexpr uint64_t kMaxKeyBytes = 1ull << 40;

// ---- messages
// ------------------------------------------------------------------------------------------------
constexpr size_t kMaxMessageBytes =
    64 * 1024;  // one `send` of any fabric; larger bodies are cut into chunks
constexpr size_t kMaxBlobBytes = 256u << 20;  // a pickled optimizer; reassembled from chunks
constexpr size_t kMaxHelloBytes = 4096;
constexpr size_t kMaxReasonBytes = 16 * 1024;  // a sentence for people, a traceback at most
constexpr size_t kMaxDimensions = 64;          // of a tensor's shape

// ---- users' arrays that stay registered, of one worker
constexpr size_t kMaxCachedArrays = 1u << 16;
constexpr uint64_t kMaxCachedArrayBytes = 64ull << 30;  // they are there anyway; now not swapped
// Smaller gradients are copied: a piece of the gather list and a registration cost more.
constexpr size_t kMinCachedGradientBytes = 8 * 1024;
// Of memory of ours for weights that may not be written into the user's array.
constexpr uint64_t kMaxSpareTargetBytes = 256u << 20;

// ---- slots: one gradient message occupies one slot of the receiver's ring
// -------------------------------------
constexpr size_t kMinSlotBytes = 4 * 1024;
constexpr size_t kMaxSlotBytes = 16u << 20;
constexpr uint32_t kMaxSlotsPerPeer = 1024;  // slot index + flags fit in the 32-bit immediate
constexpr uint32_t kMaxRecordsPerSlot = 64;  // small keys that share one message
constexpr size_t kMaxPullsPerKey =
    1024;  // of one worker, waiting at one server; a script has a few

// A server keeps a first slice in its slot until the second comes, so that early workers fall into
// step with late ones; a ring that stays full so long is emptied into accumulators.
constexpr int kHoldMs = 2;

// ---- fabric
// --------------------------------------------------------------------------------------------------
constexpr uint32_t kMaxSpans =
    2 * kMaxRecordsPerSlot + 2;  // a header and a payload span for each record
constexpr uint32_t kMaxOutstandingPerPeer =
    512;  // posted and not yet done, writes and sends together

// ---- RDMA devices
// ---------------------------------------------------------------------------------------------
constexpr size_t kMaxRdmaDevices = 64;  // of one host; eight cards with two functions are many
constexpr size_t kMaxGids = 1024;       // of one port; cards have up to 256
// ---- verbs
// ---------------------------------------------------------------------------------------------------
// Receives that one end keeps posted for each peer: what may be under way without a word from it.
constexpr uint32_t kVerbsWindow = 64;
constexpr uint32_t kMinVerbsWindow = 8;      // below it credits would travel more often than data
constexpr size_t kVerbsReceiveBytes = 1024;  // a header and most control messages; longer are cut
// Of one device's shared receive queue: 128 peers with a full window, 8 MiB.
constexpr uint32_t kMaxVerbsReceives = 8192;
constexpr uint32_t kVerbsSendDepth = 128;  // work requests of one queue pair
constexpr uint32_t kMaxVerbsGather = 16;   // pieces of one work request, if the device has so many
constexpr uint32_t kVerbsInlineBytes = 256;
constexpr uint32_t kMaxVerbsReads = 16;  // under way at a time
// For what is not registered: per peer, four pieces under way.
constexpr size_t kVerbsStageBytes = 256 * 1024;
constexpr size_t kVerbsStagePiece = 64 * 1024;
// Of one work request: a lost packet costs at most so much again.
constexpr size_t kMaxVerbsWriteBytes = 4u << 20;
constexpr size_t kMaxVerbsRails = 2;  // keys of both fit into RemoteRegion::key
// Of one device's completion queue: send depths and windows of some 340 peers.
constexpr uint32_t kMinVerbsCompletions = 4096;
constexpr uint32_t kMaxVerbsCompletions = 65536;

// ---- waits, milliseconds (defaults; configuration can change each)
// ---------------------------------------------
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kVerbsProbeMs = 4'000;  // for data over a new queue pair, each way; then tcp
constexpr int kVerbsDrainMs = 250;    // a closed queue pair waits so long for its last events
constexpr int kJoinTimeoutMs = 120'000;
constexpr int kTellWaitingMs = 5'000;  // then a node says that it waits for the scheduler
constexpr int kHeartbeatIntervalMs = 1'000;
constexpr int kHeartbeatTimeoutMs = 15'000;
constexpr int kStallReportMs = 60'000;  // first report of a late peer; then at doubling times
constexpr int kRoundTimeoutMs = 30 * 60 * 1000;
constexpr int kBarrierTimeoutMs = 30 * 60 * 1000;
constexpr int kVerdictMs =
    2'000;  // after a lost connection: for the scheduler to name who was lost first
// A peer whose host acknowledges nothing for so long, or which reads nothing, is cut off; twice the
// heartbeat's time-out if that is longer, so that the scheduler, which sees more, speaks first
// where it can.
constexpr int kUnacknowledgedMs = 30'000;
constexpr int kLeaveTimeoutMs = 10'000;  // a clean exit waits so long for the scheduler's word

}  // namespace mxrdma
