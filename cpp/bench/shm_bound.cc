// The shm path, bare: gradients cross in slots that stay in the cache, the server sums (and steps)
// from the slots, and weights come back in slots. Futexes wake who waits.
#include <cstring>
#include <new>

#include "bound.h"

namespace mxrdma::bench {

namespace {

constexpr size_t kCacheLine = 64;

// Slices so far, in each direction: written, and consumed.
struct Counters {
  alignas(kCacheLine) std::atomic<uint32_t> up_written{0};
  alignas(kCacheLine) std::atomic<uint32_t> up_consumed{0};
  alignas(kCacheLine) std::atomic<uint32_t> down_written{0};
  alignas(kCacheLine) std::atomic<uint32_t> down_consumed{0};
};

struct Start {
  alignas(kCacheLine) std::atomic<uint32_t> go{0};
};

class Shared {
 public:
  explicit Shared(const Options& options) : options_(options) {
    const size_t workers = static_cast<size_t>(options.workers);
    counters_ = static_cast<Counters*>(shared_memory(workers * sizeof(Counters)));
    for (size_t w = 0; w < workers; ++w) new (counters_ + w) Counters;
    start_ = new (shared_memory(sizeof(Start))) Start;
    rings_ = static_cast<char*>(shared_memory(workers * 2 * options.slots * options.slot_bytes));
    step_s_ = static_cast<double*>(
        shared_memory(workers * static_cast<size_t>(options.steps) * sizeof(double)));
  }
  Counters& counters(int worker) { return counters_[worker]; }
  std::atomic<uint32_t>* go() { return &start_->go; }
  double* step_s(int worker) { return step_s_ + worker * options_.steps; }
  float* up(int worker, uint32_t slice) { return slot(worker, 0, slice); }
  float* down(int worker, uint32_t slice) { return slot(worker, 1, slice); }

 private:
  float* slot(int worker, size_t direction, uint32_t slice) {
    const size_t ring = static_cast<size_t>(worker) * 2 + direction;
    const size_t index = ring * options_.slots + slice % options_.slots;
    return reinterpret_cast<float*>(rings_ + index * options_.slot_bytes);
  }

  const Options options_;
  Counters* counters_;
  Start* start_;
  char* rings_;
  double* step_s_;
};

void work(const Options& options, Shared* shared, int worker) {
  std::vector<float> gradients(options.elements(), static_cast<float>(worker + 1));
  std::vector<float> weights(options.elements(), 0.0f);
  Counters& counters = shared->counters(worker);
  const size_t slices = options.slices();
  uint32_t sent = 0, received = 0;
  wait_reached(*shared->go(), 1);
  for (int step = 0; step < options.steps; ++step) {
    const double begin_s = now_s();
    size_t next = 0;
    for (size_t done = 0; done < slices; ++done) {
      while (next < slices && next - done < options.slots &&
             sent - counters.up_consumed.load(std::memory_order_acquire) < options.slots) {
        std::memcpy(shared->up(worker, sent), gradients.data() + next * options.slice_elements(),
                    options.elements_of(next) * sizeof(float));
        advance(&counters.up_written, ++sent);
        ++next;
      }
      wait_reached(counters.down_written, received + 1);
      std::memcpy(weights.data() + done * options.slice_elements(), shared->down(worker, received),
                  options.elements_of(done) * sizeof(float));
      advance(&counters.down_consumed, ++received);
    }
    shared->step_s(worker)[step] = now_s() - begin_s;
  }
  check(options, weights.data());
}

void serve(const Options& options, Shared* shared) {
  std::vector<float> weights(options.elements(), 0.0f);
  std::vector<const float*> payloads(static_cast<size_t>(options.workers));
  uint32_t slice = 0;
  wait_reached(*shared->go(), 1);
  for (int step = 0; step < options.steps; ++step) {
    for (size_t i = 0; i < options.slices(); ++i, ++slice) {
      for (int w = 0; w < options.workers; ++w) {
        wait_reached(shared->counters(w).up_written, slice + 1);
        payloads[static_cast<size_t>(w)] = shared->up(w, slice);
      }
      float* mine = weights.data() + i * options.slice_elements();
      combine(payloads, mine, options.elements_of(i), options.rule);
      for (int w = 0; w < options.workers; ++w) {
        advance(&shared->counters(w).up_consumed, slice + 1);
        wait_reached(shared->counters(w).down_consumed,
                     slice + 1 - static_cast<uint32_t>(options.slots));
        std::memcpy(shared->down(w, slice), mine, options.elements_of(i) * sizeof(float));
        advance(&shared->counters(w).down_written, slice + 1);
      }
    }
  }
}

}  // namespace

void run_shm(const Options& options) {
  Shared shared(options);
  std::vector<int> pids;
  for (int w = 0; w < options.workers; ++w)
    pids.push_back(spawn([&] { work(options, &shared, w); }));
  pids.push_back(spawn([&] { serve(options, &shared); }));
  advance(shared.go(), 1);
  join_children(pids);
  print_result(options, slowest(shared.step_s(0), options), cpu_s());
}

}  // namespace mxrdma::bench
