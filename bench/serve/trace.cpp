// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/trace.hpp"

#include <pagoda/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace pagoda::serve {

namespace {

using Json = nlohmann::json;

constexpr int max_length = 1 << 24;

const Json& field(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw TraceError(detail::concat("has no \"", name, "\""));
  return *found;
}

int length(const Json& object, const char* name) {
  const Json& value = field(object, name);
  if (!value.is_number_integer() || value.get<std::int64_t>() < 1 || value.get<std::int64_t>() > max_length)
    throw TraceError(
        detail::concat("\"", name, "\" is ", value.dump(), "; allowed: whole numbers from 1 to ", max_length));
  return value.get<int>();
}

Request parse_request(const std::string& line, int block_tokens) {
  const Json object = Json::parse(line);
  if (!object.is_object()) throw TraceError("is not a JSON object");
  Request r;
  const Json& timestamp = field(object, "timestamp");
  if (!timestamp.is_number())
    throw TraceError(detail::concat("\"timestamp\" is ", timestamp.dump(), "; allowed: numbers"));
  r.timestamp_ms  = timestamp.get<double>();
  r.input_length  = length(object, "input_length");
  r.output_length = length(object, "output_length");

  const Json& ids         = field(object, "hash_ids");
  const std::size_t count = (r.input_length + block_tokens - 1) / block_tokens;
  if (!ids.is_array() || ids.size() != count)
    throw TraceError(detail::concat("\"hash_ids\" ",
                                    ids.is_array() ? detail::concat("has ", ids.size(), " ids") : "is no array",
                                    "; allowed: one for each block of ", block_tokens, " prompt tokens, here ", count));
  for (const Json& id : ids) {
    if (!id.is_number_integer())
      throw TraceError(detail::concat("\"hash_ids\" holds ", id.dump(), "; allowed: integers"));
    r.hash_ids.push_back(id.get<std::int64_t>());
  }
  return r;
}

}  // namespace

int Trace::longest() const {
  int most = 0;
  for (const Request& r : requests) most = std::max(most, r.total_length());
  return most;
}

Trace read_trace(std::istream& in, const std::string& name) {
  Trace trace;
  trace.name = name;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto where = [&] { return detail::concat(name, ":", number, ": "); };
    try {
      trace.requests.push_back(parse_request(line, trace.block_tokens));
    } catch (const TraceError& error) {
      throw TraceError(where() + error.what());
    } catch (const Json::exception& error) {
      throw TraceError(where() + "is not JSON: " + error.what());
    }
  }
  if (in.bad()) throw TraceError(name + ": cannot be read to its end");
  if (trace.requests.empty()) throw TraceError(name + ": holds no request");
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const Request& a, const Request& b) { return a.timestamp_ms < b.timestamp_ms; });
  return trace;
}

Trace read_trace(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw TraceError(file + ": " + std::strerror(errno));
  return read_trace(in, file);
}

Trace scaled(const Trace& trace, int scale) {
  detail::require(scale >= 1 && scale <= trace.block_tokens && std::has_single_bit(static_cast<unsigned>(scale)),
                  "scale is ", scale, "; allowed: 1, 2, 4, ... ", trace.block_tokens);
  Trace small = trace;
  small.block_tokens /= scale;
  for (Request& r : small.requests) {
    r.input_length  = (r.input_length + scale - 1) / scale;
    r.output_length = (r.output_length + scale - 1) / scale;
  }
  return small;
}

}  // namespace pagoda::serve
