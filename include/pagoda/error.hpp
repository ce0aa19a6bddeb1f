// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/export.hpp>

#include <sstream>
#include <stdexcept>
#include <string>

namespace pagoda {

/// Thrown for arguments that are not allowed. The message names the call, the argument, its value and what is allowed.
/// When it is thrown, nothing has been launched or changed.
class PAGODA_EXPORT InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Thrown by a pool that has no free slot or not enough free pages. The pool is unchanged.
class PAGODA_EXPORT OutOfCapacity : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// `require(ok, "pagoda::decode: q has ", n, " heads; ...")`: throws InvalidArgument unless ok.
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) throw InvalidArgument(concat(parts...));
}

}  // namespace detail
}  // namespace pagoda
