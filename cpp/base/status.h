// The world's failures travel as a Status (or a Result holding one); our own bugs stop at
// MXRDMA_CHECK.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace mxrdma {

// Each code that can reach a user maps to one exception class of mxrdma/errors.py.
enum class Code : unsigned char {
  ok,
  invalid_argument,  // the caller's mistake: wrong key, shape, dtype, size
  config,            // a setting that cannot work, or that nodes disagree on
  auth,              // a peer could not prove the job's token
  fabric,            // the transport failed: connect, read, write, protocol
  worker_lost,
  server_lost,
  scheduler_lost,
  worker_left,      // a worker ended normally while others still wait for it
  round_timeout,    // a round of a key was not complete in time
  barrier_timeout,  // not all workers reached a barrier or another collective call in time
  join_timeout,     // not all nodes joined in time
  unsupported,
  updater,    // an optimizer on a server raised
  busy,       // a bounded queue is full: try again after the next completion; never shown to users
  closed,     // the object is shut down
  cancelled,  // given up on request of the local side
  internal,
};

// The code's name as written above, for logs and for the exception table.
const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status ok() { return {}; }

  bool is_ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "context: message"; an ok status stays as it is. Context is added on the way up.
  Status with_context(const std::string& context) const;
  // "code: message" for logs.
  std::string to_string() const;

 private:
  Code code_ = Code::ok;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose
  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// The text of an errno with its name's meaning, without a static buffer.
std::string errno_text(int error);

}  // namespace mxrdma
