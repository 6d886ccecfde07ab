// Control messages: what is encoded is decoded alike, and nothing that a peer can send does harm.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/limits.h"
#include "wire/control.h"

namespace mxrdma::wire {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

// An oracle of its own: fills every field of every type at random, independent of codec.h.
struct Maker {
  Random random;

  uint64_t below(uint64_t limit) { return random() % limit; }
  std::string text(size_t limit) {
    std::string value(below(limit + 1), ' ');
    for (char& c : value) c = static_cast<char>(random());
    return value;
  }
  std::string sentence(size_t limit) {
    std::string value(below(limit + 1), 'x');
    return value;
  }
  Role role() { return static_cast<Role>(below(3)); }
  uint8_t code() { return static_cast<uint8_t>(below(uint64_t(Code::internal) + 1)); }
  float number() { return static_cast<float>(below(1000)) / 8; }
  RemoteRegion region() { return {random(), random(), random()}; }

  KeyRequest request() {
    KeyRequest key;
    key.name = (below(2) == 0 ? "i:" : "s:") + text(30);
    key.updater_index = static_cast<int64_t>(random());
    key.dtype = static_cast<DType>(below(7));
    key.elements = 1;
    for (uint64_t i = below(4); i > 0; --i) {
      key.shape.push_back(static_cast<int64_t>(1 + below(50)));
      key.elements *= static_cast<uint64_t>(key.shape.back());
    }
    return key;
  }
  KeySpec spec() {
    KeySpec key;
    key.id = static_cast<uint32_t>(below(kMaxKeys));
    key.request = request();
    key.whole = below(2) == 1;
    uint64_t offset = 0;
    const uint64_t total = key.request.elements * dtype_bytes(key.request.dtype);
    while (offset < total) {
      const uint64_t bytes = 1 + below(total - offset);
      key.shares.push_back({static_cast<uint32_t>(below(8)), offset, bytes});
      offset += bytes;
    }
    return key;
  }
  std::vector<KeySpec> specs() {
    std::vector<KeySpec> keys(below(4));
    for (KeySpec& key : keys) key = spec();
    return keys;
  }
  OptimizerSpec optimizer(size_t pickle_bytes) {
    OptimizerSpec spec;
    spec.kind = static_cast<OptimizerKind>(below(5));
    spec.momentum = number();
    spec.beta1 = number();
    spec.beta2 = number();
    spec.epsilon = number();
    spec.clip_gradient = number();
    spec.multi_precision = below(2) == 1;
    spec.name = text(20);
    spec.pickle.resize(pickle_bytes);
    for (std::byte& byte : spec.pickle) byte = static_cast<std::byte>(random());
    return spec;
  }

  Role member() { return static_cast<Role>(1 + below(2)); }
  AddressBook book() {
    AddressBook book;
    book.generation = 1 + below(UINT64_MAX);
    uint32_t* fields = &book.config.workers;
    for (int i = 0; i < 10; ++i) fields[i] = static_cast<uint32_t>(below(kMaxNodes));
    book.config.servers = static_cast<uint32_t>(1 + below(3));
    book.config.workers = static_cast<uint32_t>(1 + below(3));
    for (uint32_t rank = 0; rank < book.config.servers; ++rank)
      book.nodes.push_back({Role::server, rank, random(), text(20), "h" + text(20),
                            static_cast<uint16_t>(1 + below(65535))});
    for (uint32_t rank = 0; rank < book.config.workers; ++rank)
      book.nodes.push_back({Role::worker, rank, random(), text(20), text(20), 0});
    book.your_role = member();
    book.your_rank = static_cast<uint32_t>(
        below(book.your_role == Role::server ? book.config.servers : book.config.workers));
    return book;
  }

