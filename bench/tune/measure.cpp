// SPDX-License-Identifier: Apache-2.0
#include "bench/tune/measure.hpp"

#include "backends/cuda/tuned/warp/tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace pagoda::tune {

namespace {

using tuned::Speed;

constexpr int head_dim = 128, tile_tokens = 16;
constexpr std::size_t token_bytes = 2 * head_dim * 2;  // one kv head, keys and values of 16 bits

double median_of_3(const auto& measure) {
  double x[] = {measure(), measure(), measure()};
  std::sort(x, x + 3);
  return x[1];
}

/// fp16, 32 query heads, 8 KV heads. Rows are rounded down to whole sequences.
Batch few_rows(std::int64_t rows, std::int64_t tokens) {
  return {.sequences = static_cast<int>(std::max<std::int64_t>(rows / 8, 1)), .tokens = static_cast<int>(tokens)};
}
/// 64 query heads, 4 KV heads.
Batch grouped_rows(std::int64_t rows, std::int64_t tokens) {
  return {.num_q_heads  = 64,
          .num_kv_heads = 4,
          .sequences    = static_cast<int>(std::max<std::int64_t>(rows / 4, 1)),
          .tokens       = static_cast<int>(tokens)};
}
/// 64 query heads.
Batch latent_rows(std::int64_t rows, std::int64_t tokens) {
  return {.type         = tuned::Type::bf16,
          .num_q_heads  = 64,
          .num_kv_heads = 1,
          .head_dim     = tuned::wgmma::latent::head_dim,
          .head_dim_v   = tuned::wgmma::latent::head_dim_v,
          .sequences    = static_cast<int>(rows),
          .tokens       = static_cast<int>(tokens)};
}

class Measurement {
 public:
  explicit Measurement(Device& device) : device_(device), d_(device.facts()), speed_(d_.speed) {}

  Speed all() {
    for (const int warps : {8, 4, 2, 1})
      if (blocks(warps) > 0 && most_warps_ == 0) most_warps_ = warps;
    read();
    if (most_warps_ > 0) half_of_them(), merges(), rows(), streams();
    if (d_.sm90a) wgmma_tiles();
    return speed_;
  }

 private:
  int blocks(int warps) const {
    return tuned::warp::blocks_resident(warps, tile_tokens * head_dim * 2, head_dim, 4, d_);
  }
  double us(const Batch& b, const tuned::LaunchShape& shape) {
    return median_of_3([&] { return device_.decode_us(b, shape); });
  }
  double us(const Batch& b, int warps, int num_splits) {
    return us(b, tuned::LaunchShape{blocks(warps), num_splits, false, warps});
  }
  double streamed_us(const Batch& b) { return us(b, tuned::LaunchShape{blocks(most_warps_), 1, true, most_warps_}); }
  /// Tokens of each of `rows` rows that together have `bytes` bytes: whole tiles, at least four.
  static std::int64_t tokens_of(std::int64_t rows, double bytes) {
    return std::max<std::int64_t>(std::llround(bytes / (double(rows) * token_bytes * tile_tokens)), 4) * tile_tokens;
  }

  void read() {
    constexpr std::size_t more = std::size_t(1) << 30, less = more / 4;
    const double slope  = median_of_3([&] { return device_.read_us(more) - device_.read_us(less); });
    speed_.bytes_per_us = double(more - less) / slope;
  }

  /// Blocks of two warps, half of which have rows. The system places idle blocks on separate multiprocessors.
  void half_of_them() {
    const int all = blocks(2), per_sm = all / d_.num_sms;
    if (per_sm == 0) return;
    const Batch less = few_rows(all / 2, 1024), more = few_rows(all / 2, 3072);
    const double slope     = us(more, 2, 1) - us(less, 2, 1);
    const double busy_sms  = double(less.rows()) / per_sm;
    speed_.sm_bytes_per_us = double(more.cache_bytes() - less.cache_bytes()) / slope / busy_sms;
  }

  /// Large blocks: rows in splits, and the same number of whole rows with the same bytes. Smaller blocks: the time of
  /// few rows beyond that with large blocks.
  void merges() {
    constexpr double bytes                              = 64e6;
    constexpr std::pair<int, double Speed::*> members[] = {
        {8, &Speed::merge8_us}, {4, &Speed::merge4_us}, {2, &Speed::merge2_us}, {1, &Speed::merge1_us}};
    const auto split_us = [&](std::int64_t rows, int warps) {
      return us(few_rows(rows, 4096), warps, std::max(static_cast<int>(blocks(warps) / rows), 1));
    };
    double large = 0;
    for (const int num_splits : {2, 4}) {
      const std::int64_t rows = blocks(most_warps_) / num_splits / 8 * 8, tokens = tokens_of(rows * num_splits, bytes);
      if (rows == 0) return;
      large += (us(few_rows(rows, tokens * num_splits), most_warps_, num_splits) -
                us(few_rows(rows * num_splits, tokens), most_warps_, 1)) /
               2;
    }
    for (const auto& [warps, member] : members) {
      if (warps > most_warps_) continue;  // such blocks do not fit
      double more = 0;
      for (const int rows : {8, 64})
        if (warps < most_warps_) more += (split_us(rows, warps) - split_us(rows, most_warps_)) / 2;
      speed_.*member = std::max(large + more, 0.0);
    }
  }

