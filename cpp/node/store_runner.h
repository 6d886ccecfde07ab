// Runs the store: on the calling thread, or on compute threads of which each owns its keys, so that
// no lock is taken on data. Results come back to the loop through collect().
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "store/store.h"

namespace mxrdma::node {

class StoreRunner {
 public:
  using Task = std::function<void(store::Store*, store::Effects*)>;

  // threads 0: tasks run inside run(). `wake` is called from compute threads when effects are
  // ready.
  StoreRunner(const store::StoreConfig& config, store::MemorySource* memory, int threads,
              std::function<void()> wake);
  ~StoreRunner();

  // From now on every part runs on a thread of its own. For updaters that take long: the loop has
  // heartbeats to send.
  void use_threads_on_loop();
  size_t parts() const { return parts_.size(); }
  // The part that owns the key. Tasks of one part run in the order of the calls.
  void run(uint32_t key, Task task) { run_part(key % parts_.size(), std::move(task)); }
  void run_part(size_t part, Task task);
  // Effects of finished tasks, in order within a part.
  void collect_on_loop(store::Effects* effects);
  store::StoreBytes bytes() const;
  // Waits for the task that each part runs now and drops the rest.
  void stop();

 private:
  struct Part {
    std::unique_ptr<store::Store> store;
    std::thread thread;
    std::mutex mutex;  // tasks, effects, bytes, stopping
    std::condition_variable work;
    std::deque<Task> tasks;  // bounded by the workers' slots and requests
    store::Effects effects;
    store::StoreBytes bytes;
    bool stopping = false;
  };
  void loop(Part* part);

  std::vector<std::unique_ptr<Part>> parts_;
  bool threaded_ = false;  // read and written by the loop
  std::function<void()> wake_;
};

}  // namespace mxrdma::node