  Message message(size_t type) {
    switch (type) {
      case 0:
        return Join{role(),   static_cast<uint32_t>(random()), random(), text(20),
                    text(20), static_cast<uint16_t>(random())};
      case 1: {
        return book();
      }
      case 2:
        return JoinRefused{code(), text(40)};
      case 3:
        return Heartbeat{random()};
      case 4:
        return Leave{};
      case 5:
        return Failed{text(40), code()};
      case 6:
        return LeaveAcknowledged{};
      case 7:
        return NodeGone{member(), static_cast<uint32_t>(below(kMaxNodes)),
                        text(20), static_cast<GoneHow>(below(3)),
                        text(40), code()};
      case 8:
        return Stop{text(40)};
      case 9: {
        Enter enter;
        enter.sequence = random();
        enter.kind = static_cast<CollectiveKind>(below(3));
        enter.label = text(20);
        enter.keys.resize(below(4));
        for (KeyRequest& key : enter.keys) key = request();
        enter.optimizer = optimizer(below(50));
        return enter;
      }
      case 10:
        return Release{random(), code(),  text(40),
                       specs(),  specs(), static_cast<OptimizerKind>(below(5))};
      case 11:
        return PlaceKeys{random(), specs()};
      case 12:
        return SetOptimizer{random(), optimizer(below(50)), specs()};
      case 13:
        return ServerAck{random(), code(), text(40)};
      case 14:
        return RingInfo{region(), static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
      case 15: {
        Credits credits;
        credits.slots.resize(below(20));
        for (uint16_t& slot : credits.slots) slot = static_cast<uint16_t>(random());
        return credits;
      }
      case 16:
        return PullRequest{static_cast<uint32_t>(random()), static_cast<uint32_t>(random()),
                           static_cast<uint32_t>(random()), region()};
      case 17: {
        RoundDone done;
        done.items.resize(below(6));
        for (auto& item : done.items)
          item = {static_cast<uint32_t>(random()), static_cast<uint32_t>(random()),
                  static_cast<uint32_t>(random())};
        return done;
      }
      case 18:
        return RoundFailed{static_cast<uint32_t>(random()), static_cast<uint32_t>(random()), code(),
                           text(40)};
      case 19:
        return PullFailed{static_cast<uint32_t>(random()), static_cast<uint32_t>(random()), code(),
                          text(40)};
      case 21: {
        DropKeys drop;
        drop.keys.resize(below(6));
        for (uint32_t& key : drop.keys) key = static_cast<uint32_t>(below(kMaxKeys));
        return drop;
      }
      case 22:
        return DecideOptimizer{random(), below(2) == 1};
      default: {
        Chunk chunk;
        chunk.total = random();
        chunk.offset = random();
        chunk.bytes.resize(below(40));
        return chunk;
      }
    }
  }
};

// ---- equality, written out again so that a field that the codec forgets is seen
bool same(const RemoteRegion& a, const RemoteRegion& b) {
  return a.address == b.address && a.bytes == b.bytes && a.key == b.key;
}
bool same(const KeyRequest& a, const KeyRequest& b) {
  return a.name == b.name && a.updater_index == b.updater_index && a.dtype == b.dtype &&
         a.elements == b.elements && a.shape == b.shape;
}
bool same(const Share& a, const Share& b) {
  return a.server == b.server && a.offset_bytes == b.offset_bytes && a.bytes == b.bytes;
}
bool same(const KeySpec& a, const KeySpec& b);
bool same(const NodeInfo& a, const NodeInfo& b);
bool same(const RoundDone::Item& a, const RoundDone::Item& b);
template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) return false;
  return true;
}
bool same(const KeySpec& a, const KeySpec& b) {
  return a.id == b.id && same(a.request, b.request) && a.whole == b.whole &&
         same(a.shares, b.shares);
}
bool same(const OptimizerSpec& a, const OptimizerSpec& b) {
  return a.kind == b.kind && a.momentum == b.momentum && a.beta1 == b.beta1 && a.beta2 == b.beta2 &&
         a.epsilon == b.epsilon && a.clip_gradient == b.clip_gradient &&
         a.multi_precision == b.multi_precision && a.name == b.name && a.pickle == b.pickle;
}
bool same(const NodeInfo& a, const NodeInfo& b) {
  return a.role == b.role && a.rank == b.rank && a.pid == b.pid && a.host == b.host &&
         a.listen_host == b.listen_host && a.listen_port == b.listen_port;
}
bool same(const Join& a, const Join& b) {
  return a.role == b.role && a.preferred_rank == b.preferred_rank && a.pid == b.pid &&
         a.host == b.host && a.listen_host == b.listen_host && a.listen_port == b.listen_port;
}
bool same(const AddressBook& a, const AddressBook& b) {
  return a.generation == b.generation && a.your_role == b.your_role && a.your_rank == b.your_rank &&
         std::memcmp(&a.config, &b.config, sizeof a.config) == 0 && same(a.nodes, b.nodes);
}
bool same(const JoinRefused& a, const JoinRefused& b) {
  return a.code == b.code && a.reason == b.reason;
}
bool same(const Heartbeat& a, const Heartbeat& b) { return a.count == b.count; }
bool same(const Leave&, const Leave&) { return true; }
bool same(const Failed& a, const Failed& b) { return a.reason == b.reason && a.code == b.code; }
bool same(const LeaveAcknowledged&, const LeaveAcknowledged&) { return true; }
bool same(const NodeGone& a, const NodeGone& b) {
  return a.role == b.role && a.rank == b.rank && a.host == b.host && a.how == b.how &&
         a.reason == b.reason && a.code == b.code;
}
bool same(const Stop& a, const Stop& b) { return a.reason == b.reason; }
bool same(const Enter& a, const Enter& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.label == b.label &&
         same(a.keys, b.keys) && same(a.optimizer, b.optimizer);
}
bool same(const Release& a, const Release& b) {
  return a.sequence == b.sequence && a.code == b.code && a.reason == b.reason &&
         same(a.keys, b.keys) && same(a.moved, b.moved) && a.optimizer == b.optimizer;
}
bool same(const PlaceKeys& a, const PlaceKeys& b) {
  return a.sequence == b.sequence && same(a.keys, b.keys);
}
bool same(const SetOptimizer& a, const SetOptimizer& b) {
  return a.sequence == b.sequence && same(a.optimizer, b.optimizer) && same(a.moved, b.moved);
}
bool same(const DecideOptimizer& a, const DecideOptimizer& b) {
  return a.sequence == b.sequence && a.use == b.use;
}
bool same(const ServerAck& a, const ServerAck& b) {
  return a.sequence == b.sequence && a.code == b.code && a.reason == b.reason;
}
bool same(const RingInfo& a, const RingInfo& b) {
  return same(a.ring, b.ring) && a.slot_bytes == b.slot_bytes && a.slots == b.slots;
}
bool same(const Credits& a, const Credits& b) { return a.slots == b.slots; }
bool same(const PullRequest& a, const PullRequest& b) {
  return a.key == b.key && a.round == b.round && a.pull_op == b.pull_op && same(a.target, b.target);
}
bool same(const RoundDone::Item& a, const RoundDone::Item& b) {
  return a.key == b.key && a.slice == b.slice && a.round == b.round;
}
bool same(const RoundDone& a, const RoundDone& b) { return same(a.items, b.items); }
bool same(const RoundFailed& a, const RoundFailed& b) {
  return a.key == b.key && a.round == b.round && a.code == b.code && a.reason == b.reason;
}
bool same(const PullFailed& a, const PullFailed& b) {
  return a.pull_op == b.pull_op && a.key == b.key && a.code == b.code && a.reason == b.reason;
}
bool same(const DropKeys& a, const DropKeys& b) { return a.keys == b.keys; }
bool same(const Chunk& a, const Chunk& b) {
  return a.total == b.total && a.offset == b.offset && a.bytes == b.bytes;
}
bool same_message(const Message& a, const Message& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&b](const auto& left) { return same(left, std::get<std::decay_t<decltype(left)>>(b)); }, a);
}

