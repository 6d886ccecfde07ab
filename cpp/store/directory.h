// The scheduler's book of keys: who registered what, where it lies, which optimizer runs. Pure
// state. Each call takes what every rank said in one collective and either does all of it or
// nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "store/placement.h"
#include "wire/control.h"

namespace mxrdma::store {

class Directory {
 public:
  explicit Directory(uint32_t servers);

  // requests[rank] is what that rank registers. All must name the same keys in the same order with
  // the same types and shapes; none may be known. Returns the placed keys in that order.
  Result<std::vector<wire::KeySpec>> register_keys(
      const std::vector<std::vector<wire::KeyRequest>>& requests);

  // Takes back what register_keys has returned, as if it had never been: a server refused it. The
  // ids are not given again.
  void withdraw(const std::vector<wire::KeySpec>& placed);

  struct OptimizerChange {
    wire::OptimizerSpec optimizer;     // rank 0's
    std::vector<wire::KeySpec> moved;  // keys that then lie elsewhere
    Placer placer;                     // as it then is
  };
  // optimizers[rank] is what that rank sets; kind and name must agree. One that needs whole tensors
  // gathers each key on one server; nothing moves back when an element-wise one follows. Changes
  // nothing: the servers are asked first.
  Result<OptimizerChange> plan_optimizer(const std::vector<wire::OptimizerSpec>& optimizers) const;
  // The plan comes true. Nothing may have been registered since it was made.
  void set_optimizer(OptimizerChange change);

  const std::map<uint32_t, wire::KeySpec>& keys() const { return keys_; }
  const Placer& placer() const { return placer_; }

 private:
  Status check_agreement(const std::vector<std::vector<wire::KeyRequest>>& requests) const;
  Status check_new(const std::vector<wire::KeyRequest>& requests) const;

  Placer placer_;
  std::map<uint32_t, wire::KeySpec> keys_;  // by id
  uint32_t next_id_ = 0;
  std::unordered_map<std::string, uint32_t> ids_;
  wire::OptimizerKind optimizer_ = wire::OptimizerKind::none;
};

}  // namespace mxrdma::store
