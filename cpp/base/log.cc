#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace mxrdma {
namespace {

std::atomic<LogLevel> current_level{LogLevel::warning};
std::mutex identity_mutex;
std::string identity_text;

spdlog::logger& logger() {
  // Leaked on purpose: threads may still log while static objects are destroyed.
  static spdlog::logger* instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    auto* created = new spdlog::logger("mxrdma", sink);
    created->set_pattern("mxrdma %l: %v");
    created->set_level(spdlog::level::trace);
    created->flush_on(spdlog::level::trace);
    return created;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { current_level = level; }
LogLevel log_level() { return current_level; }

void set_log_identity(const std::string& identity) {
  std::lock_guard<std::mutex> lock(identity_mutex);
  identity_text = identity;
}

void log(LogLevel level, const std::string& text) {
  if (level < current_level.load() || level == LogLevel::off) return;
  std::string line;
  {
    std::lock_guard<std::mutex> lock(identity_mutex);
    line = identity_text.empty() ? text : identity_text + ": " + text;
  }
  switch (level) {
    case LogLevel::debug:
      logger().debug("{}", line);
      break;
    case LogLevel::info:
      logger().info("{}", line);
      break;
    case LogLevel::warning:
      logger().warn("{}", line);
      break;
    case LogLevel::error:
      logger().error("{}", line);
      break;
    case LogLevel::off:
      break;
  }
}

}  // namespace mxrdma
