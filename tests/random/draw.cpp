// SPDX-License-Identifier: Apache-2.0
#include "tests/random/driver.hpp"
#include "tests/random/problem.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace pagoda::test::random {

namespace {

/// Multiply-adds of the reference for a decode: a few milliseconds. The hand-tuned kernels need wide heads and many
/// rows before their tiles are full.
constexpr double work = 4e5, tuned_work = 3e6;
/// Factor by which a few problems are larger.
constexpr double large = 30, large_share = 0.04;
constexpr int most_rows     = 1500;     ///< query rows of a decode
constexpr int most_elements = 2 << 20;  ///< elements of keys and values in memory

class Draw {
 public:
  Draw(Random random, Random numbers, DType type, bool for_tuned)
      : random_(std::move(random)), numbers_(std::move(numbers)) {
    problem_.type = type, problem_.for_tuned = for_tuned;
    work_ = (for_tuned ? tuned_work : work) * (random_.chance(large_share) ? large : 1);
    for_tuned ? draw_tuned_heads() : draw_heads();
    draw_types();
    if (!for_tuned || tuned_has_options()) draw_score_options();
    shape_.key_size = random_.chance(0.3) ? random_.pick({0.01, 4.0, 30.0}) : 1;
    draw_query_kind();
    draw_placement();
    const int steps = random_.chance(0.3) ? random_.integer(2, 3) : 1;
    for (int i = 0; i < steps; ++i) draw_step();
    draw_bounds();
    problem_.other_instance = random_.chance(0.15);
    problem_.as_list        = shape_.window_left < 0 && random_.chance(0.3);
  }
  Problem problem() const { return problem_; }

 private:
  bool quantized() const { return is_quantized(problem_.type); }
  bool sixteen_bits() const { return problem_.type == DType::fp16 || problem_.type == DType::bf16; }
  int dims_v() const { return shape_.head_dim_v > 0 ? shape_.head_dim_v : shape_.head_dim; }
  int group() const { return shape_.num_q_heads / shape_.num_kv_heads; }

  void make_latent(int heads) {
    shape_.num_q_heads = heads, shape_.num_kv_heads = 1;
    shape_.head_dim = 576, shape_.head_dim_v = 512, shape_.values_in_keys = true;
  }

  void draw_heads() {
    if (has_row_format(problem_.type) || random_.chance(0.06)) return make_latent(random_.pick({1, 5, 8, 16, 20, 64}));
    if (random_.chance(0.2)) {  // few and narrow heads leave time for long rows
      shape_.num_kv_heads = 1, shape_.num_q_heads = random_.integer(1, 2);
      shape_.head_dim = random_.pick({8, 16, 32});
      return;
    }
    const int group     = random_.chance(0.8) ? random_.integer(1, 8) : random_.integer(9, 40);
    shape_.num_kv_heads = random_.pick({1, 1, 2, 3, 4, 8});
    shape_.num_q_heads  = group * shape_.num_kv_heads;
    const auto dims     = [&] {
      return random_.chance(0.5)   ? random_.pick({16, 32, 48, 64, 80, 96, 128, 128, 192, 256})
                 : random_.chance(0.8) ? random_.integer(1, 160)
                                       : random_.integer(161, 600);
    };
    const int per_element = dims_per_element(problem_.type);
    shape_.head_dim       = (dims() + per_element - 1) / per_element * per_element;
    if (random_.chance(0.25)) shape_.head_dim_v = (dims() + per_element - 1) / per_element * per_element;
    shape_.values_in_keys = random_.chance(0.2);
    if (shape_.values_in_keys) shape_.head_dim_v = std::min(shape_.head_dim, dims_v());
  }

