// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <map>
#include <set>
#include <string>

namespace pagoda::bench {

using Counters = std::map<std::string, double>;
using Context  = std::map<std::string, std::string>;

/// What a run has measured so far, as JSON lines: {"context": ...}, then one object for each finished benchmark, as in
/// the JSON of Google Benchmark. A line is on disk before the next benchmark begins, so a run that is killed loses no
/// more than what it was about. bench/compare reads such files.
class Journal {
 public:
  /// Keeps nothing.
  Journal() = default;
  /// Goes on with the file, or begins it. Throws std::runtime_error where it cannot be written, or was begun by another
  /// build or on another device: figures of two builds in one file would pass for those of one.
  Journal(const std::string& file, const Context& context);

  bool is_on() const { return out_.is_open(); }
  /// Whether the file had this benchmark when it was opened.
  bool has(const std::string& name) const { return done_.count(name) > 0; }
  void add(const std::string& name, double seconds, const Counters& counters, const std::string& label);
  /// One that failed: told, but not finished.
  void add_error(const std::string& name, const std::string& message);

 private:
  void write(const std::string& line);

  std::ofstream out_;
  std::set<std::string> done_;
};

}  // namespace pagoda::bench
