// When to speak about a round that waits, and when to end it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "store/store.h"

namespace mxrdma::node {

class StallWatch {
 public:
  struct Verdicts {
    std::vector<store::Waiting>
        report;  // late for the first time, or twice as late as at the last report
    std::vector<store::Waiting> expired;
  };
  // Call with all waiting rounds of one part of the store; `part` keeps the parts' memories apart.
  Verdicts look(size_t part, const std::vector<store::Waiting>& waiting, int64_t now_ms,
                int64_t report_ms, int64_t timeout_ms) {
    Verdicts verdicts;
    auto& reported = reported_[part];
    std::map<std::pair<uint32_t, uint32_t>, int64_t> still;
    for (const store::Waiting& round : waiting) {
      const std::pair<uint32_t, uint32_t> id{round.key, round.round};
      const int64_t age_ms = now_ms - round.since_ms;
      auto last = reported.find(id);
      int64_t next_ms = last == reported.end() ? report_ms : last->second;
      if (age_ms >= timeout_ms) {
        verdicts.expired.push_back(round);
        continue;
      }
      if (age_ms >= next_ms) {
        verdicts.report.push_back(round);
        next_ms = 2 * age_ms;
      }
      still[id] = next_ms;
    }
    reported.swap(still);
    return verdicts;
  }

 private:
  std::map<size_t, std::map<std::pair<uint32_t, uint32_t>, int64_t>>
      reported_;  // age of the next report
};

}  // namespace mxrdma::node
