// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/tuning_file.hpp"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace pagoda::tuned {

namespace {

constexpr TuningKey keys[] = {
    {"bytes_per_us", &Speed::bytes_per_us, 1e4, 1e9},
    {"sm_bytes_per_us", &Speed::sm_bytes_per_us, 1e2, 1e8},
    {"merge8_us", &Speed::merge8_us, 0, 1000},
    {"merge4_us", &Speed::merge4_us, 0, 1000},
    {"merge2_us", &Speed::merge2_us, 0, 1000},
    {"merge1_us", &Speed::merge1_us, 0, 1000},
    {"row8_us", &Speed::row8_us, 0, 1000},
    {"stream_us", &Speed::stream_us, 0, 1000},
    {"stream_factor", &Speed::stream_factor, 0.5, 10},
    {"wgmma_merge_us", &Speed::wgmma_merge_us, 0, 1000},
    {"wgmma_stream_us", &Speed::wgmma_stream_us, 0, 1000},
    {"latent_tile_us", &Speed::latent_tile_us, 0.001, 1000},
    {"grouped_tile_us", &Speed::grouped_tile_us, 0.001, 1000},
};

constexpr std::size_t most_bytes = 65536;  // the largest file that is read

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view blank = " \t\r";
  const auto first                 = s.find_first_not_of(blank);
  return first == s.npos ? std::string_view{} : s.substr(first, s.find_last_not_of(blank) - first + 1);
}

/// A value that a message can show: short and printable.
std::string shown(std::string_view s) {
  std::string text = "\"";
  for (const char c : s.substr(0, 60)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (s.size() > 60 ? "...\"" : "\"");
}

std::string number(double x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

}  // namespace

std::span<const TuningKey> tuning_keys() { return keys; }

std::string tuning_path(std::string_view device_name) {
  if (const char* const named = std::getenv("PAGODA_TUNING")) return named;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home  = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache && *cache == '/') {
    folder = cache;
  } else if (home && *home != '\0') {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  std::string name(device_name);
  for (char& c : name) {
    const bool kept = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!kept) c = '-';
  }
  return (folder / "pagoda" / ("tuning-" + name + ".txt")).string();
}

std::string parse_tuning(std::string_view text, std::string_view device_name, Speed& speed) {
  Speed read = speed;
  std::vector<std::string_view> seen;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const auto end        = text.find('\n');
    std::string_view line = text.substr(0, end);
    text                  = end == text.npos ? std::string_view{} : text.substr(end + 1);
    line                  = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const auto wrong = [&](const std::string& what) { return "line " + std::to_string(line_number) + ": " + what; };

    const auto equals = line.find('=');
    if (equals == line.npos) return wrong(shown(line) + " is not \"key = value\"");
    const std::string_view key = trimmed(line.substr(0, equals)), value = trimmed(line.substr(equals + 1));
    for (const std::string_view other : seen)
      if (other == key) return wrong(shown(key) + " is there twice");
    seen.push_back(key);

    if (seen.size() == 1) {
      if (key != "pagoda-tuning") return wrong("the first key is " + shown(key) + "; allowed: \"pagoda-tuning\"");
      if (value != "1") return wrong("pagoda-tuning is " + shown(value) + "; allowed: 1");
    } else if (seen.size() == 2) {
      if (key != "device") return wrong("the second key is " + shown(key) + "; allowed: \"device\"");
      if (value != "any" && value != device_name)
        return wrong("device is " + shown(value) + "; allowed: \"any\" or this device, " + shown(device_name));
    } else {
      const TuningKey* known = nullptr;
      for (const TuningKey& k : keys)
        if (k.name == key) known = &k;
      if (!known) return wrong("there is no key " + shown(key));
      double x           = 0;
      const auto result  = std::from_chars(value.data(), value.data() + value.size(), x);
      const bool whole   = result.ec == std::errc{} && result.ptr == value.data() + value.size();
      const bool allowed = whole && x >= known->least && x <= known->most;  // NaN is not
      if (!allowed)
        return wrong(std::string(key) + " is " + shown(value) + "; allowed: " + number(known->least) + " to " +
                     number(known->most));
      read.*known->member = x;
    }
  }
  if (seen.size() < 2) return "it does not begin with the keys \"pagoda-tuning\" and \"device\"";
  speed = read;
  return {};
}

std::string read_tuning_file(std::string_view device_name, Speed& speed) {
  const std::string path = tuning_path(device_name);
  if (path.empty()) return {};
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return std::getenv("PAGODA_TUNING") ? path + ", which PAGODA_TUNING names, does not exist" : std::string{};
  }
  if (!std::filesystem::is_regular_file(status)) return path + " is not a regular file";
  std::string text(most_bytes + 1, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > most_bytes) return path + " has more than " + std::to_string(most_bytes) + " bytes";
  if (!file.eof()) return path + " cannot be read";
  const std::string wrong = parse_tuning(text, device_name, speed);
  return wrong.empty() ? wrong : path + ", " + wrong;
}

}  // namespace pagoda::tuned
