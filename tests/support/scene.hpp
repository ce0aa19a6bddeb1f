// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/array.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/cuts.hpp"
#include "tests/support/placement.hpp"
#include "tests/support/sample.hpp"
#include "tests/support/scale_arrays.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/pagoda.hpp>

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace pagoda::test {

/// A sample in the memory of a space: caches, queries, outputs and plans, ready for decode. Everything that no query
/// may see is NaN, including scales: memory beyond a sequence's length, outside its window, in unused pages, and the
/// ids of pages without visible tokens. Outputs and workspace are NaN before they are written.
template <class Space, class T>
class Scene {
 public:
  using Memory = typename Space::memory_space;
  using Cache  = std::variant<ContiguousKV<T, Memory>, PagedKV<T, Memory>>;

  explicit Scene(const Sample<T>& sample, const Placement& placement = {}, const Space& exec = Space());

  const Space& exec() const { return exec_; }
  const Cache& cache() const { return *cache_; }
  /// The sample's options; tests may change them before they plan.
  DecodeOptions<Memory>& options() { return options_; }

  /// Makes a plan whose workspace has the exact size, is poisoned, and has guards at both ends. It must not outlive
  /// this scene.
  Plan<Space> plan();
  /// Asynchronous.
  void decode(const Plan<Space>& plan) const { decode(exec_, plan); }
  void decode(const Space& exec, const Plan<Space>& plan) const;
  /// Notes the rounding of a plan's kernels, for right(). decode() does so itself.
  void note(const Plan<Space>& plan) const;

  /// Changes the lengths on the device, nothing else.
  void set_lengths(const std::vector<int>& lengths);
  /// Changes the numbers of query tokens (cu_seqlens_q) on the device, for decodes of other scenes with this one's
  /// plans.
  void set_query_lens(const std::vector<int>& query_lens);
  /// Permutes the pages of the pool, and their ids in the tables with them.
  void shuffle_pages(unsigned seed);
  void poison_outputs();
  /// Poisons the workspaces of all plans of this scene. They need not be kept between decodes.
  void poison_workspaces();
  /// Bytes of out and lse, for comparisons bit for bit.
  std::vector<std::byte> results();

  /// Compares each row with the reference (of another sample with the same queries, if given), and checks that only
  /// out, lse and workspace were written.
  testing::AssertionResult right() { return right(sample_); }
  testing::AssertionResult right(const Sample<T>& sample, double leeway = 1);
  /// Largest error of an output, in tolerances, at the last right().
  double worst() const { return worst_; }
  /// The type to which the last decode rounded probabilities.
  DType probability_type() const { return probability_type_; }

  Cuts cuts(const Plan<Space>& plan) const { return cuts_of(plan.schedule(), sample_.shape()); }

  const Sample<T>& sample() const { return sample_; }
  bool with_lse() const { return placement_.with_lse; }
  /// The sequence of a batch entry.
  int sequence(int b) const { return sequence_of_[b]; }
  /// Page ids of a batch entry; -1 for pages without visible tokens.
  const std::vector<int>& pages(int b) const { return pages_[b]; }
  Array<Space>& q() { return q_; }
  Array<Space>& out() { return out_; }
  Array<Space>& lse() { return lse_; }

 private:
  bool io_starts_on_16_bytes() const;
  int num_sequences() const { return sample_.batch() + (placement_.indirect ? 3 : 0); }
  bool paged() const { return placement_.layout != Layout::contiguous; }
  Array<Space> make_cache_array(int dims, const Arrangement& strides) const;
  auto scales(const Array<Space>& array, Scales scales) const {
    return scale_view(array, scales, placement_.scale_order);
  }
  Array<Space> make_scales(Scales scales) const {
    return make_scale_array<Space>(scales, placement_.scale_order, num_pages_, page_size_, sample_.shape().num_kv_heads,
                                   placement_.scale_strides.value_or(placement_.strides), exec_);
  }
  Array<Space> make_block_array(int dims) const;
  void fill_scales();
  void choose_pages(unsigned seed);
  void fill_cache();
  void write_tables();
  Cache make_cache();
  std::array<std::int64_t, 4> at(int page, int slot, int head) const;

  Space exec_;
  const Sample<T>& sample_;
  Placement placement_;
  int page_size_, num_pages_, max_pages_;
  int table_row_ = 0, table_page_ = 1;   ///< strides of a dense block table
  int table_first_ = 0;                  ///< where it begins
  std::vector<int> sequence_of_;         ///< of each batch entry
  std::vector<std::vector<int>> pages_;  ///< of each batch entry
  Array<Space> k_, v_, k_scale_, v_scale_, k_blocks_, v_blocks_, q_, out_, lse_;
  Ints<Space> lengths_, ids_, table_, indptr_, cu_seqlens_q_;
  Kokkos::View<float*, Memory> alibi_slopes_, sinks_;
  DecodeOptions<Memory> options_;
  std::optional<Cache> cache_;
  std::vector<std::unique_ptr<Bytes<Space>>> workspaces_;
  double worst_                   = 0;
  mutable DType probability_type_ = dtype_v<accumulator_t<T>>;  ///< of the last decode's plan
  mutable int truncated_steps_    = 0;                          ///< the same
  mutable bool rounds_numbers_    = false;                      ///< the same: see compare
};

/// Plans and decodes the sample once for each placement, and expects right results.
template <class Space, class T>
void expect_right(const Sample<T>& sample, const std::vector<Placement>& placements = {{}}) {
  for (const Placement& placement : placements) {
    Scene<Space, T> scene(sample, placement);
    scene.decode(scene.plan());
    EXPECT_TRUE(scene.right()) << describe(sample.shape()) << "; " << describe(placement);
  }
}

template <class Space, class T>
void expect_right(const Shape& shape, const std::vector<Placement>& placements = {{}}) {
  expect_right<Space>(Sample<T>(shape), placements);
}

}  // namespace pagoda::test
