#include "node/outbox.h"

#include <utility>

namespace mxrdma::node {

Status Outbox::post(const Entry& entry) {
  if (entry.is_write)
    return fabric_->write(peer_, &entry.span, 1, entry.target, entry.immediate, entry.id);
  return fabric_->send(peer_, entry.message.data(), entry.message.size(), entry.id);
}

Status Outbox::post_or_queue(Entry entry) {
  if (entries_.empty()) {
    Status status = post(entry);
    if (status.code() != Code::busy) return status;
  }
  if (entries_.size() >= kMaxEntries)
    return Status(Code::internal,
                  "more than " + std::to_string(kMaxEntries) + " messages wait for one peer");
  entries_.push_back(std::move(entry));
  return Status::ok();
}

Status Outbox::send(std::vector<std::byte> message, uint64_t id) {
  Entry entry;
  entry.message = std::move(message);
  entry.id = id;
  return post_or_queue(std::move(entry));
}

Status Outbox::write(const fabric::LocalSpan& span, const wire::RemoteRegion& target,
                     uint32_t immediate, uint64_t id) {
  Entry entry;
  entry.is_write = true;
  entry.span = span;
  entry.target = target;
  entry.immediate = immediate;
  entry.id = id;
  return post_or_queue(std::move(entry));
}

Status Outbox::flush_on_loop() {
  while (!entries_.empty()) {
    Status status = post(entries_.front());
    if (status.code() == Code::busy) return Status::ok();
    if (!status.is_ok()) return status;
    entries_.pop_front();
  }
  return Status::ok();
}

std::vector<uint64_t> Outbox::abandon_writes() {
  std::vector<uint64_t> ids;
  for (const Entry& entry : entries_)
    if (entry.is_write) ids.push_back(entry.id);
  entries_.clear();
  return ids;
}

}  // namespace mxrdma::node
