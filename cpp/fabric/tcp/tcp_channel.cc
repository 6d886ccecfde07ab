#include "fabric/tcp/tcp_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fabric/copy.h"

namespace mxrdma::fabric {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;
// Payload with more than this left is received into place past the buffer.
constexpr size_t kDirectBytes = 16 * 1024;
constexpr size_t kMaxVector = 256;
// One peer's share of one poll, so that others get their turn.
constexpr size_t kBudgetBytes = 1u << 20;
// More than a socket's buffers hold, in turns of kBufferBytes.
constexpr int kLastTurns = 1024;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

TcpChannel::TcpChannel(int fd, const ChannelContext& context, PeerId peer)
    : fd_(fd), context_(context), peer_(peer), buffer_(kBufferBytes) {}

// ---- sending

Status TcpChannel::write(const LocalSpan* spans, size_t count, size_t bytes,
                         const RemoteRegion& target, uint32_t immediate, uint64_t id) {
  Outgoing out;
  out.header.type = FrameType::write;
  out.header.immediate = immediate;
  out.header.bytes = bytes;
  out.header.target = target;
  out.spans.reserve(count);
  for (size_t i = 0; i < count; ++i)
    if (spans[i].bytes > 0) out.spans.push_back({const_cast<void*>(spans[i].data), spans[i].bytes});
  out.id = id;
  queue_.push_back(std::move(out));
  return Status::ok();
}

Status TcpChannel::send(const void* data, size_t bytes, uint64_t id) {
  Outgoing out;
  out.header.type = FrameType::message;
  out.header.bytes = bytes;
  const auto* from = static_cast<const std::byte*>(data);
  out.copy.assign(from, from + bytes);
  if (bytes > 0) out.spans.push_back({out.copy.data(), bytes});
  out.id = id;
  queue_.push_back(std::move(out));
  return Status::ok();
}

Status TcpChannel::read(const RemoteRegion&, void*, size_t, uint64_t) {
  return Status(Code::unsupported, "tcp has no one-sided read");
}

Status TcpChannel::progress_on_loop() {
  return queue_.empty() || blocked_ ? Status::ok() : flush();
}

Status TcpChannel::writable_on_loop() {
  blocked_ = false;
  return progress_on_loop();
}

Status TcpChannel::flush() {
  for (size_t budget = kBudgetBytes; !queue_.empty() && budget > 0;) {
    iovec vector[kMaxVector];
    size_t used = 0, total = 0;
    for (Outgoing& out : queue_) {
      if (used + out.spans.size() + 1 > kMaxVector || total >= budget) break;
      size_t skip = out.sent;
      auto add = [&](void* base, size_t bytes) {
        if (skip >= bytes) {
          skip -= bytes;
          return;
        }
        vector[used++] = {static_cast<std::byte*>(base) + skip, bytes - skip};
        total += bytes - skip;
        skip = 0;
      };
      add(&out.header, sizeof out.header);
      for (const iovec& span : out.spans) add(span.iov_base, span.iov_len);
    }
    msghdr message{};
    message.msg_iov = vector;
    message.msg_iovlen = used;
    const ssize_t count = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (would_block(errno)) {
        blocked_ = true;
        return Status::ok();
      }
      return last_words(Status(Code::fabric, "sending: " + errno_text(errno)));
    }
    sent(static_cast<size_t>(count));
    budget -= std::min(budget, static_cast<size_t>(count));
  }
  return Status::ok();
}

// The peer takes no more, but what it sent before it went is still to be heard.
Status TcpChannel::last_words(const Status& reason) {
  bool again = true;
  for (int turns = 0; again && turns < kLastTurns; ++turns) {
    Status status = receive(&again);
    if (!status.is_ok()) return status;
  }
  return reason;
}

void TcpChannel::sent(size_t bytes) {
  while (!queue_.empty()) {
    Outgoing& out = queue_.front();
    const size_t left = sizeof out.header + out.header.bytes - out.sent;
    if (bytes < left) {
      out.sent += bytes;
      return;
    }
    bytes -= left;
    context_.done(peer_, out.id);
    queue_.pop_front();
  }
}

