// The shm channel against a peer that writes what it likes into the shared memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "fabric/shm/shm_channel.h"
#include "fabric_fixture.h"

namespace mxrdma::fabric {
namespace {

using shm::Descriptor;
using shm::Kind;

constexpr uint64_t kCookie[2] = {3, 4};
constexpr size_t kTargetBytes = 3 * shm::kBounceBytes;

Fd copy_of(int fd) { return Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

struct Pair {
  Fd one, other;
};
Pair sockets(int type) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

std::shared_ptr<Segment> segment(size_t bytes) {
  Result<std::shared_ptr<Segment>> made = Segment::create(bytes);
  EXPECT_TRUE(made.is_ok()) << made.status().to_string();
  return made.value();
}

std::shared_ptr<Segment> mapped(const Segment& owner, size_t bytes) {
  Result<std::shared_ptr<Segment>> made = Segment::map(copy_of(owner.fd()), bytes);
  EXPECT_TRUE(made.is_ok()) << made.status().to_string();
  return made.value();
}

// One honest channel; its peer's end is in the test's hands.
struct Harness {
  Harness() : notes_(sockets(SOCK_SEQPACKET)), control_(sockets(SOCK_STREAM)) {
    target_.assign(kTargetBytes, std::byte{0x77});
    region_ = regions_.add(target_.data(), target_.size(), nullptr);
    to_channel_ = segment(shm::kSegmentBytes);
    from_channel_ = segment(shm::kSegmentBytes);
    ShmEnds ends;
    ends.inbound = mapped(*to_channel_, shm::kSegmentBytes);
    ends.outbound = from_channel_;
    ends.doorbell = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    ends.notes = std::move(notes_.one);
    ends.cookie[0] = kCookie[0];
    ends.cookie[1] = kCookie[1];
    channel_ = std::make_unique<ShmChannel>(control_.one.get(), std::move(ends),
                                            ChannelContext{&regions_, &counters_, &events_}, 1);
  }

  shm::Control* control_in() const { return reinterpret_cast<shm::Control*>(to_channel_->base()); }
  shm::Control* control_out() const {
    return reinterpret_cast<shm::Control*>(from_channel_->base());
  }
  void put(const Descriptor& descriptor) {
    const uint64_t at = control_in()->produced.load();
    std::memcpy(
        to_channel_->base() + shm::kRingOffset + at % shm::kRingDescriptors * sizeof(Descriptor),
        &descriptor, sizeof descriptor);
    control_in()->produced.store(at + 1);
  }
  Descriptor good(Kind kind, uint64_t bytes) const {
    Descriptor descriptor{};
    descriptor.kind = kind;
    descriptor.immediate = 9;
    descriptor.bytes = descriptor.total_bytes = bytes;
    descriptor.target = RegionTable::name(*regions_.find(region_.id));
    return descriptor;
  }
  void pass_region(uint64_t key, const Segment& memory, uint64_t bytes) {
    shm::Note note;
    note.cookie[0] = kCookie[0];
    note.cookie[1] = kCookie[1];
    note.key = key;
    note.bytes = bytes;
    ASSERT_TRUE(shm::send_note(notes_.other.get(), note, memory.fd()).is_ok());
  }
  bool untouched() const {
    return std::count(target_.begin(), target_.end(), std::byte{0x77}) ==
           static_cast<long>(target_.size());
  }

  RegionTable regions_;
  Counters counters_;
  std::vector<Event> events_;
  std::vector<std::byte> target_;
  Region region_;
  Pair notes_, control_;
  std::shared_ptr<Segment> to_channel_, from_channel_;
  std::unique_ptr<ShmChannel> channel_;
};

TEST(FabricShm, GoodDescriptorsAreTaken) {
  Harness h;
  std::memset(h.to_channel_->base() + shm::kBounceOffset, 0x21, shm::kBounceBytes);
  h.put(h.good(Kind::bounced, 1000));
  std::shared_ptr<Segment> source = segment(5000);
  std::memset(source->base(), 0x32, 5000);
  h.pass_region(kMappable | 7, *source, 5000);
  Descriptor reference = h.good(Kind::reference, 500);
  reference.target.address = 2000;
  reference.source_key = kMappable | 7;
  reference.source_offset = 4500;
  h.put(reference);
  Descriptor message = h.good(Kind::message, 5);
  std::memcpy(message.data, "hello", 5);
  h.put(message);
  ASSERT_TRUE(h.channel_->progress_on_loop().is_ok());
  ASSERT_EQ(h.events_.size(), 3u);
  EXPECT_EQ(h.events_[0].bytes, 1000u);
  EXPECT_EQ(h.events_[1].immediate, 9u);
  EXPECT_EQ(h.events_[2].payload, bytes_of("hello"));
  EXPECT_EQ(h.target_[999], std::byte{0x21});
  EXPECT_EQ(h.target_[1000], std::byte{0x77});
  EXPECT_EQ(h.target_[1999], std::byte{0x77});
  EXPECT_EQ(h.target_[2000], std::byte{0x32});
  EXPECT_EQ(h.target_[2499], std::byte{0x32});
  EXPECT_EQ(h.target_[2500], std::byte{0x77});
  EXPECT_EQ(h.control_in()->consumed.load(), 3u);
}

TEST(FabricShm, MalformedDescriptorsCostTheConnectionAndNothingIsWritten) {
  const std::pair<const char*, std::function<void(Descriptor*)>> cases[] = {
      {"kind 0", [](Descriptor* d) { d->kind = static_cast<Kind>(0); }},
      {"kind 6", [](Descriptor* d) { d->kind = static_cast<Kind>(6); }},
      {"huge kind", [](Descriptor* d) { d->kind = static_cast<Kind>(0x80000001); }},
      {"slot", [](Descriptor* d) { d->slot = shm::kBounceSlots; }},
      {"huge slot", [](Descriptor* d) { d->slot = 0xffffffff; }},
      {"more than a slot",
       [](Descriptor* d) { d->bytes = d->total_bytes = shm::kBounceBytes + 1; }},
      {"all bytes", [](Descriptor* d) { d->bytes = d->total_bytes = ~uint64_t{0}; }},
      {"part beyond the write", [](Descriptor* d) { d->part_offset = 1; }},
      {"part offset overflows", [](Descriptor* d) { d->part_offset = ~uint64_t{0} - 99; }},
      {"starts amid", [](Descriptor* d) { d->total_bytes = 1000, d->part_offset = 10; }},
      {"whole write beyond the region",
       [](Descriptor* d) { d->total_bytes = kTargetBytes + 1, d->target.bytes = ~uint64_t{0}; }},
      {"beyond what was described", [](Descriptor* d) { d->target.bytes = d->bytes - 1; }},
      {"address beyond", [](Descriptor* d) { d->target.address = kTargetBytes - 99; }},
      {"address overflows", [](Descriptor* d) { d->target.address = ~uint64_t{0} - 50; }},
      {"unknown region", [](Descriptor* d) { d->target.key += 1; }},
      {"another generation", [](Descriptor* d) { d->target.key += 1ull << 32; }},
      {"not mappable", [](Descriptor* d) { d->target.key |= kMappable; }},
      {"placed in private memory", [](Descriptor* d) { d->kind = Kind::placed; }},
      {"reference to nothing", [](Descriptor* d) { d->kind = Kind::reference; }},
      {"message too long",
       [](Descriptor* d) { d->kind = Kind::message, d->bytes = kMaxMessageBytes + 1; }},
      {"empty part", [](Descriptor* d) { d->bytes = 0; }}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.first);
    Harness h;
    Descriptor bad = h.good(Kind::bounced, 100);
    each.second(&bad);
    h.put(bad);
    const Status status = h.channel_->progress_on_loop();
    EXPECT_EQ(status.code(), Code::fabric);
    EXPECT_FALSE(status.message().empty());
    EXPECT_TRUE(h.events_.empty());
    EXPECT_TRUE(h.untouched());
    EXPECT_EQ(h.control_in()->consumed.load(), 0u);
  }
}

TEST(FabricShm, PartsOfAWriteBelongTogether) {
  const auto part = [](const Harness& h, uint64_t offset) {
    Descriptor descriptor = h.good(Kind::bounced, 100);
    descriptor.total_bytes = 300;
    descriptor.part_offset = offset;
    return descriptor;
  };
  {
    Harness h;
    for (uint64_t offset : {0, 100, 200}) {
      EXPECT_TRUE(h.events_.empty());
      h.put(part(h, offset));
      ASSERT_TRUE(h.channel_->progress_on_loop().is_ok());
      EXPECT_EQ(h.channel_->receiving_into(h.region_.id), offset < 200);
    }
    ASSERT_EQ(h.events_.size(), 1u);
    EXPECT_EQ(h.events_[0].bytes, 300u);
  }
  const std::pair<const char*, std::function<void(Descriptor*)>> cases[] = {
      {"again", [](Descriptor* d) { d->part_offset = 0; }},
      {"a gap", [](Descriptor* d) { d->part_offset = 150; }},
      {"another immediate", [](Descriptor* d) { d->immediate += 1; }},
      {"another total", [](Descriptor* d) { d->total_bytes += 1; }},
      {"another place", [](Descriptor* d) { d->target.address += 1; }},
      {"another way", [](Descriptor* d) { d->kind = Kind::reference; }},
      {"a message", [](Descriptor* d) { d->kind = Kind::message; }}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.first);
    Harness h;
    h.put(part(h, 0));
    ASSERT_TRUE(h.channel_->progress_on_loop().is_ok());
    Descriptor bad = part(h, 100);
    each.second(&bad);
    h.put(bad);
    EXPECT_EQ(h.channel_->progress_on_loop().code(), Code::fabric);
    EXPECT_TRUE(h.events_.empty());
    EXPECT_EQ(h.target_[100], std::byte{0x77});
  }
}

TEST(FabricShm, ReferencesStayInsideOfTheirRegion) {
  const std::pair<uint64_t, uint64_t> bad[] = {// offset, bytes
                                               {4001, 1000},
                                               {5001, 0},
                                               {~uint64_t{0} - 10, 100},
                                               {0, 5001}};
  std::shared_ptr<Segment> source = segment(5000);
  for (const auto& each : bad) {
    Harness h;
    h.pass_region(kMappable | 7, *source, 5000);
    Descriptor descriptor = h.good(Kind::reference, each.second);
    descriptor.source_key = kMappable | 7;
    descriptor.source_offset = each.first;
    h.put(descriptor);
    EXPECT_EQ(h.channel_->progress_on_loop().code(), Code::fabric) << each.first;
    EXPECT_TRUE(h.untouched());
    EXPECT_TRUE(h.events_.empty());
  }
}

TEST(FabricShm, CountersThatLieCostTheConnection) {
  for (uint64_t produced : {uint64_t{shm::kRingDescriptors} + 1, ~uint64_t{0}, ~uint64_t{0} - 5}) {
    Harness h;
    // Good descriptors everywhere: only the counter is wrong.
    for (uint32_t i = 0; i < shm::kRingDescriptors; ++i) h.put(h.good(Kind::message, 0));
    h.control_in()->produced.store(produced);
    EXPECT_EQ(h.channel_->progress_on_loop().code(), Code::fabric) << produced;
    EXPECT_TRUE(h.events_.empty());
  }
  for (uint64_t consumed : {uint64_t{2}, ~uint64_t{0}}) {
    Harness h;
    ASSERT_TRUE(h.channel_->send("x", 1, 1).is_ok());
    h.control_out()->consumed.store(consumed);
    EXPECT_EQ(h.channel_->progress_on_loop().code(), Code::fabric) << consumed;
  }
  Harness h;
  ASSERT_TRUE(h.channel_->send("x", 1, 1).is_ok());
  h.control_out()->consumed.store(1);
  ASSERT_TRUE(h.channel_->progress_on_loop().is_ok());
  h.control_out()->consumed.store(0);
  EXPECT_EQ(h.channel_->progress_on_loop().code(), Code::fabric) << "it went back";
}

TEST(FabricShm, MemoryThatCanShrinkIsNotMapped) {
  Fd open_memory(memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_memory.get(), 8192), 0);
  EXPECT_FALSE(Segment::map(copy_of(open_memory.get()), 8192).is_ok());
  ASSERT_EQ(fcntl(open_memory.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(Segment::map(copy_of(open_memory.get()), 8192).is_ok());
  ASSERT_EQ(fcntl(open_memory.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(Segment::map(copy_of(open_memory.get()), 8192).is_ok());
  EXPECT_FALSE(Segment::map(copy_of(open_memory.get()), 8193).is_ok()) << "smaller than it says";
  EXPECT_FALSE(Segment::map(copy_of(open_memory.get()), 0).is_ok());
  Fd event(eventfd(0, EFD_CLOEXEC));
  EXPECT_FALSE(Segment::map(copy_of(event.get()), 4096).is_ok()) << "not memory at all";
}

TEST(FabricShm, NotesWithoutTheCookieOrTooLargeCostTheConnection) {
  std::shared_ptr<Segment> memory = segment(4096);
  for (int bad = 0; bad < 3; ++bad) {
    Harness h;
    shm::Note note;
    note.cookie[0] = kCookie[0] + (bad == 0 ? 1 : 0);
    note.cookie[1] = kCookie[1];
    note.key = kMappable | 3;
    note.bytes = bad == 1 ? 4097 : 4096;
    if (bad == 2) note.kind = shm::NoteKind::doorbell;
    ASSERT_TRUE(shm::send_note(h.notes_.other.get(), note, memory->fd()).is_ok());
    EXPECT_EQ(h.channel_->side_readable_on_loop().code(), Code::fabric) << bad;
  }
}

TEST(FabricShm, WhatWasInTheRingIsHeardBeforeTheEnd) {
  Harness h;
  for (uint32_t i = 0; i < 500; ++i) {  // more than one turn takes
    Descriptor message = h.good(Kind::message, sizeof i);
    std::memcpy(message.data, &i, sizeof i);
    h.put(message);
  }
  h.control_.other.reset();
  h.notes_.other.reset();
  EXPECT_TRUE(h.channel_->side_readable_on_loop().is_ok());
  EXPECT_EQ(h.channel_->side_fd(), -1);
  const Status status = h.channel_->readable_on_loop();
  EXPECT_EQ(status.code(), Code::fabric);
  ASSERT_EQ(h.events_.size(), 500u);
  for (uint32_t i = 0; i < 500; ++i)
    ASSERT_EQ(std::memcmp(h.events_[i].payload.data(), &i, sizeof i), 0) << i;
}

TEST(FabricShm, ASourceThatWasWithdrawnIsNotDelivered) {
  Harness h;
  std::shared_ptr<Segment> source = segment(4096);
  h.pass_region(kMappable | 7, *source, 4096);
  Descriptor reference = h.good(Kind::reference, 100);
  reference.source_key = kMappable | 7;
  h.put(reference);
  h.control_in()->withdrawn.store(1);
  EXPECT_EQ(h.channel_->progress_on_loop().code(), Code::fabric);
  EXPECT_TRUE(h.events_.empty());
}

TEST(FabricShm, AReferencedSourceIsOursUntilThePeerHasCopiedIt) {
  Harness h;
  std::shared_ptr<Segment> memory = segment(3 * shm::kReferenceBytes);
  const Region ours = h.regions_.add(memory->base(), memory->bytes(), memory);
  const LocalSpan span{ours.base, 2 * shm::kReferenceBytes + 1, ours.id};
  ASSERT_TRUE(h.channel_->write(&span, 1, span.bytes, {0, span.bytes, 5}, 1, 77).is_ok());
  ASSERT_TRUE(h.channel_->send("x", 1, 78).is_ok());
  ASSERT_EQ(h.control_out()->produced.load(), 4u);
  for (uint64_t consumed : {0, 1, 2}) {
    h.control_out()->consumed.store(consumed);
    ASSERT_TRUE(h.channel_->progress_on_loop().is_ok());
    EXPECT_TRUE(h.events_.empty()) << consumed;
  }
  h.control_out()->consumed.store(3);
  ASSERT_TRUE(h.channel_->progress_on_loop().is_ok());
  ASSERT_EQ(h.events_.size(), 2u);
  EXPECT_EQ(h.events_[0].id, 77u);
  EXPECT_EQ(h.events_[1].id, 78u);
}

TEST(FabricShm, ASleepingReceiverIsRungOnceAndAnAwakeOneNever) {
  Harness h;
  ASSERT_TRUE(h.channel_->send("a", 1, 1).is_ok());
  EXPECT_EQ(h.counters_.wakes, 0u);
  h.control_out()->receiver_sleeps.store(1);
  ASSERT_TRUE(h.channel_->send("b", 1, 2).is_ok());
  ASSERT_TRUE(h.channel_->send("c", 1, 3).is_ok());
  EXPECT_EQ(h.counters_.wakes, 1u);
}

TEST(FabricShm, ThereIsNoSleepWhileThereIsWork) {
  Harness h;
  EXPECT_TRUE(h.channel_->arm_on_loop());
  EXPECT_EQ(h.control_in()->receiver_sleeps.load(), 1u);
  h.put(h.good(Kind::message, 0));
  EXPECT_FALSE(h.channel_->arm_on_loop()) << "a descriptor lies in the ring";
  ASSERT_TRUE(h.channel_->progress_on_loop().is_ok());
  EXPECT_EQ(h.control_in()->receiver_sleeps.load(), 0u) << "awake, but asks for doorbells";
  // Of more than the slots hold: the sender sleeps until half of them are free.
  const std::vector<std::byte> large = counted(1, (shm::kBounceSlots + 2) * shm::kBounceBytes);
  const LocalSpan span{large.data(), large.size()};
  ASSERT_TRUE(h.channel_->write(&span, 1, large.size(), {0, large.size(), 5}, 1, 1).is_ok());
  EXPECT_EQ(h.control_out()->produced.load(), shm::kBounceSlots);
  EXPECT_TRUE(h.channel_->arm_on_loop());
  EXPECT_EQ(h.control_out()->sender_waits_for.load(), shm::kBounceSlots / 2);
  h.control_out()->consumed.store(shm::kBounceSlots / 2);
  EXPECT_FALSE(h.channel_->arm_on_loop()) << "slots are free";
}

// ---- two honest fabrics

size_t mappings() {
  FILE* file = fopen("/proc/self/maps", "re");
  EXPECT_NE(file, nullptr);
  size_t found = 0;
  char line[4096];
  while (file && fgets(line, sizeof line, file))
    found += std::strstr(line, "memfd:mxrdma") != nullptr ? 1 : 0;
  if (file) fclose(file);
  return found;
}

struct Joined {
  Joined() : server(Policy::shm), client(Policy::shm) {
    at_client = client.connect(server.listen());
    EXPECT_TRUE(pump({&server, &client}, [&] {
      return server.count(Event::Kind::accepted) == 1 && client.count(Event::Kind::connected) == 1;
    }));
    at_server = server.first(Event::Kind::accepted)->peer;
  }
  End server, client;
  PeerId at_client = 0, at_server = 0;
};

TEST(FabricShm, ReleasedRegionsAreUnmappedByThePeerToo) {
  Joined two;
  const std::vector<std::byte> data = counted(1, 5000);
  const size_t before = mappings();
  for (int i = 0; i < 50; ++i) {
    Result<Region> region = two.server.fabric->allocate(5000);
    ASSERT_TRUE(region.is_ok());
    Result<RemoteRegion> remote = two.server.fabric->describe(region.value().id, two.at_server);
    ASSERT_TRUE(remote.is_ok());
    const LocalSpan span{data.data(), data.size()};
    ASSERT_TRUE(two.client.fabric->write(two.at_client, &span, 1, remote.value(), 1, 1).is_ok());
    const size_t arrived = static_cast<size_t>(i) + 1;
    ASSERT_TRUE(pump({&two.server, &two.client},
                     [&] { return two.server.count(Event::Kind::arrived) == arrived; }));
    two.server.fabric->release(region.value().id);
  }
  EXPECT_TRUE(pump({&two.server, &two.client}, [&] { return mappings() == before; }))
      << mappings() - before << " mappings are left";
}

TEST(FabricShm, EachWayOfAWriteCopiesAsOftenAsItSays) {
  constexpr size_t kBytes = 3 * (1 << 20) + 17;
  Joined two;
  const std::vector<std::byte> data = counted(2, kBytes);
  Result<Region> allocated = two.server.fabric->allocate(kBytes);
  Result<Region> source = two.client.fabric->allocate(kBytes);
  std::vector<std::byte> memory(kBytes);
  Result<Region> registered = two.server.fabric->register_memory(memory.data(), kBytes);
  ASSERT_TRUE(allocated.is_ok() && source.is_ok() && registered.is_ok());
  std::memcpy(source.value().base, data.data(), kBytes);
  const LocalSpan of_fabric{source.value().base, kBytes, source.value().id};
  const LocalSpan of_user{data.data(), kBytes};
  struct Way {
    LocalSpan span;
    Region target;
    uint64_t copies_at_client, copies_at_server;
  };
  const Way ways[] = {{of_user, allocated.value(), 1, 0},
                      {of_fabric, allocated.value(), 1, 0},
                      {of_fabric, registered.value(), 0, 1},
                      {of_user, registered.value(), 1, 1}};
  size_t arrived = 0;
  for (const Way& way : ways) {
    std::memset(way.target.base, 0, kBytes);
    const uint64_t client = two.client.fabric->counters().copied_bytes;
    const uint64_t server = two.server.fabric->counters().copied_bytes;
    Result<RemoteRegion> remote = two.server.fabric->describe(way.target.id, two.at_server);
    ASSERT_TRUE(remote.is_ok());
    ASSERT_TRUE(
        two.client.fabric->write(two.at_client, &way.span, 1, remote.value(), 1, arrived).is_ok());
    ++arrived;
    ASSERT_TRUE(pump({&two.server, &two.client}, [&] {
      return two.server.count(Event::Kind::arrived) == arrived &&
             two.client.count(Event::Kind::done) == arrived;
    }));
    EXPECT_EQ(std::memcmp(way.target.base, data.data(), kBytes), 0);
    EXPECT_EQ(two.client.fabric->counters().copied_bytes - client, way.copies_at_client * kBytes);
    EXPECT_EQ(two.server.fabric->counters().copied_bytes - server, way.copies_at_server * kBytes);
  }
}

TEST(FabricShm, WithoutTheMappingDataGoesThroughSlots) {
  Harness h;
  const std::vector<std::byte> data = counted(3, 100'000);
  const LocalSpan span{data.data(), data.size()};
  // A region that was never passed to us: the peer may have it all the same.
  ASSERT_TRUE(
      h.channel_->write(&span, 1, data.size(), {0, data.size(), kMappable | 9}, 1, 1).is_ok());
  const auto* ring =
      reinterpret_cast<const Descriptor*>(h.from_channel_->base() + shm::kRingOffset);
  EXPECT_EQ(h.control_out()->produced.load(), 2u);
  EXPECT_EQ(ring[0].kind, Kind::bounced);
  EXPECT_EQ(ring[1].kind, Kind::bounced);
  // Now it is passed, but nothing may overtake what lies in the slots.
  std::shared_ptr<Segment> memory = segment(data.size());
  h.pass_region(kMappable | 9, *memory, data.size());
  const LocalSpan small{data.data(), 10};
  ASSERT_TRUE(h.channel_->write(&small, 1, 10, {0, 10, kMappable | 9}, 1, 2).is_ok());
  EXPECT_EQ(ring[2].kind, Kind::bounced);
  EXPECT_EQ(memory->base()[0], std::byte{0});
  h.control_out()->consumed.store(3);
  ASSERT_TRUE(h.channel_->write(&small, 1, 10, {0, 10, kMappable | 9}, 1, 3).is_ok());
  EXPECT_EQ(ring[3].kind, Kind::placed);
  EXPECT_EQ(std::memcmp(memory->base(), data.data(), 10), 0);
}

TEST(FabricRegions, IdsRunOutAndStaleNamesAreRefused) {
  std::byte memory[16], other[16];
  RegionTable table(0xfffffffe);
  const Region old = table.add(memory, 16, nullptr);
  const RemoteRegion name = RegionTable::name(*table.find(old.id));
  const Region last = table.add(memory, 16, nullptr);
  EXPECT_EQ(last.id, 0xffffffffu);
  const Region first = table.add(other, 16, nullptr);
  EXPECT_EQ(first.id, 1u) << "0 is none";
  EXPECT_TRUE(table.target(name, 16).is_ok());
  table.remove(old.id);
  EXPECT_FALSE(table.target(name, 16).is_ok());
  // The same id in the next generation is not the region that the old name meant.
  RemoteRegion next = RegionTable::name(*table.find(first.id));
  EXPECT_TRUE(table.target(next, 16).is_ok());
  next.key &= 0xffffffff;
  EXPECT_FALSE(table.target(next, 16).is_ok());
}

}  // namespace
}  // namespace mxrdma::fabric
