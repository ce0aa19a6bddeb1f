// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/tuning_file.hpp"
#include "bench/tune/measure.hpp"
#include "bench/tune/shapes.hpp"

#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

using namespace pagoda;

constexpr const char* usage =
    "usage: pagoda-tune [FILE]\n"
    "       pagoda-tune --shapes\n"
    "Measures the numbers of the cost model that chooses launch shapes of the hand-tuned kernels on the current "
    "device,\n"
    "and writes them to FILE. Default: the file that the library reads (PAGODA_TUNING in the environment, or\n"
    "tuning-DEVICE.txt in $XDG_CACHE_HOME/pagoda or ~/.cache/pagoda). Where the measured numbers make a sample of "
    "batches\n"
    "slower than the built-in ones, they are written as comments. --shapes: prints what batches take in all shapes.\n";

std::string text_of(const tune::Gain& g) {
  std::ostringstream out;
  out.precision(4);
  out << g.changed << " of " << g.batches << " batches change";
  if (g.changed > 0) out << ", these take " << g.mean << " times as long, at most " << g.worst;
  return out.str();
}

std::string tuning_text(const tune::Device& device, const tuned::Speed& measured, tune::GainMeter& gains) {
  const tuned::Speed& built_in = device.facts().speed;
  const tune::Gain all         = gains.of(measured);
  const bool better            = all.mean <= 1;
  std::ostringstream out;
  out.precision(6);
  out << "pagoda-tuning = 1\ndevice = " << device.name() << "\n\n# All numbers together: " << text_of(all) << ".\n";
  if (!better) out << "# That is no gain, so all numbers are comments.\n";
  for (const tuned::TuningKey& key : tuned::tuning_keys()) {
    tuned::Speed alone  = built_in;
    alone.*(key.member) = measured.*(key.member);
    out << (better ? "" : "# ") << key.name << " = " << measured.*(key.member)
        << "  # built in: " << built_in.*(key.member) << "; alone: " << text_of(gains.of(alone)) << "\n";
  }
  return out.str();
}

void write(const std::string& path, const std::string& text) {
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder);
  const std::string unfinished = path + ".new";  // a concurrent reader sees the old file complete
  std::ofstream file(unfinished);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + unfinished);
  std::filesystem::rename(unfinished, path);
}

int run(const std::string& argument) {
  tune::Device device;
  if (argument == "--shapes") {
    tune::print_shapes(device);
    return 0;
  }
  const std::string path = argument.empty() ? tuned::tuning_path(device.name()) : argument;
  if (path.empty()) throw std::runtime_error("there is no home folder to write to; name a file");
  const tuned::Speed measured = tune::measure_speed(device);
  tune::GainMeter gains(device);
  const std::string text = tuning_text(device, measured, gains);
  tuned::Speed read;
  if (const std::string wrong = tuned::parse_tuning(text, device.name(), read); !wrong.empty())
    throw std::runtime_error("the measured numbers are not usable: " + wrong + "\n" + text);
  write(path, text);
  std::printf("%s%s\n", text.c_str(), path.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc > 1 ? argv[1] : "";
  if (argc > 2 || (argument.starts_with('-') && argument != "--shapes")) {
    std::fputs(usage, argument == "--help" ? stdout : stderr);
    return argument == "--help" ? 0 : 2;
  }
  try {
    return run(argument);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pagoda-tune: %s\n", error.what());
    return 1;
  }
}
