// SPDX-License-Identifier: Apache-2.0
// pagoda_random_decode: random decodes against the float64 reference, for any duration (README.md).
#include "pagoda_enabled_types.hpp"
#include "tests/random/driver.hpp"
#include "tests/random/run.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace pagoda::test::random {
namespace {

/// The types that this build has kernels for, by name.
const std::map<std::string, DType>& types() {
  static const std::map<std::string, DType> all{
#define PAGODA_TYPE(name) {#name, DType::name},
      PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_TYPE)
#undef PAGODA_TYPE
  };
  return all;
}

struct Options {
  std::vector<std::string> types;  ///< empty: all
  std::string backend, space = "device";
  Without without;
  bool shrink = true;
};

/// Simplifies a failing problem as long as it fails, for some seconds.
template <class Fails>
Problem shrink(Problem problem, const Fails& fails) {
  using Clock    = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(15);
  for (bool found = true; found;) {
    found = false;
    for (const Problem& candidate : simpler(problem)) {
      if (Clock::now() > end) return problem;
      if (!fails(candidate)) continue;
      problem = candidate;
      found   = true;
      break;
    }
  }
  return problem;
}

class Decodes {
 public:
  Decodes(const Options& options, bool verbose) : options_(options), verbose_(verbose) {
    for (const auto& [name, type] : types())
      if (options.types.empty() || std::find(options.types.begin(), options.types.end(), name) != options.types.end())
        types_.push_back(type);
  }

  std::string operator()(std::uint64_t seed) {
    const Kind kind       = kind_of(seed);
    const Problem problem = draw(seed, kind.type, kind.for_tuned, options_.without);
    if (verbose_) std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), describe(problem).c_str());
    if (verbose_) std::fflush(stdout);
    const std::string wrong = carry_out(problem, tally_);
    if (wrong.empty()) return {};
    std::string text = describe(problem) + "\n" + wrong;
    if (!options_.shrink) return text;
    Tally ignored;
    const Problem small = shrink(problem, [&](const Problem& p) {
      const std::string other = carry_out(p, ignored);
      return !other.empty() && other.find("refused:") == wrong.find("refused:");
    });
    if (describe(small) != describe(problem))
      text += "\nA simpler problem that fails: " + describe(small) + "\n" + carry_out(small, ignored);
    return text;
  }
  void print_tally() const {
    std::printf("plans: %d tuned, %d generic, of which %d split rows\n", tally_.tuned, tally_.generic, tally_.split);
  }

  /// The options that reproduce the problem of a seed, also in builds with other types.
  std::string options_of(std::uint64_t seed) const {
    const Kind kind = kind_of(seed);
    return std::string("--type ") + pagoda::name_of(kind.type) + " --backend " +
           (kind.for_tuned ? "tuned" : "generic") + " --space " + options_.space +
           (options_.without.nan ? " --without-nan" : "") +
           (options_.without.huge_windows ? " --without-huge-windows" : "");
  }

 private:
  struct Kind {
    DType type;
    bool for_tuned;
  };
  Kind kind_of(std::uint64_t seed) const {
    Random random(seed, 0);
    const DType type        = random.pick(types_);
    const bool half         = random.chance(0.5);
    constexpr DType tuned[] = {DType::fp32,     DType::fp16,     DType::bf16,
                               DType::fp8_e4m3, DType::fp8_e5m2, DType::fp8_ds_mla};
    if (std::find(std::begin(tuned), std::end(tuned), type) == std::end(tuned)) return {type, false};
    if (!options_.backend.empty()) return {type, options_.backend == "tuned"};
    return {type, half && options_.space == "device" && has_tuned};
  }
#if defined(KOKKOS_ENABLE_CUDA)
  static constexpr bool has_tuned = std::is_same_v<Device, Kokkos::Cuda>;
#else
  static constexpr bool has_tuned = false;
#endif
  std::string carry_out(const Problem& problem, Tally& tally) const {
    return options_.space == "host" ? run<Host>(problem, tally) : run<Device>(problem, tally);
  }

  Options options_;
  bool verbose_;
  std::vector<DType> types_;
  Tally tally_;
};

}  // namespace
}  // namespace pagoda::test::random

int main(int argc, char** argv) {
  using namespace pagoda::test::random;
  const Kokkos::ScopeGuard kokkos(argc, argv);  // removes Kokkos' options
  Driver driver("pagoda_random_decode",
                "Random decodes, checked against attention in float64. Everything that no query may see is NaN. Each "
                "problem follows from its seed, the type and the options below. Exit code 0: all are right.");
  Options options;
  std::vector<std::string> names;
  for (const auto& [name, type] : types()) names.push_back(name);
  driver.app()
      .add_option("--type", options.types, "element type of the cache, of those in this build; may be repeated")
      ->check(CLI::IsMember(names));
  driver.app()
      .add_option("--backend", options.backend,
                  "tuned: only problems that the hand-tuned CUDA kernels take, where they know the type; generic: only "
                  "others (default: half and half on CUDA, others elsewhere)")
      ->check(CLI::IsMember({"tuned", "generic"}));
  driver.app()
      .add_option("--space", options.space, "execution space")
      ->check(CLI::IsMember({"device", "host"}))
      ->capture_default_str();
  driver.app().add_flag("--without-nan", options.without.nan, "plant no NaN in visible keys and values");
  driver.app().add_flag("--without-huge-windows", options.without.huge_windows,
                        "draw no window_left near the largest int");
  driver.app().add_flag("!--no-shrink", options.shrink, "do not look for simpler problems that fail");
  int exit_code = 0;
  if (!driver.parse(argc, argv, exit_code)) return exit_code;
  Decodes decodes(options, driver.verbose());
  exit_code = driver.run([&](std::uint64_t seed) { return decodes(seed); },
                         [&](std::uint64_t seed) { return decodes.options_of(seed); });
  decodes.print_tally();
  return exit_code;
}
