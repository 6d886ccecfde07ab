#include "fabric/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <unordered_set>

#include "base/check.h"

namespace mxrdma::fabric {
namespace {

struct Guard {
  std::mutex mutex;
  std::unordered_set<int> fds;
  // Opened beforehand: the child may have no descriptor to spare.
  int null = -1;
};

Guard& guard();

void before() { guard().mutex.lock(); }
void in_parent() { guard().mutex.unlock(); }

void in_child() {
  Guard& self = guard();
  for (int fd : self.fds) {
    while (dup3(self.null, fd, O_CLOEXEC) < 0 && (errno == EINTR || errno == EBUSY)) {
    }
  }
  self.fds.clear();
  self.mutex.unlock();
}

// Never destroyed: descriptors outlive other statics.
Guard& guard() {
  static Guard* made = [] {
    auto* fresh = new Guard;
    fresh->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    return fresh;
  }();
  static const bool hooked = [] {
    const int error = pthread_atfork(before, in_parent, in_child);
    MXRDMA_CHECK(error == 0, "pthread_atfork has memory for three pointers");
    return true;
  }();
  static_cast<void>(hooked);
  return *made;
}

}  // namespace

void guard_from_fork(int fd) {
  Guard& self = guard();
  std::lock_guard<std::mutex> lock(self.mutex);
  self.fds.insert(fd);
}

void unguard_from_fork(int fd) {
  Guard& self = guard();
  std::lock_guard<std::mutex> lock(self.mutex);
  self.fds.erase(fd);
}

}  // namespace mxrdma::fabric