std::vector<uint64_t> TcpChannel::abandon_on_loop() {
  std::vector<uint64_t> ids;
  for (const Outgoing& out : queue_) ids.push_back(out.id);
  queue_.clear();
  return ids;
}

// ---- receiving

Status TcpChannel::readable_on_loop() {
  const uint64_t end = taken_ + kBudgetBytes;
  for (bool again = true; again && taken_ < end;) {
    Status status = receive(&again);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

// One recvmsg: the rest of a large payload into place, whatever follows into the buffer.
Status TcpChannel::receive(bool* again) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  iovec vector[2];
  size_t used = 0, direct = 0, room = 0;
  if (frame_left() > kDirectBytes && begin_ == end_) {
    direct = std::min<uint64_t>(frame_left(), kBudgetBytes);
    std::byte* base = target_ != nullptr ? target_ : message_.data();
    vector[used++] = {base + received_, direct};
    room = direct;
  }
  if (direct == frame_left() || direct == 0) {
    vector[used++] = {buffer_.data() + end_, buffer_.size() - end_};
    room += buffer_.size() - end_;
  }
  msghdr message{};
  message.msg_iov = vector;
  message.msg_iovlen = used;
  const ssize_t count = recvmsg(fd_, &message, MSG_DONTWAIT);
  if (count == 0) return Status(Code::fabric, "connection closed by peer");
  if (count < 0) {
    *again = errno == EINTR;
    return *again || would_block(errno) ? Status::ok()
                                        : Status(Code::fabric, "receiving: " + errno_text(errno));
  }
  const size_t bytes = static_cast<size_t>(count);
  taken_ += bytes;
  *again = bytes == room;  // there may be more
  const size_t placed = std::min(bytes, direct);
  received_ += placed;
  end_ += bytes - placed;
  if (placed > 0 && frame_left() == 0) end_frame();
  return consume_buffer();
}

Status TcpChannel::consume_buffer() {
  while (true) {
    if (!in_frame_) {
      if (end_ - begin_ < sizeof header_) return Status::ok();
      Status status = begin_frame();
      if (!status.is_ok()) return status;
    }
    const size_t take = std::min<uint64_t>(frame_left(), end_ - begin_);
    if (take > 0) {
      std::byte* base = target_ != nullptr ? target_ : message_.data();
      copy_bytes(base + received_, buffer_.data() + begin_, take);
      context_.counters->copied_bytes += take;
      begin_ += take;
      received_ += take;
    }
    if (frame_left() > 0) return Status::ok();
    end_frame();
  }
}

Status TcpChannel::begin_frame() {
  std::memcpy(&header_, buffer_.data() + begin_, sizeof header_);
  begin_ += sizeof header_;
  if (auto reason = invalid(header_)) return Status(Code::fabric, "malformed frame: " + *reason);
  received_ = 0;
  target_ = nullptr;
  if (header_.type == FrameType::message) {
    message_.resize(header_.bytes);
  } else {
    Result<std::byte*> target = context_.regions->target(header_.target, header_.bytes);
    if (!target.is_ok()) return target.status();
    target_ = target.value();
  }
  in_frame_ = true;
  return Status::ok();
}

void TcpChannel::end_frame() {
  Event event;
  event.peer = peer_;
  event.bytes = header_.bytes;
  if (header_.type == FrameType::message) {
    event.kind = Event::Kind::message;
    event.payload = std::move(message_);
    message_.clear();
    ++context_.counters->messages;
  } else {
    event.kind = Event::Kind::arrived;
    event.immediate = header_.immediate;
    ++context_.counters->arrivals;
    context_.counters->arrival_bytes += header_.bytes;
  }
  in_frame_ = false;
  context_.events->push_back(std::move(event));
}

}  // namespace mxrdma::fabric
