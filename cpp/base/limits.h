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

// ---- waits, milliseconds (defaults; configuration can change each)
// ---------------------------------------------
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kJoinTimeoutMs = 120'000;
constexpr int kTellWaitingMs = 5'000;  // then a node says that it waits for the scheduler
constexpr int kHeartbeatIntervalMs = 1'000;
constexpr int kHeartbeatTimeoutMs = 15'000;
constexpr int kStallReportMs = 60'000;  // first report of a late peer; then at doubling times
constexpr int kRoundTimeoutMs = 30 * 60 * 1000;
constexpr int kBarrierTimeoutMs = 30 * 60 * 1000;
constexpr int kVerdictMs =
    2'000;  // after a lost connection: for the scheduler to name who was lost first
// A peer whose host acknowledges nothing for so long is cut off. Longer than a heartbeat's silence,
// so that the scheduler, which sees more, speaks first where it can.
constexpr int kUnacknowledgedMs = 30'000;
constexpr int kLeaveTimeoutMs = 10'000;  // a clean exit waits so long for the scheduler's word

}  // namespace mxrdma
