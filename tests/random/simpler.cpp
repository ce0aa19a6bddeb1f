// SPDX-License-Identifier: Apache-2.0
#include "tests/random/problem.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>

namespace pagoda::test::random {

namespace {

/// Keeps the entries from `begin` to `end` of a step.
void keep_entries(Step& step, int begin, int end) {
  Shape& s        = step.shape;
  const auto keep = [&](std::vector<int>& of) {
    if (!of.empty()) of = std::vector<int>(of.begin() + begin, of.begin() + end);
  };
  keep(s.lengths), keep(s.query_lens);
  s.same_as.clear();
  std::erase_if(step.plants, [&](const Plant& p) { return p.entry < begin || p.entry >= end; });
  for (Plant& plant : step.plants) plant.entry -= begin;
}

void set_heads(Problem& problem, int num_q_heads, int num_kv_heads) {
  for (Step& step : problem.steps) step.shape.num_q_heads = num_q_heads, step.shape.num_kv_heads = num_kv_heads;
  if (!problem.alibi_slopes.empty()) problem.alibi_slopes.resize(static_cast<std::size_t>(num_q_heads));
  if (!problem.sinks.empty()) problem.sinks.resize(static_cast<std::size_t>(num_q_heads));
}

/// Removes planted tokens beyond the end of their sequence.
void drop_lost_plants(Problem& problem) {
  for (Step& step : problem.steps)
    std::erase_if(step.plants, [&](const Plant& p) { return p.token >= step.shape.lengths[p.entry]; });
}

class Simpler {
 public:
  explicit Simpler(const Problem& problem) : problem_(problem) {}

  std::vector<Problem> all() {
    const Shape& s     = problem_.steps[0].shape;
    const Placement& p = problem_.steps[0].placement;
    const int steps    = static_cast<int>(problem_.steps.size());
    const auto every   = [&](const auto& change) {
      propose([&](Problem& q) {
        for (Step& step : q.steps) change(step);
      });
    };
    for (int i = 0; steps > 1 && i < steps; ++i) propose([&](Problem& q) { q.steps = {problem_.steps[i]}; });
    for (int i = 0; i < steps; ++i) {
      const int batch = static_cast<int>(problem_.steps[i].shape.lengths.size());
      if (batch > 1) {
        propose([&](Problem& q) { keep_entries(q.steps[i], 0, batch / 2); });
        propose([&](Problem& q) { keep_entries(q.steps[i], batch / 2, batch); });
      }
      const auto lengths = [&](const auto& change) {
        propose([&](Problem& q) {
          for (int& length : q.steps[i].shape.lengths) length = change(length);
        });
      };
      lengths([](int n) { return n / 2; });
      lengths([](int n) { return n - n / 4; });
      lengths([](int n) { return n > 16 ? (n + 15) / 16 * 16 - 16 : n; });
      lengths([](int n) { return std::max(n - 1, 0); });
      for (std::size_t j = 0; j < problem_.steps[i].plants.size(); ++j)
        propose(
            [&](Problem& q) { q.steps[i].plants.erase(q.steps[i].plants.begin() + static_cast<std::ptrdiff_t>(j)); });
    }
    if (s.num_kv_heads > 1) propose([&](Problem& q) { set_heads(q, s.num_q_heads / s.num_kv_heads, 1); });
    if (!problem_.for_tuned) {  // another group may use another kernel
      if (const int group = s.num_q_heads / s.num_kv_heads; group > 1) {
        propose([&](Problem& q) { set_heads(q, s.num_kv_heads, s.num_kv_heads); });
        propose([&](Problem& q) { set_heads(q, s.num_kv_heads * (group / 2), s.num_kv_heads); });
      }
      const bool fixed = has_row_format(problem_.type);  // their dims
      for (const int dims : {8, 16, 64})
        if (s.head_dim > dims && !fixed)
          every([&](Step& step) {
            step.shape.head_dim = dims;
            if (step.shape.values_in_keys) step.shape.head_dim_v = std::min(step.shape.head_dim_v, dims);
          });
      if (!s.values_in_keys) every([](Step& step) { step.shape.head_dim_v = 0; });
      if (!fixed) every([](Step& step) { step.shape.values_in_keys = false; });
      every([](Step& step) { step.shape.query_lens.clear(), step.placement.ragged = false; });
      every([](Step& step) {
        for (int& n : step.shape.query_lens) n = std::min(n, 1);
      });
      every([](Step& step) { step.shape.q_type.reset(); });
    }
    every([](Step& step) { step.shape.alibi = false; });
    every([](Step& step) { step.shape.sinks = false; });
    every([](Step& step) { step.shape.window_left = -1; });
    every([](Step& step) { step.shape.num_initial_tokens = 0; });
    every([](Step& step) { step.shape.logit_soft_cap = 0; });
    every([](Step& step) { step.shape.softmax_scale.reset(); });
    every([](Step& step) { step.shape.causal = true; });
    every([](Step& step) { step.shape.key_size = step.shape.value_size = 1; });
    every([](Step& step) { step.shape.same_as.clear(); });
    if (is_quantized(problem_.type) && !problem_.for_tuned)
      every([](Step& step) { step.shape.k_scales = step.shape.v_scales = Scales::per_head; });

    every([](Step& step) { step.placement.out_type.reset(); });
    every([](Step& step) { step.placement.lse_type = DType::fp32; });
    every([](Step& step) {
      Placement& q = step.placement;
      q.v_strides = q.scale_strides = q.table_strides = q.out_strides = q.lse_strides = std::nullopt;
    });
    every([](Step& step) { step.placement.strides = {}; });
    every([](Step& step) { step.placement.io = {}; });
    every([](Step& step) { step.placement.layout = Layout::contiguous; });
    if (p.layout != Layout::contiguous) every([](Step& step) { step.placement.page_size = 16; });
    every([](Step& step) { step.placement.order = step.placement.scale_order = KVOrder::NHD; });
    every([](Step& step) { step.placement.indirect = false; });
    every([](Step& step) { step.placement.unused_page = -1; });
    every([](Step& step) { step.placement.max_batch = 0; });
    propose([](Problem& q) { q.max_seq_len = 0; });
    propose([](Problem& q) { q.programmatic_launch = false; });
    propose([](Problem& q) { q.other_instance = false; });
    propose([](Problem& q) { q.as_list = false; });
    propose([](Problem& q) { q.max_query_tokens = 0; });
    propose([](Problem& q) {
      q.max_query_len = 1;
      for (const Step& step : q.steps)
        for (const int n : step.shape.query_lens) q.max_query_len = std::max(q.max_query_len, n);
    });
    return std::move(candidates_);
  }

