// SPDX-License-Identifier: Apache-2.0
// Random descriptors for the C interface: every call returns a status, and nothing outside the memory that the
// descriptors name is read or written. There are two kinds of descriptors. Wild ones have any extents and strides, and
// go to calls that read no array. Small ones lie within one block of memory, and go to all calls.
#include <pagoda/pagoda_pool.h>

#include "tests/fuzz/engine.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

namespace pagoda::test::fuzz {
namespace {

/// Elements of all arrays, which calls write. No small descriptor reaches the end.
std::vector<double>& elements() {
  static std::vector<double> block(std::size_t(1) << 16);
  return block;
}
/// Lengths of 0, pages of id 0, positions 0: no call writes them.
std::vector<double>& zeros() {
  static std::vector<double> block(std::size_t(1) << 12);
  return block;
}

void expect_status(const char* call, pagoda_status status) {
  const bool known = status >= PAGODA_SUCCESS && status <= PAGODA_RUNTIME_ERROR;
  const bool said  = status == PAGODA_SUCCESS || std::strlen(pagoda_last_error()) > 0;
  if (known && said && status != PAGODA_RUNTIME_ERROR) return;
  std::fprintf(stderr, "%s returned %d: %s\n", call, static_cast<int>(status), pagoda_last_error());
  std::abort();
}

/// A struct, and zeros for a struct_size of a newer header.
template <class T>
struct Larger {
  T value{};
  unsigned char rest[600] = {};
};

class Descriptors {
 public:
  Descriptors(Engine& engine, bool wild) : engine_(engine), wild_(wild) {
    std::fill(elements().begin(), elements().end(), 0.0);
  }

  int below(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }

  /// Mostly small, else near a bound of 32 or 64 bits.
  std::int64_t number() {
    if (!wild_ || below(3) > 0) return below(12) == 0 ? -1 : below(5);
    static constexpr std::array<std::int64_t, 12> bounds{0,
                                                         INT_MAX,
                                                         std::int64_t(1) << 31,
                                                         UINT_MAX,
                                                         INT64_MAX,
                                                         INT_MIN,
                                                         INT64_MIN,
                                                         std::int64_t(1) << 16,
                                                         1 << 24,
                                                         1 << 30,
                                                         std::int64_t(1) << 40,
                                                         std::int64_t(1) << 56};
    const std::int64_t bound = bounds[engine_() % bounds.size()];
    const int off            = below(5) - 2;
    return (off < 0 && bound < INT64_MIN + 2) || (off > 0 && bound > INT64_MAX - 2) ? bound : bound + off;
  }
  std::int32_t small_number() {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(number(), INT_MIN, INT_MAX));
  }
  /// A pointer that a call may check, not read: a wild descriptor promises more than there is.
  template <class T>
  T* pointer() {
    return below(12) == 0 ? nullptr : reinterpret_cast<T*>((std::is_const_v<T> ? zeros() : elements()).data());
  }

  pagoda_tensor tensor(int rank, pagoda_type type) {
    pagoda_tensor t{};
    t.data = pointer<void>();
    t.rank = below(16) == 0 ? small_number() : rank;
    t.type = below(16) == 0 ? small_number() : type;
    for (auto& extent : t.extent) extent = number();
    if (below(2) == 0)
      for (auto& stride : t.stride) stride = number();
    if (below(30) == 0) t.memory = small_number();
    if (below(60) == 0) t.reserved = small_number();
    return t;
  }

