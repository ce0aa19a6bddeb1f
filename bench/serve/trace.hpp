// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <istream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagoda::serve {

/// One request to a language model server.
struct Request {
  double timestamp_ms = 0;
  int input_length    = 0;             ///< tokens of the prompt
  int output_length   = 0;             ///< tokens generated
  std::vector<std::int64_t> hash_ids;  ///< one for each block of the prompt; equal ids mean equal tokens

  int total_length() const { return input_length + output_length; }
};

/// Requests in order of arrival.
struct Trace {
  std::string name;
  int block_tokens = 512;  ///< prompt tokens of one hash id; the last block of a prompt may be partial
  std::vector<Request> requests;

  int longest() const;  ///< the largest total_length
};

/// An error in a trace. The message begins with the file and the line.
class TraceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads a trace of the Mooncake project: one JSON object a line (see bench/data/README.md). Other fields and blank
/// lines are skipped. `name` is used in error messages.
Trace read_trace(std::istream& in, const std::string& name);
Trace read_trace(const std::string& file);

/// The same trace on a small machine: every length divided by `scale` and rounded up, blocks of 512 / scale tokens, so
/// that requests share the same part of their prompts. Throws InvalidArgument unless scale is a power of two up to 512.
Trace scaled(const Trace& trace, int scale);

}  // namespace pagoda::serve
