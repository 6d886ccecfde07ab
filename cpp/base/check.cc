#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace mxrdma {

void check_failed(const char* condition, const char* file, int line, const char* what) {
  std::fprintf(stderr,
               "mxrdma: internal error at %s:%d: %s (%s does not hold). Please report this.\n",
               file, line, what, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace mxrdma
