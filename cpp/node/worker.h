// A worker process' side of the job: joins, registers keys, moves gradients and weights. One
// progress thread drives the fabric; every public function may be called from any thread.
//
// An operation has two steps, because MXNet's engine runs operations in its own order: open_push /
// open_pull at the time of the user's call fixes the order (the k-th push of a key is round k; a
// pull follows the pushes opened before it), supply / grant later says that the array may be read /
// written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/array_hold.h"
#include "base/status.h"
#include "node/options.h"
#include "store/store.h"
#include "wire/control.h"

namespace mxrdma::node {

// Runs on the progress thread, exactly once; must not block or call back into the worker except
// open_*/supply/grant.
using Completion = std::function<void(const Status&)>;
// Polled about every 100 ms in blocking calls; an error ends the wait with it (Ctrl-C).
using Interrupt = std::function<Status()>;
using Ticket = uint64_t;

struct WorkerCounters {
  uint64_t pushes = 0, pulls = 0;  // user operations
  uint64_t messages = 0;           // slot messages sent
  uint64_t packed_records = 0;     // records that shared a message with others
  uint64_t waited_for_credit = 0;  // times the send queue stood because no slot was free
  fabric::Counters fabric;
};

class Worker {
 public:
  explicit Worker(const NodeOptions& options);
  ~Worker();  // leave() if that was not done
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Joins the job and connects to all servers; blocks up to options.join_timeout_ms.
  Status start(const Interrupt& interrupt);

  uint32_t rank() const;
  uint32_t num_workers() const;
  uint32_t num_servers() const;
  // The job's settings, as the scheduler told them.
  const wire::JobConfig& config() const;
  // One line for people: fabric, peers, and why this fabric.
  std::string summary() const;
  WorkerCounters counters() const;

  // ---- collectives: every worker must call them in the same order; they block ----
  Status barrier(const Interrupt& interrupt);
  // Returns the keys' ids, in order. All ranks must agree on name, dtype and shape.
  Result<std::vector<uint32_t>> register_keys(const std::vector<wire::KeyRequest>& keys,
                                              const Interrupt& interrupt);
  // Waits for this worker's outstanding operations first. Rank 0's optimizer is used.
  Status set_optimizer(const wire::OptimizerSpec& spec, const Interrupt& interrupt);

  // ---- operations: never block ----
  // kind initial: only rank 0, once for each key. `done` runs when the data may be reused (gradient
  // is on its way) or the operation failed.
  Result<Ticket> open_push(uint32_t key, wire::PushKind kind, const store::Hyper& hyper,
                           int priority, Completion done);
  // `done` runs when the array holds the result of this worker's last push opened before.
  Result<Ticket> open_pull(uint32_t key, int priority, Completion done);
  // The memory belongs to the worker until `done`. `bytes` must be the key's size; else the
  // operation fails. `hold` lets an array that comes again stay registered; null: it comes once.
  void supply(Ticket ticket, const void* data, size_t bytes, Hold hold = nullptr);
  void grant(Ticket ticket, void* data, size_t bytes, Hold hold = nullptr);
  // The array of this operation will never be ready (its computation failed). Other workers wait
  // for the push, so this fails the whole job.
  void abandon(Ticket ticket, const Status& why);

  // Ends when nothing is outstanding, or after timeout_ms with an error that names what is.
  Status drain(int timeout_ms, const Interrupt& interrupt);
  // The first failure of the job as this worker saw it; ok while all is well. Every call after it
  // returns it too.
  Status failure() const;
  // Called once whenever the failure becomes known; from the progress thread.
  void on_failure(std::function<void(const Status&)> callback);
  // This process ends because of an error: the scheduler is told, everything outstanding ends with
  // it.
  void fail(const Status& why);
  // A normal end: everything outstanding is ended, the scheduler is told, the thread joined.
  // Bounded.
  Status leave();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace mxrdma::node