  Larger<pagoda_cache> cache() {
    Larger<pagoda_cache> larger;
    pagoda_cache& kv = larger.value;
    kv.struct_size   = below(40) == 0 ? static_cast<std::size_t>(below(600)) : sizeof kv;
    kv.layout        = below(20) == 0 ? small_number() : below(3);
    kv.order         = below(20) == 0 ? small_number() : below(2);
    const auto type  = static_cast<pagoda_type>(1 + below(11));
    kv.k = tensor(4, type), kv.v = tensor(4, type);
    if (below(8) > 0)
      for (int axis = 0; axis < (below(2) == 0 ? 3 : 4); ++axis) kv.v.extent[axis] = kv.k.extent[axis];
    kv.seq_lens      = pointer<const std::int32_t>();
    kv.num_sequences = kv.layout == PAGODA_CONTIGUOUS && kv.k.extent[0] <= INT_MAX && kv.k.extent[0] >= 0
                           ? static_cast<std::int32_t>(kv.k.extent[0])
                           : small_number();
    kv.batch         = small_number();
    kv.block_table   = pointer<const std::int32_t>();
    kv.max_pages     = number();
    if (below(3) == 0)
      for (auto& stride : kv.block_table_stride) stride = number();
    kv.page_indptr = pointer<const std::int32_t>(), kv.page_indices = pointer<const std::int32_t>();
    kv.num_page_indices = number(), kv.max_seq_len = small_number();
    kv.scale_order = below(2);
    if (below(3) == 0 && kv.num_sequences > 0) kv.sequence_ids = pointer<const std::int32_t>();  // ids of 0
    if (type > PAGODA_BF16 || below(20) == 0) {
      static constexpr std::array<int, 3> ranks{0, 1, 3};
      kv.k_scale = tensor(ranks[engine_() % 3], PAGODA_FP32), kv.v_scale = tensor(ranks[engine_() % 3], PAGODA_FP32);
      if (type >= PAGODA_MXFP4 || below(8) == 0)
        kv.k_block_scale = tensor(4, PAGODA_E8M0), kv.v_block_scale = tensor(4, PAGODA_FP8_E4M3);
    }
    return larger;
  }

  Larger<pagoda_decode_options> options() {
    Larger<pagoda_decode_options> larger;
    pagoda_decode_options& o = larger.value;
    o.struct_size            = below(40) == 0 ? static_cast<std::size_t>(below(400)) : sizeof o;
    o.num_q_heads            = small_number();
    if (below(3) == 0) o.max_batch = small_number();
    if (below(3) == 0) o.max_seq_len = small_number();
    if (below(3) == 0) o.max_query_len = small_number();
    if (below(3) == 0) o.max_query_tokens = small_number();
    if (below(6) == 0) o.num_cu_seqlens_q = small_number(), o.cu_seqlens_q = pointer<const std::int32_t>();
    static constexpr std::array<double, 8> doubles{0, 1, -1, 1e300, -1e300, 1e-300, HUGE_VAL, NAN};
    if (below(6) == 0) o.softmax_scale = doubles[engine_() % doubles.size()];
    if (below(6) == 0) o.logit_soft_cap = doubles[engine_() % doubles.size()];
    o.not_causal = below(2);
    if (below(4) == 0) o.window = small_number();
    if (below(4) == 0) o.num_initial_tokens = small_number();
    if (below(8) == 0) o.alibi_slopes = pointer<const float>();
    if (below(8) == 0) o.sinks = pointer<const float>();
    static constexpr std::array<const char*, 4> backends{nullptr, "generic", "tuned", "other"};
    o.backend = backends[below(8) == 0 ? engine_() % backends.size() : 0];
    return larger;
  }

