// SPDX-License-Identifier: Apache-2.0
#include "bench/common/machine.hpp"
#include "bench/serve/report.hpp"
#include "bench/serve/run.hpp"

#include <CLI/CLI.hpp>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using pagoda::DType;
using pagoda::bench::Machine;
using pagoda::serve::Options;

constexpr int wrong = 1, unusable = 2;  // exit codes

std::vector<std::string> type_names() { return {"fp64", "fp32", "fp16", "bf16"}; }  // in the order of DType

DType type_named(const std::string& name) {
  const auto names = type_names();
  return static_cast<DType>(std::find(names.begin(), names.end(), name) - names.begin());
}

void add_options(CLI::App& app, Options& o) {
  o.trace_file = PAGODA_SERVE_TRACE;
  o.scale      = Machine::is_host ? 16 : 1;
  app.add_option("--trace", o.trace_file, "requests, one JSON object a line, in the form of the Mooncake traces")
      ->check(CLI::ExistingFile)
      ->capture_default_str();
  app.add_option("--model", o.model, "whose heads: " + pagoda::serve::model_names())->capture_default_str();
  app.add_option_function<std::string>(
         "--type", [&o](const std::string& name) { o.type = type_named(name); },
         "element type of the cache: fp16, bf16, fp32, fp64")
      ->check(CLI::IsMember(type_names()))
      ->type_name("TYPE")
      ->default_str("fp16");
  app.add_option("--memory-gb", o.memory_gb, "memory for the cache of each pool, in 10^9 bytes (before --scale)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--scale", o.scale, "divides all lengths and the memory, for small machines: 1, 2, 4, ... 512")
      ->capture_default_str();
  app.add_option("--page-size", o.page_size, "tokens in a page of the paged pool")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-len", o.max_len,
                 "tokens that the contiguous pool reserves for a sequence; longer requests are left out (default: the "
                 "trace's longest)")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--steps", o.steps, "decode steps")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps before those, not timed")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--check", o.check, "rows of each step compared with float64 attention")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of keys, values, queries and the choice of rows")->capture_default_str();
  app.add_option("--json", o.json_file,
                 "also write all results to this file; -: to standard output, the table to standard error");
}

/// The output of --json. It is opened before the work, so that a bad file name fails at once.
class JsonFile {
 public:
  explicit JsonFile(const std::string& name) : name_(name) {
    if (!to_stdout() && !name.empty()) file_.open(name);
    check();
  }
  bool to_stdout() const { return name_ == "-"; }
  void write(const pagoda::serve::Results& results, const Machine& machine) {
    if (name_.empty()) return;
    pagoda::serve::print_json(to_stdout() ? std::cout : file_, results, machine);
    if (!to_stdout()) file_.close();
    check();
  }

 private:
  void check() const {
    if (!file_) throw std::runtime_error(name_ + ": cannot be written");
  }

  std::string name_;
  std::ofstream file_;
};

}  // namespace

/// pagoda-serve: a request trace served from a contiguous and from a paged cache of the same size.
int main(int argc, char** argv) {
  std::vector<char*> kokkos_args{argv[0]}, own_args{argv[0]};
  for (int i = 1; i < argc; ++i)
    (std::string_view(argv[i]).starts_with("--kokkos") ? kokkos_args : own_args).push_back(argv[i]);

  Options options;
  CLI::App app{
      "Serves a request trace from a contiguous and from a paged KV cache of the same size: requests come and go, "
      "every "
      "step decodes one token of each, in one layer of a model. Says what fits, how fast it is beside a bare read of "
      "memory, and whether it is right. Exit code 0: right; 1: some row is wrong; 2: it could not run.",
      "pagoda-serve"};
  add_options(app, options);
  try {
    app.parse(static_cast<int>(own_args.size()), own_args.data());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : unusable;
  }

  int kokkos_argc = static_cast<int>(kokkos_args.size());
  const Kokkos::ScopeGuard kokkos(kokkos_argc, kokkos_args.data());
  try {
    JsonFile json(options.json_file);
    const auto results    = pagoda::serve::run(options);
    const Machine machine = pagoda::bench::describe_machine(Kokkos::DefaultExecutionSpace());
    pagoda::serve::print_table(json.to_stdout() ? std::cerr : std::cout, results, machine);
    json.write(results, machine);
    return results.passed() ? 0 : wrong;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pagoda-serve: %s\n", error.what());
    return unusable;
  }
}
