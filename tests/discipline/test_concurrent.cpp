// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"
#include "tests/support/watch.hpp"

#include <array>
#include <atomic>
#include <thread>

namespace pagoda::test {
namespace {

constexpr int rounds = 100;

/// Two plans of different shapes, on these instances.
template <class Space, class T>
struct Pair {
  Space first_instance = instances<Space>()[0], second_instance = instances<Space>()[1];
  Sample<T> samples[2]      = {Sample<T>({.lengths = {3000, 20, 0}, .head_dim = 32, .seed = 5}),
                               Sample<T>({.lengths = {7, 1500}, .num_q_heads = 2, .head_dim = 64, .seed = 6})};
  Scene<Space, T> scenes[2] = {Scene<Space, T>(samples[0], {.layout = Layout::paged}, first_instance),
                               Scene<Space, T>(samples[1], {.layout = Layout::contiguous}, second_instance)};
  Plan<Space> plans[2]      = {scenes[0].plan(), scenes[1].plan()};
};

template <class Param>
struct Concurrent : testing::Test {};
TYPED_TEST_SUITE(Concurrent, SpacesAndTypes, Names);

// In flight at the same time, if the space allows.
TYPED_TEST(Concurrent, TwoInstances) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  Pair<Space, T> pair;
  std::array<std::vector<std::byte>, 2> first;
  for (int i = 0; i < 2; ++i) {
    pair.scenes[i].decode(pair.plans[i]);
    ASSERT_TRUE(pair.scenes[i].right());
    first[i] = pair.scenes[i].results();
  }
  for (int round = 0; round < rounds; ++round) {
    for (auto& scene : pair.scenes) scene.poison_outputs();
    for (int repeat = 0; repeat < 3; ++repeat)
      for (int i = 0; i < 2; ++i) pair.scenes[i].decode(pair.plans[i]);
    for (int i = 0; i < 2; ++i) ASSERT_EQ(pair.scenes[i].results(), first[i]) << "plan " << i << ", round " << round;
  }
}

// Each decode may use the whole machine, and must not wait for its own teams that the other keeps from running: split
// rows, whole rows and rows of all lengths, in the kernels that the plan chose.
TYPED_TEST(Concurrent, TwoInstancesOnAFilledMachine) {
  using T                = typename TypeParam::type;
  using Space            = typename TypeParam::space;
  constexpr bool on_host = std::is_same_v<Space, Host>;
  const int many         = on_host ? 3 : 40;
  std::vector<int> ragged(static_cast<std::size_t>(many), 30);
  ragged[0] = on_host ? 900 : 20000;
  for (const auto& lengths :
       {std::vector<int>{on_host ? 900 : 30000}, ragged, std::vector<int>(static_cast<std::size_t>(many), 300)}) {
    const Sample<T> sample({.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 8, .head_dim = 128});
    Scene<Space, T> scenes[2]  = {Scene<Space, T>(sample, {.layout = Layout::paged}, instances<Space>()[0]),
                                  Scene<Space, T>(sample, {.layout = Layout::paged}, instances<Space>()[1])};
    const Plan<Space> plans[2] = {scenes[0].plan(), scenes[1].plan()};
    for (int repeat = 0; repeat < (on_host ? 2 : 200); ++repeat)
      for (int i = 0; i < 2; ++i) scenes[i].decode(plans[i]);
    for (auto& scene : scenes) EXPECT_TRUE(scene.right());
    EXPECT_EQ(scenes[0].results(), scenes[1].results());
  }
}

/// Decodes both plans over and over, each in a thread of its own.
template <class Space, class T>
void expect_right_in_two_threads(Pair<Space, T> pair) {
  std::array<std::vector<std::byte>, 2> first;
  for (int i = 0; i < 2; ++i) {
    pair.scenes[i].decode(pair.plans[i]);
    ASSERT_TRUE(pair.scenes[i].right());
    first[i] = pair.scenes[i].results();
  }
  std::atomic<int> wrong[2] = {0, 0};
  const auto work           = [&](int i) {
    for (int round = 0; round < rounds; ++round) {
      pair.scenes[i].poison_outputs();
      pair.scenes[i].decode(pair.plans[i]);
      wrong[i] += pair.scenes[i].results() != first[i];
    }
  };
  std::thread one(work, 0), other(work, 1);
  one.join(), other.join();
  EXPECT_EQ(wrong[0], 0);
  EXPECT_EQ(wrong[1], 0);
}

// Different threads may use different plans, on one instance or on several.
TYPED_TEST(Concurrent, TwoThreads) {
  expect_right_in_two_threads(Pair<typename TypeParam::space, typename TypeParam::type>());
}

TYPED_TEST(Concurrent, TwoThreadsOnOneInstance) {
  using Space = typename TypeParam::space;
  expect_right_in_two_threads(Pair<Space, typename TypeParam::type>{.second_instance = instances<Space>()[0]});
}

// A plan made on one instance serves decodes on another of the same device, after fences of both.
TYPED_TEST(Concurrent, PlannedHereDecodedThere) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {3000, 20, 0}, .head_dim = 32});
  Scene<Space, T> scene(sample, {.layout = Layout::paged}, instances<Space>()[0]);
  const auto plan = scene.plan();
  scene.exec().fence();
  const Space& other = instances<Space>()[1];
  scene.decode(other, plan);
  other.fence();
  EXPECT_TRUE(scene.right());
}

}  // namespace
}  // namespace pagoda::test
