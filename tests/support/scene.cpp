// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scene.hpp"

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <random>

namespace pagoda::test {

namespace {

constexpr std::size_t workspace_guard = 256;
constexpr DType byte_type             = DType::int8;  // block scales of any type, as bytes
constexpr int spare_tokens = 2, spare_pages = 3;

template <class Space>
Kokkos::View<float*, typename Space::memory_space> floats_on(const Space& exec, const std::vector<float>& values) {
  Kokkos::View<float*, typename Space::memory_space> there(
      Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "test floats"), values.size());
  Kokkos::deep_copy(exec, there, Kokkos::View<const float*, Kokkos::HostSpace>(values.data(), values.size()));
  exec.fence();
  return there;
}

}  // namespace

template <class Space, class T>
Scene<Space, T>::Scene(const Sample<T>& sample, const Placement& placement, const Space& exec)
    : exec_(exec),
      sample_(sample),
      placement_(placement),
      page_size_(placement.page_size),
      num_pages_(0),
      max_pages_(1),
      sequence_of_(sample.batch()),
      pages_(sample.batch()),
      k_(dtype_v<T>, {0}, Strides::dense),
      v_(dtype_v<T>, {0}, Strides::dense),
      k_scale_(DType::fp32, {0}, Strides::dense),
      v_scale_(DType::fp32, {0}, Strides::dense),
      k_blocks_(byte_type, {0}, Strides::dense),
      v_blocks_(byte_type, {0}, Strides::dense),
      q_(sample.q_type(), {sample.query_tokens(), sample.shape().num_q_heads, sample.shape().head_dim}, placement.io,
         exec),
      out_(placement.out_type.value_or(io_type_v<T>),
           {sample.query_tokens(), sample.shape().num_q_heads, sample.head_dim_v()},
           placement.out_strides.value_or(placement.io), exec),
      lse_(placement.lse_type, {sample.query_tokens(), sample.shape().num_q_heads},
           placement.lse_strides.value_or(placement.io), exec) {
  const Shape& shape  = sample_.shape();
  placement_.indirect = placement_.indirect || !shape.same_as.empty();
  std::iota(sequence_of_.begin(), sequence_of_.end(), 0);
  if (placement_.indirect) {
    std::vector<int> all(num_sequences());
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), std::mt19937(shape.seed));
    for (int b = 0; b < sample_.batch(); ++b) sequence_of_[b] = all[sample_.source(b)];
    ids_ = Ints<Space>(exec_, sequence_of_);
  }
  // Lengths of sequences outside the batch must not be read.
  std::vector<int> lengths(num_sequences(), INT_MAX);
  for (int b = 0; b < sample_.batch(); ++b) lengths[sequence_of_[b]] = shape.lengths[b];
  lengths_ = Ints<Space>(exec_, lengths);

  if (paged()) {
    for (const int length : shape.lengths) {
      num_pages_ += (length + page_size_ - 1) / page_size_;
      max_pages_ = std::max(max_pages_, (length + page_size_ - 1) / page_size_ + 1);
    }
    num_pages_ += spare_pages;
  } else {
    page_size_ = *std::max_element(shape.lengths.begin(), shape.lengths.end()) + spare_tokens;
    num_pages_ = num_sequences();
  }
  k_ = make_cache_array(shape.head_dim, placement_.strides);
  if (!shape.values_in_keys)
    v_ = make_cache_array(sample_.head_dim_v(), placement_.v_strides.value_or(placement_.strides));
  if (is_quantized_v<T>) k_scale_ = make_scales(shape.k_scales), v_scale_ = make_scales(shape.v_scales);
  if (block_dims_v<T> > 0)
    k_blocks_ = make_block_array(shape.head_dim), v_blocks_ = make_block_array(sample_.head_dim_v());
  choose_pages(shape.seed);
  fill_cache();
  write_tables();
  cache_ = make_cache();

  for (int token = 0; token < sample_.query_tokens(); ++token)
    for (int h = 0; h < shape.num_q_heads; ++h)
      for (int d = 0; d < shape.head_dim; ++d) q_.set({token, h, d}, sample_.query(token, h)[d]);
  q_.upload(exec_);
  poison_outputs();

  options_.num_q_heads        = shape.num_q_heads;
  options_.softmax_scale      = shape.softmax_scale;
  options_.causal             = shape.causal;
  options_.window_left        = shape.window_left;
  options_.num_initial_tokens = shape.num_initial_tokens;
  options_.logit_soft_cap     = shape.logit_soft_cap;
  if (shape.alibi) options_.alibi_slopes = alibi_slopes_ = floats_on(exec_, sample_.alibi_slopes());
  if (shape.sinks) options_.sinks = sinks_ = floats_on(exec_, sample_.sinks());
  const auto& lens = shape.query_lens;
  if (!lens.empty()) options_.max_query_len = std::max(1, *std::max_element(lens.begin(), lens.end()));
  options_.max_batch = placement_.max_batch;
  if (placement_.ragged || std::any_of(lens.begin(), lens.end(), [&](int n) { return n != lens[0]; })) {
    cu_seqlens_q_ = Ints<Space>(exec_, std::vector<int>(std::max(sample_.batch(), placement_.max_batch) + 1));
    set_query_lens(lens.empty() ? std::vector<int>(sample_.batch(), 1) : lens);
    options_.cu_seqlens_q     = cu_seqlens_q_.view();
    options_.max_query_tokens = sample_.query_tokens();
  }
}

