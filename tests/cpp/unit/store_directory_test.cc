#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/directory.h"

namespace mxrdma::store {
namespace {

using testing::HasSubstr;
using Requests = std::vector<wire::KeyRequest>;

wire::KeyRequest request(const std::string& name, std::vector<int64_t> shape,
                         DType dtype = DType::float32) {
  wire::KeyRequest key;
  key.name = name;
  key.dtype = dtype;
  key.shape = std::move(shape);
  key.elements = 1;
  for (const int64_t extent : key.shape) key.elements *= static_cast<uint64_t>(extent);
  return key;
}

wire::OptimizerSpec optimizer(wire::OptimizerKind kind, const std::string& name) {
  wire::OptimizerSpec spec;
  spec.kind = kind;
  spec.name = name;
  return spec;
}

TEST(StoreDirectory, PlacesKeysUnderDenseIds) {
  Directory directory(2);
  const Requests first{request("s:a", {4}), request("s:b", {1000, 1000})};
  auto placed = directory.register_keys({first, first});
  ASSERT_TRUE(placed.is_ok()) << placed.status().message();
  ASSERT_EQ(placed.value().size(), 2u);
  EXPECT_EQ(placed.value()[0].id, 0u);
  EXPECT_EQ(placed.value()[1].id, 1u);
  EXPECT_EQ(placed.value()[1].shares.size(), 2u);
  const Requests next{request("s:c", {})};
  placed = directory.register_keys({next, next});
  ASSERT_TRUE(placed.is_ok());
  EXPECT_EQ(placed.value()[0].id, 2u);
  EXPECT_EQ(placed.value()[0].shares[0].bytes, 4u);
}

TEST(StoreDirectory, WhatIsWithdrawnCanBeRegisteredAgainAsAnythingElse) {
  Directory directory(2), untouched(2);
  const Requests kept{request("s:kept", {500})}, first{request("s:a", {1000, 1000})};
  ASSERT_TRUE(directory.register_keys({kept, kept}).is_ok());
  ASSERT_TRUE(untouched.register_keys({kept, kept}).is_ok());
  const auto placed = directory.register_keys({first, first});
  ASSERT_TRUE(placed.is_ok());
  directory.withdraw(placed.value());
  directory.withdraw(placed.value());  // a second time is nothing
  EXPECT_EQ(directory.keys().size(), 1u);
  const Requests again{request("s:a", {7, 100000}, DType::float64)};
  const auto retried = directory.register_keys({again, again});
  ASSERT_TRUE(retried.is_ok()) << retried.status().message();
  EXPECT_EQ(retried.value()[0].id, 2u) << "a late word about the first one must not hit it";
  const auto expected = untouched.register_keys({again, again});
  ASSERT_EQ(retried.value()[0].shares.size(), expected.value()[0].shares.size());
  for (size_t i = 0; i < expected.value()[0].shares.size(); ++i) {
    EXPECT_EQ(retried.value()[0].shares[i].server, expected.value()[0].shares[i].server);
    EXPECT_EQ(retried.value()[0].shares[i].bytes, expected.value()[0].shares[i].bytes);
  }
  EXPECT_FALSE(directory.register_keys({again, again}).is_ok()) << "now it is there";
}

TEST(StoreDirectory, RefusesWhatRanksDisagreeOnAndChangesNothing) {
  Directory directory(1);
  const auto a = request("s:a", {2, 3});
  auto refused = [&](const std::vector<Requests>& requests, std::vector<std::string> words) {
    const auto result = directory.register_keys(requests);
    ASSERT_FALSE(result.is_ok());
    EXPECT_EQ(result.status().code(), Code::invalid_argument);
    for (const auto& word : words) EXPECT_THAT(result.status().message(), HasSubstr(word));
    EXPECT_TRUE(directory.keys().empty());
    EXPECT_EQ(directory.placer().loads()[0], 0u);
  };
  refused({{a}, {a}, {request("s:a", {3, 2})}},
          {"'a'", "worker 0", "worker 2", "(2, 3)", "(3, 2)"});
  refused({{a}, {request("s:a", {2, 3}, DType::float16)}}, {"'a'", "float32", "float16"});
  refused({{a}, {request("s:b", {2, 3})}}, {"'a'", "'b'", "worker 1"});
  refused({{a}, {a, request("s:b", {1})}}, {"1", "2", "'b'"});
  refused({{a, a}, {a, a}}, {"'a'", "second time"});
  refused({{a, request("i:7", {1})}, {a, request("i:7", {1})}},
          {"'a'", "'7'", "integer", "string"});
  refused({{request("s:z", {0, 3})}}, {"'z'", "no elements"});
  refused({{request("nonsense", {1})}}, {"malformed"});
  auto lying = a;
  lying.elements = 7;
  refused({{lying}, {lying}}, {"7", "6"});
  const int64_t huge = int64_t{1} << 31;
  refused({{request("s:h", {huge, huge, 4})}}, {"'h'", "larger"});
}

TEST(StoreDirectory, RefusesAKeyThatIsKnown) {
  Directory directory(1);
  const Requests keys{request("i:3", {2})};
  ASSERT_TRUE(directory.register_keys({keys}).is_ok());
  const auto again = directory.register_keys({keys});
  ASSERT_FALSE(again.is_ok());
  EXPECT_THAT(again.status().message(), HasSubstr("'3'"));
  const auto mixed = directory.register_keys({{request("s:w", {2})}});
  ASSERT_FALSE(mixed.is_ok());
  EXPECT_THAT(mixed.status().message(), HasSubstr("'w' is a string"));
}

// Both steps, as after all servers have agreed.
Result<Directory::OptimizerChange> set(Directory* directory,
                                       const std::vector<wire::OptimizerSpec>& optimizers) {
  Result<Directory::OptimizerChange> change = directory->plan_optimizer(optimizers);
  if (change.is_ok()) directory->set_optimizer(change.value());
  return change;
}

TEST(StoreDirectory, APlannedOptimizerChangesNothing) {
  Directory directory(3);
  ASSERT_TRUE(directory.register_keys({{request("s:big", {3000, 100})}}).is_ok());
  const std::vector<uint64_t> loads = directory.placer().loads();
  const auto python = optimizer(wire::OptimizerKind::python, "LAMB");
  ASSERT_EQ(directory.plan_optimizer({python}).value().moved.size(), 1u);
  EXPECT_EQ(directory.placer().loads(), loads);
  EXPECT_EQ(directory.keys().at(0).shares.size(), 3u);
  EXPECT_FALSE(directory.register_keys({{request("s:late", {1000, 1000})}}).value()[0].whole);
  EXPECT_EQ(set(&directory, {python}).value().moved.size(), 2u);
}

TEST(StoreDirectory, AWholeTensorOptimizerGathersSpreadKeysOnce) {
  Directory directory(3);
  const Requests keys{request("s:big", {3000, 100}), request("s:small", {10}),
                      request("s:other", {2000, 100})};
  ASSERT_TRUE(directory.register_keys({keys}).is_ok());
  const auto python = optimizer(wire::OptimizerKind::python, "LAMB");
  auto change = set(&directory, {python});
  ASSERT_TRUE(change.is_ok());
  ASSERT_EQ(change.value().moved.size(), 2u) << "the small key lies on one server already";
  for (const auto& spec : change.value().moved) {
    EXPECT_TRUE(spec.whole);
    EXPECT_EQ(spec.shares.size(), 1u);
  }
  EXPECT_NE(change.value().moved[0].shares[0].server, change.value().moved[1].shares[0].server);
  uint64_t total = 0;
  for (const uint64_t load : directory.placer().loads()) total += load;
  EXPECT_EQ(total, 4u * (300'000 + 10 + 200'000));
  EXPECT_TRUE(set(&directory, {python}).value().moved.empty());
  const auto later = directory.register_keys({{request("s:late", {1000, 1000})}});
  EXPECT_TRUE(later.value()[0].whole);
  EXPECT_EQ(later.value()[0].shares.size(), 1u);
  change = set(&directory, {optimizer(wire::OptimizerKind::sgd, "SGD")});
  EXPECT_TRUE(change.value().moved.empty());
  EXPECT_GT(directory.register_keys({{request("s:last", {1000, 1000})}}).value()[0].shares.size(),
            1u);
}

TEST(StoreDirectory, OptimizersMustAgreeAndNumbersComeFromRankZero) {
  Directory directory(1);
  auto sgd = optimizer(wire::OptimizerKind::sgd, "SGD"), other = sgd;
  sgd.momentum = 0.5f;
  other.momentum = 0.9f;
  const auto change = set(&directory, {sgd, other});
  ASSERT_TRUE(change.is_ok());
  EXPECT_EQ(change.value().optimizer.momentum, 0.5f);
  for (const auto& wrong : {optimizer(wire::OptimizerKind::adam, "Adam"),
                            optimizer(wire::OptimizerKind::sgd, "MySGD")}) {
    const auto refused = set(&directory, {sgd, sgd, wrong});
    ASSERT_FALSE(refused.is_ok());
    EXPECT_THAT(refused.status().message(), HasSubstr("SGD (sgd)"));
    EXPECT_THAT(refused.status().message(), HasSubstr(wrong.name + " ("));
    EXPECT_THAT(refused.status().message(), HasSubstr("worker 2"));
  }
  ASSERT_TRUE(directory.register_keys({{request("s:n", {2}, DType::int32)}}).is_ok());
  const auto integers = set(&directory, {sgd});
  ASSERT_FALSE(integers.is_ok());
  EXPECT_THAT(integers.status().message(), HasSubstr("'n' is int32"));
}

}  // namespace
}  // namespace mxrdma::store
