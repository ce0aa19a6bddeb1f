// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

/// The trees with which PAT (prefix-aware attention) was published, for tests and benchmarks: nodes and tokens of each
/// level. The last level's nodes are the batch.
namespace pagoda::test {

struct PatTree {
  int number;
  std::vector<int> nodes, tokens;
  /// Plain decodes of fp16 with head_dim 128 and pages of 32 tokens on an H200, in us, cold, with 10 to 40 us of
  /// launch: heads 32/32, 16/8, 32/8, 64/8. 0: not measured.
  std::array<int, 4> plain_us;
};

inline const std::vector<PatTree>& pat_trees() {
  static const std::vector<PatTree> trees = {
      {1, {1, 10}, {4096, 416}, {96, 28, 29, 32}},
      {2, {1, 256}, {256, 32}, {206, 40, 42, 46}},
      {3, {1, 1024}, {2048, 32}, {4977, 965, 960, 978}},
      {4, {1, 2, 64}, {1024, 256, 256}, {227, 47, 46, 50}},
      {5, {1, 4, 256}, {32, 256, 32}, {218, 44, 47, 50}},
      {6, {1, 8, 512}, {32, 512, 256}, {1020, 233, 223, 222}},
      {7, {1, 8, 512}, {32, 2048, 256}, {3107, 517, 514, 480}},
      {8, {1, 8, 512}, {512, 512, 256}, {1632, 313, 303, 301}},
      {9, {1, 4, 8, 256}, {32, 256, 256, 32}, {}},
      {10, {1, 4, 16, 512}, {1024, 256, 128, 32}, {1606, 279, 277, 259}},
      {11, {1, 4, 16, 64, 256, 1024}, {256, 32, 256, 64, 32, 256}, {2227, 487, 491, 509}},
      {12, {1, 16, 32, 64, 128, 1024}, {256, 128, 64, 32, 32, 32}, {}},
      {13, {1, 16, 32, 64, 256, 1024}, {256, 128, 64, 32, 32, 32}, {}},
      {14, {1, 8, 16, 32, 64, 128, 1024}, {256, 128, 64, 32, 32, 32, 32}, {1243, 294, 308, 331}},
      {15, {1, 8, 16, 32, 64, 256, 1024}, {256, 128, 64, 32, 32, 32, 32}, {}},
      {16, {2, 8, 16, 256}, {256, 256, 32, 32}, {}},
      {17, {4, 16, 256, 512}, {512, 32, 128, 32}, {}},
      {18, {8, 16, 32, 256}, {512, 512, 256, 32}, {871, 150, 151, 159}},
      {19, {256}, {1024}, {1039, 305, 281, 282}},
      {20, {256}, {4096}, {}},
  };
  return trees;
}

}  // namespace pagoda::test