constexpr size_t kTypes = std::variant_size_v<Message>;

Bytes one(const Message& message) {
  std::vector<Bytes> parts = encode(message);
  EXPECT_EQ(parts.size(), 1u);
  return parts[0];
}

// In a block of its own size, so that a sanitizer sees a read past the end.
Result<Message> decode_exact(const Bytes& bytes) {
  const Bytes copy(bytes);
  return decode(copy.data(), copy.size());
}

TEST(WireControl, EveryTypeComesBackAlike) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Maker maker{Random(seed)};
    for (size_t type = 0; type < kTypes; ++type) {
      const Message message = maker.message(type);
      ASSERT_EQ(message.index(), type);
      Result<Message> back = decode_exact(one(message));
      ASSERT_TRUE(back.is_ok()) << back.status().to_string() << " seed " << seed;
      ASSERT_TRUE(same_message(message, back.value())) << "type " << type << " seed " << seed;
    }
  }
}

TEST(WireControl, EveryTruncationAndEveryExtensionIsRefused) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Maker maker{Random(seed)};
    for (size_t type = 0; type < kTypes; ++type) {
      const Bytes whole = one(maker.message(type));
      for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
        Result<Message> back = decode_exact(Bytes(whole.begin(), whole.begin() + bytes));
        ASSERT_FALSE(back.is_ok()) << "type " << type << " cut to " << bytes << " seed " << seed;
        ASSERT_EQ(back.status().code(), Code::fabric);
      }
      Bytes longer = whole;
      longer.push_back(std::byte{0});
      ASSERT_FALSE(decode_exact(longer).is_ok()) << "type " << type << " seed " << seed;
    }
  }
}

