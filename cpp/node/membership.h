// A worker's or server's side of the scheduler connection, over a fabric: joins, beats, hears who
// is gone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "node/options.h"
#include "node/outbox.h"
#include "wire/control.h"

namespace mxrdma::node {

class Membership {
 public:
  // What the owner has to act upon, in order.
  struct Notice {
    enum class Kind : uint8_t { book, gone, message, failed };
    Kind kind = Kind::message;
    wire::NodeGone gone;    // gone
    wire::Message message;  // message: Release, PlaceKeys, SetOptimizer, Stop
    Status status;          // failed: refused, timed out, or the scheduler is lost
  };

  Membership(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options,
             wire::Role role);

  // listen: where workers reach this server; unused for workers.
  void start_on_loop(const fabric::Address& listen);
  // True if the event was the scheduler's.
  bool on_event_on_loop(const fabric::Event& event, std::vector<Notice>* notices);
  void tick_on_loop(std::vector<Notice>* notices);

  Status send_on_loop(const wire::Message& message);
  void leave_on_loop();
  // Tells the scheduler, and through it all nodes, why this node ends.
  void tell_failure_on_loop(const Status& why);

  bool has_book() const { return book_.generation != 0; }
  const wire::AddressBook& book() const { return book_; }
  uint32_t rank() const { return book_.your_rank; }
  // "server 1 on host b (pid 77)"
  std::string name_of(wire::Role role, uint32_t rank) const;
  // What the end of another node means to those who wait for it: the class of failure that it told,
  // else its loss.
  Status loss_of(const wire::NodeGone& gone) const;
  bool left() const {
    return left_;
  }  // the scheduler has acknowledged our leave (or is gone meanwhile)

 private:
  void on_message(const wire::Message& message, std::vector<Notice>* notices);
  void fail(Code code, const std::string& text, std::vector<Notice>* notices);
  void watch_scheduler(std::vector<Notice>* notices);
  std::string why_not_joined() const;
  void tell_waiting();

  fabric::Fabric* fabric_;
  const Clock* clock_;
  NodeOptions options_;
  wire::Role role_;
  fabric::Address listen_;
  static constexpr fabric::PeerId kNoPeer = 0xffffffff;
  fabric::PeerId peer_ = kNoPeer;
  std::string last_error_;  // why the last attempt to connect failed
  bool started_ = false, connected_ = false, ended_ = false, leaving_ = false, left_ = false;
  bool ever_connected_ = false, waiting_told_ = false;
  int64_t join_deadline_ms_ = 0, tell_waiting_ms_ = 0, next_beat_ms_ = 0;
  int64_t heard_ms_ = 0, last_tick_ms_ = 0;
  uint64_t beats_ = 0;
  wire::AddressBook book_;
  wire::Assembler assembler_;
  std::unique_ptr<Outbox> outbox_;
};

}  // namespace mxrdma::node
