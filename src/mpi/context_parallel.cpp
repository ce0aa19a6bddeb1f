// SPDX-License-Identifier: Apache-2.0
#include <pagoda/merge.hpp>
#include <pagoda/mpi.hpp>

#include "backends/machines.hpp"
#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"
#include "src/mpi/agreement.hpp"
#include "src/mpi/gpu_aware.hpp"
#include "src/mpi/message.hpp"
#include "src/mpi/message_memory.hpp"
#include "src/mpi/mpi_call.hpp"
#include "src/mpi/nccl.hpp"

#include <limits>
#include <utility>
#include <vector>

namespace pagoda::mpi {

namespace {

template <class ExecutionSpace>
void check_options(const ContextParallelOptions& o, int ranks) {
  const char* const who = "pagoda::mpi::ContextParallel: ";
  const bool own        = o.merged_heads == MergedHeads::own;
  detail::require(o.num_q_heads >= 1, who, "num_q_heads is ", o.num_q_heads, "; allowed: 1 or more");
  detail::require(o.head_dim_v >= 1, who, "head_dim_v is ", o.head_dim_v, "; allowed: 1 or more");
  detail::require(o.max_query_tokens >= 1, who, "max_query_tokens is ", o.max_query_tokens, "; allowed: 1 or more");
  detail::require(!own || o.num_q_heads % ranks == 0, who, "num_q_heads is ", o.num_q_heads, " for ", ranks,
                  " ranks; allowed with MergedHeads::own: a multiple of the number of ranks");
  detail::require_plain("pagoda::mpi::ContextParallel", "state_type is", o.state_type);
  detail::require(o.transport == Transport::mpi || has_nccl_v<ExecutionSpace>, who, "transport is nccl on ",
                  ExecutionSpace::name(), "; allowed: mpi",
                  has_nccl() ? ", or nccl on Cuda" : ", as this build has no NCCL (PAGODA_NCCL)");
}

template <class ExecutionSpace>
MessageLayout layout_of(const ContextParallelOptions& o, int ranks) {
  check_options<ExecutionSpace>(o, ranks);
  const int heads = o.merged_heads == MergedHeads::own ? o.num_q_heads / ranks : o.num_q_heads;
  const MessageLayout layout(o.state_type, ranks, heads, o.head_dim_v, o.max_query_tokens);
  detail::require(layout.message_bytes() <= std::numeric_limits<int>::max(),
                  "pagoda::mpi::ContextParallel: a message has ", layout.message_bytes(),
                  " bytes (num_q_heads * max_query_tokens * head_dim_v elements of state_type, and more); allowed: "
                  "fewer than 2^31");
  return layout;
}

}  // namespace

bool has_nccl() { return has_nccl_v<Kokkos::DefaultExecutionSpace>; }

template <class ExecutionSpace>
struct ContextParallel<ExecutionSpace>::Impl {
  using Memory = MessageMemory<ExecutionSpace>;

  Communicator comm;
  ContextParallelOptions options;
  MessageLayout layout;
  ExecutionSpace exec;    ///< of the last step
  bool device_messages;   ///< messages lie in device memory; otherwise in host-visible memory
  Memory sent, received;  ///< messages to all ranks, from all ranks. MergedHeads::all: `sent` is part of `received`
  Memory headers;         ///< host-visible: the headers of `received`, where these lie in device memory
  std::optional<NcclCommunicator<ExecutionSpace>>
      nccl;                      ///< Transport::nccl: messages have no headers, ranks send notices
  std::vector<std::byte> spare;  ///< messages of a step in which this rank has failed, whatever state the device is in
  Header written{};              ///< header of the messages in `sent`
  int failed_rank = -1;          ///< why the object is unusable, unless -1
  std::string failure;
  bool peers_know = false;  ///< the other ranks know that the object is unusable

  Impl(const ExecutionSpace& instance, MPI_Comm caller_comm, const ContextParallelOptions& o)
      : comm(caller_comm), options(o), layout(o.state_type, 1, 0, 0, 0), exec(instance), device_messages(false) {
    Agreement agreement(options);
    std::exception_ptr thrown;
    try {
      allocate();
    } catch (...) {
      thrown = std::current_exception();
      agreement.fail(reason_of_current_exception());
    }
    try {
      agreement.compare(comm);
    } catch (...) {
      if (!thrown) throw;
    }
    if (thrown) std::rethrow_exception(thrown);
    if (options.transport == Transport::nccl && comm.size() > 1) nccl.emplace(exec, comm);
  }
  ~Impl() {
    if (!peers_know) tell_peers(failed_rank < 0 ? Mark::left : Mark::failed, failure);
    try {
      exec.fence("Pagoda::mpi: kernels that use the messages");
    } catch (...) {  // the error is that of an earlier kernel
    }
  }
  Impl(const Impl&)            = delete;
  Impl& operator=(const Impl&) = delete;

