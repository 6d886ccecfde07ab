// Bounds-checked bytes of control messages. A message lists its fields once, in a function template
// over Writer and Reader, so that both sides agree by construction. Little-endian, no padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/limits.h"

namespace mxrdma::wire {

class Writer {
 public:
  template <typename T>
  using Field = const T&;

  template <typename T>
  void number(const T& value) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    put(&value, sizeof value);
  }
  void flag(bool value, const char*) { number(static_cast<uint8_t>(value)); }
  template <typename Enum>
  void choice(Enum value, Enum, const char*) {
    static_assert(sizeof(Enum) == 1);
    number(static_cast<uint8_t>(value));
  }
  void code(uint8_t value, uint8_t, const char*) { number(value); }
  // A name: cutting it would make another name of it, so a long one is left to the reader to
  // refuse.
  void text(const std::string& value, size_t, const char*) {
    number(static_cast<uint32_t>(value.size()));
    put(value.data(), value.size());
  }
  // A sentence for people: a long one (a traceback) is cut rather than refused.
  void reason(const std::string& value, const char*) {
    size_t bytes = value.size();
    if (bytes > kMaxReasonBytes) {
      bytes = kMaxReasonBytes;
      while (bytes > 0 && (value[bytes] & 0xc0) == 0x80) --bytes;  // not within a character
    }
    number(static_cast<uint32_t>(bytes));
    put(value.data(), bytes);
  }
  void blob(const std::vector<std::byte>& value, size_t, const char*) {
    number(static_cast<uint32_t>(value.size()));
    put(value.data(), value.size());
  }
  template <typename T, typename Each>
  void list(const std::vector<T>& items, size_t, const char*, Each each) {
    number(static_cast<uint32_t>(items.size()));
    for (const T& item : items) each(*this, item);
  }
  void require(bool, const char*) {}
  bool failed() const { return false; }

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put(const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
  }
  std::vector<std::byte> bytes_;
};

// After the first error every field reads as zero and every list as empty; the error stays.
class Reader {
 public:
  template <typename T>
  using Field = T&;

  Reader(const void* data, size_t bytes)
      : data_(static_cast<const std::byte*>(data)), left_(bytes) {}

  template <typename T>
  void number(T& value) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    value = T{};
    if (!error_.empty()) return;
    if (left_ < sizeof value) return fail("ends too early");
    std::memcpy(&value, data_, sizeof value);
    skip(sizeof value);
  }
  void flag(bool& value, const char* what) {
    uint8_t byte = 0;
    number(byte);
    if (byte > 1) fail(std::string(what) + " is " + std::to_string(byte) + ", not 0 or 1");
    value = byte == 1;
  }
  template <typename Enum>
  void choice(Enum& value, Enum last, const char* what) {
    uint8_t byte = 0;
    code(byte, static_cast<uint8_t>(last), what);
    value = static_cast<Enum>(byte);
  }
  void code(uint8_t& value, uint8_t last, const char* what) {
    number(value);
    if (value <= last) return;
    fail(std::string(what) + " is " + std::to_string(value) + ", at most " + std::to_string(last) +
         " is known");
    value = 0;
  }
  void text(std::string& value, size_t limit, const char* what) {
    const size_t bytes = count(limit, 1, what);
    value.assign(reinterpret_cast<const char*>(data_), bytes);
    skip(bytes);
  }
  void reason(std::string& value, const char* what) { text(value, kMaxReasonBytes, what); }
  void blob(std::vector<std::byte>& value, size_t limit, const char* what) {
    const size_t bytes = count(limit, 1, what);
    value.assign(data_, data_ + bytes);
    skip(bytes);
  }
  // Memory grows with the items that are really there, not by the announced number.
  template <typename T, typename Each>
  void list(std::vector<T>& items, size_t limit, const char* what, Each each) {
    items.clear();
    for (size_t left = count(limit, 1, what); left > 0 && error_.empty(); --left) {
      items.emplace_back();
      each(*this, items.back());
    }
  }
  void require(bool holds, const char* what) {
    if (!holds) fail(what);
  }

  void fail(const std::string& what) {
    if (error_.empty()) error_ = what.empty() ? "malformed" : what;
  }
  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }
  size_t left() const { return left_; }

 private:
  void skip(size_t bytes) {
    data_ += bytes;
    left_ -= bytes;
  }
  // The number of items that follow, each of at least `item_bytes`; 0 after an error.
  size_t count(size_t limit, size_t item_bytes, const char* what) {
    uint32_t items = 0;
    number(items);
    if (failed()) return 0;
    if (items > limit)
      fail(std::string(what) + ": " + std::to_string(items) + ", the limit is " +
           std::to_string(limit));
    else if (items > left_ / item_bytes)
      fail(std::string(what) + ": " + std::to_string(items) + " announced, " +
           std::to_string(left_) + " bytes are left");
    return failed() ? 0 : items;
  }

  const std::byte* data_;
  size_t left_;
  std::string error_;
};

}  // namespace mxrdma::wire
