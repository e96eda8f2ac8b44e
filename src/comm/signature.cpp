// Signatures of the collectives, and their text.
#include "comm/signature.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.hpp"

namespace tessera::comm {

std::string_view to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::creation: return "make_communicator";
    case CollectiveKind::all_gather: return "all-gather";
    case CollectiveKind::reduce_scatter: return "reduce-scatter";
    case CollectiveKind::all_reduce: return "all-reduce";
    case CollectiveKind::broadcast: return "broadcast";
    case CollectiveKind::barrier: return "barrier";
  }
  throw InternalError(fmt::format("no collective has the kind {}", static_cast<int>(kind)));
}

Signature signature_of(const AllGather& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::all_gather, .label = operation.label, .bytes = operation.shard, .sequence = sequence};
}

Signature signature_of(const ReduceScatter& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::reduce_scatter,
          .label = operation.label,
          .bytes = operation.shard_elements * size_of(operation.wire),
          .dtype = operation.wire,
          .divisor = operation.divisor,
          .sequence = sequence};
}

Signature signature_of(const AllReduce& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::all_reduce,
          .label = operation.label,
          .bytes = operation.elements * size_of(DType::fp32),
          .dtype = DType::fp32,
          .divisor = operation.divisor,
          .sequence = sequence};
}

Signature signature_of(const Broadcast& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::broadcast,
          .label = operation.label,
          .bytes = operation.size,
          .root = operation.root,
          .sequence = sequence};
}

Signature signature_of(const Barrier& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::barrier, .label = operation.label, .sequence = sequence};
}

Signature signature_of(std::span<const AllGather> segments, std::uint64_t sequence) {
  if (segments.empty()) return {.kind = CollectiveKind::all_gather, .sequence = sequence};
  Signature signature = signature_of(segments.front(), sequence);
  signature.further.gathers = segments.subspan(1);
  return signature;
}

Signature signature_of(std::span<const ReduceScatter> segments, std::uint64_t sequence) {
  if (segments.empty()) return {.kind = CollectiveKind::reduce_scatter, .sequence = sequence};
  Signature signature = signature_of(segments.front(), sequence);
  signature.further.reductions = segments.subspan(1);
  return signature;
}

Signature signature_of_creation(std::string_view communicator) {
  return {.kind = CollectiveKind::creation, .label = communicator};
}

Signature segment_of(const Signature& signature, std::size_t segment) {
  if (segment == 0) {
    Signature first = signature;
    first.further = {};
    return first;
  }
  const FurtherSegments& further = signature.further;
  return further.gathers.empty() ? signature_of(further.reductions[segment - 1], signature.sequence)
                                 : signature_of(further.gathers[segment - 1], signature.sequence);
}

bool operator==(const FurtherSegments& a, const FurtherSegments& b) {
  const auto same = [](const auto& mine, const auto& theirs) {
    return signature_of(mine, 0) == signature_of(theirs, 0);
  };
  return std::equal(a.gathers.begin(), a.gathers.end(), b.gathers.begin(), b.gathers.end(), same) &&
         std::equal(a.reductions.begin(), a.reductions.end(), b.reductions.begin(), b.reductions.end(), same);
}

std::string brief(const Signature& signature, std::size_t segment) {
  std::string text = fmt::format("{} \"{}\"", to_string(signature.kind), segment_of(signature, segment).label);
  if (signature.segments() > 1) text += fmt::format(" (segment {} of {})", segment + 1, signature.segments());
  return text;
}

std::string describe(const Signature& signature, std::size_t segment) {
  std::string text = brief(signature, segment);
  if (signature.kind == CollectiveKind::creation) return text;
  text = fmt::format("#{} {}", signature.sequence, text);
  if (signature.kind == CollectiveKind::barrier) return text;
  const Signature part = segment_of(signature, segment);
  text += fmt::format(" of {} bytes", part.bytes.count());
  if (part.dtype) text += fmt::format(" {}", to_string(*part.dtype));
  if (part.divisor != 1.0f) text += fmt::format(", divided by {}", part.divisor);
  if (signature.kind == CollectiveKind::broadcast) text += fmt::format(" from rank {}", signature.root);
  return text;
}

}  // namespace tessera::comm
