// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace pagoda::test {

/// Expects InvalidArgument, with a message that holds all these words: the argument, what it was, what is allowed.
template <class F>
void expect_refusal(const F& call, std::initializer_list<const char*> words) {
  try {
    call();
  } catch (const InvalidArgument& refusal) {
    const std::string message = refusal.what();
    for (const char* const word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "\"" << message << "\" does not say \"" << word << "\"";
    return;
  }
  ADD_FAILURE() << "nothing was refused; expected a message about \"" << (words.size() > 0 ? *words.begin() : "")
                << "\"";
}

}  // namespace pagoda::test
