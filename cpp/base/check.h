// Assertions for our own bugs. They stay on in release builds. Bytes from a peer never reach one.
#pragma once

namespace mxrdma {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const char* what);
}  // namespace mxrdma

#define MXRDMA_CHECK(condition, what)                               \
  do {                                                              \
    if (__builtin_expect(!(condition), 0))                          \
      ::mxrdma::check_failed(#condition, __FILE__, __LINE__, what); \
  } while (0)
