// Joins an operation of the worker with an operation on MXNet's engine: whichever side speaks
// first, the engine's operation ends exactly once, with the worker's result.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/engine.h"
#include "node/worker.h"

namespace mxrdma::bindings {

class Transfer {
 public:
  // The worker's completion.
  void done(const Status& status) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_ = status;
    engine::Finish finish = std::move(finish_);
    finish_ = nullptr;
    lock.unlock();
    if (finish) finish(status);
  }

  // The engine's operation started. True: the worker still wants the array.
  bool start(engine::Finish finish) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!done_) {
      finish_ = std::move(finish);
      return true;
    }
    const Status status = *done_;
    lock.unlock();
    finish(status);
    return false;
  }

  bool is_done() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_.has_value();
  }

  // Of an operation that an inline engine has run: that engine keeps errors to itself.
  Status result() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_.value_or(Status::ok());
  }

 private:
  std::mutex mutex_;
  std::optional<Status> done_;
  engine::Finish finish_;
};

class TransferTask final : public engine::Task {
 public:
  TransferTask(std::weak_ptr<node::Worker> worker, std::shared_ptr<Transfer> transfer,
               node::Ticket ticket, bool sends)
      : worker_(std::move(worker)),
        transfer_(std::move(transfer)),
        ticket_(ticket),
        sends_(sends) {}

  void start(void* data, size_t bytes, Hold hold, engine::Finish finish) override {
    if (!transfer_->start(std::move(finish))) return;
    std::shared_ptr<node::Worker> worker = worker_.lock();
    if (!worker) return;  // its end has ended the transfer
    if (sends_)
      worker->supply(ticket_, data, bytes, std::move(hold));
    else
      worker->grant(ticket_, data, bytes, std::move(hold));
  }

  void abandon(const Status& why) override {
    if (transfer_->is_done()) return;
    if (std::shared_ptr<node::Worker> worker = worker_.lock()) worker->abandon(ticket_, why);
  }

 private:
  std::weak_ptr<node::Worker> worker_;
  std::shared_ptr<Transfer> transfer_;
  node::Ticket ticket_;
  bool sends_;
};

}  // namespace mxrdma::bindings
