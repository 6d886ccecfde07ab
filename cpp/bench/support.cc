#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bound.h"

#if defined(__x86_64__)
#define MXRDMA_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define MXRDMA_CLONES
#endif

namespace mxrdma::bench {

namespace {

MXRDMA_CLONES void assign_sum(const float* a, const float* b, float* weights, size_t elements) {
  for (size_t i = 0; i < elements; ++i) weights[i] = a[i] + b[i];
}

MXRDMA_CLONES void descend_sum(const float* a, const float* b, float* weights, size_t elements) {
  for (size_t i = 0; i < elements; ++i) weights[i] -= kLearningRate * (a[i] + b[i]);
}

MXRDMA_CLONES void descend(const float* a, float* weights, size_t elements) {
  for (size_t i = 0; i < elements; ++i) weights[i] -= kLearningRate * a[i];
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

void die(const std::string& what) {
  std::fprintf(stderr, "mxrdma_bound: %s\n", what.c_str());
  std::_Exit(1);
}

void die_of_errno(const std::string& what) { die(what + ": " + std::strerror(errno)); }

double now_s() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double cpu_s() {
  rusage self{}, children{};
  if (getrusage(RUSAGE_SELF, &self) != 0 || getrusage(RUSAGE_CHILDREN, &children) != 0)
    die_of_errno("getrusage");
  return seconds(self.ru_utime) + seconds(self.ru_stime) + seconds(children.ru_utime) +
         seconds(children.ru_stime);
}

void combine(const std::vector<const float*>& payloads, float* weights, size_t elements,
             Rule rule) {
  if (payloads.size() == 1) {
    if (rule == Rule::sum)
      std::memcpy(weights, payloads[0], elements * sizeof(float));
    else
      descend(payloads[0], weights, elements);
    return;
  }
  if (payloads.size() == 2) {
    (rule == Rule::sum ? assign_sum : descend_sum)(payloads[0], payloads[1], weights, elements);
    return;
  }
  // As the store does: an accumulator, and the last payload fused.
  static thread_local std::vector<float> accumulator;
  accumulator.resize(elements);
  assign_sum(payloads[0], payloads[1], accumulator.data(), elements);
  for (size_t i = 2; i + 1 < payloads.size(); ++i)
    assign_sum(accumulator.data(), payloads[i], accumulator.data(), elements);
  (rule == Rule::sum ? assign_sum : descend_sum)(accumulator.data(), payloads.back(), weights,
                                                 elements);
}

float expected(const Options& options, int steps) {
  const float sum = static_cast<float>(options.workers * (options.workers + 1) / 2);
  return options.rule == Rule::sum ? sum : -kLearningRate * sum * static_cast<float>(steps);
}

void check(const Options& options, const float* weights) {
  const float value = expected(options, options.steps);
  for (size_t i = 0; i < options.elements(); ++i)
    if (weights[i] != value)
      die("element " + std::to_string(i) + " is " + std::to_string(weights[i]) + " instead of " +
          std::to_string(value));
}

void wait_reached(const std::atomic<uint32_t>& counter, uint32_t value) {
  for (;;) {
    const uint32_t seen = counter.load(std::memory_order_acquire);
    if (static_cast<int32_t>(seen - value) >= 0) return;
    timespec limit{kWaitLimitMs / 1000, 0};
    const long rc = syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &limit, nullptr, 0);
    if (rc != 0 && errno == ETIMEDOUT) die("a peer does not go on");
    if (rc != 0 && errno != EAGAIN && errno != EINTR) die_of_errno("futex");
  }
}

void advance(std::atomic<uint32_t>* counter, uint32_t value) {
  counter->store(value, std::memory_order_release);
  if (syscall(SYS_futex, counter, FUTEX_WAKE, 64, nullptr, nullptr, 0) < 0) die_of_errno("futex");
}

int spawn(const std::function<void()>& body) {
  const int pid = fork();
  if (pid < 0) die_of_errno("fork");
  if (pid > 0) return pid;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) die_of_errno("prctl");
  body();
  std::_Exit(0);
}

std::vector<double> slowest(const double* step_s, const Options& options) {
  std::vector<double> step_ms(static_cast<size_t>(options.steps), 0.0);
  for (int w = 0; w < options.workers; ++w)
    for (int step = 0; step < options.steps; ++step) {
      double& slot = step_ms[static_cast<size_t>(step)];
      slot = std::max(slot, step_s[w * options.steps + step] * 1e3);
    }
  // The first step touches memory for the first time.
  if (step_ms.size() > 1) step_ms.erase(step_ms.begin());
  return step_ms;
}

void join_children(const std::vector<int>& pids) {
  for (size_t i = 0; i < pids.size(); ++i) {
    int status = 0;
    if (wait(&status) < 0) die_of_errno("wait");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) die("a process ended early");
  }
}

void* shared_memory(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) die_of_errno("mmap of " + std::to_string(bytes) + " bytes");
  return base;
}

void print_result(const Options& options, const std::vector<double>& step_ms, double cpu_seconds) {
  std::vector<double> sorted = step_ms;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted.size() % 2 == 1
                            ? sorted[sorted.size() / 2]
                            : (sorted[sorted.size() / 2 - 1] + sorted[sorted.size() / 2]) / 2;
  const double step_gb =
      2.0 * static_cast<double>(options.bytes) * static_cast<double>(options.workers) / 1e9;
  std::printf(
      "{\"step_ms\": %.6f, \"min_ms\": %.6f, \"max_ms\": %.6f, \"gb_s\": %.6f, "
      "\"cpu_s_per_gb\": %.6f, \"slot_bytes\": %zu, \"steps\": %zu}\n",
      median, sorted.front(), sorted.back(), step_gb / (median / 1e3),
      cpu_seconds / (step_gb * static_cast<double>(options.steps)), options.slot_bytes,
      step_ms.size());
}

}  // namespace mxrdma::bench
