// What the scheduler directs a server to do: to place keys and drop them, to change the optimizer.
#include <atomic>
#include <utility>

#include "base/log.h"
#include "node/server_core.h"

namespace mxrdma::node {
namespace {

uint64_t bytes_on(const wire::KeySpec& key, uint32_t server) {
  uint64_t bytes = 0;
  for (const wire::Share& share : key.shares)
    if (share.server == server) bytes += share.bytes;
  return bytes;
}

}  // namespace

void ServerCore::acknowledge(uint64_t sequence, const Status& status) {
  Status sent = membership_.send_on_loop(
      wire::ServerAck{sequence, static_cast<uint8_t>(status.code()), status.message()});
  if (!sent.is_ok()) log_warning("cannot answer the scheduler: " + sent.message());
}

Status ServerCore::reserve(const std::vector<wire::KeySpec>& keys) {
  uint64_t bytes = 0;
  size_t blocks = 0;
  const size_t capacity = wire::slice_capacity(membership_.book().config.slot_bytes);
  for (const wire::KeySpec& key : keys) {
    const uint64_t ours = bytes_on(key, membership_.rank());
    bytes += ours;
    blocks += ours / capacity + 2;
  }
  return bytes == 0 ? Status::ok() : memory_.reserve_on_loop(bytes, blocks);
}

void ServerCore::on_place_keys(const wire::PlaceKeys& place) {
  Status reserved =
      runner_ ? reserve(place.keys) : Status(Code::internal, "keys before the address book");
  if (!reserved.is_ok() || place.keys.empty()) return acknowledge(place.sequence, reserved);
  struct Progress {
    std::atomic<size_t> left{0};
    std::mutex mutex;
    Status first;
  };
  auto progress = std::make_shared<Progress>();
  progress->left = place.keys.size();
  for (const wire::KeySpec& key : place.keys)
    runner_->run(key.id, [this, key, progress, sequence = place.sequence](store::Store* store,
                                                                          store::Effects*) {
      Status status = store->add_key(key);
      {
        std::lock_guard<std::mutex> lock(progress->mutex);
        if (progress->first.is_ok()) progress->first = status;
      }
      if (--progress->left == 0)
        defer([this, progress, sequence] { acknowledge(sequence, progress->first); });
    });
}

void ServerCore::on_drop_keys(const wire::DropKeys& drop) {
  if (!runner_) return;
  for (uint32_t key : drop.keys)
    runner_->run(key, [key](store::Store* store, store::Effects*) { store->drop_key(key); });
}

void ServerCore::on_set_optimizer(const wire::SetOptimizer& set) {
  Status reserved =
      runner_ ? reserve(set.moved) : Status(Code::internal, "an optimizer before the address book");
  if (!reserved.is_ok()) return acknowledge(set.sequence, reserved);
  prepared_ = Prepared{set, nullptr, false};
  if (set.optimizer.kind != wire::OptimizerKind::python) {
    prepared_->ready = true;
    return acknowledge(set.sequence, Status::ok());
  }
  if (!factory_)
    return acknowledge(set.sequence,
                       Status(Code::unsupported, "this server runs no Python updaters"));
  // One that was given up may still be in the making: the new one comes behind it.
  if (!making_updater_) make_updater();
}

// Building it imports MXNet, which takes seconds: heartbeats must go on meanwhile.
void ServerCore::make_updater() {
  if (updater_maker_.joinable()) updater_maker_.join();
  making_updater_ = true;
  updater_maker_ = std::thread([this, set = prepared_->set] {
    Result<std::shared_ptr<store::WholeTensorUpdater>> updater = factory_(set.optimizer);
    defer([this, sequence = set.sequence, updater] {
      making_updater_ = false;
      if (!prepared_) return;  // given up meanwhile
      if (prepared_->set.sequence != sequence) {
        if (!prepared_->ready) make_updater();
        return;
      }
      if (updater.is_ok()) {
        prepared_->updater = updater.value();
        prepared_->ready = true;
      }
      acknowledge(sequence, updater.status());
    });
  });
}

void ServerCore::on_decide_optimizer(const wire::DecideOptimizer& decide) {
  if (!prepared_ || prepared_->set.sequence != decide.sequence) return;
  if (!decide.use) return prepared_.reset();
  if (!prepared_->ready)
    return fail(Status(Code::internal, "told to use an optimizer that is not ready"));
  use_optimizer();
}

void ServerCore::use_optimizer() {
  struct Progress {
    std::mutex mutex;
    size_t left = 0;
    Status first;
  };
  const auto prepared = std::make_shared<const Prepared>(std::move(*prepared_));
  prepared_.reset();
  if (prepared->updater) runner_->use_threads_on_loop();
  auto progress = std::make_shared<Progress>();
  progress->left = runner_->parts();
  const auto all_done = [this, progress, sequence = prepared->set.sequence] {
    if (progress->first.is_ok()) return acknowledge(sequence, Status::ok());
    fail(progress->first.with_context("set_optimizer"));
  };
  for (size_t part = 0; part < runner_->parts(); ++part)
    runner_->run_part(part, [=](store::Store* store, store::Effects*) {
      Status status;
      for (const wire::KeySpec& key : prepared->set.moved)
        if (key.id % runner_->parts() == part && status.is_ok()) status = store->move_key(key);
      if (status.is_ok()) status = store->set_optimizer(prepared->set.optimizer, prepared->updater);
      std::lock_guard<std::mutex> lock(progress->mutex);
      if (progress->first.is_ok()) progress->first = status;
      if (--progress->left == 0) defer(all_done);
    });
}

}  // namespace mxrdma::node