// A changed byte makes an error, or a message that encodes to just these bytes.
TEST(WireControl, EveryCorruptedByteIsRefusedOrMeansWhatItSays) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Maker maker{Random(seed)};
    for (size_t type = 0; type < kTypes; ++type) {
      const Bytes whole = one(maker.message(type));
      for (size_t at = 0; at < whole.size(); ++at) {
        for (int value : {0, 1, 0x7f, 0x80, 0xff, static_cast<int>(maker.below(256))}) {
          Bytes bad = whole;
          bad[at] = static_cast<std::byte>(value);
          Result<Message> back = decode_exact(bad);
          if (!back.is_ok()) continue;
          ASSERT_EQ(one(back.value()), bad) << "type " << type << " at " << at;
        }
      }
    }
  }
}

TEST(WireControl, RandomBytesDoNoHarm) {
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    Maker maker{Random(seed)};
    Bytes bytes(maker.below(200));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(maker.random());
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(maker.below(kTypes + 2));
    Result<Message> back = decode_exact(bytes);
    if (back.is_ok()) {
      ASSERT_EQ(one(back.value()), bytes) << "seed " << seed;
    }
    Assembler assembler;
    static_cast<void>(assembler.add(bytes.data(), bytes.size()).is_ok());
  }
}

TEST(WireControl, AnnouncedCountsAreNotBelieved) {
  Bytes bytes = one(Credits{});  // type, count
  ASSERT_EQ(bytes.size(), 5u);
  for (size_t i = 1; i < 5; ++i) bytes[i] = std::byte{0xff};
  Result<Message> back = decode_exact(bytes);
  ASSERT_FALSE(back.is_ok());
  EXPECT_NE(back.status().message().find("4294967295"), std::string::npos);
}

TEST(WireControl, ContradictoryKeysAreRefused) {
  KeySpec key;
  key.request.name = "i:0";
  key.request.elements = 6;
  key.request.shape = {2, 3};
  key.shares = {{0, 0, 16}, {1, 16, 8}};
  ASSERT_TRUE(decode_exact(one(PlaceKeys{1, {key}})).is_ok());
  const auto refused = [](KeySpec bad) { return !decode_exact(one(PlaceKeys{1, {bad}})).is_ok(); };
  KeySpec bad = key;
  bad.shares[1].offset_bytes = 12;  // overlap
  EXPECT_TRUE(refused(bad));
  bad = key;
  bad.shares[1].bytes = 4;  // too short
  EXPECT_TRUE(refused(bad));
  bad = key;
  bad.shares[1].bytes = UINT64_MAX - 8;  // wraps around
  EXPECT_TRUE(refused(bad));
  bad = key;
  bad.request.elements = 5;
  EXPECT_TRUE(refused(bad));
  bad = key;
  bad.request.elements = 1ull << 62;  // times 4 wraps to 0
  bad.request.shape.clear();
  bad.shares.clear();
  EXPECT_TRUE(refused(bad));
  bad = key;
  bad.request.shape = {-2, -3};
  EXPECT_TRUE(refused(bad));
  bad = key;
  bad.id = kMaxKeys;
  EXPECT_TRUE(refused(bad));
  EXPECT_TRUE(decode_exact(one(DropKeys{{0, kMaxKeys - 1}})).is_ok());
  EXPECT_FALSE(decode_exact(one(DropKeys{{0, kMaxKeys}})).is_ok());
}

