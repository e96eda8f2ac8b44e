// Signatures of the collectives, and their text.
#include "comm/signature.hpp"

#include <fmt/format.h>

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

Signature signature_of_creation(std::string_view communicator) {
  return {.kind = CollectiveKind::creation, .label = communicator};
}

std::string brief(const Signature& signature) {
  return fmt::format("{} \"{}\"", to_string(signature.kind), signature.label);
}

std::string describe(const Signature& signature) {
  std::string text = brief(signature);
  if (signature.kind == CollectiveKind::creation) return text;
  text = fmt::format("#{} {}", signature.sequence, text);
  if (signature.kind == CollectiveKind::barrier) return text;
  text += fmt::format(" of {} bytes", signature.bytes.count());
  if (signature.dtype) text += fmt::format(" {}", to_string(*signature.dtype));
  if (signature.divisor != 1.0f) text += fmt::format(", divided by {}", signature.divisor);
  if (signature.kind == CollectiveKind::broadcast) text += fmt::format(" from rank {}", signature.root);
  return text;
}

}  // namespace tessera::comm