  bool in_place() const { return options.merged_heads == MergedHeads::all; }
  std::size_t bytes_of_all() const { return static_cast<std::size_t>(layout.message_at(layout.ranks)); }

  void allocate() {
    layout          = layout_of<ExecutionSpace>(options, comm.size());
    device_messages = options.transport == Transport::nccl ||
                      (has_device_memory_v<ExecutionSpace> && options.gpu_aware.value_or(mpi_takes_device_memory()));
    if (comm.size() == 1) return;
    received = Memory(exec, "Pagoda::mpi::received", bytes_of_all(), device_messages);
    if (!in_place()) sent = Memory(exec, "Pagoda::mpi::sent", bytes_of_all(), device_messages);
    if (options.transport == Transport::nccl) return exec.fence("Pagoda::mpi: allocations");
    if (device_messages) headers = Memory(exec, "Pagoda::mpi::headers", sizeof(Header) * comm.size(), false);
    spare.resize(bytes_of_all() * (in_place() ? 1 : 2));
    exec.fence("Pagoda::mpi: allocations");
  }

  /// This rank's messages to other ranks, one or one for each.
  std::byte* own_messages() const {
    return in_place() ? received.data() + layout.message_at(comm.rank()) : sent.data();
  }
  int num_own_messages() const { return in_place() ? 1 : comm.size(); }

  /// What every rank calls once for each step, whatever happens: exchange, or with NCCL exchange_notices.
  void exchange(std::byte* from, std::byte* to) {
    const int bytes = static_cast<int>(layout.message_bytes());
    if (in_place()) {
      check_mpi(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, to, bytes, MPI_BYTE, comm.get()), "MPI_Allgather");
    } else {
      check_mpi(MPI_Alltoall(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, comm.get()), "MPI_Alltoall");
    }
  }

