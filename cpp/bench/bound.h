// What the bound programs have in common: options, arithmetic, clocks, and a wait with a limit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace mxrdma::bench {

// A peer that says nothing for so long is dead.
constexpr int kWaitLimitMs = 60'000;
constexpr float kLearningRate = 0.5f;  // exact, so that the result can be checked

enum class Rule { sum, sgd };

struct Options {
  int workers = 2;
  size_t bytes = 64u << 20;  // of one worker, one way
  size_t slot_bytes = 256u << 10;
  size_t slots = 4;  // of each ring
  Rule rule = Rule::sum;
  int steps = 10;

  // Elements of all slices but the last.
  size_t slice_elements() const { return slot_bytes / sizeof(float); }
  size_t elements() const { return bytes / sizeof(float); }
  size_t slices() const { return (elements() + slice_elements() - 1) / slice_elements(); }
  size_t elements_of(size_t slice) const {
    const size_t begin = slice * slice_elements();
    return elements() - begin < slice_elements() ? elements() - begin : slice_elements();
  }
};

// Ends the process with a message: these programs are run by mxrdma-bench, which reports it.
[[noreturn]] void die(const std::string& what);
// `what` with errno's text.
[[noreturn]] void die_of_errno(const std::string& what);

double now_s();
// CPU seconds of this process and of its children that have been waited for.
double cpu_s();

// The sum of all payloads goes to `weights` (Rule::sum), or lr times it is taken off (Rule::sgd).
void combine(const std::vector<const float*>& payloads, float* weights, size_t elements, Rule rule);
// What combine gives after `steps` rounds in which worker w sent w + 1 everywhere.
float expected(const Options& options, int steps);
// Dies unless all elements are `expected` after all steps.
void check(const Options& options, const float* weights);

// Waits until the counter has reached `value` (in the order of wrapping integers); dies after
// kWaitLimitMs.
void wait_reached(const std::atomic<uint32_t>& counter, uint32_t value);
// Sets the counter and wakes who waits for it.
void advance(std::atomic<uint32_t>* counter, uint32_t value);

// Waits for all; dies if one did not end well.
void join_children(const std::vector<int>& pids);

// Runs `body` in a child that dies with us, and returns its process id.
int spawn(const std::function<void()>& body);
// Memory that processes forked later share with this one.
void* shared_memory(size_t bytes);
// Milliseconds of each step, of the slowest worker; step_s holds the seconds of all steps worker by
// worker.
std::vector<double> slowest(const double* step_s, const Options& options);
// Prints the line of JSON that mxrdma-bench reads.
void print_result(const Options& options, const std::vector<double>& step_ms, double cpu_seconds);

void run_shm(const Options& options);
void run_tcp(const Options& options);
void run_verbs(const Options& options);
void run_memcpy();
void run_loopback();

}  // namespace mxrdma::bench
