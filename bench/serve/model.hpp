// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>

#include <string>
#include <string_view>

namespace pagoda::serve {

/// The attention heads of a language model, from the configuration published with it.
struct Model {
  std::string_view name;
  int num_q_heads, num_kv_heads, head_dim, num_layers;
};

inline constexpr Model models[] = {
    {"Llama-3-8B", 32, 8, 128, 32}, {"Llama-3-70B", 64, 8, 128, 80}, {"Llama-2-7B", 32, 32, 128, 32},
    {"Qwen2.5-3B", 16, 2, 128, 36}, {"Qwen2.5-7B", 28, 4, 128, 28},  {"Gemma-7B", 16, 16, 256, 28},
    {"SmolLM2-135M", 9, 3, 64, 30},
};

inline std::string model_names() {
  std::string names;
  for (const Model& m : models) names += (names.empty() ? "" : ", ") + std::string(m.name);
  return names;
}

inline const Model& find_model(std::string_view name) {
  for (const Model& m : models)
    if (m.name == name) return m;
  throw InvalidArgument(detail::concat("model is ", name, "; allowed: ", model_names()));
}

}  // namespace pagoda::serve