  std::vector<Notice> exchange_notices(const Notice& own) const {
    std::vector<Notice> all(static_cast<std::size_t>(comm.size()));
    check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm.get()), "MPI_Allgather");
    return all;
  }
  /// The states of a step whose ranks have all decoded.
  void exchange_states() const {
    const auto bytes = static_cast<std::size_t>(layout.message_bytes());
    if (in_place()) {
      nccl->all_gather(exec, own_messages(), received.data(), bytes);
    } else {
      nccl->all_to_all(exec, own_messages(), received.data(), bytes);
    }
  }

  void set_unusable(int rank, std::string why) { failed_rank = rank, failure = std::move(why); }

  /// Takes part in the collective without a state. Does not touch the device.
  void tell_peers(Mark mark, const std::string& reason) {
    peers_know = true;
    if (comm.size() == 1 || !mpi_is_running()) return;
    try {
      if (nccl) {
        exchange_notices(Notice(mark, reason));
        return;
      }
      std::byte* const from = spare.data() + (in_place() ? layout.message_at(comm.rank()) : 0);
      for (int i = 0; i < num_own_messages(); ++i) layout.write_reason(from + layout.message_at(i), mark, reason);
      exchange(from, spare.data() + (in_place() ? 0 : bytes_of_all()));
    } catch (const MpiError&) {  // this rank is failing for another reason already
    }
  }

  void check_step(const Plan<ExecutionSpace>& plan, const detail::Problem& p) const {
    const char* const who    = "pagoda::mpi::ContextParallel::decode: ";
    const auto& shape        = plan.schedule().shape;
    const auto tokens        = p.q.extent[0];
    const std::int64_t heads = layout.heads_per_message;
    detail::require(shape.num_q_heads == options.num_q_heads && shape.head_dim_v == options.head_dim_v, who,
                    "the plan has num_q_heads ", shape.num_q_heads, " and head_dim_v ", shape.head_dim_v,
                    "; allowed: ", options.num_q_heads, " and ", options.head_dim_v,
                    ", as the options of the ContextParallel");
    detail::require(tokens <= options.max_query_tokens, who, "q has ", tokens, " query tokens; allowed: up to ",
                    options.max_query_tokens, ", max_query_tokens of the ContextParallel");
    detail::require(p.out.extent[0] == tokens && p.out.extent[1] == heads && p.out.extent[2] == layout.dim, who,
                    "out is (", p.out.extent[0], ", ", p.out.extent[1], ", ", p.out.extent[2], "); allowed: (", tokens,
                    ", ", heads, ", ", layout.dim, "), with the heads that merged_heads selects");
    detail::require(!p.lse.data || (p.lse.extent[0] == tokens && p.lse.extent[1] == heads), who, "lse is (",
                    p.lse.extent[0], ", ", p.lse.extent[1], "); allowed: (", tokens, ", ", heads, ") or an empty View");
    detail::require(p.out.data || tokens == 0, who, "out has a null pointer; allowed: memory for all of its elements");
    detail::require_plain("pagoda::mpi::ContextParallel::decode", "out holds", p.out.type);
    if (comm.size() == 1) return;
    detail::require(plan.options().window_left < 0, who, "the plan has window_left = ", plan.options().window_left,
                    "; allowed: -1, because a rank does not know the positions of its tokens in the sequence");
    detail::require(!plan.options().alibi_slopes.data(), who,
                    "the plan has alibi_slopes; allowed: none, because a rank does not know the positions of its "
                    "tokens in the sequence");
  }

  Header header_of(const Plan<ExecutionSpace>& plan, const detail::Problem& p) const {
    const auto& asked = plan.options();
    const bool several =
        asked.cu_seqlens_q.data() ? plan.schedule().bounds.max_query_len > 1 : p.q.extent[0] > p.kv.batch;
    Header header;
    header.mark  = Mark::decoded;
    header.flags = (asked.sinks.data() ? Header::has_sinks : 0) | (asked.causal && several ? Header::is_causal : 0);
    header.query_tokens = static_cast<std::int32_t>(p.q.extent[0]);
    return header;
  }

  using Messages = Kokkos::RangePolicy<ExecutionSpace>;

  /// The part of a step before the collective.
  void decode_shard(const Plan<ExecutionSpace>& plan, const detail::Problem& p) {
    check_step(plan, p);
    detail::require(
        nccl || !detail::MachineOf<ExecutionSpace>::Stream::capturing(exec),
        "pagoda::mpi::ContextParallel::decode: exec is capturing a graph; allowed with Transport::nccl, because "
        "MPI exchanges the states on the host");
    std::byte* const own = own_messages();
    detail::decode(exec, plan,
                   detail::Problem{p.kv, p.q, layout.outs(own, p.q.extent[0], options.num_q_heads),
                                   layout.lses(own, p.q.extent[0], options.num_q_heads)});
    if (nccl) return;
    const Header header = header_of(plan, p);
    const WriteHeaders write{HeadersAt(layout, own), header};
    const bool changed = !(header == written);
    if (changed && device_messages)
      Kokkos::parallel_for("Pagoda::mpi::write_headers", Messages(exec, 0, num_own_messages()), write);
    // The collective needs the states, and that earlier merges have read the messages that it overwrites.
    exec.fence("Pagoda::mpi: states before the collective");
    for (int i = 0; changed && !device_messages && i < num_own_messages(); ++i) write(i);
    written = header;
  }

  std::vector<Header> read_headers() const {
    std::vector<Header> all(static_cast<std::size_t>(comm.size()));
    const HeadersAt from(layout, received.data());
    if (device_messages) {
      auto* const host = reinterpret_cast<Header*>(headers.data());
      Kokkos::parallel_for("Pagoda::mpi::read_headers", Messages(exec, 0, comm.size()), ReadHeaders{from, host});
      exec.fence("Pagoda::mpi: headers of the messages");
      std::copy_n(host, comm.size(), all.begin());
    } else {
      for (int rank = 0; rank < comm.size(); ++rank) all[rank] = from(rank);
    }
    return all;
  }

  std::string reason_of(int rank, const Header& header) const {
    std::string text(static_cast<std::size_t>(header.text_bytes), '\0');
    std::byte* const message = received.data() + layout.message_at(rank);
    if (device_messages) {
      using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
      Kokkos::deep_copy(exec, Kokkos::View<char*, Kokkos::HostSpace, Unmanaged>(text.data(), text.size()),
                        Kokkos::View<const char*, typename ExecutionSpace::memory_space, Unmanaged>(
                            reinterpret_cast<const char*>(message), text.size()));
      exec.fence("Pagoda::mpi: reason of a failure");
    } else {
      std::memcpy(text.data(), message, text.size());
    }
    return text;
  }

  /// Throws the same on all ranks if one of them has not decoded, or if their plans do not fit together. reason: the
  /// text of a rank that has failed.
  template <class Reason>
  void check_ranks(const std::vector<Header>& all, const Reason& reason) {
    for (int rank = 0; rank < comm.size(); ++rank) {
      const Header& header = all[rank];
      if (header.mark == Mark::decoded) continue;
      peers_know = true;
      throw PeerError(rank, header.mark == Mark::left ? detail::concat("pagoda::mpi::ContextParallel::decode: rank ",
                                                                       rank, " has destroyed its ContextParallel")
                                                      : detail::concat("pagoda::mpi::ContextParallel::decode: rank ",
                                                                       rank, " failed: ", reason(rank)));
    }
    try {
      check_headers(all);
    } catch (...) {
      peers_know = true;
      throw;
    }
  }

  void merge(const detail::Problem& p) const {
    const auto tokens = p.q.extent[0];
    if (tokens == 0) return;
    const TensorRef outs = layout.of_all_ranks(layout.outs(received.data(), tokens, layout.heads_per_message));
    const TensorRef lses = layout.of_all_ranks(layout.lses(received.data(), tokens, layout.heads_per_message));
    detail::merge(exec, {detail::first_state(outs), detail::first_state(lses), detail::other_states(outs),
                         detail::other_states(lses), p.out, p.lse});
  }

  void step(const Plan<ExecutionSpace>& plan, const detail::Problem& p) {
    if (failed_rank >= 0) {
      if (!peers_know) tell_peers(Mark::failed, failure);
      throw PeerError(failed_rank, detail::concat("pagoda::mpi::ContextParallel::decode: the object is unusable since "
                                                  "an earlier error on rank ",
                                                  failed_rank, ": ", failure));
    }
    if (comm.size() == 1) {
      check_step(plan, p);
      return detail::decode(exec, plan, p);
    }
    try {
      decode_shard(plan, p);
    } catch (...) {
      set_unusable(comm.rank(), reason_of_current_exception());
      tell_peers(Mark::failed, failure);
      throw;
    }
    try {
      if (nccl) {
        Notice own;
        own.header                    = header_of(plan, p);
        const std::vector<Notice> all = exchange_notices(own);
        std::vector<Header> heads;
        for (const Notice& n : all) heads.push_back(n.header);
        check_ranks(heads, [&](int rank) { return std::string(all[rank].reason, all[rank].header.text_bytes); });
        exchange_states();
      } else {
        exchange(own_messages(), received.data());
        const std::vector<Header> all = read_headers();
        check_ranks(all, [&](int rank) { return reason_of(rank, all[rank]); });
      }
      merge(p);
    } catch (const PeerError& error) {
      set_unusable(error.rank(), error.what());
      throw;
    } catch (const MpiError& error) {
      set_unusable(comm.rank(), error.what());
      peers_know = true;  // no further collective: this one has failed
      throw;
    } catch (...) {
      set_unusable(comm.rank(), reason_of_current_exception());
      throw;
    }
  }
};