template <class Space, class T>
void Scene<Space, T>::set_query_lens(const std::vector<int>& query_lens) {
  std::vector<int> begins(cu_seqlens_q_.view().extent(0), -1);
  begins[0] = 0;
  std::inclusive_scan(query_lens.begin(), query_lens.end(), begins.begin() + 1);
  cu_seqlens_q_.assign(exec_, begins);
}

template <class Space, class T>
std::array<std::int64_t, 4> Scene<Space, T>::at(int page, int slot, int head) const {
  if (placement_.order == KVOrder::NHD) return {page, slot, head, 0};
  return {page, head, slot, 0};
}

template <class Space, class T>
Array<Space> Scene<Space, T>::make_cache_array(int dims, const Arrangement& strides) const {
  const int heads = sample_.shape().num_kv_heads;
  const bool nhd  = placement_.order == KVOrder::NHD;
  return Array<Space>(dtype_v<T>,
                      {num_pages_, nhd ? page_size_ : heads, nhd ? heads : page_size_, Sample<T>::elements(dims)},
                      strides, exec_);
}

template <class Space, class T>
Array<Space> Scene<Space, T>::make_block_array(int dims) const {
  static_assert(block_dims_v<T> == 0 || sizeof(typename Sample<T>::BlockScale) == 1);
  const int heads = sample_.shape().num_kv_heads;
  const bool nhd  = placement_.scale_order == KVOrder::NHD;
  return Array<Space>(byte_type,
                      {num_pages_, nhd ? page_size_ : heads, nhd ? heads : page_size_, Sample<T>::blocks(dims)},
                      placement_.scale_strides.value_or(placement_.strides), exec_);
}

/// Assigns pages of the pool in random order, except where no query sees a token of the page. A contiguous cache: the
/// page is the sequence.
template <class Space, class T>
void Scene<Space, T>::choose_pages(unsigned seed) {
  std::vector<int> pool(num_pages_);
  std::iota(pool.begin(), pool.end(), 0);
  std::shuffle(pool.begin(), pool.end(), std::mt19937(seed));
  for (int b = 0; b < sample_.batch(); ++b) {
    const int length = sample_.shape().lengths[b], unused = placement_.unused_page;
    pages_[b].assign(length == 0 ? 0 : (length - 1) / page_size_ + 1, paged() ? unused : sequence_of_[b]);
    if (sample_.source(b) != b) pages_[b] = pages_[sample_.source(b)];
    if (!paged() || sample_.source(b) != b) continue;
    std::vector<bool> given(pages_[b].size(), false);
    for (int t = 0; t < length; ++t) {
      const int i = t / page_size_;
      if (given[i] || !sample_.visible(b, t)) continue;
      given[i]     = true;
      pages_[b][i] = pool.back();
      pool.pop_back();
    }
  }
}

