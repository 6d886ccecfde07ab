#include "store/directory.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "store/optimizers.h"

namespace mxrdma::store {
namespace {

std::string shown(const std::string& name) { return "'" + wire::shown_name(name) + "'"; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

uint64_t key_bytes(const wire::KeyRequest& request) {
  return request.elements * dtype_bytes(request.dtype);
}

Status wrong(const std::string& message) { return Status(Code::invalid_argument, message); }

Status check_size(const wire::KeyRequest& request) {
  const std::string key = "key " + shown(request.name);
  const uint64_t limit = kMaxKeyBytes / dtype_bytes(request.dtype);
  uint64_t product = 1;
  for (const int64_t extent : request.shape) {
    if (extent <= 0)
      return wrong(key + " of shape " + shape_text(request.shape) +
                   " has no elements: a store holds arrays with at least one");
    if (static_cast<uint64_t>(extent) > limit / product)
      return wrong(key + " of shape " + shape_text(request.shape) + " is larger than " +
                   std::to_string(kMaxKeyBytes) + " bytes");
    product *= static_cast<uint64_t>(extent);
  }
  if (product != request.elements)
    return wrong(key + " has " + std::to_string(request.elements) + " elements, but its shape " +
                 shape_text(request.shape) + " has " + std::to_string(product));
  return Status::ok();
}

std::string optimizer_text(const wire::OptimizerSpec& spec) {
  return spec.name + " (" + optimizer_kind_name(spec.kind) + ")";
}

}  // namespace

Directory::Directory(uint32_t servers) : placer_(servers) {}

Status Directory::check_agreement(
    const std::vector<std::vector<wire::KeyRequest>>& requests) const {
  const std::vector<wire::KeyRequest>& first = requests[0];
  for (size_t rank = 1; rank < requests.size(); ++rank) {
    const std::string other = "worker " + std::to_string(rank);
    const std::vector<wire::KeyRequest>& keys = requests[rank];
    for (size_t i = 0; i < std::min(first.size(), keys.size()); ++i) {
      const wire::KeyRequest &a = first[i], &b = keys[i];
      if (a.name != b.name)
        return wrong("workers initialise different keys: worker 0 has " + shown(a.name) +
                     " where " + other + " has " + shown(b.name) +
                     "; all must initialise the same keys in the same order");
      const std::string differs = "workers disagree about key " + shown(a.name) + ": ";
      if (a.dtype != b.dtype)
        return wrong(differs + "dtype " + dtype_name(a.dtype) + " at worker 0, " +
                     dtype_name(b.dtype) + " at " + other);
      if (a.shape != b.shape || a.elements != b.elements)
        return wrong(differs + "shape " + shape_text(a.shape) + " at worker 0, " +
                     shape_text(b.shape) + " at " + other);
      if (a.updater_index != b.updater_index)
        return wrong(differs + "it is number " + std::to_string(a.updater_index) +
                     " at worker 0, number " + std::to_string(b.updater_index) + " at " + other +
                     "; all must initialise the same keys in the same order");
    }
    if (first.size() != keys.size())
      return wrong(
          "workers initialise different keys: worker 0 has " + std::to_string(first.size()) +
          " of them, " + other + " has " + std::to_string(keys.size()) +
          "; the first that only one has is " +
          shown(first.size() > keys.size() ? first[keys.size()].name : keys[first.size()].name));
  }
  return Status::ok();
}

Status Directory::check_new(const std::vector<wire::KeyRequest>& requests) const {
  if (next_id_ + requests.size() > kMaxKeys)
    return wrong(std::to_string(next_id_ + requests.size()) + " keys are more than the " +
                 std::to_string(kMaxKeys) + " of a store");
  std::unordered_set<std::string> names;
  for (const wire::KeyRequest& request : requests) {
    if (ids_.count(request.name) != 0 || !names.insert(request.name).second)
      return wrong("key " + shown(request.name) +
                   " is initialised a second time: a key is initialised once, pushed after that");
    const std::string& one = keys_.empty() ? requests[0].name : keys_.begin()->second.request.name;
    if (one[0] != request.name[0])
      return wrong("key " + shown(request.name) + " is " +
                   (request.name[0] == 'i' ? "an integer" : "a string") + ", but key " +
                   shown(one) + " of the same store is " +
                   (one[0] == 'i' ? "an integer" : "a string") +
                   ": use one kind of key in one store");
    Status status = check_size(request);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

Result<std::vector<wire::KeySpec>> Directory::register_keys(
    const std::vector<std::vector<wire::KeyRequest>>& requests) {
  MXRDMA_CHECK(!requests.empty(), "a job has at least one worker");
  for (size_t rank = 0; rank < requests.size(); ++rank)
    for (const wire::KeyRequest& request : requests[rank])
      if (!wire::well_formed_name(request.name) || dtype_bytes(request.dtype) == 0)
        return wrong("worker " + std::to_string(rank) + " sent a malformed key: '" +
                     request.name.substr(0, 64) + "'");
  Status status = check_agreement(requests);
  if (status.is_ok()) status = check_new(requests[0]);
  if (!status.is_ok()) return status;

  std::vector<wire::KeySpec> placed(requests[0].size());
  std::vector<size_t> by_size(placed.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  // Large ones first: the small ones then level the servers.
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return key_bytes(requests[0][a]) > key_bytes(requests[0][b]);
  });
  const bool whole = needs_whole_tensors(optimizer_);
  for (const size_t i : by_size) {
    wire::KeySpec& spec = placed[i];
    spec.id = next_id_ + static_cast<uint32_t>(i);
    spec.request = requests[0][i];
    spec.whole = whole;
    spec.shares = placer_.place(key_bytes(spec.request), dtype_bytes(spec.request.dtype), whole);
  }
  for (const wire::KeySpec& spec : placed) {
    ids_[spec.request.name] = spec.id;
    keys_.emplace(spec.id, spec);
  }
  next_id_ += static_cast<uint32_t>(placed.size());
  return placed;
}

void Directory::withdraw(const std::vector<wire::KeySpec>& placed) {
  for (const wire::KeySpec& spec : placed) {
    auto found = keys_.find(spec.id);
    if (found == keys_.end()) continue;
    placer_.remove(found->second.shares);
    ids_.erase(found->second.request.name);
    keys_.erase(found);
  }
}

Result<Directory::OptimizerChange> Directory::plan_optimizer(
    const std::vector<wire::OptimizerSpec>& optimizers) const {
  MXRDMA_CHECK(!optimizers.empty(), "a job has at least one worker");
  const wire::OptimizerSpec& first = optimizers[0];
  for (size_t rank = 1; rank < optimizers.size(); ++rank)
    if (optimizers[rank].kind != first.kind || optimizers[rank].name != first.name)
      return wrong("workers set different optimizers: " + optimizer_text(first) + " at worker 0, " +
                   optimizer_text(optimizers[rank]) + " at worker " + std::to_string(rank));
  if (is_element_wise(first.kind)) {
    for (const auto& entry : keys_) {
      const wire::KeyRequest& request = entry.second.request;
      const Result<Plan> possible = plan(first, request.dtype, "key " + shown(request.name));
      if (!possible.is_ok()) return possible.status();
    }
  }
  OptimizerChange change{first, {}, placer_};
  if (!needs_whole_tensors(first.kind)) return change;
  for (const auto& entry : keys_)
    if (!entry.second.whole && entry.second.shares.size() > 1) change.moved.push_back(entry.second);
  for (const wire::KeySpec& spec : change.moved) change.placer.remove(spec.shares);
  std::vector<wire::KeySpec*> by_size;
  for (wire::KeySpec& spec : change.moved) by_size.push_back(&spec);
  std::stable_sort(by_size.begin(), by_size.end(), [](const auto* a, const auto* b) {
    return key_bytes(a->request) > key_bytes(b->request);
  });
  for (wire::KeySpec* spec : by_size) {
    spec->whole = true;
    spec->shares =
        change.placer.place(key_bytes(spec->request), dtype_bytes(spec->request.dtype), true);
  }
  return change;
}

void Directory::set_optimizer(OptimizerChange change) {
  optimizer_ = change.optimizer.kind;
  placer_ = std::move(change.placer);
  for (wire::KeySpec& spec : change.moved) keys_[spec.id] = std::move(spec);
}

}  // namespace mxrdma::store