TEST(WireControl, ABookThatIsNotInOrderIsRefused) {
  Maker maker{Random(7)};
  AddressBook book = maker.book();
  book.config.servers = book.config.workers = 2;
  book.nodes = {{Role::server, 0, 1, "a", "a", 1000},
                {Role::server, 1, 2, "b", "b", 1001},
                {Role::worker, 0, 3, "c", "", 0},
                {Role::worker, 1, 4, "d", "", 0}};
  book.your_role = Role::worker;
  book.your_rank = 1;
  ASSERT_TRUE(decode_exact(one(book)).is_ok());
  const auto refused = [](const AddressBook& bad) { return !decode_exact(one(bad)).is_ok(); };
  AddressBook bad = book;
  std::swap(bad.nodes[0], bad.nodes[1]);
  EXPECT_TRUE(refused(bad)) << "servers out of order";
  bad = book;
  bad.nodes[1].rank = 0;
  EXPECT_TRUE(refused(bad)) << "a rank twice";
  bad = book;
  bad.nodes[1].rank = 4000000000u;
  EXPECT_TRUE(refused(bad)) << "a rank beyond the job";
  bad = book;
  std::swap(bad.nodes[1], bad.nodes[2]);
  EXPECT_TRUE(refused(bad)) << "a worker among servers";
  bad = book;
  bad.nodes[2].role = Role::scheduler;
  EXPECT_TRUE(refused(bad)) << "a scheduler";
  bad = book;
  bad.nodes.pop_back();
  EXPECT_TRUE(refused(bad)) << "too few";
  bad = book;
  bad.nodes.push_back({Role::worker, 2, 5, "e", "", 0});
  EXPECT_TRUE(refused(bad)) << "too many";
  bad = book;
  bad.nodes[0].listen_port = 0;
  EXPECT_TRUE(refused(bad)) << "a server that cannot be reached";
  bad = book;
  bad.your_rank = 2;
  EXPECT_TRUE(refused(bad)) << "no such worker";
  bad = book;
  bad.your_role = Role::scheduler;
  EXPECT_TRUE(refused(bad)) << "we are no scheduler";
  bad = book;
  bad.generation = 0;
  EXPECT_TRUE(refused(bad)) << "generation 0";
}

TEST(WireControl, AGoneNodeMustBeOneThatCanBe) {
  NodeGone gone{Role::server, kMaxNodes - 1, "a", GoneHow::failed, "why", 0};
  ASSERT_TRUE(decode_exact(one(gone)).is_ok());
  gone.rank = kMaxNodes;
  EXPECT_FALSE(decode_exact(one(gone)).is_ok());
  gone.rank = 0;
  gone.role = Role::scheduler;
  EXPECT_FALSE(decode_exact(one(gone)).is_ok());
  gone.role = Role::worker;
  gone.code = static_cast<uint8_t>(Code::internal) + 1;
  EXPECT_FALSE(decode_exact(one(gone)).is_ok());
  EXPECT_FALSE(decode_exact(one(Failed{"why", gone.code})).is_ok());
}

TEST(WireControl, NamesOfKeysAreCanonical) {
  KeySpec key;
  key.request.elements = 4;
  key.shares = {{0, 0, 16}};
  for (const char* name : {"i:3", "s:", "s:a", "s::"}) {
    key.request.name = name;
    EXPECT_TRUE(decode_exact(one(PlaceKeys{1, {key}})).is_ok()) << name;
  }
  for (const char* name : {"", "i", "s", ":", "a", "x:3", "i3", ":i"}) {
    key.request.name = name;
    EXPECT_FALSE(decode_exact(one(PlaceKeys{1, {key}})).is_ok()) << name;
    EXPECT_EQ(shown_name(name), name);
  }
  EXPECT_EQ(shown_name("s:a:b"), "a:b");
}

TEST(WireControl, LongReasonsAreCutAtACharacter) {
  std::string reason;
  while (reason.size() < 2 * kMaxReasonBytes) reason += "\xe2\x82\xac";  // three bytes each
  Result<Message> back = decode_exact(one(Failed{reason}));
  ASSERT_TRUE(back.is_ok()) << back.status().to_string();
  const std::string& kept = std::get<Failed>(back.value()).reason;
  EXPECT_EQ(kept.size(), kMaxReasonBytes / 3 * 3);
  EXPECT_EQ(kept, reason.substr(0, kept.size()));
}

// ---- hello