template <class Space, class T>
void Scene<Space, T>::fill_cache() {
  const Shape& shape = sample_.shape();
  const auto scatter = [](Array<Space>& into, const std::array<std::int64_t, 4>& where, const T* row, int dims) {
    T* const to = reinterpret_cast<T*>(into.element(where));
    for (int d = 0; d < dims; ++d) to[d * into.stride(3)] = row[d];
  };
  k_.poison_all(exec_), v_.poison_all(exec_);
  for (int b = 0; b < sample_.batch(); ++b) {
    for (int t = 0; t < shape.lengths[b]; ++t) {
      if (!sample_.visible(b, t)) continue;
      const int page = pages_[b][t / page_size_], slot = t % page_size_;
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        scatter(k_, at(page, slot, h), sample_.key(b, t, h), Sample<T>::elements(shape.head_dim));
        if (!shape.values_in_keys)
          scatter(v_, at(page, slot, h), sample_.value(b, t, h), Sample<T>::elements(sample_.head_dim_v()));
      }
    }
  }
  k_.upload(exec_), v_.upload(exec_);
  fill_scales();
}

template <class Space, class T>
void Scene<Space, T>::fill_scales() {
  const Shape& shape = sample_.shape();
  const bool nhd     = placement_.scale_order == KVOrder::NHD;
  k_scale_.poison_all(exec_), v_scale_.poison_all(exec_);
  k_blocks_.poison_all(exec_), v_blocks_.poison_all(exec_);
  for (int b = 0; is_quantized_v<T> && b < sample_.batch(); ++b) {
    for (int t = 0; t < shape.lengths[b]; ++t) {
      if (!sample_.visible(b, t)) continue;
      const int page = pages_[b][t / page_size_], slot = t % page_size_;
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        const auto put = [&](Array<Space>& into, Scales scales, float x) {
          if (scales == Scales::per_token || scales == Scales::per_token_and_head) {
            const int head = scales == Scales::per_token ? 0 : h;
            into.set({page, nhd ? slot : head, nhd ? head : slot, 0}, x);
          } else {
            into.set({scales == Scales::per_head ? h : 0, 0, 0, 0}, x);
          }
        };
        const auto put_blocks = [&](Array<Space>& into, const auto* scales, int dims) {
          for (int i = 0; i < Sample<T>::blocks(dims); ++i)
            std::memcpy(into.element({page, nhd ? slot : h, nhd ? h : slot, i}), scales + i, 1);
        };
        put_blocks(k_blocks_, sample_.key_blocks(b, t, h), shape.head_dim);
        put_blocks(v_blocks_, sample_.value_blocks(b, t, h), sample_.head_dim_v());
        put(k_scale_, shape.k_scales, sample_.key_scale(b, t, h));
        put(v_scale_, shape.v_scales, sample_.value_scale(b, t, h));
      }
    }
  }
  k_scale_.upload(exec_), v_scale_.upload(exec_);
  k_blocks_.upload(exec_), v_blocks_.upload(exec_);
}

template <class Space, class T>
void Scene<Space, T>::write_tables() {
  if (!paged()) return;
  std::vector<int> table, indptr{0};
  if (placement_.layout == Layout::csr) {
    std::vector<const std::vector<int>*> of(num_sequences(), nullptr);
    for (int b = 0; b < sample_.batch(); ++b) of[sequence_of_[b]] = &pages_[b];
    for (const auto* list : of) {
      if (list) table.insert(table.end(), list->begin(), list->end());
      indptr.push_back(static_cast<int>(table.size()));
    }
    table.push_back(-1);
  } else {
    const Arrangement arrangement = placement_.table_strides.value_or(placement_.strides);
    const auto stride             = arrangement.strides({num_sequences(), max_pages_});
    table_row_ = static_cast<int>(stride[0]), table_page_ = static_cast<int>(stride[1]);
    table_first_     = arrangement.first;
    const auto index = [&](int sequence, int i) { return table_first_ + sequence * table_row_ + i * table_page_; };
    table.assign(index(num_sequences() - 1, max_pages_ - 1) + 1, placement_.unused_page);
    for (int b = 0; b < sample_.batch(); ++b)
      for (std::size_t i = 0; i < pages_[b].size(); ++i)
        table[index(sequence_of_[b], static_cast<int>(i))] = pages_[b][i];
  }
  if (!cache_) {
    table_ = Ints<Space>(exec_, table), indptr_ = Ints<Space>(exec_, indptr);
  } else {
    table_.assign(exec_, table);
  }
}

