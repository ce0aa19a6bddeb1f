// SPDX-License-Identifier: Apache-2.0
#include "src/plan/workspace.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <climits>
#include <cmath>

namespace pagoda::test {
namespace {

/// Three sequences of 8 heads over 4, 32 dims.
const Shape shape{.lengths = {40, 0, 7}, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 32, .q_type = DType::fp32};
const Placement placement{.out_type = DType::fp32};

/// The cache's type, and another one.
using T     = AnyType;
using Other = std::conditional_t<std::is_same_v<T, double>, float, double>;

template <class Space>
struct PlanErrors : testing::Test {
  using Memory  = typename Space::memory_space;
  using Options = DecodeOptions<Memory>;
  const Sample<T> sample{shape};
  Scene<Space, T> scene{sample, placement};

  void refuses(const Options& options, std::initializer_list<const char*> words) {
    std::visit([&](const auto& kv) { expect_refusal([&] { pagoda::plan(scene.exec(), kv, options); }, words); },
               scene.cache());
    // The query for the size is the same function.
    std::visit([&](const auto& kv) { expect_refusal([&] { workspace_bytes(scene.exec(), kv, options); }, words); },
               scene.cache());
  }
  static Kokkos::View<float*, Memory> floats(int n) { return Kokkos::View<float*, Memory>("test floats", n); }
  static Kokkos::View<int*, Memory> ints(int n) { return Kokkos::View<int*, Memory>("test ints", n); }
};
TYPED_TEST_SUITE(PlanErrors, Spaces, Names);

TYPED_TEST(PlanErrors, Heads) {
  this->refuses({}, {"pagoda::plan", "num_q_heads is 0", "num_kv_heads = 4"});
  this->refuses({.num_q_heads = 6}, {"num_q_heads is 6", "num_kv_heads = 4"});
  this->refuses({.num_q_heads = -4}, {"num_q_heads is -4"});
}

TYPED_TEST(PlanErrors, Bounds) {
  this->refuses({.num_q_heads = 8, .max_batch = -1}, {"max_batch is -1"});
  this->refuses({.num_q_heads = 8, .max_seq_len = -7}, {"max_seq_len is -7"});
  this->refuses({.num_q_heads = 8, .max_query_len = 0}, {"max_query_len is 0", "1 or more"});
  this->refuses({.num_q_heads = 8, .max_query_tokens = -2}, {"max_query_tokens is -2"});
  this->refuses({.num_q_heads = 8, .max_seq_len = INT_MAX, .max_query_tokens = INT_MAX},
                {"max_query_tokens is 2147483647", "max_seq_len 2147483647", "2^30"});
  this->refuses({.num_q_heads = 8, .max_batch = 1 << 20, .max_query_len = 1 << 20},
                {"max_batch is 1048576", "max_query_len 1048576", "2^31"});
  this->refuses({.num_q_heads = 8, .max_batch = INT_MAX, .max_query_len = 2}, {"max_batch is 2147483647", "2^31"});
  this->refuses({.num_q_heads = 8, .max_query_len = INT_MAX}, {"max_query_len", "2147483647"});
  // 2^30 query tokens of two heads each: 2^31 query rows, which exceed an int.
  this->refuses({.num_q_heads = 8, .max_query_len = 1 << 30, .max_query_tokens = 1 << 30},
                {"max_query_len is 1073741824", "2 query heads", "2^31"});
}

// Bounds that fit an int are accepted, however large.
TYPED_TEST(PlanErrors, BoundsAtTheirLimits) {
  const auto plans = [&](const typename TestFixture::Options& options) {
    return std::visit([&](const auto& kv) { return detail::make_schedule(this->scene.exec(), kv.ref(), options); },
                      this->scene.cache());
  };
  EXPECT_EQ(plans({.num_q_heads = 8, .max_batch = INT_MAX, .max_seq_len = 1, .max_query_tokens = 1}).bounds.max_batch,
            INT_MAX);
  EXPECT_EQ(plans({.num_q_heads = 8, .max_query_len = 1 << 29, .max_query_tokens = 3}).bounds.max_query_len, 1 << 29);
  this->refuses({.num_q_heads = 8, .max_batch = INT_MAX, .cu_seqlens_q = this->ints(4)},
                {"cu_seqlens_q has 4", "max_batch + 1 = 2147483648"});
}

TYPED_TEST(PlanErrors, HeadDimsBeyondAnyMemory) {
  CacheRef kv    = std::visit([](const auto& cache) { return cache.ref(); }, this->scene.cache());
  kv.k.extent[3] = kv.v.extent[3] = 1 << 29;
  expect_refusal([&] { detail::make_schedule(this->scene.exec(), kv, this->scene.options()); },
                 {"pagoda::plan", "head_dim is 536870912", "2^24"});
}

TYPED_TEST(PlanErrors, ScoreOptions) {
  const double nan = std::nan(""), infinity = HUGE_VAL;
  this->refuses({.num_q_heads = 8, .softmax_scale = nan}, {"softmax_scale is nan", "finite"});
  this->refuses({.num_q_heads = 8, .softmax_scale = infinity}, {"softmax_scale is inf", "finite"});
  this->refuses({.num_q_heads = 8, .window_left = -2}, {"window_left is -2", "-1"});
  this->refuses({.num_q_heads = 8, .num_initial_tokens = -1}, {"num_initial_tokens is -1", "0 or more"});
  this->refuses({.num_q_heads = 8, .logit_soft_cap = -3}, {"logit_soft_cap is -3"});
  this->refuses({.num_q_heads = 8, .logit_soft_cap = infinity}, {"logit_soft_cap is inf"});
  this->refuses({.num_q_heads = 8, .logit_soft_cap = nan}, {"logit_soft_cap is nan"});
  if constexpr (!std::is_same_v<T, double>) {  // finite in double, but kernels count in float
    this->refuses({.num_q_heads = 8, .softmax_scale = 1e39}, {"softmax_scale is 1e+39", "finite in float"});
    this->refuses({.num_q_heads = 8, .softmax_scale = -3e38}, {"softmax_scale is -3e+38", "log2(e)"});
    this->refuses({.num_q_heads = 8, .logit_soft_cap = 1e39}, {"logit_soft_cap is 1e+39"});
    this->refuses({.num_q_heads = 8, .logit_soft_cap = 1e-46}, {"logit_soft_cap is 1e-46"});
  }
  this->refuses({.num_q_heads = 8, .alibi_slopes = this->floats(7)}, {"alibi_slopes has 7", "num_q_heads = 8"});
  this->refuses({.num_q_heads = 8, .sinks = this->floats(9)}, {"sinks has 9", "num_q_heads = 8"});
}

TYPED_TEST(PlanErrors, OptionsWithoutMemory) {
  using DeviceMemory = typename TypeParam::memory_space;
  const Kokkos::View<const float*, DeviceMemory> no_floats(nullptr, 8);
  this->refuses({.num_q_heads = 8, .cu_seqlens_q = Kokkos::View<const int*, DeviceMemory>(nullptr, 4)},
                {"cu_seqlens_q has a null pointer and 4 entries", "or an empty View"});
  this->refuses({.num_q_heads = 8, .alibi_slopes = no_floats}, {"alibi_slopes has a null pointer and 8 entries"});
  this->refuses({.num_q_heads = 8, .sinks = no_floats}, {"sinks has a null pointer and 8 entries"});
}

TYPED_TEST(PlanErrors, CuSeqlens) {
  this->refuses({.num_q_heads = 8, .cu_seqlens_q = this->ints(3)}, {"cu_seqlens_q has 3", "the cache's batch + 1 = 4"});
  this->refuses({.num_q_heads = 8, .max_batch = 10, .cu_seqlens_q = this->ints(4)},
                {"cu_seqlens_q has 4", "max_batch + 1 = 11"});
}

TYPED_TEST(PlanErrors, DimsThatFitNoTeam) {
  using DeviceMemory = typename TypeParam::memory_space;
  const int dims     = 1 << 22;  // more than even a host has for a team
  const Kokkos::View<T****, Kokkos::LayoutRight, DeviceMemory> k(
      Kokkos::view_alloc("test keys", Kokkos::WithoutInitializing), 1, 1, 1, dims);
  const Kokkos::View<int*, DeviceMemory> lengths("test ints", 1);
  expect_refusal([&] { pagoda::plan(TypeParam(), ContiguousKV{k, k, lengths}, {.num_q_heads = 1}); },
                 {"pagoda::plan", "head_dim is 4194304", "head_dim_v 4194304", "scratch"});
}

TYPED_TEST(PlanErrors, KeysAndValuesOfTwoTypes) {
  CacheRef kv = std::visit([](const auto& cache) { return cache.ref(); }, this->scene.cache());
  kv.v.type   = dtype_v<Other>;
  expect_refusal([&] { detail::make_schedule(this->scene.exec(), kv, this->scene.options()); },
                 {"values are", name_of(dtype_v<Other>), "keys", name_of(dtype_v<T>)});
}

// An invalid type code, or a type that this build leaves out.
TYPED_TEST(PlanErrors, TypesWithoutKernels) {
  CacheRef kv = std::visit([](const auto& cache) { return cache.ref(); }, this->scene.cache());
  kv.k.type   = static_cast<DType>(77);
  kv.v.type   = kv.k.type;
  expect_refusal([&] { detail::make_schedule(this->scene.exec(), kv, this->scene.options()); },
                 {"element type is unknown", "allowed in this build:", name_of(dtype_v<T>), "PAGODA_TYPES"});
}

TYPED_TEST(PlanErrors, Workspaces) {
  using Space     = TypeParam;
  using Workspace = typename Plan<Space>::Workspace;
  std::visit(
      [&](const auto& kv) {
        const Space& exec       = this->scene.exec();
        const auto& options     = this->scene.options();
        const std::size_t bytes = workspace_bytes(exec, kv, options);
        const Workspace exact("test workspace", bytes), longer("test workspace", bytes + 16);
        EXPECT_NO_THROW(pagoda::plan(exec, kv, options, exact));
        EXPECT_NO_THROW(pagoda::plan(exec, kv, options, longer));
        const std::string given = std::to_string(bytes - 1), needed = std::to_string(bytes);
        expect_refusal([&] { pagoda::plan(exec, kv, options, Workspace(exact.data(), bytes - 1)); },
                       {"workspace has", given.c_str(), needed.c_str()});
        expect_refusal([&] { pagoda::plan(exec, kv, options, Workspace(longer.data() + 8, bytes)); },
                       {"workspace", "aligned", "16"});
      },
      this->scene.cache());
}

/// A plan for the shape above, and calls that do not fit it: each must be refused before anything is written.
template <class Space>
struct DecodeErrors : testing::Test {
  const Sample<T> sample{shape};
  Scene<Space, T> scene{sample, placement};
  const Plan<Space> plan = scene.plan();

