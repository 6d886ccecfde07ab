#include "wire/data.h"

namespace mxrdma::wire {

std::optional<std::string> invalid(const SlotHeader& header, size_t bytes) {
  if (bytes < sizeof(SlotHeader))
    return "shorter than a slot header: " + std::to_string(bytes) + " bytes";
  if (header.magic != kSlotMagic) return "wrong magic number " + std::to_string(header.magic);
  if (header.version != kWireVersion)
    return "wire version " + std::to_string(header.version) + ", expected " +
           std::to_string(kWireVersion);
  if (header.records == 0 || header.records > kMaxRecordsPerSlot)
    return "record count " + std::to_string(header.records);
  if (header.bytes != bytes)
    return "header says " + std::to_string(header.bytes) + " bytes, " + std::to_string(bytes) +
           " arrived";
  if (header.reserved != 0) return "reserved field is not zero";
  return std::nullopt;
}

std::optional<std::string> invalid(const PushRecord& record, size_t room) {
  if (record.kind != PushKind::gradient && record.kind != PushKind::initial)
    return "push kind " + std::to_string(static_cast<int>(record.kind));
  if (!dtype_valid(record.dtype)) return "dtype " + std::to_string(record.dtype);
  if ((record.flags & ~kWantWeights) != 0) return "flags " + std::to_string(record.flags);
  if (record.payload_bytes > room)
    return "payload of " + std::to_string(record.payload_bytes) + " bytes in " +
           std::to_string(room);
  if (record.payload_bytes % dtype_bytes(static_cast<DType>(record.dtype)) != 0)
    return "payload of " + std::to_string(record.payload_bytes) +
           " bytes is no whole number of elements";
  if ((record.kind == PushKind::initial) != (record.round == 0))
    return "round " + std::to_string(record.round) + " of push kind " +
           std::to_string(static_cast<int>(record.kind));
  return std::nullopt;
}

}  // namespace mxrdma::wire
