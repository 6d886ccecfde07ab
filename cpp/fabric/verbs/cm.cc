#include "fabric/verbs/cm.h"

#include <fcntl.h>

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "fabric/fork_guard.h"
#include "fabric/socket.h"

namespace mxrdma::fabric::verbs {
namespace {

constexpr int kBacklog = 128;
// Of each of the two steps before the connection itself.
constexpr int kResolveMs = kVerbsProbeMs / 2;
constexpr uint8_t kRetries = 7;

Status cm_error(const std::string& what) {
  return Status(Code::fabric, what + ": " + errno_text(errno));
}

}  // namespace

Result<std::unique_ptr<CmPort>> CmPort::open(const Library& library, const std::string& host) {
  if (!library.cm.available) return Status(Code::unsupported, library.cm.reason);
  std::unique_ptr<CmPort> made(new CmPort(library));
  Status status = made->listen(host);
  if (!status.is_ok()) return status.with_context("rdma_cm on " + host);
  return made;
}

CmPort::~CmPort() {
  if (channel_) unguard_from_fork(channel_->fd);
}

Handle<rdma_cm_id> CmPort::own(rdma_cm_id* id) const {
  return Handle<rdma_cm_id>(id, library_.cm.destroy_id, "an rdma_cm connection");
}

Status CmPort::listen(const std::string& host) {
  const CmLibrary& cm = library_.cm;
  rdma_event_channel* channel = cm.create_event_channel();
  if (channel == nullptr) return cm_error("creating an event channel");
  channel_ = {channel, CloseChannel{&library_}};
  guard_from_fork(channel_->fd);
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return cm_error("fcntl");
  Result<std::vector<SocketAddress>> found = resolve({host, 0}, true);
  if (!found.is_ok()) return found.status();
  rdma_cm_id* id = nullptr;
  if (cm.create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP) != 0)
    return cm_error("creating an id");
  listener_ = own(id);
  if (cm.bind_addr(id, reinterpret_cast<sockaddr*>(&found.value()[0].storage)) != 0)
    return cm_error("binding");
  if (id->verbs == nullptr)
    return Status(Code::fabric, "no RDMA device carries this address for rdma_cm");
  if (cm.listen(id, kBacklog) != 0) return cm_error("listening");
  host_ = host;
  port_ = ntohs(cm.get_src_port(id));
  return Status::ok();
}

Status CmPort::connect(const std::string& host, uint16_t port, uint64_t cookie, CmEnd* end) {
  Result<std::vector<SocketAddress>> from = resolve({host_, 0}, true);
  if (!from.is_ok()) return from.status();
  Result<std::vector<SocketAddress>> to = resolve({host, port}, false);
  if (!to.is_ok()) return to.status();
  rdma_cm_id* id = nullptr;
  if (library_.cm.create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP) != 0)
    return cm_error("creating an id");
  Way way{own(id), end, cookie};
  if (library_.cm.resolve_addr(id, reinterpret_cast<sockaddr*>(&from.value()[0].storage),
                               reinterpret_cast<sockaddr*>(&to.value()[0].storage),
                               kResolveMs) != 0)
    return cm_error("finding the way from " + host_ + " to " + host);
  ways_.emplace(id, std::move(way));
  return Status::ok();
}

void CmPort::forget(CmEnd* end) {
  for (auto entry = expected_.begin(); entry != expected_.end();)
    entry = entry->second == end ? expected_.erase(entry) : std::next(entry);
  for (auto entry = ways_.begin(); entry != ways_.end();)
    entry = entry->second.end == end ? ways_.erase(entry) : std::next(entry);
}

void CmPort::ready_on_loop() {
  rdma_cm_event* waiting = nullptr;
  while (library_.cm.get_cm_event(channel_.get(), &waiting) == 0) {
    // An id cannot go before its events are acknowledged, and what an event points to goes with it.
    rdma_cm_event event = *waiting;
    std::vector<std::byte> data;
    if (event.param.conn.private_data != nullptr) {
      const auto* from = static_cast<const std::byte*>(event.param.conn.private_data);
      data.assign(from, from + event.param.conn.private_data_len);
    }
    event.param.conn.private_data = data.data();
    event.param.conn.private_data_len = static_cast<uint8_t>(data.size());
    if (library_.cm.ack_cm_event(waiting) != 0)
      log_error("acknowledging an event of rdma_cm: " + errno_text(errno));
    on_event(event);
  }
  if (errno != EAGAIN && errno != EINTR) log_error("events of rdma_cm: " + errno_text(errno));
}

void CmPort::on_event(const rdma_cm_event& event) {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return on_request(event);
  auto found = ways_.find(event.id);
  if (found == ways_.end()) return;
  Way& way = found->second;
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_RESOLVED: {
      Status status = go_on(&way, event.event);
      if (!status.is_ok()) way.end->disconnected_on_loop(status);
      return;
    }
    case RDMA_CM_EVENT_ESTABLISHED:
      return way.end->established_on_loop();
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
    case RDMA_CM_EVENT_ADDR_CHANGE:
      return;
    case RDMA_CM_EVENT_DISCONNECTED:
      return way.end->disconnected_on_loop(Status(Code::fabric, "connection closed by peer"));
    default: {
      const std::string number =
          event.status == 0
              ? ""
              : " (" +
                    (event.status < 0 ? errno_text(-event.status) : std::to_string(event.status)) +
                    ")";
      return way.end->disconnected_on_loop(
          Status(Code::fabric, std::string(library_.cm.event_str(event.event)) + number));
    }
  }
}

rdma_conn_param CmPort::parameters(const CmEnd& end) const {
  rdma_conn_param wanted{};
  wanted.responder_resources = serves_;
  wanted.initiator_depth = starts_;
  wanted.retry_count = wanted.rnr_retry_count = kRetries;
  wanted.srq = 1;
  wanted.qp_num = end.queue_pair_number();
  return wanted;
}

Status CmPort::go_on(Way* way, rdma_cm_event_type step) {
  rdma_cm_id* id = way->id.get();
  if (step == RDMA_CM_EVENT_ADDR_RESOLVED) {
    if (id->verbs != context())
      return Status(Code::fabric, "the way to the peer leaves by another RDMA device");
    return library_.cm.resolve_route(id, kResolveMs) == 0 ? Status::ok()
                                                          : cm_error("resolving the route");
  }
  rdma_conn_param wanted = parameters(*way->end);
  wanted.private_data = &way->cookie;
  wanted.private_data_len = sizeof way->cookie;
  return library_.cm.connect(id, &wanted) == 0 ? Status::ok() : cm_error("rdma_connect");
}

void CmPort::on_request(const rdma_cm_event& event) {
  Way way{own(event.id), nullptr, 0};
  if (event.param.conn.private_data_len >= sizeof way.cookie)
    std::memcpy(&way.cookie, event.param.conn.private_data, sizeof way.cookie);
  auto found = expected_.find(way.cookie);
  if (found == expected_.end()) {
    log_warning("refused an rdma_cm connection at " + host_ + ": it does not know this job");
    if (library_.cm.reject(event.id, nullptr, 0) != 0)
      log_debug("rdma_reject: " + errno_text(errno));
    return;
  }
  way.end = found->second;
  expected_.erase(found);
  rdma_conn_param wanted = parameters(*way.end);
  CmEnd* end = way.end;
  if (library_.cm.accept(event.id, &wanted) != 0)
    return end->disconnected_on_loop(cm_error("rdma_accept"));
  ways_.emplace(event.id, std::move(way));
}

}  // namespace mxrdma::fabric::verbs
