// Work requests that are posted together: one call to the device, one completion for all.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/limits.h"

namespace mxrdma::fabric::verbs {

class Batch {
 public:
  static constexpr size_t kRequests = 16;

  size_t count() const { return count_; }
  bool full() const { return count_ == kRequests; }

  // The next request, empty, with room for kMaxVerbsGather places.
  ibv_send_wr* add(uint64_t number, ibv_wr_opcode opcode) {
    MXRDMA_CHECK(count_ < kRequests, "a batch of work requests takes no more");
    ibv_send_wr& request = requests_[count_];
    request = ibv_send_wr{};
    request.wr_id = number;
    request.opcode = opcode;
    request.sg_list = &places_[count_ * kMaxVerbsGather];
    if (count_ > 0) requests_[count_ - 1].next = &request;
    ++count_;
    return &request;
  }
  static void gather(ibv_send_wr* request, const void* data, size_t bytes, uint32_t key) {
    ibv_sge& place = request->sg_list[request->num_sge++];
    place.addr = reinterpret_cast<uintptr_t>(data);
    place.length = static_cast<uint32_t>(bytes);
    place.lkey = key;
  }
  // The last one tells of all before it too.
  ibv_send_wr* finish() {
    requests_[count_ - 1].send_flags |= IBV_SEND_SIGNALED;
    return requests_.data();
  }
  void clear() { count_ = 0; }

 private:
  std::array<ibv_send_wr, kRequests> requests_;
  std::array<ibv_sge, kRequests * kMaxVerbsGather> places_;
  size_t count_ = 0;
};

}  // namespace mxrdma::fabric::verbs
