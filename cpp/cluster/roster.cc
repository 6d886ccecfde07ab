#include "cluster/roster.h"

#include <algorithm>

#include "base/check.h"

namespace mxrdma::cluster {
namespace {

std::string count_text(uint32_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

constexpr size_t kMaxNamed = 32;  // nodes in one line for people

}  // namespace

std::string name_of(const Node& node) {
  std::string name = wire::role_name(node.join.role);
  if (node.rank != wire::kAnyRank) name += " " + std::to_string(node.rank);
  return name + " on host " + node.join.host + " (pid " + std::to_string(node.join.pid) + ")";
}

uint32_t Roster::expected(wire::Role role) const {
  return role == wire::Role::server ? servers_ : workers_;
}

uint32_t Roster::joined(wire::Role role) const {
  return static_cast<uint32_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [role](const Node& node) { return node.join.role == role; }));
}

std::optional<std::string> Roster::refusal(const wire::Join& join) const {
  if (join.role != wire::Role::server && join.role != wire::Role::worker)
    return std::string("a ") + wire::role_name(join.role) + " cannot join";
  const std::string role = wire::role_name(join.role);
  const uint32_t limit = expected(join.role);
  if (join.preferred_rank != wire::kAnyRank) {
    if (join.preferred_rank >= limit)
      return "it asks for " + role + " rank " + std::to_string(join.preferred_rank) +
             ", but the job has " + count_text(limit, role.c_str()) + "; ranks count from 0";
    for (const Node& node : nodes_)
      if (node.join.role == join.role &&
          (node.join.preferred_rank == join.preferred_rank || node.rank == join.preferred_rank))
        return role + " rank " + std::to_string(join.preferred_rank) + " is taken by " +
               name_of(node) + "; give each " + role + " another rank or none";
  }
  if (joined(join.role) >= limit)
    return "the job has " + count_text(limit, role.c_str()) + " and all joined already";
  if (join.role == wire::Role::server && (join.listen_host.empty() || join.listen_port == 0))
    return "it does not say where workers reach it";
  return std::nullopt;
}

void Roster::add(Member member, const wire::Join& join, int64_t now_ms) {
  Node node;
  node.member = member;
  node.join = join;
  node.heard_ms = now_ms;
  index_[member] = nodes_.size();
  nodes_.push_back(std::move(node));
}

void Roster::assign_ranks() {
  MXRDMA_CHECK(complete(), "ranks are given once all have joined");
  for (wire::Role role : {wire::Role::server, wire::Role::worker}) {
    std::vector<bool> taken(expected(role), false);
    for (Node& node : nodes_) {
      if (node.join.role != role || node.join.preferred_rank == wire::kAnyRank) continue;
      node.rank = node.join.preferred_rank;
      taken[node.rank] = true;
    }
    uint32_t next = 0;
    for (Node& node : nodes_) {
      if (node.join.role != role || node.join.preferred_rank != wire::kAnyRank) continue;
      while (taken[next]) ++next;
      node.rank = next;
      taken[next] = true;
    }
  }
  std::sort(nodes_.begin(), nodes_.end(), [](const Node& a, const Node& b) {
    return a.join.role != b.join.role ? a.join.role < b.join.role : a.rank < b.rank;
  });
  for (size_t i = 0; i < nodes_.size(); ++i) index_[nodes_[i].member] = i;
  assigned_ = true;
}

Node* Roster::find(Member member) {
  auto found = index_.find(member);
  return found == index_.end() ? nullptr : &nodes_[found->second];
}

const Node* Roster::find(Member member) const {
  auto found = index_.find(member);
  return found == index_.end() ? nullptr : &nodes_[found->second];
}

const Node* Roster::worker(uint32_t rank) const {
  return assigned_ && rank < workers_ ? &nodes_[servers_ + rank] : nullptr;
}

std::vector<Member> Roster::present(wire::Role role) const {
  std::vector<Member> members;
  for (const Node& node : nodes_)
    if (node.present && node.join.role == role) members.push_back(node.member);
  return members;
}

std::vector<Member> Roster::present() const {
  std::vector<Member> members;
  for (const Node& node : nodes_)
    if (node.present) members.push_back(node.member);
  return members;
}

std::vector<wire::NodeInfo> Roster::book() const {
  std::vector<wire::NodeInfo> book;
  for (const Node& node : nodes_)
    book.push_back({node.join.role, node.rank, node.join.pid, node.join.host, node.join.listen_host,
                    node.join.listen_port});
  return book;
}

std::string Roster::progress() const {
  std::string text;
  for (wire::Role role : {wire::Role::worker, wire::Role::server})
    text += (text.empty() ? "" : " and ") + std::to_string(joined(role)) + " of " +
            count_text(expected(role), wire::role_name(role));
  return text + (nodes_.empty() ? "; nobody joined" : "; joined: " + names());
}

std::string Roster::summary() const {
  return count_text(workers_, "worker") + ", " + count_text(servers_, "server") +
         " joined: " + names();
}

std::string Roster::names() const {
  std::string text;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (i == kMaxNamed) return text + ", ...";
    const Node& node = nodes_[i];
    text += (i == 0 ? "" : ", ") + name_of(node);
    if (node.rank == wire::kAnyRank && node.join.preferred_rank != wire::kAnyRank)
      text += " as rank " + std::to_string(node.join.preferred_rank);
  }
  return text;
}

}  // namespace mxrdma::cluster
