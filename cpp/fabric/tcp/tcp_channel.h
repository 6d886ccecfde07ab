// Writes and messages as frames on one TCP connection: header and payload leave in one sendmsg
// straight from the caller's memory, payload is received straight into place.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <vector>

#include "fabric/channel.h"
#include "fabric/tcp/frame.h"

namespace mxrdma::fabric {

class TcpChannel final : public Channel {
 public:
  // `fd` is connected, non-blocking, and stays its owner's.
  TcpChannel(int fd, const ChannelContext& context, PeerId peer);

  Status write(const LocalSpan* spans, size_t count, size_t bytes, const RemoteRegion& target,
               uint32_t immediate, uint64_t id) override;
  Status send(const void* data, size_t bytes, uint64_t id) override;
  Status read(const RemoteRegion& source, void* into, size_t bytes, uint64_t id) override;
  bool can_read() const override { return false; }
  size_t outstanding() const override { return queue_.size(); }
  Status progress_on_loop() override;
  Status readable_on_loop() override;
  Status writable_on_loop() override;
  bool wants_writable() const override { return blocked_; }
  bool arm_on_loop() override { return queue_.empty() || blocked_; }
  bool receiving_into(RegionId id) const override {
    return in_frame_ && target_ != nullptr && static_cast<RegionId>(header_.target.key) == id;
  }
  std::vector<uint64_t> abandon_on_loop() override;
  const char* kind() const override { return "tcp"; }

 private:
  struct Outgoing {
    FrameHeader header;
    std::vector<iovec> spans;
    std::vector<std::byte> copy;  // of a message
    uint64_t id = 0;
    size_t sent = 0;  // of header and payload together
  };

  Status flush();
  Status last_words(const Status& reason);
  void sent(size_t bytes);
  Status receive(bool* again);
  Status consume_buffer();
  Status begin_frame();
  void end_frame();
  size_t frame_left() const { return in_frame_ ? header_.bytes - received_ : 0; }

  int fd_;
  ChannelContext context_;
  PeerId peer_;
  std::deque<Outgoing> queue_;
  bool blocked_ = false;  // the socket took no more

  // Receiving: frames are cut out of buffer_; a large payload goes past it, straight into place.
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool in_frame_ = false;
  FrameHeader header_{};
  std::byte* target_ = nullptr;  // of a write
  std::vector<std::byte> message_;
  uint64_t received_ = 0;
  uint64_t taken_ = 0;  // bytes from the socket, ever
};

}  // namespace mxrdma::fabric
