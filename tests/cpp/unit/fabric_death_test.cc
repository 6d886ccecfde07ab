// A process dies at the worst moment, or leaves a fork behind.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "fabric_fixture.h"

namespace mxrdma::fabric {
namespace {

constexpr size_t kBytes = 16u << 20;
constexpr uint32_t kWrites = 24;

// A process of its own; killed at the end of the test, whatever happens.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    body();
    _exit(0);
  }
  ~Child() { kill_now(); }
  void kill_now() {
    if (pid_ <= 0) return;
    EXPECT_EQ(::kill(pid_, SIGKILL), 0);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

std::vector<std::string> shared_memory_files() {
  std::vector<std::string> names;
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
  closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

// In a child: what fails there cannot fail the test, so it ends the child and the parent sees it.
void must(bool fine) {
  if (!fine) _exit(70);
}

template <typename T>
T read_from(int fd) {
  T value{};
  EXPECT_EQ(::read(fd, &value, sizeof value), static_cast<ssize_t>(sizeof value));
  return value;
}

class FabricDeath : public testing::TestWithParam<Policy> {
 protected:
  FabricDeath() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    out_ = Fd(fds[0]);
    in_ = fds[1];  // plain: a child must be able to write to it
  }
  ~FabricDeath() override { ::close(in_); }

  // Checks the order of the end: one lost, then all outstanding with an error, nothing else.
  static void expect_end(const End& end, PeerId peer, uint64_t posted) {
    EXPECT_EQ(end.count(Event::Kind::lost), 1u);
    bool lost = false;
    uint64_t next = 0;
    for (const Event& event : end.events) {
      if (event.peer != peer) continue;
      if (event.kind == Event::Kind::done) {
        EXPECT_EQ(event.id, next++);
        EXPECT_EQ(event.status.is_ok(), !lost);
      } else {
        EXPECT_FALSE(lost) << "an event behind lost";
      }
      lost = lost || event.kind == Event::Kind::lost;
    }
    EXPECT_EQ(next, posted);
  }

  Fd out_;
  int in_ = -1;
};

// Into the child's registered memory, which no policy fills at once.
TEST_P(FabricDeath, AReceiverWithinWrites) {
  const std::vector<std::string> before = shared_memory_files();
  Child child([this] {
    End server(GetParam());
    const uint16_t port = server.listen().port;
    must(::write(in_, &port, sizeof port) == sizeof port);
    must(pump({&server}, [&] { return server.count(Event::Kind::accepted) == 1; }));
    const PeerId peer = server.events[0].peer;
    std::vector<std::byte> memory(kBytes);
    Result<Region> region = server.fabric->register_memory(memory.data(), memory.size());
    must(region.is_ok());
    Result<RemoteRegion> remote = server.fabric->describe(region.value().id, peer);
    must(remote.is_ok());
    must(server.fabric->send(peer, &remote.value(), sizeof(RemoteRegion), 1).is_ok());
    while (true) server.poll(100);
  });
  End client(GetParam());
  const PeerId peer = client.connect({"127.0.0.1", read_from<uint16_t>(out_.get())});
  ASSERT_TRUE(pump({&client}, [&] { return client.count(Event::Kind::message) == 1; }));
  RemoteRegion remote;
  std::memcpy(&remote, client.first(Event::Kind::message)->payload.data(), sizeof remote);
  const std::vector<std::byte> data = counted(1, kBytes);
  const LocalSpan span{data.data(), data.size()};
  for (uint32_t i = 0; i < kWrites; ++i)
    ASSERT_TRUE(client.fabric->write(peer, &span, 1, remote, i, i).is_ok());
  ASSERT_TRUE(pump({&client}, [&] { return client.count(Event::Kind::done) >= 2; }));
  ASSERT_LT(client.count(Event::Kind::done), kWrites) << "it was not amid of them";
  child.kill_now();
  ASSERT_TRUE(pump({&client}, [&] { return client.count(Event::Kind::done) == kWrites; }));
  for (int i = 0; i < 20; ++i) client.poll(1);
  expect_end(client, peer, kWrites);
  EXPECT_FALSE(client.fabric->send(peer, "x", 1, 99).is_ok());
  EXPECT_EQ(shared_memory_files(), before);
}

// By reference (shm) or in place (tcp) into ours: what arrives is whole, or it does not arrive.
TEST_P(FabricDeath, ASenderWithinWrites) {
  const std::vector<std::string> before = shared_memory_files();
  End server(GetParam());
  const Address address = server.listen();
  Child child([&] {
    End client(GetParam());
    const PeerId peer = client.connect(address);
    must(pump({&client}, [&] { return client.count(Event::Kind::message) == 1; }));
    RemoteRegion remote;
    std::memcpy(&remote, client.first(Event::Kind::message)->payload.data(), sizeof remote);
    Result<Region> source = client.fabric->allocate(kBytes);
    must(source.is_ok());
    std::vector<std::byte> data = counted(1, kBytes);
    std::memcpy(source.value().base, data.data(), kBytes);
    const LocalSpan span{source.value().base, kBytes, source.value().id};
    for (uint32_t i = 0;; client.poll(1)) {
      while (client.fabric->write(peer, &span, 1, remote, i, i).is_ok()) ++i;
      client.events.clear();
    }
  });
  std::vector<std::byte> memory(kBytes, std::byte{0xee});
  Result<Region> region = server.fabric->register_memory(memory.data(), memory.size());
  ASSERT_TRUE(region.is_ok());
  ASSERT_TRUE(pump({&server}, [&] { return server.count(Event::Kind::accepted) == 1; }));
  const PeerId peer = server.first(Event::Kind::accepted)->peer;
  Result<RemoteRegion> remote = server.fabric->describe(region.value().id, peer);
  ASSERT_TRUE(remote.is_ok());
  ASSERT_TRUE(server.fabric->send(peer, &remote.value(), sizeof(RemoteRegion), 0).is_ok());
  const std::vector<std::byte> data = counted(1, kBytes);
  ASSERT_TRUE(pump({&server}, [&] { return server.count(Event::Kind::arrived) >= 2; }));
  child.kill_now();
  ASSERT_TRUE(pump({&server}, [&] { return server.count(Event::Kind::lost) == 1; }));
  expect_end(server, peer, 1);
  EXPECT_EQ(memory, data);
  for (const Event& event : server.events) {
    if (event.kind == Event::Kind::arrived) {
      EXPECT_EQ(event.bytes, kBytes);
    }
  }
  server.fabric->release(region.value().id);
  EXPECT_EQ(shared_memory_files(), before);
}

// A data loader outlives the worker that forked it: the worker is lost all the same.
TEST_P(FabricDeath, AForkOfThePeerDoesNotHideIt) {
  End server(GetParam());
  const Address address = server.listen();
  Child child([&] {
    End client(GetParam());
    client.connect(address);
    must(pump({&client}, [&] { return client.count(Event::Kind::connected) == 1; }));
    const pid_t loader = fork();
    if (loader == 0) {
      while (true) pause();
    }
    must(::write(in_, &loader, sizeof loader) == sizeof loader);
    while (true) client.poll(100);
  });
  ASSERT_TRUE(pump({&server}, [&] { return server.count(Event::Kind::accepted) == 1; }));
  const pid_t loader = read_from<pid_t>(out_.get());
  child.kill_now();
  const bool seen = pump({&server}, [&] { return server.count(Event::Kind::lost) == 1; });
  EXPECT_EQ(::kill(loader, SIGKILL), 0);
  EXPECT_TRUE(seen);
}

std::string policy_of(const testing::TestParamInfo<Policy>& info) {
  return info.param == Policy::shm ? "shm" : "tcp";
}
INSTANTIATE_TEST_SUITE_P(Fabric, FabricDeath, testing::Values(Policy::shm, Policy::tcp), policy_of);

}  // namespace
}  // namespace mxrdma::fabric
