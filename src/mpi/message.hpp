// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

/// What ranks send to each other in a step. A message consists of a record for each head: the outputs of all query
/// tokens, their log-sum-exps, and a header, of which only that of the first record is used. Records of consecutive
/// heads are adjacent, so a decode writes all messages to all ranks as one array with strides, and merge reads the
/// messages of all ranks as one array of states. Nothing is packed or unpacked.
namespace pagoda::mpi {

enum class Mark : std::uint32_t {
  decoded = 1,  ///< the message holds a state
  failed  = 2,  ///< the rank's step threw
  left    = 3   ///< the rank has destroyed its object
};

/// What a rank says about its step. Ranks compare these, so that all of them find the same errors.
struct Header {
  static constexpr std::uint32_t has_sinks = 1, is_causal = 2;

  Mark mark{};
  std::uint32_t flags       = 0;
  std::int32_t query_tokens = 0;
  std::int32_t text_bytes   = 0;  ///< mark != decoded: length of the reason, which the message begins with

  bool operator==(const Header&) const = default;
};

/// What a rank says about its step where headers travel apart from the states (Transport::nccl).
struct Notice {
  Header header;
  char reason[232] = {};  ///< mark != decoded: text_bytes of the reason

  Notice() = default;
  Notice(Mark mark, const std::string& text) {
    header.mark       = mark;
    header.text_bytes = static_cast<std::int32_t>(text.copy(reason, sizeof reason));
  }
};

struct MessageLayout {
  DType type;  ///< of outputs
  int ranks, heads_per_message, dim;
  std::int64_t lse_at, header_at, record_bytes;  ///< offsets in a record, and its size

  MessageLayout(DType state_type, int num_ranks, int heads_of_message, int head_dim_v, int max_query_tokens)
      : type(state_type), ranks(num_ranks), heads_per_message(heads_of_message), dim(head_dim_v) {
    const auto aligned = [](std::int64_t bytes) { return (bytes + 15) / 16 * 16; };
    const auto rows    = static_cast<std::int64_t>(max_query_tokens);
    lse_at             = aligned(rows * dim * static_cast<std::int64_t>(size_of(type)));
    header_at          = aligned(lse_at + rows * static_cast<std::int64_t>(size_of(lse_type())));
    record_bytes       = header_at + static_cast<std::int64_t>(sizeof(Header));
  }

  DType lse_type() const { return type == DType::fp64 ? DType::fp64 : DType::fp32; }
  std::int64_t message_bytes() const { return heads_per_message * record_bytes; }
  /// Where the message from or to a rank begins.
  std::int64_t message_at(int rank) const { return rank * message_bytes(); }

  /// (query token, head, dim) of adjacent records.
  TensorRef outs(std::byte* first_record, std::int64_t tokens, std::int64_t heads) const {
    const auto size = static_cast<std::int64_t>(size_of(type));
    return {first_record, type, 3, {tokens, heads, dim}, {dim, record_bytes / size, 1}};
  }
  /// (query token, head) of adjacent records.
  TensorRef lses(std::byte* first_record, std::int64_t tokens, std::int64_t heads) const {
    const auto size = static_cast<std::int64_t>(size_of(lse_type()));
    return {first_record + lse_at, lse_type(), 2, {tokens, heads}, {1, record_bytes / size}};
  }
  /// An array of one message as that array of the messages of all ranks, the rank first.
  TensorRef of_all_ranks(const TensorRef& one) const {
    TensorRef all = one;
    all.rank      = one.rank + 1;
    all.extent[0] = ranks, all.stride[0] = message_bytes() / static_cast<std::int64_t>(size_of(one.type));
    std::copy_n(one.extent.begin(), one.rank, all.extent.begin() + 1);
    std::copy_n(one.stride.begin(), one.rank, all.stride.begin() + 1);
    return all;
  }

  /// Writes a message without a state: a header with this mark, and the reason as far as it fits.
  void write_reason(std::byte* message, Mark mark, const std::string& reason) const {
    const auto bytes = std::min<std::size_t>(reason.size(), static_cast<std::size_t>(header_at));
    std::memcpy(message, reason.data(), bytes);
    Header header;
    header.mark = mark, header.text_bytes = static_cast<std::int32_t>(bytes);
    std::memcpy(message + header_at, &header, sizeof header);
  }
};

/// The headers of adjacent messages, as kernels and the host access them.
struct HeadersAt {
  Header* first;
  std::int64_t stride;  ///< in headers

  HeadersAt(const MessageLayout& layout, std::byte* messages)
      : first(reinterpret_cast<Header*>(messages + layout.header_at)),
        stride(layout.message_bytes() / static_cast<std::int64_t>(sizeof(Header))) {}
  KOKKOS_FUNCTION Header& operator()(int message) const { return first[message * stride]; }
};

struct WriteHeaders {
  HeadersAt to;
  Header header;
  KOKKOS_FUNCTION void operator()(int message) const { to(message) = header; }
};

struct ReadHeaders {
  HeadersAt from;
  Header* to;
  KOKKOS_FUNCTION void operator()(int message) const { to[message] = from(message); }
};

}  // namespace pagoda::mpi