 private:
  Engine& engine_;
  bool wild_;
};

/// A plan whose memory is small enough to allocate.
void plan_and_decode(Descriptors& d, bool wild) {
  const auto larger_kv                 = d.cache();
  const auto larger_options            = d.options();
  const pagoda_cache& kv               = larger_kv.value;
  const pagoda_decode_options& options = larger_options.value;
  std::size_t bytes                    = 0;
  const auto status                    = pagoda_workspace_bytes(nullptr, &kv, &options, &bytes);
  expect_status("pagoda_workspace_bytes", status);
  if (status != PAGODA_SUCCESS || bytes > std::size_t(1) << 26) return;
  pagoda_plan* plan = nullptr;
  expect_status("pagoda_plan_create", pagoda_plan_create(nullptr, &kv, &options, &plan));
  if (plan == nullptr || wild) return pagoda_plan_destroy(plan);
  pagoda_tensor q = d.tensor(3, PAGODA_FP32), out = d.tensor(3, PAGODA_FP32);
  const pagoda_tensor lse = d.tensor(2, PAGODA_FP32);
  if (d.below(4) > 0) {
    q.extent[1] = out.extent[1] = options.num_q_heads;
    q.extent[2] = kv.k.extent[3], out.extent[2] = kv.v.extent[3], out.extent[0] = q.extent[0];
  }
  expect_status("pagoda_decode", pagoda_decode(nullptr, plan, &q, &kv, &out, d.below(2) == 0 ? nullptr : &lse));
  expect_status("pagoda_exec_fence", pagoda_exec_fence(nullptr));
  expect_status("pagoda_check", pagoda_check(nullptr, &kv, d.below(2) == 0 ? plan : nullptr, &q));
  pagoda_plan_destroy(plan);
}

void merge_and_write(Descriptors& d) {
  const pagoda_tensor outs = d.tensor(4, PAGODA_FP32), lses = d.tensor(3, PAGODA_FP32), out = d.tensor(3, PAGODA_FP32),
                      lse = d.tensor(2, PAGODA_FP32);
  expect_status("pagoda_merge", pagoda_merge(nullptr, &outs, &lses, &out, &lse));
  pagoda_tensor k_cache = d.tensor(4, PAGODA_FP32), k = d.tensor(3, PAGODA_FP32);
  if (d.below(3) > 0) k.extent[1] = k_cache.extent[2], k.extent[2] = k_cache.extent[3];
  if (k_cache.extent[0] == 0 || k_cache.extent[1] == 0 || k_cache.extent[2] == 0) return;  // has no position 0
  expect_status("pagoda_write_kv",
                pagoda_write_kv(nullptr, &k_cache, &k_cache, d.below(3), d.pointer<const std::int64_t>(),
                                d.below(2) == 0 ? k.extent[0] : d.number(), &k, &k));
  expect_status("pagoda_exec_fence", pagoda_exec_fence(nullptr));
}

void use_pool(Descriptors& d) {
  pagoda_pool_options o{};
  o.struct_size = sizeof o;
  o.layout = d.below(3), o.type = 1 + d.below(5), o.order = d.below(3);
  o.num_kv_heads = d.small_number(), o.head_dim = d.small_number(), o.head_dim_v = d.small_number();
  o.max_seq_len = d.small_number(), o.max_sequences = d.small_number(), o.page_size = d.small_number();
  o.num_pages = d.small_number(), o.num_q_heads = d.below(3) == 0 ? o.num_kv_heads : d.small_number();
  pagoda_pool* pool = nullptr;
  expect_status("pagoda_pool_create", pagoda_pool_create(nullptr, &o, &pool));
  if (pool == nullptr) return;
  std::int32_t slot = -1, number = 0;
  for (int i = 0; i < 4; ++i) {
    expect_status("pagoda_pool_admit_tokens", pagoda_pool_admit_tokens(nullptr, pool, d.small_number(), &slot));
    const std::int32_t other = d.below(2) == 0 ? slot : d.small_number();
    expect_status("pagoda_pool_fork", pagoda_pool_fork(nullptr, pool, other, d.small_number(), &number));
    const std::int32_t slots[] = {other, slot, number}, counts[] = {d.small_number(), d.small_number(), 1};
    expect_status("pagoda_pool_reserve", pagoda_pool_reserve(nullptr, pool, d.below(4), slots, counts));
    expect_status("pagoda_pool_can_admit", pagoda_pool_can_admit(pool, d.small_number(), &number));
    expect_status("pagoda_pool_page_ref_count", pagoda_pool_page_ref_count(pool, d.small_number(), &number));
    if (d.below(3) == 0) expect_status("pagoda_pool_release", pagoda_pool_release(pool, other));
  }
  pagoda_pool_destroy(pool);
}

}  // namespace
}  // namespace pagoda::test::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  using namespace pagoda::test::fuzz;
  Engine engine(bytes, count);
  const bool wild = engine() % 2 == 0;
  Descriptors d(engine, wild);
  plan_and_decode(d, wild);
  if (!wild) merge_and_write(d), use_pool(d);
  return 0;
}
