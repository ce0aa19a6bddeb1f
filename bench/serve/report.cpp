// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/report.hpp"

#include "bench/serve/text.hpp"
#include "pagoda_build_info.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iomanip>

namespace pagoda::serve {

double median(std::vector<double> x) {
  if (x.empty()) return 0;
  std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
  return x[x.size() / 2];
}

Summary summarise(const PoolResult& pool) {
  Summary s;
  std::vector<double> seconds, tokens, bytes;
  const auto n = static_cast<double>(pool.steps.size());
  for (const Step& step : pool.steps) {
    s.mean_live += step.live / n;
    s.mean_tokens += static_cast<double>(step.tokens) / n;
    s.mean_bytes += static_cast<double>(step.bytes) / n;
    s.mean_waste += step.waste / n;
    s.peak_live = std::max(s.peak_live, step.live);
    seconds.push_back(step.seconds);
    tokens.push_back(step.live / step.seconds);
    bytes.push_back(static_cast<double>(step.bytes) / step.seconds);
  }
  s.step_seconds      = median(seconds);
  s.tokens_per_second = median(tokens);
  s.bytes_per_second  = median(bytes);
  if (pool.floor.seconds > 0)
    s.fraction_of_streaming = s.bytes_per_second * pool.floor.seconds / static_cast<double>(pool.floor.bytes);
  return s;
}

namespace {

/// Three columns of text behind a label.
class Table {
 public:
  explicit Table(std::ostream& out) : out_(out) {}
  void row(const std::string& label, const std::string& a, const std::string& b, const std::string& ratio = "") {
    out_ << "  " << std::left << std::setw(38) << label << std::right << std::setw(14) << a << std::setw(14) << b
         << std::setw(14) << ratio << '\n';
  }

 private:
  std::ostream& out_;
};

std::string times(double a, double b) { return a > 0 ? three_digits(b / a) + "x" : ""; }
std::string rounded(double x) { return grouped(std::llround(x)); }
std::string ms(double seconds) { return three_digits(seconds * 1e3) + " ms"; }
std::string error_text(const Check& check) { return check.rows > 0 ? three_digits(check.worst) : "-"; }

}  // namespace

void print_table(std::ostream& out, const Results& r, const bench::Machine& machine) {
  const Summary c = summarise(r.contiguous), p = summarise(r.paged);
  out << '\n'
      << r.model.name << ", one layer of " << r.model.num_layers << ": " << r.model.num_q_heads << " query heads, "
      << r.model.num_kv_heads << " kv heads, head_dim " << r.model.head_dim << ", " << name_of(r.options.type) << ", "
      << r.token_bytes << " bytes a token\n"
      << r.trace.name << ": " << r.trace.requests << " requests, " << rounded(r.trace.mean_input) << " tokens in and "
      << rounded(r.trace.mean_output) << " out on average";
  if (r.options.scale > 1) out << " (all lengths, and the memory, divided by " << r.options.scale << ")";
  if (r.trace.left_out > 0)
    out << "; " << r.trace.left_out << " longer than " << grouped(r.max_len) << " tokens left out";
  out << '\n'
      << machine.device << ", " << machine.execution_space << ", " << machine.concurrency << " threads; backend "
      << r.paged.backend << "\n\n"
      << three_digits(static_cast<double>(r.budget) * 1e-9) << " GB for the cache, " << r.contiguous.steps.size()
      << " decode steps\n\n";

  Table table(out);
  table.row("", "contiguous", "paged", "paged/contig.");
  table.row("memory is reserved by", grouped(r.contiguous.page_size) + " tok.", grouped(r.paged.page_size) + " tok.");
  table.row("sequences live, mean", fixed(c.mean_live, 1), fixed(p.mean_live, 1), times(c.mean_live, p.mean_live));
  table.row("sequences live, peak", grouped(c.peak_live), grouped(p.peak_live), times(c.peak_live, p.peak_live));
  table.row("requests finished", grouped(r.contiguous.finished), grouped(r.paged.finished),
            times(static_cast<double>(r.contiguous.finished), static_cast<double>(r.paged.finished)));
  table.row("tokens in the cache, mean", rounded(c.mean_tokens), rounded(p.mean_tokens),
            times(c.mean_tokens, p.mean_tokens));
  table.row("reserved but unused", percent(c.mean_waste), percent(p.mean_waste));
  out << '\n';
  table.row("decode of a step, median", ms(c.step_seconds), ms(p.step_seconds), times(c.step_seconds, p.step_seconds));
  table.row("tokens/s through this layer", rounded(c.tokens_per_second), rounded(p.tokens_per_second),
            times(c.tokens_per_second, p.tokens_per_second));
  table.row("cache read, GB/s", three_digits(c.bytes_per_second * 1e-9), three_digits(p.bytes_per_second * 1e-9),
            times(c.bytes_per_second, p.bytes_per_second));
  const auto streaming = [](const Floor& f) { return static_cast<double>(f.bytes) / f.seconds; };
  table.row("streaming read of as much, GB/s", three_digits(streaming(r.contiguous.floor) * 1e-9),
            three_digits(streaming(r.paged.floor) * 1e-9));
  table.row("fraction of the streaming read", percent(c.fraction_of_streaming), percent(p.fraction_of_streaming));
  out << '\n';
  const SameBatch& same = r.same_batch;
  table.row("same " + grouped(same.sequences) + " sequences in both: a decode", ms(same.contiguous_seconds),
            ms(same.paged_seconds), times(same.contiguous_seconds, same.paged_seconds));
  out << '\n';
  table.row("rows checked against float64", grouped(r.contiguous.check.rows), grouped(r.paged.check.rows));
  table.row("worst error, in tolerances", error_text(r.contiguous.check), error_text(r.paged.check));
  out << "\nIn the same memory the paged cache held " << times(c.mean_live, p.mean_live)
      << " the sequences. Decoding the same " << same.sequences << " sequences took it "
      << three_digits(same.paged_seconds / same.contiguous_seconds) << " times as long.\n";
  if (r.contiguous.check.rows + r.paged.check.rows == 0)
    out << "Nothing was checked (--check 0).\n";
  else if (r.passed())
    out << "All rows checked are right.\n";
  else
    out << "WRONG: an error is above its tolerance.\n";
}

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const PoolResult& pool) {
  const Summary s = summarise(pool);
  Json steps      = Json::array();
  for (const Step& step : pool.steps)
    steps.push_back({{"live", step.live},
                     {"tokens", step.tokens},
                     {"bytes", step.bytes},
                     {"waste", step.waste},
                     {"seconds", step.seconds}});
  return {
      {"backend", pool.backend},
      {"max_sequences", pool.max_sequences},
      {"pages", pool.pages},
      {"page_size", pool.page_size},
      {"bytes_allocated", pool.bytes},
      {"admitted", pool.admitted},
      {"finished", pool.finished},
      {"live_mean", s.mean_live},
      {"live_peak", s.peak_live},
      {"tokens_mean", s.mean_tokens},
      {"bytes_mean", s.mean_bytes},
      {"waste_mean", s.mean_waste},
      {"step_seconds_median", s.step_seconds},
      {"tokens_per_second", s.tokens_per_second},
      {"gb_per_second", s.bytes_per_second * 1e-9},
      {"fraction_of_streaming_read", s.fraction_of_streaming},
      {"streaming_read",
       {{"bytes", pool.floor.bytes},
        {"seconds", pool.floor.seconds},
        {"gb_per_second", static_cast<double>(pool.floor.bytes) / pool.floor.seconds * 1e-9},
        {"shape", pool.floor.shape}}},
      {"fill_seconds", pool.fill_seconds},
      {"append_seconds", pool.append_seconds},
      {"check",
       {{"rows", pool.check.rows}, {"worst_error_in_tolerances", pool.check.worst}, {"passed", pool.check.passed()}}},
      {"steps", std::move(steps)}};
}

}  // namespace

