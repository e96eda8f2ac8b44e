// Sums over ranks on NCCL. Ranked: every rank's part travels to its owner into staging, and is summed there in rank
// order in fp32. What does not fit goes in rounds, which the order of the stream keeps apart.
#include <fmt/format.h>

#include <algorithm>

#include "comm/meeting_collectives.hpp"
#include "comm/nccl/nccl_group.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

constexpr std::size_t alignment = plan::staging_alignment.count();  // of what kernels read

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::size_t bytes_in(const ReduceScatter& segment, std::size_t elements) {
  return bytes_of(segment.wire, elements).count();
}

}  // namespace

// Every peer's part of a piece comes to a place of its own, in rank order; this rank's stays where it is.
void NcclGroup::exchange(const Call& call, std::span<const Piece> pieces) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == place()) continue;
    for (const Piece& piece : pieces) {
      const Bytes bytes(bytes_in(*piece.segment, piece.count));
      const auto to = static_cast<std::size_t>(peer);
      const std::byte* const part =
          piece.segment->data + bytes_in(*piece.segment, to * piece.segment->shard_elements + piece.begin);
      parts_.library.send(on(call), part, bytes, peer);
      parts_.library.receive(on(call), staging(piece.place + to * aligned(bytes.count())), bytes, peer);
    }
  }
}

// Pointers, which the kernel has room for up to so many ranks; beyond, this rank's part goes to its place among the
// others'.
void NcclGroup::sum_in_staging(const Call& call, const kernels::RankedSum& sum, std::byte* first, Bytes stride) {
  constexpr std::size_t most_pointers = 64;
  const auto me = static_cast<std::size_t>(place());
  const auto ranks = static_cast<std::size_t>(size());
  if (ranks > most_pointers) {
    call.queue.copy(first + me * stride.count(), sum.contributions[me], bytes_of(sum.type, sum.count));
    return kernels::ranked_sum_cuda(call.queue.native(), sum, {.first = first, .stride = stride, .ranks = ranks});
  }
  for (std::size_t other = 0; other < ranks; ++other) {
    if (other != me) contributions_[other] = first + other * stride.count();
  }
  kernels::ranked_sum_cuda(call.queue.native(), sum);
}

void NcclGroup::sum_pieces(const Call& call, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    const ReduceScatter& segment = *piece.segment;
    const auto me = static_cast<std::size_t>(place());
    contributions_[me] = segment.data + bytes_in(segment, me * segment.shard_elements + piece.begin);
    sum_in_staging(call, sum_of(segment, contributions_, piece.begin, piece.count), staging(piece.place),
                   Bytes(aligned(bytes_in(segment, piece.count))));
  }
}

void NcclGroup::reduce_ranked(const Call& call, std::span<const ReduceScatter> segments) {
  const std::size_t room = staging_.size();
  const auto ranks = static_cast<std::size_t>(size());
  std::size_t used = 0;
  pieces_.clear();
  const auto flush = [&] {
    if (pieces_.empty()) return;
    in_group([&] { exchange(call, pieces_); });
    sum_pieces(call, pieces_);
    pieces_.clear();
    used = 0;
  };
  for (const ReduceScatter& segment : segments) {
    for (std::size_t begin = 0; begin < segment.shard_elements;) {
      const std::size_t most = elements_in(segment.wire, Bytes((room - used) / ranks / alignment * alignment));
      if (most == 0) {
        if (pieces_.empty())
          throw UsageError(fmt::format("{}: {} bytes of staging have no room for a block of {} of each rank",
                                       place_of(call.signature), room, to_string(segment.wire)));
        flush();
        continue;
      }
      const std::size_t count = std::min(most, segment.shard_elements - begin);
      pieces_.push_back({.segment = &segment, .begin = begin, .count = count, .place = used});
      used += ranks * aligned(bytes_in(segment, count));
      begin += count;
    }
  }
  flush();
}

// NCCL's sum of a part comes in the wire's type; converting, adding and dividing is a sum of one contribution. Its
// terms are not there to be added one after the other, so `terms` is refused.
void NcclGroup::reduce_fast(const Call& call, std::span<const ReduceScatter> segments) {
  for (const ReduceScatter& segment : segments) {
    const std::size_t bytes = bytes_in(segment, segment.shard_elements);
    if (segment.accumulate == kernels::Accumulate::terms) {
      throw UsageError(
          fmt::format("{}: NCCL's own sum cannot go on with what ranks brought before, term by term; take "
                      "SumChoice::ranked (--sums ranked)",
                      place_of(call.signature)));
    }
    if (segment.wire == DType::int8) {
      throw UsageError(
          fmt::format("{}: NCCL's own sum cannot add blocks of 8-bit codes; take SumChoice::ranked (--sums "
                      "ranked), or another wire",
                      place_of(call.signature)));
    }
    if (bytes == 0) continue;
    if (bytes > staging_.size()) {
      throw UsageError(fmt::format("{}: NCCL's own sum of {} bytes needs as much staging, and there are {}",
                                   place_of(call.signature), bytes, staging_.size()));
    }
    complete(parts_.library.reduce_scatter(
        on(call),
        {.data = segment.data, .result = staging(0), .elements = segment.shard_elements, .type = segment.wire}));
    const void* const sum = staging(0);
    kernels::ranked_sum_cuda(call.queue.native(), sum_of(segment, std::span(&sum, 1), 0, segment.shard_elements));
  }
}

// Every rank sums everything: norms are small, and no second exchange is needed.
void NcclGroup::run(const Call& call, const AllReduce& operation) {
  launch(call, [&] {
    const auto ranks = static_cast<std::size_t>(size());
    const std::size_t most = staging_.size() / ranks / alignment * alignment / sizeof(float);
    for (std::size_t begin = 0; begin < operation.elements; begin += most) {
      const std::size_t count = std::min(most, operation.elements - begin);
      const Bytes part(aligned(count * sizeof(float)));
      float* const own = operation.data + begin;
      call.queue.copy(staging(static_cast<std::size_t>(place()) * part.count()), own, Bytes(count * sizeof(float)));
      complete(parts_.library.all_gather(on(call), staging(0), part));
      contributions_[static_cast<std::size_t>(place())] = own;
      sum_in_staging(call, sum_of(operation, contributions_, begin, count), staging(0), part);
    }
  });
}

}  // namespace tessera::comm
