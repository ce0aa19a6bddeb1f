// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>

namespace pagoda::test::fuzz {

/// Random numbers that a fuzzer chooses: each follows from two of its bytes, so that a change of one byte changes one
/// number. After the last byte, numbers of a fixed sequence.
class Engine {
 public:
  using result_type = std::uint64_t;
  Engine(const std::uint8_t* bytes, std::size_t count) : bytes_(bytes), end_(bytes + count / 2 * 2) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  result_type operator()() {
    if (bytes_ == end_) return later_();
    const auto number = static_cast<std::uint64_t>(bytes_[0]) | static_cast<std::uint64_t>(bytes_[1]) << 8;
    bytes_ += 2;
    return (number + 1) * 0x9e3779b97f4a7c15u;  // all 64 bits depend on the bytes
  }
  bool at_end() const { return bytes_ == end_; }

 private:
  const std::uint8_t *bytes_, *end_;
  std::mt19937_64 later_{1};
};

}  // namespace pagoda::test::fuzz
