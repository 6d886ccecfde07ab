// What the proof is made of, and a handshake that ends after each of its bytes.
#include <gtest/gtest.h>

#include "fabric_fixture.h"

namespace mxrdma::fabric {
namespace {

// Feeds `from` only what it wants, as the sockets' loop does.
void carry(Handshake* from, Handshake* to, Status* status, std::vector<std::byte>* record) {
  std::vector<std::byte>& bytes = from->output();
  if (record) record->insert(record->end(), bytes.begin(), bytes.end());
  size_t at = 0;
  while (at < bytes.size() && status->is_ok()) {
    const size_t part = std::min(bytes.size() - at, to->wanted());
    ASSERT_GT(part, 0u) << "more was sent than is wanted";
    *status = to->feed(bytes.data() + at, part);
    at += part;
  }
  bytes.clear();
}

struct Two {
  explicit Two(const std::string& connectors = kToken, const std::string& acceptors = kToken)
      : connector(true, connectors), acceptor(false, acceptors) {
    EXPECT_TRUE(connector.start().is_ok() && acceptor.start().is_ok());
  }
  void run() {
    for (int i = 0; i < 4; ++i) {
      carry(&connector, &acceptor, &at_acceptor, &sent);
      carry(&acceptor, &connector, &at_connector, nullptr);
    }
  }
  Handshake connector, acceptor;
  Status at_connector, at_acceptor;
  std::vector<std::byte> sent;  // by the connector
};

TEST(FabricProof, ProofsAreHmacOfRoleVersionAndBothNonces) {
  // RFC 4231, test case 2.
  const Digest digest = hmac_sha256("Jefe", bytes_of("what do ya want for nothing?"));
  const unsigned char expected[] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
                                    0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                                    0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83,
                                    0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
  EXPECT_EQ(std::memcmp(digest.data(), expected, sizeof expected), 0);

  Two two;
  Prologue connectors, acceptors;
  std::memcpy(&connectors, two.connector.output().data(), sizeof connectors);
  std::memcpy(&acceptors, two.acceptor.output().data(), sizeof acceptors);
  two.run();
  std::vector<std::byte> data = bytes_of("mxrdma connector");
  const auto* version = reinterpret_cast<const std::byte*>(&kHandshakeVersion);
  data.insert(data.end(), version, version + sizeof kHandshakeVersion);
  data.insert(data.end(), connectors.nonce.begin(), connectors.nonce.end());
  data.insert(data.end(), acceptors.nonce.begin(), acceptors.nonce.end());
  const Digest proof = hmac_sha256(kToken, data);
  ASSERT_GE(two.sent.size(), sizeof(Prologue) + proof.size());
  EXPECT_EQ(std::memcmp(two.sent.data() + sizeof(Prologue), proof.data(), proof.size()), 0);
}

TEST(FabricProof, NoncesAreNeverRepeated) {
  Two one, other;
  EXPECT_NE(one.connector.output(), other.connector.output());
  EXPECT_NE(one.connector.output(), one.acceptor.output());
}

TEST(FabricProof, CutAtEachByteItWaits) {
  Offer offer;
  offer.hello = counted(1, 100);
  // The same nonces for each cut: the acceptor is copied at its start.
  Handshake connector(true, kToken), acceptor(false, kToken);
  ASSERT_TRUE(connector.start().is_ok() && acceptor.start().is_ok());
  const Handshake untouched = acceptor;
  Status status;
  std::vector<std::byte> sent;
  carry(&connector, &acceptor, &status, &sent);
  carry(&acceptor, &connector, &status, nullptr);
  connector.put_body(encode(offer));
  carry(&connector, &acceptor, &status, &sent);
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  std::vector<std::byte> body;
  ASSERT_TRUE(acceptor.take_body(&body));
  for (size_t cut = 0; cut <= sent.size(); ++cut) {
    Handshake one = untouched;
    size_t at = 0;
    while (at < cut) {
      const size_t part = std::min(cut - at, one.wanted());
      ASSERT_GT(part, 0u);
      ASSERT_TRUE(one.feed(sent.data() + at, part).is_ok()) << cut;
      at += part;
    }
    EXPECT_EQ(one.proven(), cut >= sizeof(Prologue) + sizeof(Digest)) << cut;
    EXPECT_EQ(one.take_body(&body), cut == sent.size()) << cut;
  }
}

}  // namespace
}  // namespace mxrdma::fabric
