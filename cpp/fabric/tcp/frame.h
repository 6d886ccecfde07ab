// The frame header of the tcp fabric. It comes from a peer: invalid() before use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/limits.h"
#include "wire/region.h"

namespace mxrdma::fabric {

enum class FrameType : uint32_t { write = 1, message = 2 };

struct FrameHeader {
  FrameType type = FrameType::message;
  uint32_t immediate = 0;
  uint64_t bytes = 0;  // of payload
  wire::RemoteRegion target;
};
static_assert(sizeof(FrameHeader) == 40, "FrameHeader is part of the wire format");

inline std::optional<std::string> invalid(const FrameHeader& header) {
  if (header.type != FrameType::write && header.type != FrameType::message)
    return "frame type " + std::to_string(static_cast<uint32_t>(header.type));
  if (header.type == FrameType::message && header.bytes > kMaxMessageBytes)
    return "a message of " + std::to_string(header.bytes) + " bytes";
  return std::nullopt;
}

}  // namespace mxrdma::fabric