  /// Many short rows, in blocks of 8 and of 2 warps.
  void rows() {
    if (most_warps_ < 8) return;
    const Batch batch      = few_rows(2048, 256);
    const auto weight      = [&](int warps) { return double((batch.rows() - 1) / blocks(warps)) * warps / 8; };
    const double more_rows = weight(8) - weight(2);
    if (more_rows > 0) speed_.row8_us = std::max((us(batch, 8, 1) - us(batch, 2, 1)) / more_rows, 0.0);
  }

  /// Batches divided as one stream, with row counts that do not fit the blocks. The fixed cost of a decode comes from
  /// whole rows that fit.
  void streams() {
    const auto rows        = std::max<std::int64_t>(blocks(most_warps_) / 8 * 8, 8);
    const std::int64_t bad = rows + 32;
    const auto batch       = [&](std::int64_t n, double bytes) { return few_rows(n, tokens_of(n, bytes)); };
    const Batch less = batch(bad, 64e6), more = batch(bad, 512e6), whole = batch(rows, 64e6);
    const auto read      = [&](const Batch& b) { return double(b.cache_bytes()) / speed_.bytes_per_us; };
    const double start   = us(whole, most_warps_, 1) - read(whole);
    const double us_less = streamed_us(less), us_more = streamed_us(more);
    speed_.stream_factor = std::max((us_more - us_less) / (read(more) - read(less)), 1.0);
    speed_.stream_us     = std::max(us_less - start - speed_.stream_factor * read(less), 0.0);
  }

  void wgmma_tiles() {
    using Shape          = tuned::LaunchShape;
    const int teams      = d_.num_sms * tuned::wgmma::grouped::blocks_per_sm(1);
    const auto tile_time = [&](int all, const auto& batch) {
      const int rows = all / 4 / 4 * 4;
      return (us(batch(rows, 4096), Shape{all, 1, false}) - us(batch(rows, 1024), Shape{all, 1, false})) /
             ((4096 - 1024) / tuned::wgmma::tile_tokens);
    };
    speed_.grouped_tile_us = tile_time(teams, grouped_rows);
    speed_.latent_tile_us  = tile_time(d_.num_sms, latent_rows);
    // As above: splits, whole rows, and a stream of the same bytes.
    const std::int64_t rows = teams / 4 / 4 * 4;
    const Batch whole       = grouped_rows(rows * 4, 512);
    const double whole_us   = us(whole, Shape{teams, 1, false});
    speed_.wgmma_merge_us   = std::max(us(grouped_rows(rows, 2048), Shape{teams, 4, false}) - whole_us, 0.0);
    speed_.wgmma_stream_us  = std::max(us(whole, Shape{teams, 1, true}) - whole_us - speed_.wgmma_merge_us, 0.0);
  }

  Device& device_;
  const tuned::Device& d_;
  Speed speed_;
  int most_warps_ = 0;
};

/// Batches of head_dim 128 that are typical for models.
const std::vector<Batch>& sample(const tuned::Device& d) {
  static const std::vector<Batch> batches = [&] {
    std::vector<Batch> all;
    for (const tuned::Type type : {tuned::Type::fp16, tuned::Type::fp8_e4m3, tuned::Type::fp32})
      for (const auto& [q, kv] : {std::pair(32, 8), {32, 32}, {16, 2}, {64, 8}})
        for (const int sequences : {1, 2, 3, 5, 8, 12, 16, 17, 20, 24, 32, 40, 48, 64, 96, 128})
          for (const int tokens : {512, 1024, 4096}) {
            const Batch b{.type = type, .num_q_heads = q, .num_kv_heads = kv, .sequences = sequences, .tokens = tokens};
            if (b.cache_bytes() <= 300'000'000 && (!tuned::is_quantized(type) || d.sm >= 90)) all.push_back(b);
          }
    return all;
  }();
  return batches;
}

tuned::LaunchShape choice(const Batch& b, const tuned::Device& d) {
  return tuned::warp::choose_shape(b.rows(), b.tokens / tile_tokens, tile_tokens * tuned::row_bytes(b.type, head_dim),
                                   head_dim, b.num_q_heads / b.num_kv_heads, d);
}

}  // namespace

Speed measure_speed(Device& device) { return Measurement(device).all(); }

double GainMeter::us_of(std::size_t batch, const tuned::LaunchShape& shape) {
  for (const Known& k : known_)
    if (k.batch == batch && same_launch(k.shape, shape)) return k.us;
  known_.push_back(
      {batch, shape, median_of_3([&] { return device_.decode_us(sample(device_.facts())[batch], shape); })});
  return known_.back().us;
}

Gain GainMeter::of(const Speed& speed) {
  tuned::Device other = device_.facts();
  other.speed         = speed;
  Gain gain;
  double logs                       = 0;
  const std::vector<Batch>& batches = sample(device_.facts());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const tuned::LaunchShape before = choice(batches[i], device_.facts()), after = choice(batches[i], other);
    ++gain.batches;
    if (same_launch(before, after)) continue;
    const double ratio = us_of(i, after) / us_of(i, before);
    ++gain.changed, logs += std::log(ratio), gain.worst = std::max(gain.worst, ratio);
  }
  if (gain.changed > 0) gain.mean = std::exp(logs / gain.changed);
  return gain;
}

}  // namespace pagoda::tune
