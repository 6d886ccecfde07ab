// The handshake as a state machine over bytes: whatever a stranger sends, and in whatever pieces.
#include "fabric/bootstrap/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace mxrdma::fabric {
namespace {

using Bytes = std::vector<std::byte>;
constexpr char kToken[] = "the token of the job";

Bytes taken(Handshake* from) {
  Bytes bytes;
  bytes.swap(from->output());
  return bytes;
}

// Feeds what is wanted and no more, at most `piece` bytes at a time, as a connection does.
Status feed_in_pieces(Handshake* to, const Bytes& bytes, size_t piece) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t take = std::min({piece, bytes.size() - at, to->wanted()});
    if (take == 0) return Status(Code::internal, "the handshake wants no more");
    Status status = to->feed(bytes.data() + at, take);
    if (!status.is_ok()) return status;
    at += take;
  }
  return Status::ok();
}

struct Pair {
  explicit Pair(const char* connector_token = kToken, const char* acceptor_token = kToken)
      : connector(true, connector_token), acceptor(false, acceptor_token) {
    EXPECT_TRUE(connector.start().is_ok());
    EXPECT_TRUE(acceptor.start().is_ok());
  }
  // Until both are proven or one refuses.
  Status prove(size_t piece) {
    for (int turn = 0; turn < 4 && !(connector.proven() && acceptor.proven()); ++turn) {
      Status status = feed_in_pieces(&acceptor, taken(&connector), piece);
      if (status.is_ok()) status = feed_in_pieces(&connector, taken(&acceptor), piece);
      if (!status.is_ok()) return status;
    }
    return Status::ok();
  }
  Handshake connector, acceptor;
};

TEST(FabricHandshake, AgreesInPiecesOfAnySize) {
  for (size_t piece : {1u, 2u, 7u, 39u, 40u, 41u, 4096u}) {
    Pair pair;
    ASSERT_TRUE(pair.prove(piece).is_ok()) << piece;
    ASSERT_TRUE(pair.connector.proven() && pair.acceptor.proven()) << piece;
    const Bytes sent(5000, std::byte{7});
    pair.connector.put_body(sent);
    Bytes received;
    EXPECT_FALSE(pair.acceptor.take_body(&received));
    ASSERT_TRUE(feed_in_pieces(&pair.acceptor, taken(&pair.connector), piece).is_ok());
    ASSERT_TRUE(pair.acceptor.take_body(&received)) << piece;
    EXPECT_EQ(received, sent);
    EXPECT_FALSE(pair.acceptor.take_body(&received)) << "a body was given twice";
  }
}

TEST(FabricHandshake, AnotherTokenIsRefusedByTheAcceptorFirst) {
  Pair pair(kToken, "another token");
  const Status status = pair.prove(1);
  EXPECT_EQ(status.code(), Code::auth);
  EXPECT_NE(status.message().find("MXRDMA_TOKEN"), std::string::npos);
  EXPECT_FALSE(pair.acceptor.proven());
  EXPECT_FALSE(pair.connector.proven());
  // It gives away nothing that was made with its token.
  EXPECT_TRUE(pair.acceptor.output().empty());
}

TEST(FabricHandshake, AnAcceptorThatCannotProveTheTokenIsRefused) {
  Pair pair;
  ASSERT_TRUE(feed_in_pieces(&pair.connector, taken(&pair.acceptor), 40).is_ok());
  Digest wrong{};
  EXPECT_EQ(pair.connector.feed(wrong.data(), wrong.size()).code(), Code::auth);
  EXPECT_FALSE(pair.connector.proven());
}

TEST(FabricHandshake, EachFlippedBitIsRefused) {
  for (size_t bit = 0; bit < 8 * (sizeof(Prologue) + sizeof(Digest)); ++bit) {
    Pair pair;
    ASSERT_TRUE(feed_in_pieces(&pair.connector, taken(&pair.acceptor), 40).is_ok());
    Bytes bytes = taken(&pair.connector);
    ASSERT_EQ(bytes.size(), sizeof(Prologue) + sizeof(Digest));
    const size_t at = bit / 8;
    // The reserved field is nobody's word.
    if (at >= offsetof(Prologue, reserved) && at < offsetof(Prologue, nonce)) continue;
    bytes[at] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(feed_in_pieces(&pair.acceptor, bytes, bytes.size()).is_ok()) << "bit " << bit;
    EXPECT_FALSE(pair.acceptor.proven()) << "bit " << bit;
  }
}

TEST(FabricHandshake, AReflectedNonceIsRefused) {
  for (bool connector : {true, false}) {
    Handshake one(connector, kToken);
    ASSERT_TRUE(one.start().is_ok());
    const Bytes own = taken(&one);
    EXPECT_EQ(one.feed(own.data(), own.size()).code(), Code::auth);
  }
}