template <class ExecutionSpace>
ContextParallel<ExecutionSpace>::ContextParallel(const ExecutionSpace& exec, MPI_Comm comm,
                                                 const ContextParallelOptions& options)
    : impl_(std::make_unique<Impl>(exec, comm, options)) {}

template <class ExecutionSpace>
ContextParallel<ExecutionSpace>::~ContextParallel() = default;
template <class ExecutionSpace>
ContextParallel<ExecutionSpace>::ContextParallel(ContextParallel&&) noexcept = default;
template <class ExecutionSpace>
ContextParallel<ExecutionSpace>& ContextParallel<ExecutionSpace>::operator=(ContextParallel&&) noexcept = default;

template <class ExecutionSpace>
void ContextParallel<ExecutionSpace>::step(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan,
                                           const detail::Problem& problem) {
  impl_->exec = exec;
  impl_->step(plan, problem);
}

template <class ExecutionSpace>
void ContextParallel<ExecutionSpace>::fail(const std::string& reason) {
  Impl& i = *impl_;
  if (i.failed_rank < 0) i.set_unusable(i.comm.rank(), reason);
  if (!i.peers_know) i.tell_peers(Mark::failed, i.failure);
}

template <class ExecutionSpace>
int ContextParallel<ExecutionSpace>::rank() const {
  return impl_->comm.rank();
}
template <class ExecutionSpace>
int ContextParallel<ExecutionSpace>::size() const {
  return impl_->comm.size();
}
template <class ExecutionSpace>
bool ContextParallel<ExecutionSpace>::gpu_aware() const {
  return impl_->device_messages;
}
template <class ExecutionSpace>
std::size_t ContextParallel<ExecutionSpace>::message_bytes() const {
  return static_cast<std::size_t>(impl_->layout.message_bytes());
}

#define PAGODA_INSTANTIATE(Space) template class PAGODA_MPI_EXPORT ContextParallel<Space>;
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::mpi
