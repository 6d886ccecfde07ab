// Verbs objects that destroy themselves, and say so if they cannot.
#pragma once

#include <string>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace mxrdma::fabric::verbs {

template <typename T>
class Handle {
 public:
  using Destroy = int (*)(T*);

  Handle() = default;
  Handle(T* object, Destroy destroy, const char* what)
      : object_(object), destroy_(destroy), what_(what) {}
  Handle(Handle&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)),
        destroy_(other.destroy_),
        what_(other.what_) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      object_ = std::exchange(other.object_, nullptr);
      destroy_ = other.destroy_;
      what_ = other.what_;
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  void reset() {
    if (object_ == nullptr) return;
    const int error = destroy_(object_);
    if (error != 0)
      log_error(std::string("giving back ") + what_ + ": " + errno_text(error > 0 ? error : errno));
    object_ = nullptr;
  }

 private:
  T* object_ = nullptr;
  Destroy destroy_ = nullptr;
  const char* what_ = "";
};

}  // namespace mxrdma::fabric::verbs
