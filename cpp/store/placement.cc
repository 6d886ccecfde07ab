#include "store/placement.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace mxrdma::store {
namespace {

constexpr uint64_t kAlign = 64;                 // a cache line; every element size divides it
constexpr uint64_t kSplitBytes = 64 * 1024;     // below it one message is cheaper than several
constexpr uint64_t kMinShareBytes = 16 * 1024;  // a smaller share costs a message for nothing

}  // namespace

std::vector<Slice> cut(const wire::KeySpec& key, size_t capacity) {
  MXRDMA_CHECK(capacity >= kAlign && capacity % kAlign == 0, "slices keep 64-byte alignment");
  std::vector<Slice> slices;
  for (const wire::Share& share : key.shares) {
    for (uint64_t done = 0; done < share.bytes;) {
      const uint64_t bytes = std::min<uint64_t>(capacity, share.bytes - done);
      slices.push_back({static_cast<uint32_t>(slices.size()), share.server,
                        share.offset_bytes + done, static_cast<uint32_t>(bytes)});
      done += bytes;
    }
  }
  return slices;
}

Placer::Placer(uint32_t servers) : loads_(servers, 0) {
  MXRDMA_CHECK(servers > 0, "a job has at least one server");
}

std::vector<wire::Share> Placer::place(uint64_t bytes, size_t element_bytes, bool whole) {
  MXRDMA_CHECK(element_bytes > 0 && kAlign % element_bytes == 0, "an element fits the alignment");
  std::vector<uint64_t> take(loads_.size(), 0);
  std::vector<size_t> by_load(loads_.size());
  std::iota(by_load.begin(), by_load.end(), size_t{0});
  std::stable_sort(by_load.begin(), by_load.end(),
                   [&](size_t a, size_t b) { return loads_[a] < loads_[b]; });
  if (whole || bytes < kSplitBytes || loads_.size() == 1) {
    take[by_load[0]] = bytes;
  } else {
    // Fill the servers like vessels of different levels: the `used` least loaded ones end level.
    uint64_t total = bytes;
    size_t used = 0;
    uint64_t level = 0;
    while (used < by_load.size()) {
      const uint64_t next_total = total + loads_[by_load[used]];
      const uint64_t next_level = next_total / (used + 1);
      // A server that would get next to nothing is left out.
      if (used > 0 && next_level < loads_[by_load[used]] + kMinShareBytes) break;
      total = next_total;
      level = next_level;
      ++used;
    }
    uint64_t rest = bytes;
    for (size_t i = used; i-- > 1;) {
      const uint64_t part = (level - loads_[by_load[i]]) / kAlign * kAlign;
      take[by_load[i]] = std::min(part, rest);
      rest -= take[by_load[i]];
    }
    take[by_load[0]] = rest;
  }
  std::vector<wire::Share> shares;
  uint64_t offset = 0;
  // The share whose size is no multiple of the alignment comes last, so that all others start on
  // it.
  for (const bool aligned : {true, false}) {
    for (size_t server = 0; server < take.size(); ++server) {
      if (take[server] == 0 || (take[server] % kAlign == 0) != aligned) continue;
      shares.push_back({static_cast<uint32_t>(server), offset, take[server]});
      offset += take[server];
      loads_[server] += take[server];
    }
  }
  MXRDMA_CHECK(offset == bytes, "shares cover the key");
  return shares;
}

void Placer::remove(const std::vector<wire::Share>& shares) {
  for (const wire::Share& share : shares) {
    MXRDMA_CHECK(share.server < loads_.size() && loads_[share.server] >= share.bytes,
                 "only placed shares are removed");
    loads_[share.server] -= share.bytes;
  }
}

}  // namespace mxrdma::store
