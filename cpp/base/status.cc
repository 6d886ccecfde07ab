#include "base/status.h"

#include <system_error>

namespace mxrdma {

const char* code_name(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::config:
      return "config";
    case Code::auth:
      return "auth";
    case Code::fabric:
      return "fabric";
    case Code::worker_lost:
      return "worker_lost";
    case Code::server_lost:
      return "server_lost";
    case Code::scheduler_lost:
      return "scheduler_lost";
    case Code::worker_left:
      return "worker_left";
    case Code::round_timeout:
      return "round_timeout";
    case Code::barrier_timeout:
      return "barrier_timeout";
    case Code::join_timeout:
      return "join_timeout";
    case Code::unsupported:
      return "unsupported";
    case Code::updater:
      return "updater";
    case Code::busy:
      return "busy";
    case Code::closed:
      return "closed";
    case Code::cancelled:
      return "cancelled";
    case Code::internal:
      return "internal";
  }
  return "unknown";
}

Status Status::with_context(const std::string& context) const {
  return is_ok() ? Status() : Status(code_, context + ": " + message_);
}

std::string Status::to_string() const {
  return is_ok() ? std::string("ok") : std::string(code_name(code_)) + ": " + message_;
}

std::string errno_text(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

}  // namespace mxrdma
