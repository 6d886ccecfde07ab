// A server process: holds shares of keys, aggregates gradients, updates and writes weights back.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "node/options.h"
#include "store/store.h"

namespace mxrdma::node {

// Makes the updater of a python OptimizerSpec; may fail (the class cannot be rebuilt here).
using UpdaterFactory =
    std::function<Result<std::shared_ptr<store::WholeTensorUpdater>>(const wire::OptimizerSpec&)>;

struct ServerReport {
  store::StoreBytes bytes;
  uint64_t ring_bytes = 0;
  fabric::Counters fabric;
};

class Server {
 public:
  Server(const NodeOptions& options, UpdaterFactory factory);
  ~Server();
  // Joins, serves, and returns when the job is over (ok) or has failed. Runs the loop on the
  // calling thread.
  Status run();
  // Any thread or signal-safe context: makes run() leave.
  void stop();
  ServerReport report() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace mxrdma::node