  /// Heads that backends/cuda/tuned supports (its why_not).
  void draw_tuned_heads() {
    several_query_tokens_ = false;
    const bool rows       = has_row_format(problem_.type);
    const bool many       = rows || (sixteen_bits() && random_.chance(0.5));
    if (rows || (many && random_.chance(0.35))) {
      several_query_tokens_ = random_.chance(0.5);
      make_latent(several_query_tokens_ ? 8 * random_.integer(1, 8) : random_.integer(1, 128));
      return;
    }
    several_query_tokens_ = many && random_.chance(0.5);
    const int group       = many && !several_query_tokens_ ? random_.integer(9, 128)
                            : several_query_tokens_        ? random_.pick({1, 2, 4, 7, 8, 16, 33, 64})
                                                           : random_.integer(1, 8);
    shape_.num_kv_heads   = group > 16 ? random_.integer(1, 2) : random_.pick({1, 1, 2, 3, 4, 8});
    shape_.num_q_heads    = group * shape_.num_kv_heads;
    shape_.head_dim       = quantized() || random_.chance(0.6) ? 128 : 64;
    shape_.values_in_keys = random_.chance(0.1);
  }

  /// Whether the hand-tuned kernels for many query rows to a kv head would take these heads.
  bool many_rows() const { return several_query_tokens_ || group() > 8 || shape_.head_dim == 576; }
  /// Whether the hand-tuned kernels for these heads have score options.
  bool tuned_has_options() const { return shape_.head_dim != 576; }

  void draw_types() {
    const auto any = [&] { return random_.pick({DType::fp64, DType::fp32, DType::fp16, DType::bf16}); };
    if (problem_.for_tuned) {
      if (quantized()) shape_.q_type = has_row_format(problem_.type) ? DType::bf16 : DType::fp16;
      if (random_.chance(0.35)) placement_.out_type = random_.pick({DType::fp32, DType::fp16, DType::bf16});
    } else {
      if (random_.chance(0.35)) shape_.q_type = any();
      if (random_.chance(0.35)) placement_.out_type = any();
    }
    placement_.with_lse = random_.chance(0.85);
    if (random_.chance(0.25)) placement_.lse_type = DType::fp64;
    if (!quantized()) return;
    if (facts_of(problem_.type).block_dims > 0 || has_row_format(problem_.type)) return;
    std::vector<Scales> allowed{Scales::per_tensor, Scales::per_head};
    if (facts_of(problem_.type).scales != ScaleUse::required) allowed.push_back(Scales::none);
    if (!problem_.for_tuned) allowed.insert(allowed.end(), {Scales::per_token, Scales::per_token_and_head});
    shape_.k_scales   = random_.pick(allowed);
    shape_.v_scales   = random_.chance(0.5) ? shape_.k_scales : random_.pick(allowed);
    shape_.value_size = random_.pick({1.0, 1.0, 0.001, 300.0});
  }

  void draw_score_options() {
    shape_.causal = !random_.chance(0.2);
    if (random_.chance(0.3))  // the hand-tuned kernels for many rows need a positive scale
      shape_.softmax_scale = problem_.for_tuned && many_rows()
                                 ? random_.pick({0.001, 0.3, 1.0, 3.0})
                                 : random_.pick({0.0, 0.001, 0.3, 1.0, 3.0}) * (random_.chance(0.3) ? -1 : 1);
    if (random_.chance(0.25)) {
      shape_.window_left = random_.chance(0.15)  ? INT_MAX - random_.integer(0, 2)
                           : random_.chance(0.1) ? random_.integer(0, 1)
                                                 : random_.log_integer(1, 5000);
      if (random_.chance(0.5)) shape_.num_initial_tokens = random_.log_integer(1, 300);
    } else if (random_.chance(0.05)) {
      shape_.num_initial_tokens = random_.integer(1, 20);
    }
    if (random_.chance(0.15)) shape_.logit_soft_cap = random_.pick({0.5, 5.0, 30.0, 1000.0});
    if (random_.chance(0.15)) {
      shape_.alibi = true;
      for (int h = 0; h < shape_.num_q_heads; ++h)
        problem_.alibi_slopes.push_back(
            random_.chance(0.1) ? 0.0f : std::ldexp(random_.chance(0.3) ? -1.0f : 1.0f, -random_.integer(0, 10)));
    }
    if (random_.chance(0.2)) {
      shape_.sinks = true;
      for (int h = 0; h < shape_.num_q_heads; ++h)
        problem_.sinks.push_back(random_.chance(0.15)  ? -std::numeric_limits<float>::infinity()
                                 : random_.chance(0.1) ? random_.pick({-60.0f, 60.0f})
                                                       : static_cast<float>(8 * random_.real() - 4));
    }
  }

