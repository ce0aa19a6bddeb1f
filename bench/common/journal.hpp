// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <map>
#include <set>
#include <string>

namespace pagoda::bench {

using Counters = std::map<std::string, double>;
using Context  = std::map<std::string, std::string>;

/// The measurements of a run as JSON lines: {"context": ...}, then one object for each finished benchmark, as in the
/// JSON of Google Benchmark. A line is on disk before the next benchmark begins, so a killed run loses at most one
/// benchmark. bench/compare reads such files.
class Journal {
 public:
  /// A journal without a file: stores nothing.
  Journal() = default;
  /// Continues the file, or creates it. Throws std::runtime_error if it cannot be written, or comes from another build
  /// or device: one file must not mix builds.
  Journal(const std::string& file, const Context& context);

  bool is_on() const { return out_.is_open(); }
  /// Whether the file had this benchmark when it was opened.
  bool has(const std::string& name) const { return done_.count(name) > 0; }
  void add(const std::string& name, double seconds, const Counters& counters, const std::string& label);
  /// Records a failure, which is not finished.
  void add_error(const std::string& name, const std::string& message);

 private:
  void write(const std::string& line);

  std::ofstream out_;
  std::set<std::string> done_;
};

}  // namespace pagoda::bench
