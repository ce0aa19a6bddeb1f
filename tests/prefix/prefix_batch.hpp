// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/batch_pages.hpp>

#include <algorithm>
#include <random>
#include <vector>

/// Batches with shared pages, in every form of table.
namespace pagoda::test {

/// A batch with its own memory. rows[s]: pages of sequence s. pages() points into the vectors.
struct PrefixBatch {
  int page_size = 16;
  std::vector<std::vector<int>> rows;
  std::vector<int> seq_lens;
  std::vector<int> sequence_ids;  ///< empty: batch entry b is sequence b
  int query_len = 1;
  std::vector<int> cu_seqlens_q;  ///< empty: query_len of each
  enum class Table { dense, strided, csr, none } table = Table::dense;

  std::vector<int> block_table, page_indptr, page_indices;  ///< filled in by pages()

  /// Tables hold exactly the pages that are in use. What lies between rows is garbage that changes with `seed`.
  BatchPages pages(unsigned seed = 1) {
    std::mt19937 random(seed);
    BatchPages p;
    p.num_sequences = static_cast<int>(rows.size());
    p.batch         = sequence_ids.empty() ? p.num_sequences : static_cast<int>(sequence_ids.size());
    p.page_size     = page_size;
    p.seq_lens      = seq_lens.data();
    p.sequence_ids  = sequence_ids.empty() ? nullptr : sequence_ids.data();
    p.query_len     = query_len;
    p.cu_seqlens_q  = cu_seqlens_q.empty() ? nullptr : cu_seqlens_q.data();
    if (table == Table::none) return p;
    std::size_t most = 1;
    for (const auto& row : rows) most = std::max(most, row.size());
    if (table == Table::csr) {
      page_indptr = {0}, page_indices.clear();
      for (const auto& row : rows) {
        page_indices.insert(page_indices.end(), row.begin(), row.end());
        page_indices.push_back(static_cast<int>(random()));  // a page more than is used
        page_indptr.push_back(static_cast<int>(page_indices.size()));
      }
      p.page_indptr = page_indptr.data(), p.page_indices = page_indices.data();
      p.num_indices = static_cast<std::int64_t>(page_indices.size());
      return p;
    }
    const std::size_t page_stride = table == Table::strided ? 3 : 1, row_stride = (most + 2) * page_stride;
    block_table.resize(rows.size() * row_stride);
    for (int& id : block_table) id = static_cast<int>(random());
    for (std::size_t s = 0; s < rows.size(); ++s)
      for (std::size_t i = 0; i < rows[s].size(); ++i) block_table[s * row_stride + i * page_stride] = rows[s][i];
    p.block_table = block_table.data(), p.max_pages = static_cast<int>(most);
    p.row_stride  = static_cast<std::int64_t>(row_stride);
    p.page_stride = static_cast<std::int64_t>(page_stride);
    return p;
  }
  int pages_of(int tokens) const { return (tokens + page_size - 1) / page_size; }
};

/// A tree: nodes and tokens of each level. The last level's nodes are the batch.
inline PrefixBatch tree_batch(const std::vector<int>& nodes, const std::vector<int>& tokens, int page_size = 32) {
  PrefixBatch batch;
  batch.page_size = page_size;
  batch.rows.resize(static_cast<std::size_t>(nodes.back()));
  int length = 0, next_page = 0;
  std::mt19937 random(1);
  for (std::size_t level = 0; level < nodes.size(); ++level) {
    length += tokens[level];
    const std::size_t members = batch.rows.size() / static_cast<std::size_t>(nodes[level]);
    for (std::size_t b = 0; b < batch.rows.size(); b += members) {
      for (int i = 0; i < tokens[level] / page_size; ++i)
        for (std::size_t member = 0; member < members; ++member) batch.rows[b + member].push_back(next_page + i);
      next_page += tokens[level] / page_size;
    }
  }
  std::vector<int> shuffled(static_cast<std::size_t>(next_page));
  for (int i = 0; i < next_page; ++i) shuffled[i] = i;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  for (auto& row : batch.rows)
    for (int& page : row) page = shuffled[page];
  batch.seq_lens.assign(batch.rows.size(), length);
  return batch;
}

/// Every sequence continues some pages of an earlier one, or begins anew. Lengths end anywhere, also inside of shared
/// pages and at zero.
inline PrefixBatch random_batch(std::mt19937& random, int most_sequences, int most_pages) {
  const auto up_to = [&](int n) { return static_cast<int>(random() % (static_cast<unsigned>(n) + 1)); };
  PrefixBatch batch;
  batch.page_size = std::vector{1, 3, 16, 32}[random() % 4];
  batch.table =
      std::vector{PrefixBatch::Table::dense, PrefixBatch::Table::strided, PrefixBatch::Table::csr}[random() % 3];
  const int n = up_to(most_sequences);
  for (int s = 0; s < n; ++s) {
    std::vector<int> row;
    if (s > 0 && up_to(5) > 0) {
      const auto& other = batch.rows[static_cast<std::size_t>(up_to(s - 1))];
      row.assign(other.begin(), other.begin() + up_to(static_cast<int>(other.size())));
    }
    for (int more = up_to(up_to(1) ? most_pages : 0); more > 0; --more)
      row.push_back(static_cast<int>(random() % 100000));
    const int pages = static_cast<int>(row.size());
    batch.seq_lens.push_back(pages == 0 ? 0 : pages * batch.page_size - up_to(batch.page_size - 1));
    batch.rows.push_back(row);
  }
  if (n > 0 && up_to(2) == 0)
    for (int b = up_to(n); b > 0; --b) batch.sequence_ids.push_back(up_to(n - 1));
  batch.query_len = 1 + up_to(1) * up_to(3);
  if (up_to(2) == 0) {
    batch.cu_seqlens_q = {0};
    const int entries  = batch.sequence_ids.empty() ? n : static_cast<int>(batch.sequence_ids.size());
    for (int b = 0; b < entries; ++b)
      batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() + up_to(up_to(4) ? 2 : 40));
  }
  return batch;
}

}  // namespace pagoda::test