TEST(FabricHandshake, AProofOfTheOtherRoleIsRefused) {
  // Two connectors: each sends its own kind of proof, with the same token.
  Handshake one(true, kToken), other(true, kToken);
  ASSERT_TRUE(one.start().is_ok() && other.start().is_ok());
  const Bytes from_one = taken(&one), from_other = taken(&other);
  ASSERT_TRUE(one.feed(from_other.data(), from_other.size()).is_ok());
  ASSERT_TRUE(other.feed(from_one.data(), from_one.size()).is_ok());
  const Bytes proof = taken(&other);
  EXPECT_EQ(one.feed(proof.data(), proof.size()).code(), Code::auth);
}

TEST(FabricHandshake, AProofOfAnEarlierHandshakeIsRefused) {
  Pair first;
  ASSERT_TRUE(feed_in_pieces(&first.connector, taken(&first.acceptor), 40).is_ok());
  const Bytes recorded = taken(&first.connector);
  Handshake fresh(false, kToken);
  ASSERT_TRUE(fresh.start().is_ok());
  EXPECT_EQ(feed_in_pieces(&fresh, recorded, 40).code(), Code::auth);
}

TEST(FabricHandshake, AnotherVersionIsNamed) {
  Handshake one(false, kToken);
  ASSERT_TRUE(one.start().is_ok());
  const Prologue prologue{kHandshakeMagic, kHandshakeVersion + 1, 0, {}};
  const Status status = one.feed(reinterpret_cast<const std::byte*>(&prologue), sizeof prologue);
  EXPECT_EQ(status.code(), Code::config);
  EXPECT_NE(status.message().find("version"), std::string::npos);
}

TEST(FabricHandshake, AnOversizeBodyIsRefusedBeforeItIsTaken) {
  for (uint32_t size : {uint32_t{kMaxBodyBytes + 1}, UINT32_MAX}) {
    Pair pair;
    ASSERT_TRUE(pair.prove(4096).is_ok());
    EXPECT_FALSE(
        pair.acceptor.feed(reinterpret_cast<const std::byte*>(&size), sizeof size).is_ok());
    EXPECT_EQ(pair.acceptor.wanted(), 0u);
    const std::byte more{};
    EXPECT_FALSE(pair.acceptor.feed(&more, 1).is_ok()) << "it goes on after a refusal";
  }
}

TEST(FabricHandshake, GarbageNeverProves) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    Handshake one(round % 2 == 0, kToken);
    ASSERT_TRUE(one.start().is_ok());
    Bytes garbage(200);
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
    // Half of them begin well.
    if (round % 4 < 2) {
      const Prologue prologue{kHandshakeMagic, kHandshakeVersion, 0, {}};
      std::memcpy(garbage.data(), &prologue, offsetof(Prologue, nonce));
    }
    EXPECT_FALSE(feed_in_pieces(&one, garbage, 1 + random() % 64).is_ok());
    EXPECT_FALSE(one.proven());
  }
}

TEST(FabricHandshake, BodiesSurviveTheTripAndNoTruncationDoes) {
  Offer offer;
  offer.policy = Policy::shm;
  offer.identity = {"a boot id", 77, 4711};
  offer.hello = Bytes(100, std::byte{3});
  const Bytes whole = encode(offer);
  Result<Offer> back = decode_offer(whole);
  ASSERT_TRUE(back.is_ok()) << back.status().to_string();
  EXPECT_EQ(back.value().hello, offer.hello);
  EXPECT_EQ(back.value().identity.boot_id, offer.identity.boot_id);
  EXPECT_EQ(back.value().identity.network_namespace, 77u);
  EXPECT_EQ(back.value().identity.pid, 4711u);
  EXPECT_EQ(back.value().policy, Policy::shm);
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(decode_offer(Bytes(whole.begin(), whole.begin() + length)).is_ok()) << length;
  Bytes longer = whole;
  longer.push_back({});
  EXPECT_FALSE(decode_offer(longer).is_ok());

  Answer answer;
  answer.shm = true;
  answer.socket_name = "a name";
  answer.cookie[1] = 5;
  const Bytes answered = encode(answer);
  Result<Answer> heard = decode_answer(answered);
  ASSERT_TRUE(heard.is_ok());
  EXPECT_EQ(heard.value().socket_name, "a name");
  EXPECT_EQ(heard.value().cookie[1], 5u);
  for (size_t length = 0; length < answered.size(); ++length)
    EXPECT_FALSE(decode_answer(Bytes(answered.begin(), answered.begin() + length)).is_ok());
}

}  // namespace
}  // namespace mxrdma::fabric
