// A thread for what must not run on MXNet's engine threads: copies of arrays in blocked layout.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>

#include "base/status.h"

namespace mxrdma::engine {

struct Api;

class Copier {
 public:
  explicit Copier(std::shared_ptr<const Api> api);
  ~Copier();  // finishes what is queued
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Queued work is bounded by the user's operations in flight: each adds at most one. Autograd does
  // not record in it.
  void post(std::function<void()> work);

 private:
  struct Queue;
  static void loop(const std::shared_ptr<const Api>& api, const std::shared_ptr<Queue>& queue);

  std::shared_ptr<const Api> api_;
  std::shared_ptr<Queue> queue_;  // the thread's too, which may outlive us
  const pid_t pid_;
  std::thread thread_;  // started by the first post
};

}  // namespace mxrdma::engine
