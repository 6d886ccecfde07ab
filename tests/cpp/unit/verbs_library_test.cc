#ifdef MXRDMA_HAVE_VERBS

#include "fabric/verbs/library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace mxrdma::fabric::verbs {
namespace {

bool installed(const char* file) {
  void* handle = dlopen(file, RTLD_NOW);
  if (handle) dlclose(handle);
  return handle != nullptr;
}

TEST(VerbsLibrary, LoadsOnceForAllThreads) {
  if (!installed("libibverbs.so.1")) GTEST_SKIP() << "libibverbs is not installed";
  std::vector<const Library*> seen(8, nullptr);
  std::vector<std::thread> threads;
  for (const Library*& slot : seen)
    threads.emplace_back([&slot] {
      Result<const Library*> loaded = library();
      if (loaded.is_ok()) slot = loaded.value();
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(seen[0], nullptr) << library().status().to_string();
  for (const Library* pointer : seen) EXPECT_EQ(pointer, seen[0]);
}

TEST(VerbsLibrary, ErrorNamesFileAndPackage) {
  Result<const Library*> loaded = library();
  if (loaded.is_ok()) GTEST_SKIP() << "libibverbs is installed";
  EXPECT_NE(loaded.status().message().find("libibverbs.so.1"), std::string::npos);
  EXPECT_NE(loaded.status().message().find("apt-get install libibverbs1"), std::string::npos);
}

// The functions answer as the header says: the right names are behind the right pointers.
TEST(VerbsLibrary, FunctionsAnswer) {
  Result<const Library*> loaded = library();
  if (!loaded.is_ok()) GTEST_SKIP() << loaded.status().message();
  const Library& lib = *loaded.value();
  EXPECT_STREQ(lib.wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR), "RNR retry counter exceeded");
  EXPECT_STREQ(lib.port_state_str(IBV_PORT_ACTIVE), "active");
  EXPECT_NE(std::strstr(lib.event_type_str(IBV_EVENT_PORT_ERR), "port"), nullptr);
  EXPECT_NE(std::strstr(lib.node_type_str(IBV_NODE_RNIC), "iWARP"), nullptr);
  EXPECT_EQ(lib.rate_to_mbps(IBV_RATE_100_GBPS), 103125);
  EXPECT_EQ(lib.mbps_to_rate(103125), IBV_RATE_100_GBPS);
  if (lib.cm.available) {
    EXPECT_STREQ(lib.cm.event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED");
  } else {
    EXPECT_NE(lib.cm.reason.find("librdmacm.so.1"), std::string::npos);
  }
}

}  // namespace
}  // namespace mxrdma::fabric::verbs

#endif  // MXRDMA_HAVE_VERBS
