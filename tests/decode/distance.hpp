// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/scene.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

/// Sensitivity of tests: how far the result for one sample is from that for another.
namespace pagoda::test {

/// Decodes `given` and says how far its output is from the reference's for `wanted`, in tolerances.
template <class Space, class T>
double distance(const Sample<T>& given, const Sample<T>& wanted) {
  Scene<Space, T> scene(given, {.layout = Layout::paged});
  scene.decode(scene.plan());
  static_cast<void>(scene.right(wanted));
  return scene.worst();
}

/// GPUs may round probabilities to 16 bits. Tolerances are wider there, so the test uses fewer tokens.
template <class Space>
constexpr bool coarse = !Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible;

/// A shape of one row, and its token of median probability.
inline Shape one_row(int length) { return {.lengths = {length}, .num_q_heads = 1, .num_kv_heads = 1}; }

/// The token whose key(probability) is the median.
template <class T, class Key>
int median_token(const Sample<T>& sample, const Key& key) {
  const std::vector<double>& p = sample.rows()[0].probabilities;
  std::vector<int> tokens(p.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  std::nth_element(tokens.begin(), tokens.begin() + tokens.size() / 2, tokens.end(),
                   [&](int a, int b) { return key(p[a]) < key(p[b]); });
  return tokens[tokens.size() / 2];
}
template <class T>
int median_token(const Sample<T>& sample) {
  return median_token(sample, [](double p) { return p; });
}

}  // namespace pagoda::test
