// SPDX-License-Identifier: Apache-2.0
#include "bench/common/journal.hpp"

#include <pagoda/error.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pagoda::bench {

namespace {

using Json = nlohmann::ordered_json;

/// Reads the complete lines, without those of failures, which are run again. An incomplete last line is skipped.
std::vector<Json> complete_lines(const std::string& file) {
  std::vector<Json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line) && !in.eof();)  // eof: no newline at its end
    if (Json entry = Json::parse(line); !entry.contains("error_message")) lines.push_back(std::move(entry));
  return lines;
}

}  // namespace

Journal::Journal(const std::string& file, const Context& context) {
  std::vector<Json> lines;
  if (std::filesystem::exists(file)) try {
      lines = complete_lines(file);
    } catch (const Json::exception& error) {
      throw std::runtime_error(file + ": not a file of --resume: " + error.what());
    }
  if (lines.empty()) {
    lines.push_back({{"context", context}});
  } else {
    const Json begun = lines.front().value("context", Json::object());
    for (const char* key : {"git", "device", "execution_space", "concurrency"}) {
      const std::string was = begun.value(key, ""), is = context.count(key) ? context.at(key) : "";
      if (was != is)
        throw std::runtime_error(
            pagoda::detail::concat(file, " was begun with ", key, " '", was, "', and here it is '", is, "'"));
    }
  }
  // Writes a new file and moves it over the old one, so that an incomplete last line is removed and nothing is lost.
  const std::string beside = file + ".new";
  {
    std::ofstream all(beside);
    for (const Json& line : lines) all << line.dump() << '\n';
    if (!all.flush()) throw std::runtime_error(beside + ": cannot be written");
  }
  std::filesystem::rename(beside, file);
  for (const Json& line : lines) done_.insert(line.value("name", ""));
  out_.open(file, std::ios::app);
  if (!out_) throw std::runtime_error(file + ": cannot be written");
}

void Journal::add(const std::string& name, double seconds, const Counters& counters, const std::string& label) {
  Json line = {{"name", name}, {"run_type", "iteration"}, {"real_time", seconds * 1e6}, {"time_unit", "us"}};
  for (const auto& [key, value] : counters) line[key] = value;
  line["label"] = label;
  write(line.dump());
}

void Journal::add_error(const std::string& name, const std::string& message) {
  write(Json{{"name", name}, {"run_type", "iteration"}, {"error_occurred", true}, {"error_message", message}}.dump());
}

void Journal::write(const std::string& line) {
  if (!is_on()) return;
  out_ << line << std::endl;
  if (!out_) throw std::runtime_error("a finished benchmark could not be written to the file of --resume");
}

}  // namespace pagoda::bench
