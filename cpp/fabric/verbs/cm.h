// Connections by rdma_cm, for devices that know no other way (iWARP). All others exchange their
// ends over the control connection, which has proven the job's token: nothing listens there for
// strangers. Here a stranger may knock, so each expected connection has a random cookie, told over
// the control connection; who comes without one is turned away.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "fabric/verbs/handle.h"
#include "fabric/verbs/library.h"

namespace mxrdma::fabric::verbs {

// Whoever owns a queue pair that is to be connected.
class CmEnd {
 public:
  virtual ~CmEnd() = default;
  virtual uint32_t queue_pair_number() const = 0;
  virtual void established_on_loop() = 0;
  // Refused, not reached, or gone after it was established.
  virtual void disconnected_on_loop(const Status& why) = 0;
};

class CmPort {
 public:
  // Opens the device that carries this numeric address of ours, and listens there.
  static Result<std::unique_ptr<CmPort>> open(const Library& library, const std::string& host);
  ~CmPort();
  CmPort(const CmPort&) = delete;
  CmPort& operator=(const CmPort&) = delete;

  // librdmacm's own: queues that rdma_cm shall connect must be made on it.
  ibv_context* context() const { return listener_->verbs; }
  const std::string& host() const { return host_; }
  uint16_t port() const { return port_; }
  int event_fd() const { return channel_->fd; }
  void limit_reads(uint8_t serves, uint8_t starts) {
    serves_ = serves;
    starts_ = starts;
  }

  void expect(uint64_t cookie, CmEnd* end) { expected_[cookie] = end; }
  // Ends in established or disconnected.
  Status connect(const std::string& host, uint16_t port, uint64_t cookie, CmEnd* end);
  // Nothing more is told to this end.
  void forget(CmEnd* end);
  void ready_on_loop();

 private:
  struct Way {
    Handle<rdma_cm_id> id;
    CmEnd* end = nullptr;
    uint64_t cookie = 0;
  };

  explicit CmPort(const Library& library) : library_(library) {}
  Status listen(const std::string& host);
  Handle<rdma_cm_id> own(rdma_cm_id* id) const;
  void on_event(const rdma_cm_event& event);
  void on_request(const rdma_cm_event& event);
  Status go_on(Way* way, rdma_cm_event_type step);
  rdma_conn_param parameters(const CmEnd& end) const;

  const Library& library_;
  struct CloseChannel {
    const Library* library;
    void operator()(rdma_event_channel* channel) const {
      library->cm.destroy_event_channel(channel);
    }
  };
  std::unique_ptr<rdma_event_channel, CloseChannel> channel_{nullptr, CloseChannel{nullptr}};
  Handle<rdma_cm_id> listener_;
  std::string host_;
  uint16_t port_ = 0;
  uint8_t serves_ = 0, starts_ = 0;
  std::map<uint64_t, CmEnd*> expected_;  // by cookie
  std::map<rdma_cm_id*, Way> ways_;
};

}  // namespace mxrdma::fabric::verbs
