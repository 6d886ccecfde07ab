// One line of log at a time, to stderr. The text is built by the caller; spdlog stays behind log.cc
// so that no other file pays for its headers. Level from set_log_level(); the default is warning.
#pragma once

#include <string>

namespace mxrdma {

enum class LogLevel { debug, info, warning, error, off };

void set_log_level(LogLevel level);
LogLevel log_level();
// Who speaks, e.g. "server 0"; set once when the rank is known.
void set_log_identity(const std::string& identity);
void log(LogLevel level, const std::string& text);

inline void log_debug(const std::string& text) {
  if (log_level() <= LogLevel::debug) log(LogLevel::debug, text);
}
inline void log_info(const std::string& text) { log(LogLevel::info, text); }
inline void log_warning(const std::string& text) { log(LogLevel::warning, text); }
inline void log_error(const std::string& text) { log(LogLevel::error, text); }

}  // namespace mxrdma
