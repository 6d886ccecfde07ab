// The glue to MXNet's dependency engine, through the C API of a libmxnet that the process has
// already loaded; no MXNet header is needed. It puts operations on the engine that read or write
// ONE array each: MXNet removes no duplicates, so an operation that named two views of one array
// would wait for itself for ever.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/array_hold.h"
#include "base/status.h"

namespace mxrdma::engine {

struct Api;

// What a key's arrays must be like for the core to take them as they are.
struct ArrayLayout {
  int dtype = 0;               // MXNet's type flag
  std::vector<int64_t> shape;  // in elements
};

// Ends the operation for MXNet: what waits for the array goes on, and with an error the next wait
// on it raises. Call it exactly once, from any thread; it returns quickly and never needs Python's
// GIL.
using Finish = std::function<void(const Status&)>;

// What an operation on the engine does. Exactly one of the two is called, exactly once.
class Task {
 public:
  virtual ~Task() = default;
  // The array is ready, and `data` stays valid and is ours until `finish` was called. On a thread
  // of MXNet's: hand over and return, never wait. `hold` may be kept longer; null where `data` is
  // not the array's own memory, or where its owners cannot be counted.
  virtual void start(void* data, size_t bytes, Hold hold, Finish finish) = 0;
  // MXNet will not run the operation (the array's computation failed), or the array cannot be
  // reached. What waits for the array is told by the engine itself.
  virtual void abandon(const Status& why) = 0;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // libmxnet_path: the file that MXNet's Python loaded. Error: it is not loaded, or lacks a symbol.
  static Result<std::shared_ptr<Engine>> open(const std::string& libmxnet_path);
  ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // handle: an NDArrayHandle on CPU memory with dense storage; it is copied, so the caller may drop
  // its own. `name` must live for ever (MXNet's profiler shows it). An error means that the task
  // was abandoned already.
  Status read(void* handle, int priority, const char* name, std::unique_ptr<Task> task);
  Status write(void* handle, int priority, const char* name, std::unique_ptr<Task> task);

  // MXNET_ENGINE_TYPE=NaiveEngine: an operation runs, and is waited for, inside the call that
  // pushes it.
  bool runs_inline() const { return runs_inline_; }
  // Whether the array is dense, lies in CPU memory, and has this layout. False also if MXNet cannot
  // say: whoever asks finds the reason by other means.
  bool fits(void* handle, const ArrayLayout& layout) const;
  // Whether two arrays may be views of one; true if that cannot be told.
  bool may_share(void* handle, void* other) const;

 private:
  struct Operation;
  enum class Access { read, write };

  explicit Engine(std::shared_ptr<const Api> api);
  Status push(void* handle, int priority, const char* name, Access access,
              std::shared_ptr<Task> task);
  Status detect_inline();
  static void run(void* context, void* on_complete, void* parameter);
  static void forget(void* parameter);

  std::shared_ptr<const Api> api_;
  bool runs_inline_ = false;
};

}  // namespace mxrdma::engine
