// Sleep and wake: for the fabrics whose poll() waits.
#include <thread>

#include "world.h"

namespace mxrdma::fabric {
namespace {

TEST_P(WaitingConformance, AnIdlePollSleepsAndEnds) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  pump_idle();
  const uint64_t before = link.client->fabric()->counters().sleeps;
  std::vector<Event> events;
  link.client->fabric()->poll(&events, 100);
  EXPECT_TRUE(events.empty());
  EXPECT_GT(link.client->fabric()->counters().sleeps, before);
}

TEST_P(WaitingConformance, WakeEndsThisOrTheNextPoll) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  pump_idle();
  // Each poll would wait for longer than the test may take.
  for (int i = 0; i < 100; ++i) {
    std::thread waker([&] { link.client->fabric()->wake(); });
    std::vector<Event> events;
    link.client->fabric()->poll(&events, 1'000'000);
    waker.join();
    EXPECT_TRUE(events.empty());
  }
}

TEST_P(WaitingConformance, ASleepingEndpointHearsItsPeer) {
  const Link link = make_link();
  ASSERT_NE(link.client, nullptr);
  pump_idle();
  constexpr size_t kRounds = 200;
  const Region target = allocate(link.server, 4096);
  const RemoteRegion remote = describe(link.server, target, link.at_server);
  const std::vector<std::byte> source = pattern(1, 4096);
  // Each side on its own thread; an answer for each message, so that one of them always sleeps.
  std::thread server([&] {
    while (link.seen_by_server().deliveries.size() < kRounds && !link.seen_by_server().lost) {
      const size_t before = link.seen_by_server().deliveries.size();
      link.server->poll(1'000'000);
      for (size_t i = before; i < link.seen_by_server().deliveries.size(); ++i)
        EXPECT_TRUE(link.server->send(link.at_server, pattern(i, 16)).is_ok());
    }
    while (!link.seen_by_server().outstanding.empty() && !link.seen_by_server().lost)
      link.server->poll(1000);
  });
  for (size_t i = 0; i < kRounds; ++i) {
    Status status = i % 2 == 0 ? link.client->write(link.at_client, {span_of(source)}, remote, 1)
                               : link.client->send(link.at_client, pattern(1, 16));
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    while (link.seen_by_client().deliveries.size() <= i && !link.seen_by_client().lost)
      link.client->poll(1'000'000);
  }
  server.join();
  EXPECT_EQ(link.seen_by_client().deliveries.size(), kRounds);
}

}  // namespace
}  // namespace mxrdma::fabric
