// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

/// Formats numbers for people.
namespace pagoda::serve {

/// 1234567 as "1 234 567".
inline std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = static_cast<int>(digits.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3) digits.insert(at, 1, ' ');
  return digits;
}

/// With `digits` digits after the point.
inline std::string fixed(double x, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

/// With three significant digits, or all digits before the point: "0.012", "3.14", "141".
inline std::string three_digits(double x) {
  const double size = x < 0 ? -x : x;
  return fixed(x, size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3);
}

inline std::string percent(double fraction) { return fixed(100 * fraction, 1) + "%"; }

}  // namespace pagoda::serve
