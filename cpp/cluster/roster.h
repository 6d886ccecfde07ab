// Who belongs to the job: joining, ranks, and the address book.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cluster/effect.h"
#include "wire/control.h"

namespace mxrdma::cluster {

struct Node {
  Member member = 0;
  wire::Join join;
  uint32_t rank = wire::kAnyRank;  // known once all have joined
  bool present = true;             // neither left, failed nor lost
  int64_t heard_ms = 0;            // when its last message came
};

// "worker 1 on host b (pid 77)"; without a rank while there is none.
std::string name_of(const Node& node);

class Roster {
 public:
  Roster(uint32_t workers, uint32_t servers) : workers_(workers), servers_(servers) {}

  // The reason why this node cannot join, or nothing.
  std::optional<std::string> refusal(const wire::Join& join) const;
  void add(Member member, const wire::Join& join, int64_t now_ms);
  bool complete() const { return nodes_.size() == size_t{workers_} + servers_; }
  // Preferred ranks are kept, the others fill up in order of arrival. Only once complete.
  void assign_ranks();

  uint32_t workers() const { return workers_; }
  std::vector<Node>& nodes() { return nodes_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  Node* find(Member member);
  const Node* find(Member member) const;
  const Node* worker(uint32_t rank) const;
  std::vector<Member> present(wire::Role role) const;  // by rank
  std::vector<Member> present() const;
  // Servers by rank, then workers by rank.
  std::vector<wire::NodeInfo> book() const;
  // "1 of 2 workers and 0 of 1 servers; joined: worker on host a (pid 3), wants rank 1"
  std::string progress() const;
  // "2 workers, 1 server joined: server 0 on host a (pid 3), ..."
  std::string summary() const;

 private:
  uint32_t expected(wire::Role role) const;
  uint32_t joined(wire::Role role) const;
  std::string names() const;

  uint32_t workers_;
  uint32_t servers_;
  bool assigned_ = false;
  std::vector<Node> nodes_;  // in order of arrival; servers, then workers by rank once assigned
  std::unordered_map<Member, size_t> index_;
};

}  // namespace mxrdma::cluster
