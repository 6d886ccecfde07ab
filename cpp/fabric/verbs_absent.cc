// In place of verbs/ where the headers of rdma-core were missing at build time.
#ifndef MXRDMA_HAVE_VERBS

#include "base/check.h"
#include "fabric/verbs/hub.h"

namespace mxrdma::fabric::verbs {

struct Hub::State {};

Hub::Hub(const HostFabricOptions&, const ChannelContext&, Epoll*) {}
Hub::~Hub() = default;

Status Hub::usable_on_loop(const std::string&) {
  return Status(Code::unsupported,
                "this build of mxrdma has no verbs: the headers of libibverbs and librdmacm were "
                "missing; install libibverbs-dev and librdmacm-dev (RHEL: rdma-core-devel) and "
                "build again");
}
Result<std::unique_ptr<Link>> Hub::make_link_on_loop(PeerId, int, bool) {
  return Status(Code::unsupported, "this build of mxrdma has no verbs");
}
void Hub::progress_on_loop() {}
bool Hub::arm_on_loop() { return true; }
void Hub::completion_ready_on_loop(uint32_t) {}
void Hub::async_ready_on_loop(uint32_t) {}
void Hub::connections_ready_on_loop(uint32_t) {}
bool Hub::may_register_callers_memory() const { return true; }
void Hub::release_on_loop(RegionId) {}

}  // namespace mxrdma::fabric::verbs

#endif
