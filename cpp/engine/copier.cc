#include "engine/copier.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "engine/api.h"

namespace mxrdma::engine {

struct Copier::Queue {
  std::mutex mutex;
  std::condition_variable condition;
  std::deque<std::function<void()>> work;
  bool stopping = false;
};

Copier::Copier(std::shared_ptr<const Api> api)
    : api_(std::move(api)), queue_(std::make_shared<Queue>()), pid_(getpid()) {}

Copier::~Copier() {
  {
    std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->condition.notify_all();
  if (!thread_.joinable()) return;
  // Work may hold the last reference to our owner; a forked child has no such thread.
  if (thread_.get_id() == std::this_thread::get_id() || getpid() != pid_)
    thread_.detach();
  else
    thread_.join();
}

void Copier::post(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->work.push_back(std::move(work));
  if (!thread_.joinable())
    thread_ = std::thread([api = api_, queue = queue_] { loop(api, queue); });
  queue_->condition.notify_one();
}

void Copier::loop(const std::shared_ptr<const Api>& api, const std::shared_ptr<Queue>& queue) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the user's main thread
  int previous = 0;
  if (api->set_recording(0, &previous) != 0)
    log_error(api->error("switching autograd off").message());
  std::unique_lock<std::mutex> lock(queue->mutex);
  for (;;) {
    queue->condition.wait(lock, [&] { return queue->stopping || !queue->work.empty(); });
    if (queue->work.empty()) return;
    std::function<void()> work = std::move(queue->work.front());
    queue->work.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace mxrdma::engine
