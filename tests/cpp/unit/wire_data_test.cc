// What a peer writes into a slot is refused for the right reason.
#include <gtest/gtest.h>

#include <string>

#include "wire/data.h"

namespace mxrdma::wire {
namespace {

SlotHeader good_header() { return {kSlotMagic, kWireVersion, 2, 256, 0}; }

PushRecord good_record() {
  PushRecord record{};
  record.key = 1;
  record.round = 1;
  record.kind = PushKind::gradient;
  record.dtype = static_cast<uint8_t>(DType::float32);
  record.payload_bytes = 64;
  return record;
}

std::string reason(const SlotHeader& header, size_t bytes) {
  return invalid(header, bytes).value_or("");
}
std::string reason(const PushRecord& record, size_t room) {
  return invalid(record, room).value_or("");
}

TEST(WireData, GoodHeaderPasses) { EXPECT_EQ(reason(good_header(), 256), ""); }

TEST(WireData, EachFieldOfTheHeaderIsChecked) {
  EXPECT_NE(reason(good_header(), 15).find("shorter"), std::string::npos);
  EXPECT_NE(reason(good_header(), 255).find("255"), std::string::npos);
  SlotHeader header = good_header();
  header.magic ^= 1;
  EXPECT_NE(reason(header, 256).find("magic"), std::string::npos);
  header = good_header();
  ++header.version;
  EXPECT_NE(reason(header, 256).find("version 2"), std::string::npos);
  header = good_header();
  header.records = 0;
  EXPECT_NE(reason(header, 256).find("record count 0"), std::string::npos);
  header.records = kMaxRecordsPerSlot + 1;
  EXPECT_NE(reason(header, 256).find("record count 65"), std::string::npos);
  header.records = kMaxRecordsPerSlot;
  EXPECT_EQ(reason(header, 256), "");
  header = good_header();
  header.reserved = 1;
  EXPECT_NE(reason(header, 256).find("reserved"), std::string::npos);
}

TEST(WireData, EachFieldOfTheRecordIsChecked) {
  EXPECT_EQ(reason(good_record(), 64), "");
  EXPECT_NE(reason(good_record(), 63).find("64 bytes in 63"), std::string::npos);
  PushRecord record = good_record();
  record.kind = static_cast<PushKind>(2);
  EXPECT_NE(reason(record, 64).find("push kind 2"), std::string::npos);
  record = good_record();
  record.dtype = 7;
  EXPECT_NE(reason(record, 64).find("dtype 7"), std::string::npos);
  record = good_record();
  record.flags = 2;
  EXPECT_NE(reason(record, 64).find("flags 2"), std::string::npos);
  record.flags = kWantWeights;
  EXPECT_EQ(reason(record, 64), "");
  record = good_record();
  record.payload_bytes = 62;
  EXPECT_NE(reason(record, 64).find("whole number"), std::string::npos);
  record = good_record();
  record.round = 0;
  EXPECT_NE(reason(record, 64).find("round 0"), std::string::npos);
  record.kind = PushKind::initial;
  EXPECT_EQ(reason(record, 64), "");
  record.round = 1;
  EXPECT_NE(reason(record, 64).find("round 1"), std::string::npos);
}

TEST(WireData, ASliceFitsItsSlot) {
  for (size_t slot : {kMinSlotBytes, size_t{1} << 20, kMaxSlotBytes}) {
    const size_t capacity = slice_capacity(slot);
    EXPECT_EQ(capacity % 64, 0u);
    EXPECT_LE(sizeof(SlotHeader) + sizeof(PushRecord) + padded(capacity), slot);
    EXPECT_GT(sizeof(SlotHeader) + sizeof(PushRecord) + capacity + 64, slot);
  }
}

}  // namespace
}  // namespace mxrdma::wire