template <class Space, class T>
auto Scene<Space, T>::make_cache() -> Cache {
  const int dims = Sample<T>::elements(sample_.head_dim_v());
  const auto k   = k_.template view<const T, 4>();
  const auto v   = sample_.shape().values_in_keys ? k_.template view<const T, 4>(dims) : v_.template view<const T, 4>();
  const auto ids = ids_.view();
  const auto with_scales = [&](const auto& kv) -> Cache {
    if constexpr (block_dims_v<T> > 0) {
      using S              = block_scale_t<T>;
      auto in_blocks       = pagoda::block_scales(k_blocks_.template view<const S, 4>(),
                                                  v_blocks_.template view<const S, 4>(), placement_.scale_order);
      in_blocks.per_tensor = {scales(k_scale_, sample_.shape().k_scales), scales(v_scale_, sample_.shape().v_scales)};
      return kv.with_scales(in_blocks);
    } else if constexpr (is_quantized_v<T> && !has_row_format_v<T>) {
      return kv.with_scales({scales(k_scale_, sample_.shape().k_scales), scales(v_scale_, sample_.shape().v_scales)});
    } else {
      return kv;
    }
  };
  if (!paged()) return with_scales(ContiguousKV<T, Memory>(k, v, lengths_.view(), placement_.order, ids));
  if (placement_.layout == Layout::csr) {
    const int longest = *std::max_element(sample_.shape().lengths.begin(), sample_.shape().lengths.end());
    return with_scales(
        PagedKV<T, Memory>(k, v, indptr_.view(), table_.view(), lengths_.view(), longest, placement_.order, ids));
  }
  const Kokkos::View<const int**, Kokkos::LayoutStride, Memory> table(
      table_.view().data() + table_first_, Kokkos::LayoutStride(num_sequences(), table_row_, max_pages_, table_page_));
  return with_scales(PagedKV<T, Memory>(k, v, table, lengths_.view(), placement_.order, ids));
}

template <class Space, class T>
Plan<Space> Scene<Space, T>::plan() {
  return std::visit(
      [&](const auto& kv) {
        const std::size_t bytes = pagoda::workspace_bytes(exec_, kv, options_);
        workspaces_.push_back(std::make_unique<Bytes<Space>>(bytes + 2 * workspace_guard, exec_));
        workspaces_.back()->upload(exec_);
        const typename Plan<Space>::Workspace mine(workspaces_.back()->there() + workspace_guard, bytes);
        return pagoda::plan(exec_, kv, options_, mine);
      },
      *cache_);
}

template <class Space, class T>
void Scene<Space, T>::note(const Plan<Space>& plan) const {
  probability_type_ = plan.schedule().kernel.probability_type;
  // Matrix instructions truncate sums of products. This shows in the hand-tuned kernels for many query rows
  // (backends/cuda/tuned/wgmma) and in the long sums of latent caches.
  const auto& s    = plan.schedule();
  const bool tuned = plan.backend() == "tuned";
  if constexpr (has_row_format_v<T>) {
    // The hand-tuned kernels have queries of bf16. Others are left to the generic ones, and so are outputs of fp64 and
    // unaligned rows.
    rounds_numbers_ = tuned && q_.type() == DType::bf16 && out_.type() != DType::fp64 && io_starts_on_16_bytes();
    if (rounds_numbers_) probability_type_ = DType::bf16;
  }
  const bool many     = tuned && (s.bounds.max_query_len > 1 || s.shape.group() > 8);
  const bool latent   = s.shape.head_dim != s.shape.head_dim_v;
  const bool matrices = tuned || size_of(s.kernel.probability_type) == 2;
  truncated_steps_    = matrices && (many || latent) ? s.shape.head_dim / 16 : 0;
}

template <class Space, class T>
bool Scene<Space, T>::io_starts_on_16_bytes() const {
  const auto starts = [](const Array<Space>& rows, const Arrangement& a) {
    const auto on_16 = [&](std::int64_t elements) { return elements * size_of(rows.type()) % 16 == 0; };
    return rows.stride(2) == 1 && on_16(rows.stride(0)) && on_16(rows.stride(1)) && on_16(a.first);
  };
  return starts(q_, placement_.io) && starts(out_, placement_.out_strides.value_or(placement_.io));
}

