// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/array.hpp"
#include "tests/support/sample.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/pagoda.hpp>

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace pagoda::test {

enum class Layout { contiguous, paged, csr };

/// How a sample lies in memory.
struct Placement {
  Layout layout       = Layout::contiguous;
  int page_size       = 16;
  KVOrder order       = KVOrder::NHD;
  KVOrder scale_order = KVOrder::NHD;  ///< of a quantized cache's scales
  Arrangement strides{};               ///< of the cache and of a dense block table
  Arrangement io{};                    ///< of queries and outputs
  bool indirect = false;               ///< batch entries are sequences of a larger cache, in another order
  bool ragged   = false;               ///< give cu_seqlens_q even where all entries have as many query tokens
  std::optional<DType> out_type{};     ///< default: the cache's; fp32 for a quantized one
  DType lse_type = DType::fp32;
  bool with_lse  = true;
  // Where they differ from `strides` and `io`.
  std::optional<Arrangement> v_strides{}, scale_strides{}, table_strides{}, out_strides{}, lse_strides{};
  int unused_page = -1;  ///< page id of pages that no query sees a token of, and of the padding of block tables
  int max_batch   = 0;   ///< bound on the batch of later decodes, an option of plans; 0: the sample's batch
};

std::string describe(const Placement& placement);

/// How outputs differ from the reference.
struct Comparison {
  int wrong    = 0;  ///< rows of out or lse beyond their tolerance
  double worst = 0;  ///< largest error of a row of out, in tolerances
  std::string report{};
};

/// out (query token, q head, dim) and, unless null, lse (query token, q head), as downloaded, against the reference.
/// probability: what the kernel rounds probabilities to. cut_off_steps: of how many steps a score is the sum, each of
/// which cuts the sum so far off instead of rounding it; 0: none does. leeway: multiplies all tolerances.
template <class Space, class T>
Comparison compare(const Sample<T>& sample, const Array<Space>& out, const Array<Space>* lse, DType probability,
                   int cut_off_steps = 0, double leeway = 1);

/// What a plan cuts the sample into.
struct Cuts {
  int items = 0, merges = 0;
};

/// A sample in the memory of a space: caches, queries, outputs and plans, ready for decode. Everything that no query
/// may see is NaN, scales included (what lies beyond a sequence's length, outside its window, unused pages, the page
/// ids of pages that hold nothing visible), and so are outputs and workspace before they are written.
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

  /// A plan whose workspace is exact, poisoned, and guarded at both ends. It must not outlive this scene.
  Plan<Space> plan();
  /// Asynchronous.
  void decode(const Plan<Space>& plan) const { decode(exec_, plan); }
  void decode(const Space& exec, const Plan<Space>& plan) const;

  /// Other lengths, on the device; nothing else changes.
  void set_lengths(const std::vector<int>& lengths);
  /// Other numbers of query tokens (cu_seqlens_q), on the device: for decodes of other scenes with this one's plans.
  void set_query_lens(const std::vector<int>& query_lens);
  /// Permutes the pages of the pool, and their ids in the tables with them.
  void shuffle_pages(unsigned seed);
  void poison_outputs();
  /// Of all plans of this scene, which may hold anything between decodes.
  void poison_workspaces();
  /// Bytes of out and lse, for comparisons bit for bit.
  std::vector<std::byte> results();

  /// Compares each row with the reference (of another sample, if given, that shares the scene's queries), and looks
  /// whether anything but out, lse and workspace was written.
  testing::AssertionResult right() { return right(sample_); }
  testing::AssertionResult right(const Sample<T>& sample, double leeway = 1);
  /// Largest error of an output, in tolerances, at the last right().
  double worst() const { return worst_; }
  /// What the last decode rounded probabilities to.
  DType probability_type() const { return probability_type_; }

  Cuts cuts(const Plan<Space>& plan) const;

  const Sample<T>& sample() const { return sample_; }
  Array<Space>& q() { return q_; }
  Array<Space>& out() { return out_; }
  Array<Space>& lse() { return lse_; }

 private:
  int num_sequences() const { return sample_.batch() + (placement_.indirect ? 3 : 0); }
  bool paged() const { return placement_.layout != Layout::contiguous; }
  Array<Space> make_cache_array(int dims, const Arrangement& strides) const;
  Array<Space> make_scale_array(Scales scales) const;
  Array<Space> make_block_array(int dims) const;
  void fill_scales();
  void choose_pages(unsigned seed);
  void fill_cache();
  void write_tables();
  Cache make_cache();
  typename KVScales<Memory>::ScaleView scales(const Array<Space>& array, Scales scales) const;
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
  mutable int cut_off_steps_      = 0;                          ///< the same
};

/// Plans and decodes the sample once for each placement, and expects it to be right.
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
