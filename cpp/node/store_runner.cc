#include "node/store_runner.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace mxrdma::node {

StoreRunner::StoreRunner(const store::StoreConfig& config, store::MemorySource* memory, int threads,
                         std::function<void()> wake)
    : wake_(std::move(wake)) {
  for (int i = 0; i < std::max(1, threads); ++i) {
    parts_.push_back(std::make_unique<Part>());
    parts_.back()->store = std::make_unique<store::Store>(config, memory);
  }
  if (threads > 0) use_threads_on_loop();
}

void StoreRunner::use_threads_on_loop() {
  if (threaded_) return;
  threaded_ = true;
  for (auto& part : parts_) {
    part->bytes = part->store->bytes();
    part->thread = std::thread([this, raw = part.get()] { loop(raw); });
  }
}

StoreRunner::~StoreRunner() { stop(); }

void StoreRunner::stop() {
  for (auto& part : parts_) {
    std::lock_guard<std::mutex> lock(part->mutex);
    part->stopping = true;
    part->tasks.clear();
    part->work.notify_all();
  }
  for (auto& part : parts_)
    if (part->thread.joinable()) part->thread.join();
}

void StoreRunner::run_part(size_t index, Task task) {
  Part& part = *parts_[index];
  if (threaded_) {
    std::lock_guard<std::mutex> lock(part.mutex);
    part.tasks.push_back(std::move(task));
    part.work.notify_one();
    return;
  }
  task(part.store.get(), &part.effects);
}

void StoreRunner::loop(Part* part) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::deque<Task> batch;
  store::Effects effects;
  std::unique_lock<std::mutex> lock(part->mutex);
  while (true) {
    part->work.wait(lock, [part] { return part->stopping || !part->tasks.empty(); });
    if (part->stopping) return;
    batch.swap(part->tasks);
    lock.unlock();
    for (Task& task : batch) task(part->store.get(), &effects);
    batch.clear();
    const store::StoreBytes bytes = part->store->bytes();
    lock.lock();
    part->bytes = bytes;
    const bool ring = part->effects.empty() && !effects.empty();
    std::move(effects.begin(), effects.end(), std::back_inserter(part->effects));
    effects.clear();
    if (ring) wake_();
  }
}

void StoreRunner::collect_on_loop(store::Effects* effects) {
  for (auto& part : parts_) {
    std::unique_lock<std::mutex> lock(part->mutex, std::defer_lock);
    if (threaded_) lock.lock();
    std::move(part->effects.begin(), part->effects.end(), std::back_inserter(*effects));
    part->effects.clear();
  }
}

store::StoreBytes StoreRunner::bytes() const {
  store::StoreBytes sum;
  for (const auto& part : parts_) {
    store::StoreBytes bytes;
    if (threaded_) {
      std::lock_guard<std::mutex> lock(part->mutex);
      bytes = part->bytes;
    } else {
      bytes = part->store->bytes();
    }
    sum.weights += bytes.weights;
    sum.accumulators += bytes.accumulators;
    sum.accumulators_peak += bytes.accumulators_peak;
    sum.optimizer_state += bytes.optimizer_state;
  }
  return sum;
}

}  // namespace mxrdma::node
