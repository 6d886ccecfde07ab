// What a SEND of the verbs fabric begins with. It comes from a peer: invalid() before use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/limits.h"

namespace mxrdma::fabric::verbs {

enum class PacketType : uint8_t {
  probe = 1,  // the path carries data
  message,    // a part of a message
  arrived,    // the writes before it are one write of the user, complete
  credits,    // nothing but credits
};

struct PacketHeader {
  uint32_t generation = 0;  // as its receiver announced it
  PacketType type = PacketType::credits;
  uint8_t reserved = 0;
  uint16_t credits = 0;    // receives that are posted again
  uint32_t immediate = 0;  // arrived
  uint32_t offset = 0;     // message: of this part
  uint64_t bytes = 0;      // message, arrived: the whole
};
static_assert(sizeof(PacketHeader) == 24, "PacketHeader is part of the wire format");

constexpr size_t kPacketPayload = kVerbsReceiveBytes - sizeof(PacketHeader);

// Of a packet with so many bytes behind its header.
inline std::optional<std::string> invalid(const PacketHeader& header, size_t payload) {
  if (header.type < PacketType::probe || header.type > PacketType::credits)
    return "packet type " + std::to_string(static_cast<unsigned>(header.type));
  if (header.type != PacketType::message)
    return payload == 0 ? std::nullopt
                        : std::make_optional("a packet with " + std::to_string(payload) +
                                             " bytes behind its header");
  if (header.bytes > kMaxMessageBytes)
    return "a message of " + std::to_string(header.bytes) + " bytes";
  if (header.offset > header.bytes || payload > header.bytes - header.offset)
    return "a part of " + std::to_string(payload) + " bytes at " + std::to_string(header.offset) +
           " of a message of " + std::to_string(header.bytes);
  if (payload == 0 && header.bytes > 0) return "an empty part of a message";
  return std::nullopt;
}

}  // namespace mxrdma::fabric::verbs