  void draw_query_kind() {
    if (problem_.for_tuned) {
      longest_query_    = several_query_tokens_ ? random_.integer(2, std::min(16, 128 / group())) : 1;
      placement_.ragged = random_.chance(0.3);
      return;
    }
    const double kind = random_.real();
    if (kind < 0.5) return;
    longest_query_    = random_.chance(0.8) ? random_.integer(1, 6) : random_.integer(7, 40);
    placement_.ragged = kind > 0.7;
  }

  Arrangement draw_arrangement() {
    Arrangement a;
    const bool tuned = problem_.for_tuned;  // rows are dense and aligned
    if (random_.chance(0.4)) return a;
    const int last = tuned || random_.chance(0.6) ? 3 : 4;  // with 4 the dims need not be the fastest axis
    for (int i = last - 1; i > 0; --i) std::swap(a.order[i], a.order[random_.integer(0, i)]);
    for (int& gap : a.gap)
      if (random_.chance(0.4)) gap = tuned || random_.chance(0.3) ? 16 * random_.integer(1, 3) : random_.integer(1, 9);
    if (!tuned && random_.chance(0.15)) a.step = random_.integer(2, 3);
    if (random_.chance(0.3)) a.first = tuned ? 16 * random_.integer(1, 4) : random_.integer(1, 17);
    return a;
  }
  /// Of rows with a format of their own: dense, on multiples of 16 bytes.
  Arrangement draw_row_arrangement() {
    Arrangement a;
    for (int i = 2; i > 0; --i) std::swap(a.order[i], a.order[random_.integer(0, i)]);
    for (int& gap : a.gap)
      if (random_.chance(0.4)) gap = 16 * random_.integer(1, 3);
    if (random_.chance(0.3)) a.first = 16 * random_.integer(1, 4);
    return a;
  }
  /// Strides of an array of rank 3 or less, whose last axis is the dims.
  Arrangement draw_io_arrangement(int rank) {
    Arrangement a = draw_arrangement();
    if (!problem_.for_tuned) return a;
    // The dims stay last; the axes before them are permuted.
    std::array<int, 4> order{0, 1, 2, 3};
    if (rank > 2 && random_.chance(0.3)) std::swap(order[0], order[1]);
    a.order = order;
    return a;
  }

  void draw_placement() {
    Placement& p = placement_;
    p.order      = random_.pick({KVOrder::NHD, KVOrder::HND});
    p.strides    = has_row_format(problem_.type) ? draw_row_arrangement() : draw_arrangement();
    if (random_.chance(0.3) && !shape_.values_in_keys) p.v_strides = draw_arrangement();
    p.io = draw_io_arrangement(3);
    if (random_.chance(0.3)) p.out_strides = draw_io_arrangement(3);
    p.lse_strides = draw_arrangement();
    if (random_.chance(0.3)) p.scale_strides = draw_arrangement();
    if (random_.chance(0.5)) p.scale_order = KVOrder::HND;
    p.table_strides = draw_arrangement();
    p.layout        = random_.pick({Layout::contiguous, Layout::paged, Layout::paged, Layout::csr});
    p.page_size     = !problem_.for_tuned ? random_.pick({1, 2, 3, 5, 7, 8, 13, 16, 16, 16, 32, 48, 64, 100, 256})
                      : many_rows()       ? random_.pick({8, 16, 24, 40, 64, 128})
                                          : random_.pick({1, 2, 4, 5, 8, 24, 16, 16, 32, 48, 64, 128});
    p.unused_page   = random_.pick({-1, -1, -1, 0, INT_MAX, INT_MIN});
    p.indirect      = random_.chance(0.4);
    problem_.programmatic_launch = problem_.for_tuned && random_.chance(0.2);
  }