 private:
  void propose(const std::function<void(Problem&)>& change) {
    Problem changed = problem_;
    change(changed);
    drop_lost_plants(changed);
    if (describe(changed) != describe(problem_)) candidates_.push_back(std::move(changed));
  }

  const Problem& problem_;
  std::vector<Problem> candidates_;
};

std::string list(const std::vector<float>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size() && i < 8; ++i) text << (i > 0 ? ", " : " {") << values[i];
  text << (values.size() > 8 ? ", ...}" : "}");
  return text.str();
}

}  // namespace

std::vector<Problem> simpler(const Problem& problem) { return Simpler(problem).all(); }

std::string describe(const Problem& problem) {
  std::ostringstream text;
  text << pagoda::name_of(problem.type) << (problem.for_tuned ? ", drawn for the tuned kernels" : "");
  for (const Step& step : problem.steps) {
    text << "\n  decode of " << describe(step.shape) << ", seed " << step.shape.seed << "; "
         << describe(step.placement);
    for (const Plant& plant : step.plants) {
      text << "; "
           << (plant.kind == Plant::Kind::heavy     ? "heavy key"
               : plant.kind == Plant::Kind::nan_key ? "key of NaN"
                                                    : "value of NaN")
           << " at entry " << plant.entry << ", token " << plant.token;
      if (plant.kind == Plant::Kind::heavy) text << ", probability " << plant.probability;
    }
  }
  text << "\n  plan: max_seq_len " << problem.max_seq_len << ", max_query_len " << problem.max_query_len
       << ", max_query_tokens " << problem.max_query_tokens;
  if (problem.programmatic_launch) text << ", programmatic_launch";
  if (problem.as_list) text << ", also as a list of entries";
  if (problem.other_instance) text << ", also decodes on another instance";
  if (problem.steps[0].shape.alibi) text << ", alibi_slopes" << list(problem.alibi_slopes);
  if (problem.steps[0].shape.sinks) text << ", sinks" << list(problem.sinks);
  return text.str();
}

}  // namespace pagoda::test::random
