// SPDX-License-Identifier: Apache-2.0
#include "tests/random/run.hpp"

#include "src/base/by_type.hpp"
#include "src/plan/cache_rows.hpp"
#include "tests/random/list_of_batch.hpp"
#include "tests/support/elements.hpp"
#include "tests/support/spaces.hpp"
#include "tests/support/watch.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/tuned/decode.hpp"
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <list>
#include <numeric>
#include <type_traits>

namespace pagoda::test::random {

namespace {

/// Multiplies the tolerances. They bound nearly all rows of single decodes, but the largest errors of millions of rows
/// exceed them, most where only long sums round.
double leeway(DType out) { return size_of(out) == 2 ? 2 : 4; }

/// A NaN with these bits of mantissa and sign.
template <class T>
T nan_of(std::uint64_t payload) {
  constexpr int bits           = 8 * sizeof(T);
  const int mantissa           = -std::ilogb(unit_roundoff(dtype_v<T>)) - 1;
  const std::uint64_t fraction = (std::uint64_t(1) << mantissa) - 1, sign = std::uint64_t(1) << (bits - 1);
  std::uint64_t all = (sign - 1) & ~fraction;              // the exponent
  if (std::is_same_v<T, fp8_e4m3_t>) payload |= fraction;  // e4m3 has no other NaN
  all |= (payload & fraction) != 0 ? payload & fraction : 1;
  all |= payload & sign;
  T nan;
  std::memcpy(&nan, &all, sizeof(T));  // little-endian, like all machines that Kokkos runs on
  return nan;
}

/// A key that draws about the planted probability from the entry's newest query token, and a value of its own. Does
/// nothing if scores differ so much that one token has all the weight.
template <class T>
void plant_heavy(Sample<T>& sample, const Plant& plant) {
  const Shape& shape = sample.shape();
  const int b = plant.entry, t = plant.token;
  const double spread = std::abs(sample.softmax_scale()) * shape.key_size * std::sqrt(shape.head_dim);
  if (sample.query_len(b) == 0 || spread > 2) return;
  if (block_dims_v<T> > 0 || (shape.values_in_keys && is_quantized_v<T>))
    return;  // a large key for one scale is a huge value for another
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    const double* const q = sample.query(sample.query_begin(b + 1) - 1, h * sample.group());
    const double squares  = std::inner_product(q, q + shape.head_dim, q, 0.0) * sample.softmax_scale();
    const double score    = std::max(std::log(shape.lengths[b] * plant.probability / (1 - plant.probability)), 2.0);
    if (std::abs(score) > 30 * std::abs(squares)) continue;  // a key, and perhaps a value, too large for other types
    for (int d = 0; d < shape.head_dim; ++d)
      store_dim(sample.key(b, t, h), d, score / squares * q[d] / sample.key_scale(b, t, h));
    for (int d = 0; !shape.values_in_keys && d < sample.head_dim_v(); ++d)
      store_dim(sample.value(b, t, h), d, (d % 2 == 0 ? 2 : -2) * shape.value_size / sample.value_scale(b, t, h));
  }
}

template <class T>
void plant_nan(Sample<T>& sample, const Plant& plant) {
  const Shape& shape = sample.shape();
  const int b = plant.entry, t = plant.token;
  const bool key = plant.kind == Plant::Kind::nan_key;
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    if constexpr (!facts_of(dtype_v<T>).has_nan) {  // only their scales may be NaN
      if constexpr (block_dims_v<T> > 0) {
        const int i = (t + h) % sample.blocks(key ? shape.head_dim : sample.head_dim_v());
        (key ? sample.key_blocks(b, t, h) : sample.value_blocks(b, t, h))[i].bits = 0xff;
        continue;
      }
      const Scales scales = key ? shape.k_scales : shape.v_scales;
      if (scales != Scales::per_token && scales != Scales::per_token_and_head) return;
      (key ? sample.key_scale(b, t, h) : sample.value_scale(b, t, h)) = nan_of<float>(plant.payload);
    } else {
      T* const row = key ? sample.key(b, t, h) : sample.value(b, t, h);
      if constexpr (has_row_format_v<T>) {  // numbers and scales
        std::memset(static_cast<void*>(row), 0xff, Sample<T>::elements(shape.head_dim));
      } else {
        std::fill_n(row, key ? shape.head_dim : sample.head_dim_v(), nan_of<T>(plant.payload));
      }
    }
  }
}

