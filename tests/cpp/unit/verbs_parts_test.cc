// The parts of verbs that need no device: credits, the cutting of writes, staging memory, packets.
#ifdef MXRDMA_HAVE_VERBS

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "fabric/bootstrap/handshake.h"
#include "fabric/verbs/credits.h"
#include "fabric/verbs/packet.h"
#include "fabric/verbs/plan.h"

namespace mxrdma::fabric::verbs {
namespace {

// ---- credits

TEST(VerbsCredits, DataLeavesTheReserveToReturns) {
  Credits credits(64, 8);
  size_t sent = 0;
  for (; credits.may_send(); ++sent) credits.spend();
  EXPECT_EQ(sent, 8 - Credits::kReserve);
  EXPECT_TRUE(credits.may_return());
  credits.spend();
  credits.spend();
  EXPECT_FALSE(credits.may_return());
}

TEST(VerbsCredits, APeerBeyondItsWindowOrItsCreditsIsAnError) {
  Credits credits(8, 8);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(credits.received().is_ok());
  EXPECT_FALSE(credits.received().is_ok());
  EXPECT_FALSE(credits.returned(1).is_ok()) << "nothing was spent";
  credits.spend();
  EXPECT_TRUE(credits.returned(1).is_ok());
}

// Two ends and the ordered wire between them, moved by a random schedule. Whatever the order, no
// end is ever found without a receive, and all data gets through.
struct CreditEnd {
  Credits credits;
  uint32_t window = 0;   // posted for the peer
  uint32_t pending = 0;  // that the peer may still use
  size_t to_send = 0, delivered = 0;
  struct Item {
    bool data;
    uint32_t credits;
  };
  std::deque<Item> wire;  // to the other end
};

void credits_step(CreditEnd* from, bool piggybacks) {
  if (from->credits.wants_return() && from->credits.may_return()) {
    from->credits.spend();
    from->wire.push_back({false, from->credits.take_owed()});
    return;
  }
  if (from->to_send == 0 || !from->credits.may_send()) return;
  --from->to_send;
  from->credits.spend();
  from->wire.push_back({true, piggybacks ? from->credits.take_owed() : 0u});
}

bool credits_deliver(CreditEnd* from, CreditEnd* to) {
  if (from->wire.empty()) return false;
  const CreditEnd::Item item = from->wire.front();
  from->wire.pop_front();
  to->delivered += item.data ? 1 : 0;
  EXPECT_TRUE(to->credits.received().is_ok()) << "no receive was posted";
  EXPECT_TRUE(to->credits.returned(item.credits).is_ok());
  return true;
}

TEST(VerbsCredits, NoScheduleDeadlocksOrFindsAReceiverNotReady) {
  constexpr size_t kData = 500;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const uint32_t one_window = kMinVerbsWindow + random() % (kVerbsWindow - kMinVerbsWindow + 1);
    const uint32_t other_window = kMinVerbsWindow + random() % 5;
    CreditEnd ends[2];
    ends[0].credits = Credits(one_window, other_window);
    ends[1].credits = Credits(other_window, one_window);
    ends[0].to_send = kData;
    ends[1].to_send = seed % 3 == 0 ? 0 : kData;
    const uint64_t bias = 1 + random() % 9;  // how often things are delivered
    for (int step = 0; step < 200'000; ++step) {
      const size_t who = random() % 2;
      if (random() % 10 < bias)
        credits_deliver(&ends[who], &ends[1 - who]);
      else
        credits_step(&ends[who], random() % 4 == 0);
    }
    // To the end: all that can move moves.
    for (int quiet = 0; quiet < 4;) {
      const size_t before = ends[0].wire.size() + ends[1].wire.size();
      credits_step(&ends[0], false);
      credits_step(&ends[1], false);
      const bool moved = ends[0].wire.size() + ends[1].wire.size() != before;
      const bool delivered =
          credits_deliver(&ends[0], &ends[1]) | credits_deliver(&ends[1], &ends[0]);
      quiet = moved || delivered ? 0 : quiet + 1;
    }
    ASSERT_EQ(ends[0].to_send + ends[1].to_send, 0u) << "deadlock, seed " << seed;
    ASSERT_EQ(ends[1].delivered, kData) << "seed " << seed;
    ASSERT_EQ(ends[0].delivered, seed % 3 == 0 ? 0 : kData) << "seed " << seed;
  }
}

// ---- cutting

TEST(VerbsPlan, AHeaderAndARegisteredPayloadAreOneRequestOfTwoPieces) {
  std::vector<std::byte> memory(200'000);
  WritePlan plan({{memory.data(), 80, 0, true}, {memory.data() + 100, 150'000, 7, false}});
  Cut cut;
  plan.peek({16, 4u << 20, 65536}, &cut);
  EXPECT_TRUE(cut.last);
  EXPECT_EQ(cut.bytes, 150'080u);
  EXPECT_EQ(cut.staged, 80u);
  EXPECT_EQ(cut.gathered, 2u);
  EXPECT_EQ(cut.pieces[1].data, memory.data() + 100) << "the payload leaves from where it lies";
  EXPECT_EQ(cut.pieces[1].key, 7u);
}

TEST(VerbsPlan, RandomWritesAreCutWithinAllLimitsAndComplete) {
  std::mt19937_64 random(7);
  std::vector<std::byte> memory(1 << 20);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 2000; ++round) {
    const PlanLimits limits{1 + random() % 8, 1 + random() % 9000, 1 + random() % 3000};
    std::vector<Piece> spans;
    std::vector<std::byte> expected, written;
    for (size_t i = random() % 20; i > 0; --i) {
      const size_t bytes = 1 + random() % 5000, at = random() % (memory.size() - bytes);
      spans.push_back({memory.data() + at, bytes, static_cast<uint32_t>(i), random() % 2 == 0});
      expected.insert(expected.end(), memory.data() + at, memory.data() + at + bytes);
    }
    WritePlan plan(spans);
    bool last = spans.empty();
    while (!plan.finished()) {
      ASSERT_FALSE(last) << "more behind the last";
      Cut cut, again;
      plan.peek(limits, &cut);
      plan.peek(limits, &again);
      ASSERT_EQ(again.bytes, cut.bytes) << "peek moved";
      ASSERT_EQ(plan.offset(), written.size());
      size_t bytes = 0, staged = 0, gathered = 0;
      const Piece* before = nullptr;
      for (const Piece& piece : cut.pieces) {
        ASSERT_GT(piece.bytes, 0u);
        bytes += piece.bytes;
        staged += piece.staged ? piece.bytes : 0;
        gathered += before != nullptr && before->staged && piece.staged ? 0 : 1;
        before = &piece;
        written.insert(written.end(), piece.data, piece.data + piece.bytes);
      }
      ASSERT_GT(bytes, 0u);
      ASSERT_EQ(bytes, cut.bytes);
      ASSERT_EQ(staged, cut.staged);
      ASSERT_EQ(gathered, cut.gathered);
      ASSERT_LE(bytes, limits.bytes);
      ASSERT_LE(staged, limits.staged);
      ASSERT_LE(gathered, limits.pieces);
      last = cut.last;
      plan.advance();
    }
    ASSERT_TRUE(last);
    ASSERT_TRUE(written == expected);
  }
}

TEST(VerbsPlan, StagingMemoryIsNeverGivenTwice) {
  std::mt19937_64 random(3);
  constexpr size_t kBytes = 4096;
  for (int round = 0; round < 200; ++round) {
    StageRing ring(kBytes);
    struct Taken {
      size_t offset, bytes, held;
    };
    std::deque<Taken> taken;
    for (int step = 0; step < 500; ++step) {
      Taken next{0, 1 + random() % 1500, 0};
      if (random() % 2 == 0 && ring.take(next.bytes, &next.offset, &next.held)) {
        ASSERT_LE(next.offset + next.bytes, kBytes);
        for (const Taken& each : taken)
          ASSERT_TRUE(next.offset + next.bytes <= each.offset ||
                      each.offset + each.bytes <= next.offset)
              << "memory that is in use was given again";
        taken.push_back(next);
      } else if (!taken.empty()) {
        ring.give(taken.front().held);
        taken.pop_front();
      }
    }
    for (; !taken.empty(); taken.pop_front()) ring.give(taken.front().held);
    size_t offset = 0, held = 0;
    ASSERT_TRUE(ring.take(kBytes, &offset, &held)) << "something leaked";
    ASSERT_FALSE(ring.take(1, &offset, &held));
  }
}

// ---- packets

TEST(VerbsPacket, WhatDoesNotFitIsNamed) {
  PacketHeader good;
  good.type = PacketType::message;
  good.bytes = 100;
  good.offset = 40;
  EXPECT_EQ(invalid(good, 60), std::nullopt);
  EXPECT_NE(invalid(good, 61), std::nullopt) << "beyond the message's end";
  EXPECT_NE(invalid(good, 0), std::nullopt) << "parts without bytes would never end";
  PacketHeader header = good;
  header.offset = 101;
  EXPECT_NE(invalid(header, 1), std::nullopt);
  header = good;
  header.bytes = kMaxMessageBytes + 1;
  EXPECT_NE(invalid(header, 60), std::nullopt);
  for (uint8_t type : {0, 5, 255}) {
    header = good;
    header.type = static_cast<PacketType>(type);
    EXPECT_NE(invalid(header, 60), std::nullopt) << static_cast<unsigned>(type);
  }
  for (PacketType type : {PacketType::probe, PacketType::arrived, PacketType::credits}) {
    header = PacketHeader{};
    header.type = type;
    EXPECT_EQ(invalid(header, 0), std::nullopt);
    EXPECT_NE(invalid(header, 1), std::nullopt);
  }
}

// ---- bodies of the handshake

Ready some_ready() {
  Ready ready;
  ready.ok = true;
  ready.peer_generation = 4711;
  ready.end.generation = 17;
  ready.end.window = kVerbsWindow;
  ready.end.max_write_bytes = 1 << 20;
  VerbsRail rail;
  rail.device = "mlx5_0";
  rail.port = 1;
  rail.ethernet = true;
  rail.gid[1] = 99;
  rail.mtu = 4096;
  rail.queue_pair = 0xffffff;
  ready.end.rails.assign(kMaxVerbsRails, rail);
  return ready;
}

TEST(VerbsHandshake, ReadySurvivesTheTripAndNoTruncationDoes) {
  const std::vector<std::byte> whole = encode(some_ready());
  Result<Ready> back = decode_ready(whole);
  ASSERT_TRUE(back.is_ok()) << back.status().to_string();
  EXPECT_EQ(back.value().peer_generation, 4711u);
  ASSERT_EQ(back.value().end.rails.size(), kMaxVerbsRails);
  EXPECT_EQ(back.value().end.rails[1].device, "mlx5_0");
  EXPECT_EQ(back.value().end.rails[1].gid[1], 99u);
  EXPECT_EQ(back.value().end.rails[1].queue_pair, 0xffffffu);
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(
        decode_ready({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}).is_ok())
        << length;
}

TEST(VerbsHandshake, EndsBeyondTheLimitsAreRefused) {
  const std::vector<std::pair<const char*, void (*)(VerbsEnd*)>> bad = {
      {"window", [](VerbsEnd* end) { end->window = kVerbsWindow + 1; }},
      {"rails", [](VerbsEnd* end) { end->rails.resize(kMaxVerbsRails + 1); }},
      {"queue pair", [](VerbsEnd* end) { end->rails[0].queue_pair = 1u << 24; }},
      {"first packet", [](VerbsEnd* end) { end->rails[0].first_packet = 1u << 24; }},
      {"mtu", [](VerbsEnd* end) { end->rails[0].mtu = 1u << 20; }},
      {"device", [](VerbsEnd* end) { end->rails[0].device.assign(65, 'x'); }}};
  for (const auto& each : bad) {
    Ready ready = some_ready();
    each.second(&ready.end);
    EXPECT_FALSE(decode_ready(encode(ready)).is_ok()) << each.first;
    Choice choice;
    choice.path = Path::verbs;
    choice.end = ready.end;
    EXPECT_FALSE(decode_choice(encode(choice)).is_ok()) << each.first;
  }
}

}  // namespace
}  // namespace mxrdma::fabric::verbs

#endif
