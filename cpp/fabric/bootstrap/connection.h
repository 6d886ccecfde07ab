// One peer from the first byte to the last: connect or accept, handshake, choice of the data path,
// the channel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabric/bootstrap/handshake.h"
#include "fabric/bootstrap/rendezvous.h"
#include "fabric/channel.h"
#include "fabric/fd.h"
#include "fabric/shm/shm_channel.h"
#include "fabric/socket.h"
#include "fabric/verbs/hub.h"

namespace mxrdma::fabric {

// What connections of one fabric have in common.
struct Surroundings {
  HostFabricOptions options;
  HostIdentity identity;
  ChannelContext context;
  int doorbell = -1;                       // our eventfd, passed to shm peers
  const Rendezvous* rendezvous = nullptr;  // its name is empty if shm is not possible
  Status shm_problem;                      // why not
  verbs::Hub* hub = nullptr;
};

class Connection {
 public:
  enum class Stage {
    connecting,
    waiting_to_retry,
    handshaking,
    joining_shm,
    joining_verbs,
    up,
    dead
  };

  Connection(PeerId peer, const Surroundings* surroundings, int64_t deadline_ms);

  // ---- one of the two
  Status connect_on_loop(const Address& address, const std::vector<std::byte>& hello,
                         int64_t now_ms);
  Status accepted_on_loop(Fd fd);

  // ---- driven by the fabric; an error loses the peer
  Status control_ready_on_loop(bool readable, bool writable, int64_t now_ms);
  Status notes_ready_on_loop();
  Status retry_on_loop(int64_t now_ms);
  // The Unix connection with our cookie has come, with its first note.
  Status take_notes_on_loop(Fd notes, shm::ReceivedNote first);

  PeerId peer() const { return peer_; }
  Stage stage() const { return stage_; }
  bool is_acceptor() const { return acceptor_; }
  int control() const { return control_.get(); }
  // The Unix socket of shm, if there is something to come: notes of the handshake, then of the
  // channel.
  int notes() const {
    if (channel_) return channel_->side_fd();
    return ends_complete() || notes_ended_ ? -1 : ends_.notes.get();
  }
  bool wants_writable() const;
  int64_t deadline_ms() const { return deadline_ms_; }
  // When retry_on_loop() has something to do.
  int64_t next_step_ms() const { return std::min(deadline_ms_, next_step_ms_); }
  bool is_proven() const { return handshake_ && handshake_->proven(); }
  bool has_cookie(const uint64_t cookie[2]) const;
  Channel* channel() { return channel_.get(); }
  const Channel* channel() const { return channel_.get(); }
  // Set when stage() turns to `up`; the hello of an accepted peer.
  std::vector<std::byte> take_hello() { return std::move(hello_); }

  std::string where() const;     // its address, for errors
  std::string describe() const;  // the path, for people
  // Closes everything; ids of what was outstanding.
  std::vector<uint64_t> end_on_loop();

 private:
  Status try_next_address(int64_t now_ms);
  Status timed_out() const;
  Status connected();
  Status receive();
  Status flush();
  Status advance();
  Status on_offer(const Offer& offer);
  Status on_answer(const Answer& answer);
  Status on_choice(const Choice& choice);
  Status begin_shm(const std::string& socket_name);
  Status take_notes();
  Status send_our_ends();
  Status take_note(shm::ReceivedNote note);
  bool ends_complete() const { return ends_.outbound && ends_.inbound && ends_.doorbell.valid(); }
  Status choose(Path path, const std::string& reason);
  void go_up(Path path);
  std::string why_no_verbs_with(Policy theirs) const;
  Status begin_verbs(const std::string& why_not_shm);
  Status make_link();
  Status on_verbs_choice(const Choice& choice);
  Status on_ready(const Ready& ready);
  Status drive_link(int64_t now_ms);
  Status without_verbs(const std::string& reason);
  std::string cannot_share(Policy theirs) const;
  bool is_refused(Path path) const;

  PeerId peer_;
  const Surroundings* surroundings_;
  Stage stage_ = Stage::connecting;
  bool acceptor_ = false;
  Address address_;
  std::vector<SocketAddress> candidates_;
  size_t next_candidate_ = 0;
  std::string last_error_;
  int64_t deadline_ms_;
  int64_t next_step_ms_ = INT64_MAX;  // to connect again, or to try the next address
  Fd control_;
  std::unique_ptr<Handshake> handshake_;
  bool offered_ = false, answered_ = false;
  std::vector<std::byte> hello_;
  ShmEnds ends_;
  bool notes_ended_ = false;
  Policy their_policy_ = Policy::automatic;
  std::string why_not_shm_;
  std::string why_not_verbs_;
  uint64_t their_pid_ = 0;
  std::unique_ptr<verbs::Link> link_;  // until it is the channel
  bool link_ready_ = false;            // the connector: the peer's end is known
  int64_t link_deadline_ms_ = 0;       // 0: not set yet
  std::string ends_text_;              // both addresses, of an accepted connection
  std::string path_;
  std::unique_ptr<Channel> channel_;
};

}  // namespace mxrdma::fabric