  /// Lengths that sum up to about this number of tokens.
  std::vector<int> draw_lengths(int batch, int tokens) {
    const int mean = std::max(tokens / batch, 1), kind = random_.integer(0, 4);
    std::vector<int> lengths(static_cast<std::size_t>(batch));
    const auto at_an_edge = [&](int most) {
      const int edge = random_.pick({16, 64, 256, 4096, placement_.page_size});
      return edge * random_.integer(1, std::max(most / edge, 1)) + random_.integer(-1, 1);
    };
    const int same = random_.chance(0.5) ? mean : std::clamp(at_an_edge(mean), 0, 2 * mean);
    for (int& length : lengths)
      length = kind == 0   ? same
               : kind == 1 ? random_.log_integer(1, 2 * mean)
               : kind == 2 ? std::clamp(at_an_edge(2 * mean), 0, 2 * mean)
               : kind == 3 ? random_.integer(1, std::max(mean / 4, 1))
                           : random_.integer(0, std::min(mean, 70));
    if (kind == 3) lengths[random_.integer(0, batch - 1)] = std::clamp(at_an_edge(tokens), 1, tokens);
    if (random_.chance(0.3))
      for (int& length : lengths)
        if (random_.chance(0.2)) length = random_.integer(0, 1);
    return lengths;
  }

  void draw_step() {
    Step step{shape_, placement_};
    Shape& s         = step.shape;
    const bool first = problem_.steps.empty();
    const int most   = std::max(most_rows / (s.num_q_heads * longest_query_), 1);
    const int batch  = std::min(most, random_.chance(0.3)   ? 1
                                      : random_.chance(0.8) ? random_.integer(2, 8)
                                                            : random_.log_integer(9, 300));
    if (placement_.ragged) {
      for (int b = 0; b < batch; ++b) s.query_lens.push_back(random_.integer(0, longest_query_));
    } else if (longest_query_ > 1) {
      const int n = first || random_.chance(0.5) ? longest_query_ : random_.integer(1, longest_query_);
      s.query_lens.assign(static_cast<std::size_t>(batch), n);
    }
    const double query_tokens =
        s.query_lens.empty() ? 1 : 1 + std::accumulate(s.query_lens.begin(), s.query_lens.end(), 0) / batch;
    const double tokens = work_ / (query_tokens * s.num_q_heads * (s.head_dim + dims_v()));
    const double room   = double(most_elements) / (s.num_kv_heads * (s.head_dim + dims_v()));
    s.lengths           = draw_lengths(batch, static_cast<int>(std::clamp(std::min(tokens, room), 4.0, 3e5)));
    if (batch > 1 && random_.chance(0.1)) {
      s.same_as.resize(static_cast<std::size_t>(batch));
      for (int b = 0; b < batch; ++b) {
        const int other = s.same_as[b > 0 ? random_.integer(0, b - 1) : 0];
        s.same_as[b]    = b > 0 && random_.chance(0.5) ? other : b;
        s.lengths[b]    = s.lengths[s.same_as[b]];
      }
    }
    s.seed = static_cast<unsigned>(numbers_.bits());
    // A contiguous cache has room for the longest sequence everywhere.
    const double longest = *std::max_element(s.lengths.begin(), s.lengths.end());
    if (first && placement_.layout == Layout::contiguous && longest * (batch + 3) > room)
      step.placement.layout = placement_.layout = Layout::paged;
    if (!first && random_.chance(0.3)) step.placement.layout = random_.pick({Layout::paged, Layout::csr});
    if (step.placement.layout == Layout::contiguous && longest * (batch + 3) > room)
      step.placement.layout = Layout::csr;
    while (step.placement.layout != Layout::contiguous && step.placement.page_size > 16 &&
           batch * step.placement.page_size > room)
      step.placement.page_size = 16;
    draw_plants(step);
    problem_.steps.push_back(step);
  }

