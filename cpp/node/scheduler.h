// The scheduler process: ranks, address book, collectives, who is lost.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "node/options.h"
#include "wire/control.h"

namespace mxrdma::node {

class Scheduler {
 public:
  // config: the settings that all nodes take from here.
  Scheduler(const NodeOptions& options, const wire::JobConfig& config);
  ~Scheduler();
  // Binds; returns the address with the real port (scheduler.port 0 picks one).
  Result<fabric::Address> listen();
  // Serves until all workers left (ok) or the job failed (the first loss, named). Runs the loop on
  // this thread.
  Status run();
  void stop();
  // The job's failure as soon as it is known: run() returns only when the nodes have gone. Any
  // thread.
  Status failure() const;
  // Whether all nodes have joined, ever. Any thread.
  bool joined() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace mxrdma::node