template <class Space, class T>
void Scene<Space, T>::decode(const Space& exec, const Plan<Space>& plan) const {
  note(plan);
  const auto call = [&]<class Q, class Out>(Q*, Out*) {
    std::visit(
        [&](const auto& kv) {
          const auto q   = q_.template view<const Q, 3>();
          const auto out = out_.template view<Out, 3>();
          if (!placement_.with_lse) {
            pagoda::decode(exec, plan, q, kv, out);
          } else if (placement_.lse_type == DType::fp64) {
            pagoda::decode(exec, plan, q, kv, out, lse_.template view<double, 2>());
          } else {
            pagoda::decode(exec, plan, q, kv, out, lse_.template view<float, 2>());
          }
        },
        *cache_);
  };
  with_type(q_.type(), [&](auto* q) { with_type(out_.type(), [&](auto* out) { call(q, out); }); });
}

template <class Space, class T>
void Scene<Space, T>::set_lengths(const std::vector<int>& lengths) {
  std::vector<int> all(num_sequences(), INT_MAX);
  for (int b = 0; b < sample_.batch(); ++b) all[sequence_of_[b]] = lengths[b];
  lengths_.assign(exec_, all);
}

template <class Space, class T>
void Scene<Space, T>::shuffle_pages(unsigned seed) {
  choose_pages(seed);
  fill_cache();
  write_tables();
}

template <class Space, class T>
void Scene<Space, T>::poison_outputs() {
  out_.poison_all(exec_), lse_.poison_all(exec_);
}

template <class Space, class T>
void Scene<Space, T>::poison_workspaces() {
  for (const auto& workspace : workspaces_) workspace->poison_all(exec_);
}

template <class Space, class T>
std::vector<std::byte> Scene<Space, T>::results() {
  out_.download(exec_), lse_.download(exec_);
  auto all = out_.elements(), lse = lse_.elements();
  all.insert(all.end(), lse.begin(), lse.end());
  return all;
}

template <class Space, class T>
testing::AssertionResult Scene<Space, T>::right(const Sample<T>& sample, double leeway) {
  out_.download(exec_), lse_.download(exec_);
  auto [wrong, worst, report] = compare<Space>(sample, out_, placement_.with_lse ? &lse_ : nullptr, probability_type_,
                                               truncated_steps_, leeway, rounds_numbers_);
  worst_                      = worst;
  const auto untouched        = [&count = wrong, &text = report](bool ok, const char* what) {
    if (ok) return;
    ++count;
    text += std::string("\n  ") + what;
  };
  untouched(out_.untouched_around(), "something was written between or around the elements of out");
  untouched(lse_.untouched_around(), "something was written between or around the elements of lse");
  untouched(k_.unchanged(exec_) && v_.unchanged(exec_) && q_.unchanged(exec_), "keys, values or queries were written");
  untouched(k_scale_.unchanged(exec_) && v_scale_.unchanged(exec_), "scales were written");
  untouched(k_blocks_.unchanged(exec_) && v_blocks_.unchanged(exec_), "block scales were written");
  untouched(lengths_.unchanged(exec_) && ids_.unchanged(exec_) && table_.unchanged(exec_) && indptr_.unchanged(exec_) &&
                cu_seqlens_q_.unchanged(exec_),
            "lengths or tables were written");
  for (const auto& workspace : workspaces_) {
    const auto now      = workspace->download(exec_);
    const auto poisoned = [](std::byte byte) { return byte == poison; };
    untouched(std::all_of(now.begin(), now.begin() + workspace_guard, poisoned) &&
                  std::all_of(now.end() - workspace_guard, now.end(), poisoned),
              "something was written around the workspace");
  }
  if (wrong > 0) return testing::AssertionFailure() << report;
  return testing::AssertionSuccess();
}

#define PAGODA_TEST_ON_DEVICE(name) template class Scene<Device, pagoda::detail::type_##name>;
PAGODA_TEST_FOR_EACH_TYPE(PAGODA_TEST_ON_DEVICE)
#undef PAGODA_TEST_ON_DEVICE
#if defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA) || defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_HIP)
#define PAGODA_TEST_ON_HOST(name) template class Scene<Host, pagoda::detail::type_##name>;
PAGODA_TEST_FOR_EACH_TYPE(PAGODA_TEST_ON_HOST)
#undef PAGODA_TEST_ON_HOST
#endif

}  // namespace pagoda::test