void print_json(std::ostream& out, const Results& r, const bench::Machine& machine) {
  const Options& o = r.options;
  const Json all   = {
      {"passed", r.passed()},
      {"options",
         {{"trace", r.trace.name},
          {"model", o.model},
          {"type", name_of(o.type)},
          {"memory_gb", o.memory_gb},
          {"scale", o.scale},
          {"page_size", o.page_size},
          {"max_len", r.max_len},
          {"steps", o.steps},
          {"warmup", o.warmup},
          {"check", o.check},
          {"seed", o.seed}}},
      {"model",
         {{"name", r.model.name},
          {"num_q_heads", r.model.num_q_heads},
          {"num_kv_heads", r.model.num_kv_heads},
          {"head_dim", r.model.head_dim},
          {"num_layers", r.model.num_layers}}},
      {"trace",
         {{"requests", r.trace.requests},
          {"left_out", r.trace.left_out},
          {"mean_input", r.trace.mean_input},
          {"mean_output", r.trace.mean_output}}},
      {"bytes_per_token", r.token_bytes},
      {"bytes_for_each_pool", r.budget},
      {"contiguous", to_json(r.contiguous)},
      {"paged", to_json(r.paged)},
      {"same_batch",
         {{"sequences", r.same_batch.sequences},
          {"bytes", r.same_batch.bytes},
          {"contiguous_seconds", r.same_batch.contiguous_seconds},
          {"paged_seconds", r.same_batch.paged_seconds},
          {"paged_over_contiguous_throughput", r.same_batch.contiguous_seconds / r.same_batch.paged_seconds}}},
      {"machine",
         {{"device", machine.device},
          {"execution_space", machine.execution_space},
          {"concurrency", machine.concurrency},
          {"kokkos_configuration", machine.configuration}}},
      {"build",
         {{"git_hash", build_info::git_hash},
          {"compiler", build_info::compiler},
          {"build_type", build_info::build_type},
          {"cxx_flags", build_info::cxx_flags},
          {"types", build_info::types},
          {"kokkos_version", build_info::kokkos_version},
          {"kokkos_devices", build_info::kokkos_devices},
          {"kokkos_arch", build_info::kokkos_arch},
          {"kokkos_options", build_info::kokkos_options}}}};
  out << all.dump(2) << '\n';
}

}  // namespace pagoda::serve