TEST(WireControl, HelloComesBackAndRefusesEverythingElse) {
  const Hello hello{Role::server, 3, 0x1122334455667788, 4711, "host-b"};
  const Bytes bytes = encode(hello);
  Result<Hello> back = decode_hello(bytes.data(), bytes.size());
  ASSERT_TRUE(back.is_ok());
  EXPECT_EQ(back.value().role, hello.role);
  EXPECT_EQ(back.value().rank, hello.rank);
  EXPECT_EQ(back.value().generation, hello.generation);
  EXPECT_EQ(back.value().pid, hello.pid);
  EXPECT_EQ(back.value().host, hello.host);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    const Bytes part(bytes.begin(), bytes.begin() + cut);
    EXPECT_FALSE(decode_hello(part.data(), part.size()).is_ok());
  }
  Bytes other = bytes;
  other[4] = std::byte{9};  // version
  Result<Hello> refused = decode_hello(other.data(), other.size());
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), Code::config);
  other = bytes;
  other[0] = std::byte{0};
  EXPECT_FALSE(decode_hello(other.data(), other.size()).is_ok());
  other = bytes;
  other.push_back(std::byte{0});
  EXPECT_FALSE(decode_hello(other.data(), other.size()).is_ok());
}

// ---- chunks

SetOptimizer large(size_t bytes) {
  Maker maker{Random(bytes)};
  return {5, maker.optimizer(bytes), {}};
}

TEST(WireControl, LargeBodiesTravelInChunks) {
  for (size_t bytes : {kMaxMessageBytes - 200, kMaxMessageBytes, 3 * kMaxMessageBytes + 1}) {
    const Message message = large(bytes);
    const std::vector<Bytes> parts = encode(message);
    Assembler assembler;
    for (size_t i = 0; i < parts.size(); ++i) {
      ASSERT_LE(parts[i].size(), kMaxMessageBytes);
      Result<std::optional<Message>> added = assembler.add(parts[i].data(), parts[i].size());
      ASSERT_TRUE(added.is_ok()) << added.status().to_string();
      ASSERT_EQ(added.value().has_value(), i + 1 == parts.size());
      if (!added.value()) continue;
      EXPECT_TRUE(same_message(message, *added.value()));
    }
    // It is ready for the next.
    const Bytes next = one(Heartbeat{1});
    EXPECT_TRUE(assembler.add(next.data(), next.size()).is_ok());
  }
}

bool takes(Assembler* assembler, const Message& message) {
  const Bytes bytes = one(message);
  return assembler->add(bytes.data(), bytes.size()).is_ok();
}

TEST(WireControl, ChunksMustBeWhole) {
  const std::vector<std::byte> some(100);
  const auto started = [&] {
    Assembler assembler;
    EXPECT_TRUE(takes(&assembler, Chunk{1000, 0, some}));
    return assembler;
  };
  Assembler assembler = started();
  EXPECT_TRUE(takes(&assembler, Chunk{1000, 100, some}));
  assembler = started();
  EXPECT_FALSE(takes(&assembler, Heartbeat{1})) << "another message within a body";
  assembler = started();
  EXPECT_FALSE(takes(&assembler, Chunk{1000, 0, some})) << "repeated";
  assembler = started();
  EXPECT_FALSE(takes(&assembler, Chunk{1000, 200, some})) << "a gap";
  assembler = started();
  EXPECT_FALSE(takes(&assembler, Chunk{2000, 100, some})) << "another total";
  assembler = Assembler();
  EXPECT_FALSE(takes(&assembler, Chunk{50, 0, some})) << "longer than the total";
  assembler = Assembler();
  EXPECT_FALSE(takes(&assembler, Chunk{1000, 0, {}})) << "empty";
  assembler = Assembler();
  EXPECT_FALSE(takes(&assembler, Chunk{kMaxBlobBytes + 1, 0, some})) << "beyond the limit";
  assembler = Assembler();
  EXPECT_FALSE(takes(&assembler, Chunk{1000, 900, some})) << "starts in the middle";
  const Bytes inner = one(Chunk{100, 0, some});
  assembler = Assembler();
  EXPECT_FALSE(takes(&assembler, Chunk{inner.size(), 0, inner})) << "chunks within chunks";
}

}  // namespace
}  // namespace mxrdma::wire
