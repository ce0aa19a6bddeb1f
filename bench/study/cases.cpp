// SPDX-License-Identifier: Apache-2.0
#include "bench/study/cases.hpp"

#include <pagoda/error.hpp>

namespace pagoda::bench::study {

namespace {

using pagoda::detail::concat;

constexpr Work kernels[] = {Work::flash, Work::three_kernels, Work::cpu_reference, Work::flash_end_to_end,
                            Work::three_kernels_end_to_end};

std::string layout(int page_size) { return page_size > 0 ? concat("page", page_size) : std::string("contiguous"); }

std::string size_text(std::int64_t bytes) {
  return bytes >> 30 << 30 == bytes ? concat(bytes >> 30, "GiB") : concat(bytes >> 20, "MiB");
}

void add_lengths(std::vector<StudyCase>& cases, const std::vector<int>& lengths, const std::vector<int>& splits,
                 bool cuda) {
  for (const int tokens : lengths) {
    for (const Work work : kernels) cases.push_back({.work = work, .tokens = tokens});
    for (const int n : splits) cases.push_back({.work = Work::splits, .tokens = tokens, .splits = n});
    if (!cuda) continue;
    for (const Work work : {Work::cuda_flash, Work::cuda_three_kernels})
      cases.push_back({.work = work, .tokens = tokens});
    for (const int n : splits) cases.push_back({.work = Work::cuda_splits, .tokens = tokens, .splits = n});
  }
}

void add_capacity(std::vector<StudyCase>& cases, std::int64_t budget) {
  for (int longest = 512; longest <= 8192; longest *= 2)
    for (const int page_size : {0, 16})
      cases.push_back(
          {.work = Work::capacity, .tokens = 512, .page_size = page_size, .max_seq_len = longest, .budget = budget});
}

void add_pages(std::vector<StudyCase>& cases, int tokens, const std::vector<int>& page_sizes) {
  for (const Work work : {Work::serial, Work::batched}) cases.push_back({.work = work, .tokens = tokens});
  for (const int page : page_sizes)
    for (const Work work : {Work::serial_copy, Work::serial, Work::batched})
      cases.push_back({.work = work, .tokens = tokens, .page_size = page});
}

}  // namespace

std::string StudyCase::name() const {
  switch (work) {
    case Work::flash:
      return concat("study/K1/flash/T", tokens);
    case Work::three_kernels:
      return concat("study/K1/three-kernels/T", tokens);
    case Work::cuda_flash:
      return concat("study/K1/cuda-flash/T", tokens);
    case Work::cuda_three_kernels:
      return concat("study/K1/cuda-three-kernels/T", tokens);
    case Work::cpu_reference:
      return concat("study/K1/cpu-reference/T", tokens);
    case Work::flash_end_to_end:
      return concat("study/K1/flash-end-to-end/T", tokens);
    case Work::three_kernels_end_to_end:
      return concat("study/K1/three-kernels-end-to-end/T", tokens);
    case Work::splits:
      return concat("study/K2/splits", splits, "/T", tokens);
    case Work::cuda_splits:
      return concat("study/K2/cuda-splits", splits, "/T", tokens);
    case Work::capacity:
      return concat("study/K3/", page_size > 0 ? "paged" : "contiguous", "/max", max_seq_len, "/", size_text(budget));
    case Work::serial_copy:
      return concat("study/K4/serial-copy/T", tokens, "/", layout(page_size));
    case Work::serial:
      return concat("study/K4/serial/T", tokens, "/", layout(page_size));
    case Work::batched:
      return concat("study/K4/batched/T", tokens, "/", layout(page_size));
  }
  return {};
}

Case problem(int batch, int tokens, int page_size) {
  Case c;
  c.type = DType::fp32, c.num_q_heads = 1, c.num_kv_heads = 1;
  c.lengths.assign(static_cast<std::size_t>(batch), tokens);
  c.length_name = concat("S", tokens);
  c.page_size   = page_size;
  return c;
}

std::vector<StudyCase> device_cases(bool cuda) {
  std::vector<StudyCase> cases;
  std::vector<int> lengths;
  for (int tokens = 4096; tokens <= 2097152; tokens *= 2) lengths.push_back(tokens);
  add_lengths(cases, lengths, {16, 32, 64, 128, 256, 512, 1024}, cuda);
  add_capacity(cases, std::int64_t(4) << 30);
  for (const int tokens : {512, 2048}) add_pages(cases, tokens, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512});
  return cases;
}

std::vector<StudyCase> host_cases() {
  std::vector<StudyCase> cases;
  add_lengths(cases, {4096, 16384, 65536, 262144, 1048576}, {2, 16, 128, 1024}, false);
  add_capacity(cases, std::int64_t(256) << 20);
  add_pages(cases, 512, {1, 4, 16, 64, 256, 512});
  return cases;
}

}  // namespace pagoda::bench::study