  void draw_plants(Step& step) {
    const Shape& s      = step.shape;
    const auto token_of = [&](int b) {
      const int length = s.lengths[b];
      const int edge   = random_.pick({1, 16, 64, 256, 4096, placement_.page_size});
      const int place  = random_.chance(0.3) ? random_.pick({0, length - 1})
                                             : edge * random_.integer(0, length / edge) - random_.integer(0, 1);
      return std::clamp(place, 0, length - 1);
    };
    const int heavy = random_.chance(0.4) ? random_.integer(1, 4) : 0;
    const bool nan  = random_.chance(0.04);
    for (int i = 0; i < heavy + nan; ++i) {
      const int b = random_.integer(0, static_cast<int>(s.lengths.size()) - 1);
      if (s.lengths[b] == 0) continue;
      Plant plant{.entry = b, .token = token_of(b), .probability = random_.pick({0.05, 0.3, 0.9})};
      if (i == heavy) {
        plant.kind    = random_.chance(0.5) ? Plant::Kind::nan_key : Plant::Kind::nan_value;
        plant.payload = random_.chance(0.4) ? ~std::uint64_t(0) : random_.bits();
      }
      step.plants.push_back(plant);
    }
  }

  void draw_bounds() {
    int batch = 0, longest = 0, query_tokens = 0;
    for (const Step& step : problem_.steps) {
      const Shape& s    = step.shape;
      const int entries = static_cast<int>(s.lengths.size());
      batch             = std::max(batch, entries);
      longest           = std::max(longest, *std::max_element(s.lengths.begin(), s.lengths.end()));
      query_tokens      = std::max(
          query_tokens, s.query_lens.empty() ? entries : std::accumulate(s.query_lens.begin(), s.query_lens.end(), 0));
    }
    const auto loose = [&](int bound) {
      return random_.chance(0.5) ? bound : bound + random_.log_integer(1, 3 * bound + 8);
    };
    if (batch > static_cast<int>(problem_.steps[0].shape.lengths.size()) || random_.chance(0.4))
      placement_.max_batch = loose(batch);
    for (Step& step : problem_.steps) step.placement.max_batch = placement_.max_batch;
    problem_.max_query_len = longest_query_;
    if (!problem_.for_tuned && random_.chance(0.2)) problem_.max_query_len = loose(longest_query_);
    // A bound on lengths only tunes, so a bound that is too small must work too, if the output type hides the rounding
    // of long sums.
    const double kind = random_.real();
    if (kind < 0.3)
      problem_.max_seq_len = std::max(longest, 1);
    else if (kind < 0.5)
      problem_.max_seq_len = std::max(longest, 1) * random_.integer(1, 20);
    else if (kind < 0.6 && longest < 5000)
      problem_.max_seq_len = random_.integer(1, std::max(longest, 1));
    if (placement_.ragged || random_.chance(0.2))
      problem_.max_query_tokens = random_.chance(0.7) ? loose(query_tokens) : 0;
  }

  Random random_, numbers_;
  Problem problem_;
  Shape shape_;
  Placement placement_;
  double work_               = 0;
  int longest_query_         = 1;
  bool several_query_tokens_ = false;
};

}  // namespace

Problem draw(std::uint64_t seed, DType type, bool for_tuned, const Without& without) {
  Problem problem = Draw(Random(seed, 1), Random(seed, 2), type, for_tuned).problem();
  for (Step& step : problem.steps) {
    if (without.nan) std::erase_if(step.plants, [](const Plant& p) { return p.kind != Plant::Kind::heavy; });
    if (without.huge_windows && step.shape.window_left > 1 << 30) step.shape.window_left = 1 << 30;
  }
  return problem;
}

Problem draw(const std::function<std::uint64_t()>& bits, DType type) {
  return Draw(Random(bits), Random(1, 2), type, false).problem();
}

}  // namespace pagoda::test::random
