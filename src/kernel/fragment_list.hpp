// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::detail {

template <class FirstFragment, class... Fragments>
struct FragmentList {
  using First = FirstFragment;
  /// Calls f(index, null pointer of the fragment's type) for each fragment.
  template <class F>
  static void for_each(const F& f) {
    int i = 0;
    f(i++, static_cast<First*>(nullptr));
    (f(i++, static_cast<Fragments*>(nullptr)), ...);
  }
  /// Calls f(null pointer of the fragment's type) for the fragment at the index.
  template <class F>
  static void at(int index, const F& f) {
    for_each([&]<class Fragment>(int i, Fragment* which) {
      if (i == index) f(which);
    });
  }
};

/// The list with more fragments in front.
template <class List, class... First>
struct Prepend;
template <class... Rest, class... First>
struct Prepend<FragmentList<Rest...>, First...> {
  using type = FragmentList<First..., Rest...>;
};

}  // namespace pagoda::detail
