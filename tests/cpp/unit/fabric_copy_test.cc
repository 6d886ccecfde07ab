#include "fabric/copy.h"

#include "fabric_fixture.h"

namespace mxrdma::fabric {
namespace {

TEST(FabricCopy, EveryByteAtEveryDistanceAndNoneBeside) {
  constexpr size_t kMargin = 70;
  alignas(4096) static std::byte source[3 * 4096], target[3 * 4096];
  const std::vector<std::byte> data = counted(5, sizeof source);
  std::memcpy(source, data.data(), sizeof source);
  for (size_t from : {size_t{0}, size_t{1}, size_t{16}, size_t{63}})
    for (size_t to = kMargin; to < kMargin + 140; ++to)
      for (size_t bytes : {0, 1, 63, 64, 2047, 2048, 2049, 4096, 6000}) {
        std::memset(target, 0x5a, sizeof target);
        copy_bytes(target + to, source + from, bytes);
        ASSERT_EQ(std::memcmp(target + to, data.data() + from, bytes), 0) << from << " " << to;
        for (size_t i = 0; i < kMargin; ++i) {
          ASSERT_EQ(target[to - 1 - i], std::byte{0x5a});
          ASSERT_EQ(target[to + bytes + i], std::byte{0x5a});
        }
      }
}

}  // namespace
}  // namespace mxrdma::fabric