template <class T>
Sample<T> sample_of(const Problem& problem, const Step& step) {
  Sample<T> sample(step.shape);
  if (step.shape.alibi) sample.alibi_slopes() = problem.alibi_slopes;
  if (step.shape.sinks) sample.sinks() = problem.sinks;
  for (const bool nans : {false, true}) {
    for (const Plant& plant : step.plants) {
      if (nans != (plant.kind != Plant::Kind::heavy)) continue;
      nans ? plant_nan(sample, plant) : plant_heavy(sample, plant);
    }
  }
  return sample;
}

/// Whether the hand-tuned kernels support a problem, drawn for them, on this device.
template <class Space>
bool device_has_tuned([[maybe_unused]] const Problem& problem) {
#if defined(KOKKOS_ENABLE_CUDA)
  if constexpr (std::is_same_v<Space, Kokkos::Cuda>) {
    const tuned::Device device = tuned::Device::current();
    const Shape& s             = problem.steps[0].shape;
    const bool sixteen         = problem.type == DType::fp16 || problem.type == DType::bf16;
    if (has_row_format(problem.type)) return device.sm90a;
    if (sixteen && (s.head_dim == 576 || problem.max_query_len > 1 || s.num_q_heads > 8 * s.num_kv_heads))
      return device.sm90a;
    return device.sm >= (is_quantized(problem.type) ? 90 : 80);
  }
#endif
  return false;
}

template <class Space, class T>
class Run {
 public:
  Run(const Problem& problem, Tally& tally) : problem_(problem), tally_(tally) {
    for (const Step& step : problem.steps) {
      samples_.push_back(sample_of<T>(problem, step));
      scenes_.emplace_back(samples_.back(), step.placement);
    }
    auto& options               = scenes_.front().options();
    options.max_seq_len         = problem.max_seq_len;
    options.max_query_len       = problem.max_query_len;
    options.max_query_tokens    = problem.max_query_tokens;
    options.programmatic_launch = problem.programmatic_launch;
  }

  std::string operator()() {
    std::vector<std::string> backends{"generic"};
    if (problem_.for_tuned && device_has_tuned<Space>(problem_)) {
      backends.insert(backends.begin(), "tuned");
    } else if constexpr (!std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>) {
      backends.insert(backends.begin(), "");  // the library's choice
    }
    for (const std::string& backend : backends) {
      std::string wrong = by(backend);
      if (!wrong.empty()) return (backend.empty() ? "default" : backend) + " backend, " + wrong;
    }
    return {};
  }

 private:
  using TestScene = Scene<Space, T>;

  std::string by(const std::string& backend) {
    TestScene& planned        = scenes_.front();
    planned.options().backend = backend;
    const auto plan           = planned.plan();
    if (!backend.empty() && plan.backend() != backend) return "the plan chose backend " + plan.backend();
    const bool generic = plan.backend() == "generic";
    (generic ? tally_.generic : tally_.tuned) += 1;
    tally_.split += generic && planned.cuts(plan).merges > 0;
    int i = 0;
    for (TestScene& scene : scenes_) {
      if (planned.options().cu_seqlens_q.data()) planned.set_query_lens(problem_.steps[i].shape.query_lens);
      std::string wrong = decode(plan, scene);
      if (!wrong.empty()) return "decode " + std::to_string(i) + ":" + wrong;
      ++i;
    }
    if (i > 1)
      if (std::string wrong = again(plan, planned); !wrong.empty()) return wrong;
    return problem_.as_list ? decode_as_list(planned, backend) : std::string();
  }

