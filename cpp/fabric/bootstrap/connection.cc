#include "fabric/bootstrap/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fabric/tcp/tcp_channel.h"

namespace mxrdma::fabric {
namespace {

constexpr size_t kMaxReasonText = 480;  // fits into the handshake's texts
constexpr int kRetryMs = 50;            // between attempts to connect to a peer that is not up yet

const char* policy_name(Policy policy) {
  switch (policy) {
    case Policy::automatic:
      return "auto";
    case Policy::shm:
      return "shm";
    case Policy::tcp:
      return "tcp";
    case Policy::verbs:
      return "verbs";
    case Policy::control:
      return "control";
  }
  return "?";
}

}  // namespace

Connection::Connection(PeerId peer, const Surroundings* surroundings, int64_t deadline_ms)
    : peer_(peer), surroundings_(surroundings), deadline_ms_(deadline_ms) {}

// ---- connecting

Status Connection::connect_on_loop(const Address& address, const std::vector<std::byte>& hello,
                                   int64_t now_ms) {
  address_ = address;
  hello_ = hello;
  Result<std::vector<SocketAddress>> found = resolve(address, false);
  if (!found.is_ok()) return found.status();
  candidates_ = found.value();
  return try_next_address(now_ms);
}

Status Connection::try_next_address(int64_t now_ms) {
  while (next_candidate_ < candidates_.size()) {
    const size_t left = candidates_.size() - next_candidate_;
    Result<Fd> fd = begin_connect(candidates_[next_candidate_++]);
    if (fd.is_ok()) {
      control_ = std::move(fd.value());
      stage_ = Stage::connecting;
      // An address that swallows our packets must not use up the time of those behind it.
      next_step_ms_ =
          left == 1
              ? INT64_MAX
              : now_ms + std::max<int64_t>(1, (deadline_ms_ - now_ms) / static_cast<int64_t>(left));
      return Status::ok();
    }
    last_error_ = fd.status().message();
  }
  next_candidate_ = 0;
  control_.reset();
  stage_ = Stage::waiting_to_retry;
  next_step_ms_ = now_ms + kRetryMs;
  return Status::ok();
}

Status Connection::timed_out() const {
  const std::string limit = std::to_string(surroundings_->options.handshake_timeout_ms) + " ms";
  if (stage_ == Stage::waiting_to_retry || stage_ == Stage::connecting)
    return Status(Code::fabric, "no connection within " + limit +
                                    (last_error_.empty() ? "" : ": " + last_error_) +
                                    "; check that the peer runs and that no firewall is between");
  return Status(Code::fabric,
                "no handshake within " + limit +
                    "; check that the peer is a node of mxrdma and is not overloaded");
}

Status Connection::retry_on_loop(int64_t now_ms) {
  if (now_ms >= deadline_ms_) return timed_out();
  if (link_) {
    Status status = drive_link(now_ms);
    if (!status.is_ok() || stage_ == Stage::up) return status;
  }
  const bool early = stage_ == Stage::waiting_to_retry || stage_ == Stage::connecting;
  return early && now_ms >= next_step_ms_ ? try_next_address(now_ms) : Status::ok();
}

Status Connection::connected() {
  stage_ = Stage::handshaking;
  next_step_ms_ = INT64_MAX;
  handshake_ = std::make_unique<Handshake>(true, surroundings_->options.token);
  Status status = handshake_->start();
  return status.is_ok() ? flush() : status;
}

Status Connection::accepted_on_loop(Fd fd) {
  acceptor_ = true;
  control_ = std::move(fd);
  stage_ = Stage::handshaking;
  ends_text_ = local_and_peer(control_.get());
  Status status = prepare_stream(control_.get());
  handshake_ = std::make_unique<Handshake>(false, surroundings_->options.token);
  if (status.is_ok()) status = handshake_->start();
  return status.is_ok() ? flush() : status;
}

// ---- handshake

bool Connection::wants_writable() const {
  if (stage_ == Stage::connecting) return true;
  if (channel_) return channel_->wants_writable();
  return handshake_ && !handshake_->output().empty();
}

Status Connection::control_ready_on_loop(bool readable, bool writable, int64_t now_ms) {
  if (stage_ == Stage::connecting) {
    int error = connect_error(control_.get());
    // A port of our own that nobody listens on can come out connected to itself.
    if (error == 0 && writable && is_connected_to_itself(control_.get())) error = ECONNREFUSED;
    if (error != 0) {
      last_error_ = errno_text(error);
      return try_next_address(now_ms);
    }
    if (!writable) return Status::ok();
    return connected();
  }
  if (channel_) {
    Status status = readable ? channel_->readable_on_loop() : Status::ok();
    return status.is_ok() && writable ? channel_->writable_on_loop() : status;
  }
  Status status = writable ? flush() : Status::ok();
  return status.is_ok() && readable ? receive() : status;
}

Status Connection::flush() {
  std::vector<std::byte>& output = handshake_->output();
  while (!output.empty()) {
    const ssize_t count =
        ::send(control_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::ok();
    if (count < 0)
      return Status(Code::fabric, handshake_->describe_end() + ": " + errno_text(errno));
    output.erase(output.begin(), output.begin() + count);
  }
  return Status::ok();
}

// The peer's last word may be followed by its first data at once: never more is taken than the
// handshake wants.
Status Connection::receive() {
  std::byte buffer[4096];
  while (!channel_ && stage_ != Stage::dead) {
    const size_t wanted = std::min(sizeof buffer, handshake_->wanted());
    const ssize_t count = recv(control_.get(), buffer, wanted, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::ok();
    if (count == 0 || (count < 0 && errno == ECONNRESET))
      return Status(
          handshake_->stage() == Handshake::Stage::proof && !acceptor_ ? Code::auth : Code::fabric,
          handshake_->describe_end());
    if (count < 0) return Status(Code::fabric, "handshake: " + errno_text(errno));
    Status status = handshake_->feed(buffer, static_cast<size_t>(count));
    if (status.is_ok()) status = advance();
    if (status.is_ok() && handshake_) status = flush();
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

Status Connection::advance() {
  if (!handshake_->proven()) return Status::ok();
  if (!acceptor_ && !offered_) {
    offered_ = true;
    handshake_->put_body(
        encode(Offer{surroundings_->options.policy, surroundings_->identity, hello_}));
  }
  std::vector<std::byte> body;
  if (!handshake_->take_body(&body)) return Status::ok();
  if (stage_ == Stage::joining_verbs && !acceptor_ && !link_ready_) {
    Result<Ready> ready = decode_ready(body);
    return ready.is_ok() ? on_ready(ready.value()) : ready.status();
  }
  if (!acceptor_) {
    if (std::exchange(answered_, true))
      return Status(Code::fabric, "malformed handshake: a second answer");
    Result<Answer> answer = decode_answer(body);
    return answer.is_ok() ? on_answer(answer.value()) : answer.status();
  }
  if (!offered_) {
    offered_ = true;
    Result<Offer> offer = decode_offer(body);
    return offer.is_ok() ? on_offer(offer.value()) : offer.status();
  }
  Result<Choice> choice = decode_choice(body);
  return choice.is_ok() ? on_choice(choice.value()) : choice.status();
}

// Why these two ends cannot use what one of them insists on.
std::string Connection::cannot_share(Policy theirs) const {
  return std::string("the fabrics do not fit: ") + policy_name(surroundings_->options.policy) +
         " here, " + policy_name(theirs) + " at the peer" +
         (why_not_shm_.empty() ? "" : "; shm: " + why_not_shm_) +
         (why_not_verbs_.empty() ? "" : "; verbs: " + why_not_verbs_);
}

Status Connection::on_offer(const Offer& offer) {
  hello_ = offer.hello;
  their_policy_ = offer.policy;
  their_pid_ = offer.identity.pid;
  Answer answer;
  answer.policy = surroundings_->options.policy;
  answer.pid = surroundings_->identity.pid;
  const Policy ours = surroundings_->options.policy;
  if (ours == Policy::tcp || offer.policy == Policy::tcp) {
    answer.reason = "tcp was asked for";
  } else if (ours == Policy::verbs || offer.policy == Policy::verbs) {
    answer.reason = "verbs was asked for";
  } else if (surroundings_->identity.boot_id.empty() ||
             offer.identity.boot_id != surroundings_->identity.boot_id) {
    answer.reason = "another host (boot ids differ)";
  } else if (offer.identity.network_namespace != surroundings_->identity.network_namespace) {
    answer.reason = "same host, but another network namespace";
  } else if (surroundings_->rendezvous->name().empty()) {
    answer.reason = "no abstract Unix socket: " + surroundings_->shm_problem.message();
  } else {
    answer.shm = true;
    answer.socket_name = surroundings_->rendezvous->name();
    Status status = fill_random(ends_.cookie, sizeof ends_.cookie);
    if (!status.is_ok()) return status;
    answer.cookie[0] = ends_.cookie[0];
    answer.cookie[1] = ends_.cookie[1];
  }
  why_not_shm_ = answer.reason;
  answer.why_not_verbs = why_no_verbs_with(offer.policy);
  if (answer.why_not_verbs.empty() && answer.shm) answer.why_not_verbs = "shm is offered";
  if (answer.why_not_verbs.empty()) {
    Status usable = surroundings_->hub->usable_on_loop(local_host(control_.get()));
    if (!usable.is_ok()) answer.why_not_verbs = usable.message().substr(0, kMaxReasonText);
  }
  answer.verbs = answer.why_not_verbs.empty();
  why_not_verbs_ = answer.why_not_verbs;
  handshake_->put_body(encode(answer));
  return Status::ok();
}

std::string Connection::why_no_verbs_with(Policy theirs) const {
  for (Policy policy : {surroundings_->options.policy, theirs})
    if (policy == Policy::tcp || policy == Policy::shm)
      return std::string(policy_name(policy)) + " was asked for";
  if (surroundings_->options.policy == Policy::control || theirs == Policy::control)
    return "no tensors come here";
  return "";
}

Status Connection::on_answer(const Answer& answer) {
  their_policy_ = answer.policy;
  their_pid_ = answer.pid;
  why_not_verbs_ = answer.why_not_verbs;
  if (!answer.shm && answer.verbs) return begin_verbs(answer.reason);
  if (!answer.shm) return choose(Path::tcp, answer.reason);
  ends_.cookie[0] = answer.cookie[0];
  ends_.cookie[1] = answer.cookie[1];
  Status status = begin_shm(answer.socket_name);
  return status.is_ok() ? status : choose(Path::tcp, status.message());
}

Status Connection::begin_shm(const std::string& socket_name) {
  Result<Fd> notes = connect_abstract(socket_name);
  if (!notes.is_ok()) return notes.status();
  ends_.notes = std::move(notes.value());
  Status status = send_our_ends();
  if (status.is_ok()) stage_ = Stage::joining_shm;
  return status;
}

Status Connection::send_our_ends() {
  Result<std::shared_ptr<Segment>> outbound = Segment::create(shm::kSegmentBytes);
  if (!outbound.is_ok()) return outbound.status();
  ends_.outbound = outbound.value();
  shm::Note note;
  note.kind = shm::NoteKind::direction;
  note.cookie[0] = ends_.cookie[0];
  note.cookie[1] = ends_.cookie[1];
  note.bytes = shm::kSegmentBytes;
  Status status = shm::send_note(ends_.notes.get(), note, ends_.outbound->fd());
  note.kind = shm::NoteKind::doorbell;
  return status.is_ok() ? shm::send_note(ends_.notes.get(), note, surroundings_->doorbell) : status;
}

bool Connection::has_cookie(const uint64_t cookie[2]) const {
  return acceptor_ && stage_ == Stage::handshaking && !ends_.notes.valid() &&
         (ends_.cookie[0] | ends_.cookie[1]) != 0 && ends_.cookie[0] == cookie[0] &&
         ends_.cookie[1] == cookie[1];
}

Status Connection::take_notes_on_loop(Fd notes, shm::ReceivedNote first) {
  ends_.notes = std::move(notes);
  Status status = send_our_ends();
  if (status.is_ok()) status = take_note(std::move(first));
  return status.is_ok() ? notes_ready_on_loop() : status;
}

Status Connection::notes_ready_on_loop() {
  if (channel_) return channel_->side_readable_on_loop();
  Status status = take_notes();
  if (stage_ != Stage::joining_shm) {
    // The connector will say on the control connection that it chose otherwise, or end it.
    notes_ended_ = status.code() == Code::closed;
    return notes_ended_ ? Status::ok() : status;
  }
  if (!status.is_ok()) return choose(Path::tcp, status.message());
  return ends_complete() ? choose(Path::shm, "") : status;
}

// Not beyond our two: what follows is the channel's.
Status Connection::take_notes() {
  while (!ends_complete()) {
    Result<std::optional<shm::ReceivedNote>> note = shm::receive_note(ends_.notes.get());
    if (!note.is_ok()) return note.status();
    if (!note.value()) return Status::ok();
    Status status = take_note(std::move(*note.value()));
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

Status Connection::take_note(shm::ReceivedNote note) {
  if (note.note.cookie[0] != ends_.cookie[0] || note.note.cookie[1] != ends_.cookie[1])
    return Status(Code::auth, "a note with a wrong cookie on the Unix socket");
  if (note.note.kind == shm::NoteKind::direction && !ends_.inbound &&
      note.note.bytes == shm::kSegmentBytes) {
    Result<std::shared_ptr<Segment>> inbound = Segment::map(std::move(note.fd), shm::kSegmentBytes);
    if (!inbound.is_ok()) return inbound.status();
    ends_.inbound = inbound.value();
    return Status::ok();
  }
  if (note.note.kind == shm::NoteKind::doorbell && !ends_.doorbell.valid()) {
    ends_.doorbell = std::move(note.fd);
    return Status::ok();
  }
  return Status(Code::fabric, "an unexpected note on the Unix socket");
}

// Whether one of the ends insists on another path.
bool Connection::is_refused(Path path) const {
  const Policy ours = surroundings_->options.policy;
  const bool control = ours == Policy::control || their_policy_ == Policy::control;
  for (Policy policy : {ours, their_policy_})
    if ((policy == Policy::shm && path != Path::shm) ||
        (policy == Policy::verbs && path != Path::verbs && !control))
      return true;
  return false;
}

Status Connection::choose(Path path, const std::string& reason) {
  why_not_shm_ = reason;
  if (is_refused(path)) return Status(Code::fabric, cannot_share(their_policy_));
  handshake_->put_body(encode(Choice{path, reason.substr(0, kMaxReasonText), {}}));
  Status status = flush();
  if (status.is_ok() && !handshake_->output().empty())
    return Status(Code::fabric, "the socket takes no more in the handshake");
  if (status.is_ok()) go_up(path);
  return status;
}

Status Connection::on_choice(const Choice& choice) {
  if (choice.path == Path::verbs && !link_) return on_verbs_choice(choice);
  if (choice.path == Path::shm && !ends_complete())
    return Status(Code::fabric, "the peer chose shm without passing its memory");
  if (choice.path == Path::verbs && !link_->heard())
    return Status(Code::fabric, "the peer chose verbs before its queue pair was heard");
  if (choice.path == Path::tcp) {
    why_not_shm_ = choice.reason;
    if (is_refused(Path::tcp)) return Status(Code::fabric, cannot_share(their_policy_));
  }
  go_up(choice.path);
  return Status::ok();
}

// ---- verbs

Status Connection::make_link() {
  Status status = surroundings_->hub->usable_on_loop(local_host(control_.get()));
  if (!status.is_ok()) return status;
  Result<std::unique_ptr<verbs::Link>> link =
      surroundings_->hub->make_link_on_loop(peer_, control_.get(), acceptor_);
  if (!link.is_ok()) return link.status();
  link_ = std::move(link.value());
  return Status::ok();
}

Status Connection::begin_verbs(const std::string& why_not_shm) {
  why_not_shm_ = why_not_shm;
  Status status = make_link();
  if (!status.is_ok()) return without_verbs(status.message());
  stage_ = Stage::joining_verbs;
  handshake_->put_body(encode(Choice{Path::verbs, why_not_shm_, link_->end()}));
  return flush();
}

// The connector gives the queue pair up.
Status Connection::without_verbs(const std::string& reason) {
  link_.reset();
  why_not_verbs_ = reason;
  if (is_refused(Path::tcp)) return Status(Code::fabric, cannot_share(their_policy_));
  return choose(Path::tcp, why_not_shm_ + "; no verbs: " + reason);
}

Status Connection::on_verbs_choice(const Choice& choice) {
  Ready ready;
  Status status = make_link();
  if (status.is_ok()) status = link_->meet_on_loop(choice.end);
  ready.ok = status.is_ok();
  ready.peer_generation = choice.end.generation;
  if (ready.ok) {
    ready.end = link_->end();
  } else {
    why_not_verbs_ = status.message();
    ready.reason = why_not_verbs_.substr(0, kMaxReasonText);
    // A link that is not met stays as a mark that the first choice has come.
  }
  handshake_->put_body(encode(ready));
  return Status::ok();
}

Status Connection::on_ready(const Ready& ready) {
  if (!ready.ok) return without_verbs("at the peer: " + ready.reason);
  if (ready.peer_generation != link_->end().generation)
    return Status(Code::fabric, "an answer to an earlier handshake");
  link_ready_ = true;
  Status status = link_->meet_on_loop(ready.end);
  if (status.is_ok()) status = link_->probe_on_loop();
  return status.is_ok() ? status : without_verbs(status.message());
}

// Before it is up. The connector decides whether the path carries data.
Status Connection::drive_link(int64_t now_ms) {
  Status status = link_->progress_on_loop();
  if (acceptor_) return Status::ok();  // what is broken is found by the connector's probe
  if (!status.is_ok()) return without_verbs(status.message());
  if (link_->heard()) return choose(Path::verbs, why_not_shm_);
  if (link_deadline_ms_ == 0)
    link_deadline_ms_ = std::min(now_ms + kVerbsProbeMs, deadline_ms_ - kVerbsProbeMs / 4);
  if (now_ms < link_deadline_ms_) return Status::ok();
  return without_verbs(
      "nothing came over the queue pair within " + std::to_string(kVerbsProbeMs) +
      " ms: " + link_->describe() +
      "; check that both GIDs reach each other, that UDP port 4791 is open (RoCE), "
      "and the MTU");
}

// ---- the path

void Connection::go_up(Path path) {
  if (path == Path::shm) {
    const int pid = shm::peer_pid(ends_.notes.get());
    path_ = "shm, same host (boot id matches), pid " +
            (pid > 0 ? std::to_string(pid) : std::to_string(their_pid_));
    channel_ = std::make_unique<ShmChannel>(control_.get(), std::move(ends_),
                                            surroundings_->context, peer_);
  } else if (path == Path::verbs) {
    path_ = "verbs " + link_->describe();
    ends_ = ShmEnds();
    channel_ = std::move(link_);
  } else {
    path_ = "tcp " + local_and_peer(control_.get()) +
            (why_not_shm_.empty() ? "" : " (no shm: " + why_not_shm_ + ")");
    ends_ = ShmEnds();
    channel_ = std::make_unique<TcpChannel>(control_.get(), surroundings_->context, peer_);
  }
  link_.reset();
  handshake_.reset();
  stage_ = Stage::up;
}

// ---- ends

std::string Connection::where() const {
  if (!acceptor_) return to_string(address_);
  return ends_text_;
}

std::string Connection::describe() const { return path_.empty() ? where() : path_; }

std::vector<uint64_t> Connection::end_on_loop() {
  std::vector<uint64_t> ids;
  if (channel_) ids = channel_->abandon_on_loop();
  channel_.reset();
  link_.reset();
  ends_ = ShmEnds();
  end_stream(control_.get());
  control_.reset();
  stage_ = Stage::dead;
  return ids;
}

}  // namespace mxrdma::fabric
