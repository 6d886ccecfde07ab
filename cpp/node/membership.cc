#include "node/membership.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "cluster/scheduler_state.h"

namespace mxrdma::node {

using fabric::Event;

Membership::Membership(fabric::Fabric* fabric, const Clock* clock, const NodeOptions& options,
                       wire::Role role)
    : fabric_(fabric), clock_(clock), options_(options), role_(role) {}

void Membership::start_on_loop(const fabric::Address& listen) {
  listen_ = listen;
  join_deadline_ms_ = clock_->now_ms() + options_.join_timeout_ms;
  tell_waiting_ms_ = clock_->now_ms() + kTellWaitingMs;
  started_ = true;
}

void Membership::fail(Code code, const std::string& text, std::vector<Notice>* notices) {
  if (ended_) return;
  ended_ = true;
  Notice notice;
  notice.kind = Notice::Kind::failed;
  notice.status = Status(code, text);
  notices->push_back(std::move(notice));
}

Status Membership::send_on_loop(const wire::Message& message) {
  if (!connected_) return Status(Code::scheduler_lost, "not connected to the scheduler");
  for (std::vector<std::byte>& part : wire::encode(message)) {
    Status status = outbox_->send(std::move(part), 0);
    if (!status.is_ok())
      return status.with_context("to the scheduler at " + to_string(options_.scheduler));
  }
  return Status::ok();
}

bool Membership::on_event_on_loop(const Event& event, std::vector<Notice>* notices) {
  if (peer_ == kNoPeer || event.peer != peer_) return false;
  const std::string scheduler = "scheduler at " + to_string(options_.scheduler);
  switch (event.kind) {
    case Event::Kind::connected: {
      connected_ = ever_connected_ = true;
      outbox_ = std::make_unique<Outbox>(fabric_, peer_);
      wire::Join join;
      join.role = role_;
      join.preferred_rank = options_.preferred_rank;
      join.pid = static_cast<uint64_t>(getpid());
      join.host = options_.host_name;
      join.listen_host = listen_.host;
      join.listen_port = listen_.port;
      Status status = send_on_loop(join);
      if (!status.is_ok()) fail(Code::scheduler_lost, status.message(), notices);
      break;
    }
    case Event::Kind::message: {
      heard_ms_ = clock_->now_ms();
      Result<std::optional<wire::Message>> message =
          assembler_.add(event.payload.data(), event.payload.size());
      if (!message.is_ok()) {
        fail(Code::fabric, scheduler + " sent a malformed message: " + message.status().message(),
             notices);
      } else if (message.value()) {
        on_message(*message.value(), notices);
      }
      break;
    }
    case Event::Kind::done: {
      Status status = outbox_ ? outbox_->flush_on_loop() : Status::ok();
      if (!status.is_ok()) fail(Code::scheduler_lost, scheduler + ": " + status.message(), notices);
      break;
    }
    case Event::Kind::lost: {
      const bool never_connected = !connected_;
      connected_ = false;
      peer_ = kNoPeer;
      if (leaving_) {
        left_ = true;
      } else if (never_connected && event.status.code() == Code::fabric) {
        last_error_ =
            event.status
                .message();  // not up yet, perhaps: tick tries again until the join's deadline
      } else if (event.status.code() == Code::auth || event.status.code() == Code::config) {
        fail(event.status.code(), scheduler + ": " + event.status.message(), notices);
      } else {
        fail(Code::scheduler_lost, scheduler + " was lost: " + event.status.message(), notices);
      }
      break;
    }
    case Event::Kind::accepted:
    case Event::Kind::arrived:
      break;
  }
  return true;
}

void Membership::on_message(const wire::Message& message, std::vector<Notice>* notices) {
  Notice notice;
  if (const auto* book = std::get_if<wire::AddressBook>(&message)) {
    if (has_book()) return fail(Code::fabric, "the scheduler sent a second address book", notices);
    std::optional<std::string> wrong = cluster::invalid(book->config);
    if (!wrong && book->your_role != role_) wrong = "it takes us for another role";
    if (wrong)
      return fail(Code::fabric, "the scheduler sent an address book that cannot be: " + *wrong,
                  notices);
    book_ = *book;
    fabric_->be_patient_on_loop(patience_ms(book_.config));
    next_beat_ms_ = clock_->now_ms() + book_.config.heartbeat_interval_ms;
    notice.kind = Notice::Kind::book;
  } else if (const auto* refused = std::get_if<wire::JoinRefused>(&message)) {
    const Code code = refused->code == 0 ? Code::config : static_cast<Code>(refused->code);
    return fail(
        code,
        "the scheduler at " + to_string(options_.scheduler) + " refused us: " + refused->reason,
        notices);
  } else if (const auto* gone = std::get_if<wire::NodeGone>(&message)) {
    const bool server = gone->role == wire::Role::server;
    if (!has_book() || gone->rank >= (server ? book_.config.servers : book_.config.workers))
      return fail(Code::fabric,
                  std::string("the scheduler sent word of the end of ") +
                      wire::role_name(gone->role) + " " + std::to_string(gone->rank) +
                      ", which the job does not have",
                  notices);
    notice.kind = Notice::Kind::gone;
    notice.gone = *gone;
  } else if (std::get_if<wire::LeaveAcknowledged>(&message)) {
    left_ = true;
    return;
  } else if (std::get_if<wire::Heartbeat>(&message)) {
    return;  // heard_ms_ is all of it
  } else {
    notice.message = message;
  }
  notices->push_back(std::move(notice));
}

void Membership::tick_on_loop(std::vector<Notice>* notices) {
  if (!started_ || ended_) return;
  const int64_t now_ms = clock_->now_ms();
  if (peer_ == kNoPeer && !has_book() && now_ms < join_deadline_ms_) {
    wire::Hello hello;
    hello.role = role_;
    hello.rank = options_.preferred_rank;
    hello.pid = static_cast<uint64_t>(getpid());
    hello.host = options_.host_name;
    Result<fabric::PeerId> peer = fabric_->connect(options_.scheduler, wire::encode(hello));
    if (!peer.is_ok())
      return fail(peer.status().code(),
                  "scheduler at " + to_string(options_.scheduler) + ": " + peer.status().message(),
                  notices);
    peer_ = peer.value();
  }
  if (!has_book()) {
    if (now_ms >= join_deadline_ms_)
      fail(Code::join_timeout, why_not_joined(), notices);
    else if (!ever_connected_ && !waiting_told_ && now_ms >= tell_waiting_ms_)
      tell_waiting();
    return;
  }
  watch_scheduler(notices);
  if (connected_ && !ended_ && now_ms >= next_beat_ms_) {
    next_beat_ms_ = now_ms + book_.config.heartbeat_interval_ms;
    Status status = send_on_loop(wire::Heartbeat{++beats_});
    if (!status.is_ok()) fail(Code::scheduler_lost, status.message(), notices);
  }
}

// A scheduler that hangs or is stopped still has its connections: it would be waited for without
// end, as nobody else ends collectives.
void Membership::watch_scheduler(std::vector<Notice>* notices) {
  const int64_t now_ms = clock_->now_ms();
  // While this process stood still itself, its messages waited to be read: that is not silence.
  const int64_t missed_ms = now_ms - last_tick_ms_ - book_.config.heartbeat_interval_ms;
  if (last_tick_ms_ != 0 && missed_ms > 0) heard_ms_ += missed_ms;
  last_tick_ms_ = now_ms;
  const int64_t silent_ms = now_ms - heard_ms_;
  if (connected_ && silent_ms >= book_.config.heartbeat_timeout_ms)
    fail(Code::scheduler_lost,
         "the scheduler at " + to_string(options_.scheduler) + " gave no sign of life for " +
             std::to_string(silent_ms / 1000) + " s: is its process stopped, or its host?",
         notices);
}

std::string Membership::why_not_joined() const {
  const std::string scheduler = to_string(options_.scheduler);
  const std::string limit = " within " + std::to_string(options_.join_timeout_ms / 1000) + " s";
  if (!ever_connected_)
    return "the scheduler at " + scheduler + " was not reached" + limit +
           (last_error_.empty() ? "" : ": " + last_error_) +
           "; is it running, or has it given up? Check host and port too";
  return "not all nodes joined the scheduler at " + scheduler + limit +
         "; check that the numbers of workers and servers are the same everywhere and that "
         "all were started" +
         (last_error_.empty() ? "" : " (last error: " + last_error_ + ")");
}

// Once, for whoever sits before the terminal and wonders.
void Membership::tell_waiting() {
  waiting_told_ = true;
  const int64_t left_ms = std::max<int64_t>(0, join_deadline_ms_ - clock_->now_ms());
  log_warning("waiting for the scheduler at " + to_string(options_.scheduler) + ", at most " +
              std::to_string(left_ms / 1000) + " s more" +
              (last_error_.empty() ? "" : " (" + last_error_ + ")"));
}

void Membership::leave_on_loop() {
  if (leaving_ || left_) return;
  leaving_ = true;
  if (!connected_ || !send_on_loop(wire::Leave{}).is_ok()) left_ = true;
}

void Membership::tell_failure_on_loop(const Status& why) {
  leaving_ = true;
  const bool own = why.code() == Code::cancelled || why.code() == Code::closed;
  const uint8_t code = own ? 0 : static_cast<uint8_t>(why.code());
  if (!connected_ || !send_on_loop(wire::Failed{why.message(), code}).is_ok()) left_ = true;
}

Status Membership::loss_of(const wire::NodeGone& gone) const {
  const bool failed = gone.how == wire::GoneHow::failed;
  Code code = gone.role == wire::Role::worker ? Code::worker_lost : Code::server_lost;
  if (failed && gone.code != 0) code = static_cast<Code>(gone.code);
  return Status(
      code, name_of(gone.role, gone.rank) + (failed ? " failed: " : " was lost: ") + gone.reason);
}

std::string Membership::name_of(wire::Role role, uint32_t rank) const {
  std::string name = std::string(wire::role_name(role)) + " " + std::to_string(rank);
  for (const wire::NodeInfo& node : book_.nodes)
    if (node.role == role && node.rank == rank)
      return name + " on host " + node.host + " (pid " + std::to_string(node.pid) + ")";
  return name;
}

}  // namespace mxrdma::node
