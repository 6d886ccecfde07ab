// A reference to a user's array that may be kept beyond one operation.
#pragma once

#include <memory>

namespace mxrdma {

class ArrayHold {
 public:
  virtual ~ArrayHold() = default;
  // The storage that the array lies in: equal for all references to it, while one of them lives.
  virtual const void* storage() const = 0;
  // Whether nobody else refers to the storage any more, so that to keep this one is to keep memory
  // that the user thinks free.
  virtual bool is_last() const = 0;
};
using Hold = std::shared_ptr<const ArrayHold>;

}  // namespace mxrdma