  /// Two decodes must be equal bit for bit. The workspace is poisoned between them, and the second may run on another
  /// instance.
  std::string decode(const Plan<Space>& plan, TestScene& scene) {
    const CacheRef kv = std::visit([](const auto& cache) { return cache.ref(); }, scene.cache());
    if (!detail::rows_fit(kv, plan.schedule().kernel.row_alignment)) return refused(plan, scene);
    scene.poison_outputs();
    scene.decode(plan);
    if (const auto right = scene.right(scene.sample(), leeway(scene.out().type())); !right) return right.message();
    const auto first = scene.results();
    scene.poison_outputs();
    scenes_.front().poison_workspaces();
    if (problem_.other_instance) {
      const Space& other = instances<Space>().back();
      scene.exec().fence();
      scene.decode(other, plan);
      other.fence();
    } else {
      scene.decode(plan);
    }
    return scene.results() == first ? "" : " the second decode of two gives other bits";
  }
  /// A plan for aligned rows must refuse a cache with unaligned rows.
  static std::string refused(const Plan<Space>& plan, TestScene& scene) {
    try {
      scene.decode(plan);
    } catch (const InvalidArgument&) {
      return {};
    }
    return " rows that are not aligned are not refused by a plan for aligned ones";
  }
  /// The first decode once more, after those of other lengths; also looks around the workspace, which is the first's.
  std::string again(const Plan<Space>& plan, TestScene& planned) {
    if (planned.options().cu_seqlens_q.data()) planned.set_query_lens(problem_.steps[0].shape.query_lens);
    planned.poison_outputs();
    planned.decode(plan);
    const auto right = planned.right(planned.sample(), leeway(planned.out().type()));
    return right ? "" : std::string("decode 0 after the others:") + right.message();
  }

  /// The first batch as a list: by the generic kernels or the library's choice, as the hand-tuned ones decode fewer
  /// lists than batches. Two decodes must be equal bit for bit.
  std::string decode_as_list(TestScene& scene, const std::string& backend) {
    const Shape& shape = scene.sample().shape();
    const auto kv      = std::visit([](const auto& cache) { return cache.ref(); }, scene.cache());
    std::vector<int> sequences;
    for (int b = 0; b < scene.sample().batch(); ++b) sequences.push_back(scene.sequence(b));
    const EntryList list = list_of_batch(shape, sequences, kv.paged ? kv.page_size() : 1);
    const auto on_there  = on_device(scene.exec(), list);
    const auto whole     = scene.options();
    auto& options        = scene.options();
    options.entries = bounds_of(list), options.cu_seqlens_q = {};
    options.max_query_len = 1, options.max_query_tokens = std::max(scene.sample().query_tokens(), 1);
    options.programmatic_launch = false, options.backend = backend == "tuned" ? "" : backend;
    const auto plan = scene.plan();
    scene.options() = whole;

    using State      = std::conditional_t<std::is_same_v<T, double>, double, float>;
    using Memory     = typename Space::memory_space;
    const int states = list.num_states();
    const Kokkos::View<State***, Kokkos::LayoutRight, Memory> state_out("states", states, shape.num_q_heads,
                                                                        scene.sample().head_dim_v());
    const Kokkos::View<State**, Kokkos::LayoutRight, Memory> state_lse("states", states, shape.num_q_heads);
    detail::Problem p{kv, ref_of<3>(scene.q()), ref_of<3>(scene.out()), {}};
    if (scene.with_lse()) p.lse = ref_of<2>(scene.lse());
    p.entries   = on_there.ref();
    p.state_out = tensor_ref(state_out), p.state_lse = tensor_ref(state_lse);
    std::vector<std::byte> first;
    for (const bool again : {false, true}) {
      scene.poison_outputs(), scene.poison_workspaces();
      Kokkos::deep_copy(scene.exec(), state_out, std::numeric_limits<State>::quiet_NaN());
      Kokkos::deep_copy(scene.exec(), state_lse, std::numeric_limits<State>::quiet_NaN());
      scene.note(plan);
      detail::decode_entries(scene.exec(), plan, p);
      detail::merge_entries(scene.exec(), p, plan.schedule().options.sinks);
      if (const auto right = scene.right(scene.sample(), leeway(scene.out().type())); !right)
        return "as a list of " + std::to_string(list.entries.size()) + " entries:" + right.message();
      if (again && scene.results() != first) return "as a list: the second decode of two gives other bits";
      first = scene.results();
    }
    return {};
  }

  const Problem& problem_;
  Tally& tally_;
  std::list<Sample<T>> samples_;  // scenes refer to them
  std::list<TestScene> scenes_;
};

}  // namespace

template <class Space>
std::string run(const Problem& problem, Tally& tally) {
  std::string wrong;
  try {
    detail::by_type(problem.type, [&]<class T>(T*) { wrong = Run<Space, T>(problem, tally)(); });
  } catch (const InvalidArgument& refusal) {
    wrong = std::string("refused: ") + refusal.what();
  }
  return wrong;
}

template std::string run<Device>(const Problem&, Tally&);
#if defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA) || defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_HIP)
template std::string run<Host>(const Problem&, Tally&);
#endif

}  // namespace pagoda::test::random
