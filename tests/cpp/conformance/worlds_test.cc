// The fabrics that the suite runs over.
#include <cstdlib>
#include <sstream>
#include <utility>

#include "fabric/devices.h"
#include "fabric/faulty/faulty_fabric.h"
#include "fabric/host_fabric.h"
#include "fabric/sim/sim_network.h"
#include "world.h"

namespace mxrdma::fabric {
namespace {

class SimWorld final : public World {
 public:
  explicit SimWorld(bool wrapped) : wrapped_(wrapped) {}
  std::unique_ptr<Fabric> make_endpoint() override {
    std::unique_ptr<Fabric> fabric = network_.make_fabric("endpoint " + std::to_string(++count_));
    if (!wrapped_) return fabric;
    return std::make_unique<FaultyFabric>(std::move(fabric), FaultPlan{});
  }
  bool pass() override { return network_.advance(); }
  bool is_real() const override { return false; }

 private:
  const bool wrapped_;
  int count_ = 0;
  SimNetwork network_{1};
};

// Delays are within the contract: whatever the events wait for, its rules hold.
class DelayingWorld final : public World {
 public:
  std::unique_ptr<Fabric> make_endpoint() override {
    FaultPlan plan;
    plan.seed = ++count_;
    plan.delay_one_in = 3;
    plan.delay_done_one_in = 3;
    return std::make_unique<FaultyFabric>(network_.make_fabric("endpoint"), plan);
  }
  bool pass() override { return network_.advance(); }
  bool is_real() const override { return false; }

 private:
  uint64_t count_ = 0;
  SimNetwork network_{2};
};

#ifdef MXRDMA_HAS_HOST_FABRIC
class HostWorld final : public World {
 public:
  explicit HostWorld(Policy policy) : policy_(policy) {}
  std::unique_ptr<Fabric> make_endpoint() override { return make_host_fabric(next_options()); }
  std::unique_ptr<Fabric> make_impatient_endpoint() override {
    HostFabricOptions impatient = next_options();
    impatient.handshake_timeout_ms = kImpatientMs;
    return make_host_fabric(impatient);
  }
  bool pass() override { return true; }
  bool is_real() const override { return true; }
  Status viable() const override {
    if (policy_ == Policy::verbs && devices().empty())
      return Status(Code::unsupported, "no usable RDMA device; scripts/soft-roce has some");
    return fabric::viable(policy_);
  }

 private:
  static constexpr int kImpatientMs = 300;

  HostFabricOptions next_options() {
    HostFabricOptions options;
    options.policy = policy_;
    options.token = "a token for tests";
    options.spin_us = 0;
    if (policy_ == Policy::verbs) options.devices = devices()[next_++ % devices().size()];
    return options;
  }
  // Each endpoint has the next one, as if on hosts of their own. MXRDMA_TEST_DEVICES: those that
  // reach each other; else all is done on the first.
  static const std::vector<std::string>& devices() {
    static const std::vector<std::string> found = [] {
      std::vector<std::string> names;
      const char* given = std::getenv("MXRDMA_TEST_DEVICES");
      std::stringstream list(given == nullptr ? "" : given);
      for (std::string name; std::getline(list, name, ',');) names.push_back(name);
      if (!names.empty()) return names;
      for (const DeviceInfo& device : device_table().devices)
        if (device.usable() && !device.iwarp() && names.empty()) names.push_back(device.name);
      return names;
    }();
    return found;
  }

  const Policy policy_;
  size_t next_ = 0;
};
#endif

template <typename Made, typename... Arguments>
WorldFactory factory(const std::string& name, Arguments... arguments) {
  return {name, [=] { return std::make_unique<Made>(arguments...); }};
}

std::string name_of(const testing::TestParamInfo<WorldFactory>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Sim, Conformance,
                         testing::Values(factory<SimWorld>("sim", false),
                                         factory<SimWorld>("faulty_without_a_plan", true),
                                         factory<DelayingWorld>("faulty_that_delays")),
                         name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WaitingConformance);
#ifdef MXRDMA_HAS_HOST_FABRIC
const auto kHostWorlds =
    testing::Values(factory<HostWorld>("shm", Policy::shm), factory<HostWorld>("tcp", Policy::tcp),
                    factory<HostWorld>("verbs", Policy::verbs));
INSTANTIATE_TEST_SUITE_P(Host, Conformance, kHostWorlds, name_of);
INSTANTIATE_TEST_SUITE_P(Host, WaitingConformance, kHostWorlds, name_of);
#endif

}  // namespace
}  // namespace mxrdma::fabric