  static Array<Space> array(std::vector<std::int64_t> extent) {
    return Array<Space>(DType::fp32, extent, Strides::dense);
  }
  template <class F>
  void refuses(const F& call, std::initializer_list<const char*> words) {
    expect_refusal([&] { std::visit(call, scene.cache()); }, words);
    scene.exec().fence();
    EXPECT_TRUE(scene.out().unchanged(scene.exec()) && scene.lse().unchanged(scene.exec())) << "something was written";
  }
  auto q() { return scene.q().template view<const float, 3>(); }
  auto out() { return scene.out().template view<float, 3>(); }
  auto lse() { return scene.lse().template view<float, 2>(); }
  /// Decodes another sample with this plan.
  template <class Element>
  void refuses_other(const Shape& other, std::initializer_list<const char*> words, const Placement& where = placement) {
    const Sample<Element> theirs(other);
    Scene<Space, Element> there(theirs, where);
    expect_refusal([&] { there.decode(plan); }, words);
    there.exec().fence();
    EXPECT_TRUE(there.out().unchanged(there.exec())) << "something was written";
  }
};
TYPED_TEST_SUITE(DecodeErrors, Spaces, Names);

TYPED_TEST(DecodeErrors, CachesOfAnotherShape) {
  Shape other = shape;
  this->template refuses_other<Other>(
      other, {"pagoda::decode", "keys", "values", name_of(dtype_v<Other>), "made for", name_of(dtype_v<T>)});
  other.num_q_heads = other.num_kv_heads = 2;
  this->template refuses_other<T>(other, {"2 kv heads", "made for 4"});
  other          = shape;
  other.head_dim = 64;
  this->template refuses_other<T>(other, {"head_dim 64 (keys) and 64 (values)", "made for 32 and 32"});
  other            = shape;
  other.head_dim_v = 16;
  this->template refuses_other<T>(other, {"head_dim 32 (keys) and 16 (values)"});
  other         = shape;
  other.lengths = {1, 2, 3, 4};
  this->template refuses_other<T>(other, {"batch is 4", "max_batch = 3"});
}

// The plan reads rows in vectors. Dims that lie apart cannot be; whether rows may begin anywhere, the machine says.
TYPED_TEST(DecodeErrors, CachesWithOtherStrides) {
  const int alignment     = this->plan.schedule().kernel.row_alignment;
  const std::string bytes = std::to_string(alignment) + (alignment == 1 ? " byte" : " bytes");
  this->template refuses_other<T>(shape, {"strides or alignment", bytes.c_str()}, {.strides = Strides::left});
  if (alignment > 1) {
    this->template refuses_other<T>(shape, {"strides or alignment", bytes.c_str()}, {.strides = Strides::padded});
  } else {
    Scene<TypeParam, T> there(this->sample, {.strides = Strides::padded, .io = Strides::padded});
    there.decode(this->plan);
    EXPECT_TRUE(there.right());
  }
}

TYPED_TEST(DecodeErrors, QueryTokens) {
  auto more = this->array({6, 8, 32});
  this->refuses(
      [&](const auto& kv) {
        pagoda::decode(this->scene.exec(), this->plan, more.template view<const float, 3>(), kv, this->out(),
                       this->lse());
      },
      {"q has 6 query tokens", "max_query_tokens = 3"});
  auto two = this->array({2, 8, 32});
  this->refuses(
      [&](const auto& kv) {
        pagoda::decode(this->scene.exec(), this->plan, two.template view<const float, 3>(), kv, this->out(),
                       this->lse());
      },
      {"q has 2 query tokens", "batch of 3", "max_query_len = 1"});
}

TYPED_TEST(DecodeErrors, Queries) {
  for (auto& [heads, dims, words] : {std::tuple(4, 32, "(4, 32)"), std::tuple(8, 16, "(8, 16)")}) {
    auto q = this->array({3, heads, dims});
    this->refuses(
        [&](const auto& kv) {
          pagoda::decode(this->scene.exec(), this->plan, q.template view<const float, 3>(), kv, this->out(),
                         this->lse());
        },
        {"q has (heads, head_dim)", words, "(8, 32)"});
  }
}

// A View with extents and a null pointer: an allocation that failed or never happened.
TYPED_TEST(DecodeErrors, NullPointers) {
  using Memory          = typename TypeParam::memory_space;
  const TypeParam& exec = this->scene.exec();
  const Kokkos::View<float***, Kokkos::LayoutRight, Memory> no_rows(nullptr, 3, 8, 32);
  this->refuses([&](const auto& kv) { pagoda::decode(exec, this->plan, no_rows, kv, this->out()); },
                {"pagoda::decode", "q has a null pointer"});
  this->refuses([&](const auto& kv) { pagoda::decode(exec, this->plan, this->q(), kv, no_rows); },
                {"out has a null pointer"});
  const auto refuses_cache = [&](const auto& change, const char* name) {
    CacheRef kv = std::visit([](const auto& cache) { return cache.ref(); }, this->scene.cache());
    change(kv);
    expect_refusal(
        [&] {
          detail::decode(exec, this->plan,
                         {kv, tensor_ref(this->q()), tensor_ref(this->out()), tensor_ref(this->lse())});
        },
        {name, "null pointer"});
  };
  refuses_cache([](CacheRef& kv) { kv.k.data = nullptr; }, "the cache's k");
  refuses_cache([](CacheRef& kv) { kv.v.data = nullptr; }, "the cache's v");
  refuses_cache([](CacheRef& kv) { kv.seq_lens = nullptr; }, "seq_lens");
  refuses_cache([](CacheRef& kv) { kv.paged = true, kv.table_pages = 3; }, "page table");
}

TYPED_TEST(DecodeErrors, StridesOfTheBlockTable) {
  CacheRef kv         = std::visit([](const auto& cache) { return cache.ref(); }, this->scene.cache());
  kv.table_row_stride = std::int64_t(1) << 31;
  expect_refusal(
      [&] {
        detail::decode(this->scene.exec(), this->plan,
                       {kv, tensor_ref(this->q()), tensor_ref(this->out()), tensor_ref(this->lse())});
      },
      {"pagoda::decode: block_table's strides are 2147483648", "fewer than 2^31"});
}

TYPED_TEST(DecodeErrors, WorkspacesBeyondAnInt) {
  const detail::Schedule& s = this->plan.schedule();
  expect_refusal([&] { detail::workspace_layout(s.shape, s.bounds, s.kernel, 1 << 30); },
                 {"pagoda::plan: max_seq_len ", " and max_query_tokens 3 ask for ", "partial values of head_dim_v 32"});
}

// A plan for an empty batch takes one sequence too, but needs cu_seqlens_q for it.
TYPED_TEST(DecodeErrors, CuSeqlensOfAnEmptyBatch) {
  using Memory = typename TypeParam::memory_space;
  const Kokkos::View<T****, Kokkos::LayoutRight, Memory> rows("test rows", 1, 8, 4, 32), none("test rows", 0, 8, 4, 32);
  const Kokkos::View<int*, Memory> lengths("test ints", 1), no_lengths("test ints", 0), zero("test ints", 1);
  const auto for_none =
      pagoda::plan(this->scene.exec(), ContiguousKV{none, none, no_lengths}, {.num_q_heads = 8, .cu_seqlens_q = zero});
  const Kokkos::View<float***, Kokkos::LayoutRight, Memory> io("test rows", 1, 8, 32);
  expect_refusal([&] { pagoda::decode(this->scene.exec(), for_none, io, ContiguousKV{rows, rows, lengths}, io); },
                 {"pagoda::decode: the cache's batch is 1", "fewer than the 1 entries of the plan's cu_seqlens_q"});
}

TYPED_TEST(DecodeErrors, Outputs) {
  for (auto& [tokens, heads, dims, words] :
       {std::tuple(2, 8, 32, "(2, 8, 32)"), std::tuple(3, 4, 32, "(3, 4, 32)"), std::tuple(3, 8, 64, "(3, 8, 64)")}) {
    auto out = this->array({tokens, heads, dims});
    this->refuses(
        [&](const auto& kv) {
          pagoda::decode(this->scene.exec(), this->plan, this->q(), kv, out.template view<float, 3>(), this->lse());
        },
        {"out is", words, "(3, 8, 32)"});
  }
  for (auto& [tokens, heads, words] : {std::tuple(2, 8, "(2, 8)"), std::tuple(3, 4, "(3, 4)")}) {
    auto lse = this->array({tokens, heads});
    this->refuses(
        [&](const auto& kv) {
          pagoda::decode(this->scene.exec(), this->plan, this->q(), kv, this->out(), lse.template view<float, 2>());
        },
        {"lse is", words, "(3, 8)"});
  }
}

}  // namespace
}  // namespace pagoda::test
