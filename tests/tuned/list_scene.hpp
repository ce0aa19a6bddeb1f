// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entry.hpp>

#include "backends/cuda/tuned/decode.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

/// Random lists of entries for the hand-tuned kernels, without a plan, and a float64 reference. In a build without
/// CUDA, simt/ runs the kernels on the host.
namespace pagoda::tuned {

/// Whether a GPU decodes, or the host (simt/).
inline constexpr bool on_gpu =
    !Kokkos::SpaceAccessibility<Kokkos::HostSpace, Kokkos::DefaultExecutionSpace::memory_space>::accessible;

enum class Place { paged, csr, contiguous };
enum class Scales { none, one, of_heads };  ///< of keys and values of 8 bits

struct ListCase {
  Type type    = Type::fp16;
  int head_dim = 128;
  int q_heads = 8, kv_heads = 2;
  int max_queries  = 8;  ///< bound on the query tokens of an entry
  Place place      = Place::paged;
  int page_size    = 32;
  bool heads_first = false;  ///< tokens of a head lie side by side (HND)
  Scales scales    = Scales::none;
  Type out_type = Type::fp16, state_type = Type::fp32;
  bool lse_double = false, causal = true;
  std::vector<int> lengths{};  ///< of the sequences
  int tokens       = 40;       ///< query tokens; the last third of them writes the output, the others partial states
  int levels       = 3;        ///< partial states of a query token
  int entry_tokens = 1 << 30;  ///< most tokens of an entry that does not go to the end of its sequence
  bool per_head    = false;    ///< some entries are of one kv head
  bool empty       = true;     ///< some entries have no tokens or no query tokens
  bool sinks       = false;    ///< the query heads have attention sinks
  bool masks       = false;    ///< most query tokens have random masks of up to 128 tokens
  bool chains      = false;    ///< most entries begin chains
  bool few_rows    = true;     ///< List::has_few_rows
  bool rising      = false;    ///< keys grow along a sequence, so that later scores exceed earlier maxima by far
  int capacity     = 0;        ///< tokens that a sequence may grow to; at least its length
  unsigned seed    = 1;
};
const char* name_of(Type type);
std::string describe(const ListCase& c);

template <class T>
using OnDevice = Kokkos::View<T*, Kokkos::DefaultExecutionSpace::memory_space>;

/// A list, a cache and queries on the device, and what the list's results must be.
class ListScene {
 public:
  explicit ListScene(const ListCase& c);

  EntryList& list() { return list_; }
  /// Changes the lengths of the sequences, on the device alone.
  void set_lengths(const std::vector<int>& lengths);
  /// Sets dim `dim` of a token's value, for all heads.
  void set_value(int sequence, int token, int dim, float x);
  /// Sets the scales of a kv head. The case has scales of heads.
  void set_scales(int kv_head, float k, float v);
  /// Copies the list to the device. The constructor and every change of list() need it.
  void upload_list();

  Problem problem() const;
  /// Decodes. Returns false if the kernels do not support the problem or were not launched.
  bool decode();
  /// Compares all outputs and partial states with the reference. Rows that no entry writes, and the workspace, must be
  /// as they were. Returns the first difference, or an empty text.
  std::string difference() const;
  /// Every bit of the results.
  std::vector<std::uint32_t> bits() const;

 private:
  Type q_type() const { return is_quantized(case_.type) ? Type::fp16 : case_.type; }
  std::size_t row_of(int sequence, int token, int kv_head) const;  ///< in keys and values, which are [row][dim]
  float scale_of(const std::vector<float>& scales, int kv_head) const;
  std::vector<float> make_scales();
  void upload_cache();
  void make_list();
  EntryQuery make_query(int token, int sequence);
  void add_chain(const Entry& first, const std::function<void(Entry&)>& set_range);
  int random_below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::vector<std::uint16_t> normal(Type type, std::size_t count);
  std::vector<Entry> seen_entries(std::size_t index, int query) const;
  std::string row_difference(const std::vector<Entry>& entries, const EntryQuery& q, int head,
                             const std::vector<float>& row, double lse) const;

  ListCase case_;
  std::mt19937 random_;
  std::vector<int> lengths_, table_, indptr_;
  int pages_each_ = 0, num_pages_ = 0;
  std::vector<std::uint16_t> q_, k_, v_;  ///< an element each, of 16 or 8 bits
  std::vector<float> k_scales_, v_scales_;
  OnDevice<float> k_scales_d_, v_scales_d_;
  EntryList list_;
  OnDevice<int> lengths_d_, table_d_, indptr_d_, state_begin_d_;
  OnDevice<std::uint16_t> q_d_, k_d_, v_d_;
  OnDevice<Entry> entries_d_;
  OnDevice<EntryQuery> queries_d_;
  OnDevice<std::uint64_t> masks_d_;
  std::vector<float> sinks_;
  OnDevice<float> sinks_d_;
  OnDevice<std::uint32_t> out_d_, state_d_;  ///< words: elements are of 16 or 32 bits
  OnDevice<std::uint32_t> lse_d_, state_lse_d_;
  OnDevice<char> workspace_;
};

}  // namespace pagoda::tuned
