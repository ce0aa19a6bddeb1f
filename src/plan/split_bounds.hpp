// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>

#include "src/plan/kernel_choice.hpp"

#include <cstdint>

/// The part of the planner that decides how rows may be split, and for how many splits the workspace has room.
namespace pagoda::detail {

/// Lengths of splits that the fragment, the machine and the bytes of a token require. Does not set max_cuts.
SplitBounds split_lengths(const FragmentChoice& choice, const ProblemShape& shape);

/// Tokens of the longest split.
inline int max_split_tokens(const SplitBounds& split) { return split.max_chunks << split.chunk_shift; }

/// Lengths of splits that follow from the shape alone, so that the splits of a row depend on nothing but its length
/// (Exactness). Does not set max_cuts.
SplitBounds fixed_split_lengths(const FragmentChoice& choice, const ProblemShape& shape);

/// The same bounds, with the teams and cuts that this number of row tiles can use. They hold for all lengths
/// (limit_splits ensures this), and are tight for lengths up to max_seq_len.
/// Without waves, rows of up to max_seq_len tokens never have more cuts than max_cuts, whatever the batch.
SplitBounds bound_splits(SplitBounds split, std::int64_t row_tiles, int max_seq_len);

/// Partial states of a batch, for which the workspace has room.
int max_slots(const SplitBounds& split, std::int64_t row_tiles, int max_seq_len);

}  // namespace pagoda::detail
