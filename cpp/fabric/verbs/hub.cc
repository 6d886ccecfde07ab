#include "fabric/verbs/hub.h"

#include <optional>

#include "fabric/verbs/context.h"
#include "fabric/verbs/verbs_channel.h"

namespace mxrdma::fabric::verbs {

namespace {
// Further rails get further numbers.
constexpr uint32_t kDevice = 0;
}  // namespace

struct Hub::State {
  State(const HostFabricOptions& host_options, const ChannelContext& channel_context, Epoll* poller)
      : options(host_options), shared(channel_context), epoll(poller) {}

  Status open(const std::string& local_host) {
    Result<const Library*> found = library();
    if (!found.is_ok()) return found.status();
    static const Status forks = found.value()->prepare_for_forks();  // of the process
    if (!forks.is_ok()) return forks;
    Result<Picked> picked = pick(*found.value(), options.devices, options.gid_index, local_host);
    if (!picked.is_ok()) return picked.status();
    Result<std::unique_ptr<VerbsContext>> opened =
        VerbsContext::open(*found.value(), std::move(picked.value()), shared);
    if (!opened.is_ok()) return opened.status();
    context = std::move(opened.value());
    epoll->watch(context->completion_fd(), Epoll::Source::completions, kDevice);
    epoll->watch(context->async_fd(), Epoll::Source::device, kDevice);
    if (context->cm() != nullptr)
      epoll->watch(context->cm()->event_fd(), Epoll::Source::connections, kDevice);
    return Status::ok();
  }

  // The descriptors of a device that is gone stay ready for ever: they would keep the loop awake.
  void watch_no_more_if_failed() {
    if (context == nullptr || context->failure().is_ok() || !outcome->is_ok()) return;
    outcome = context->failure();
    epoll->forget(context->completion_fd());
    epoll->forget(context->async_fd());
    if (context->cm() != nullptr) epoll->forget(context->cm()->event_fd());
  }

  HostFabricOptions options;
  ChannelContext shared;
  Epoll* epoll;
  std::optional<Status> outcome;  // of opening
  std::unique_ptr<VerbsContext> context;
};

Hub::Hub(const HostFabricOptions& options, const ChannelContext& context, Epoll* epoll)
    : state_(std::make_unique<State>(options, context, epoll)) {}
Hub::~Hub() = default;

Status Hub::usable_on_loop(const std::string& local_host) {
  if (!state_->outcome) state_->outcome = state_->open(local_host);
  return *state_->outcome;
}

Result<std::unique_ptr<Link>> Hub::make_link_on_loop(PeerId peer, int control, bool acceptor) {
  if (state_->context == nullptr) return Status(Code::fabric, "no RDMA device is open");
  if (!state_->context->failure().is_ok()) return state_->context->failure();
  return VerbsChannel::make(state_->context.get(), state_->shared, peer, control, acceptor);
}

void Hub::progress_on_loop() {
  if (state_->context != nullptr) state_->context->progress_on_loop();
}

bool Hub::arm_on_loop() { return state_->context == nullptr || state_->context->arm_on_loop(); }

void Hub::completion_ready_on_loop(uint32_t) {
  if (state_->context == nullptr) return;
  state_->context->completion_ready_on_loop();
  state_->watch_no_more_if_failed();
}

void Hub::async_ready_on_loop(uint32_t) {
  if (state_->context == nullptr) return;
  state_->context->async_ready_on_loop();
  state_->watch_no_more_if_failed();
}

bool Hub::may_register_callers_memory() const {
  return state_->context == nullptr || state_->context->copies_at_fork();
}

void Hub::connections_ready_on_loop(uint32_t) {
  if (state_->context != nullptr && state_->context->cm() != nullptr)
    state_->context->cm()->ready_on_loop();
}

void Hub::release_on_loop(RegionId region) {
  if (state_->context != nullptr) state_->context->release(region);
}

}  // namespace mxrdma::fabric::verbs
