// Checks of collectives' arguments. Each text names the rank, the communicator and the collective.
#include "comm/operation_checks.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

[[noreturn]] void reject(const Communicator& communicator, const Signature& signature, const std::string& why) {
  throw UsageError(fmt::format("rank {}, {} (communicator {}): {}", communicator.rank(), brief(signature),
                               communicator.name(), why));
}

template <typename Operation>
void check_data(const Communicator& communicator, const Operation& operation, Bytes size) {
  if (operation.data != nullptr || size == Bytes(0)) return;
  reject(communicator, signature_of(operation, 0), fmt::format("data is null, but its size is {} bytes", size.count()));
}

template <typename Operation>
void check_divisor(const Communicator& communicator, const Operation& operation) {
  if (std::isfinite(operation.divisor) && operation.divisor != 0.0f) return;
  reject(communicator, signature_of(operation, 0), fmt::format("the divisor is {}", operation.divisor));
}

bool overlap(const void* a, Bytes a_size, const void* b, Bytes b_size) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
  return a_begin < b_begin + b_size.count() && b_begin < a_begin + a_size.count();
}

// Peers read `data` while the result is written; only this rank's own part is read by nobody else.
void check_result(const Communicator& communicator, const ReduceScatter& operation) {
  const Bytes part = operation.shard_elements * size_of(operation.wire);
  const Bytes result = operation.shard_elements * size_of(DType::fp32);
  const void* own_part = operation.data + static_cast<std::uint64_t>(communicator.rank()) * part.count();
  if (operation.wire == DType::fp32 && operation.result == own_part) return;
  const auto ranks = static_cast<std::uint64_t>(communicator.size());
  if (!overlap(operation.result, result, operation.data, ranks * part)) return;
  reject(communicator, signature_of(operation, 0), "the result overlaps data that is not this rank's own fp32 part");
}

}  // namespace

void check_stream(const Communicator& communicator, const Stream& stream, const Signature& signature) {
  if (stream.mode() == StreamMode::queued) return;
  reject(communicator, signature,
         fmt::format("stream {} is immediate; collectives need a queued stream", stream.name()));
}

void check(const Communicator& communicator, const AllGather& operation) {
  check_data(communicator, operation, operation.shard);
}

void check(const Communicator& communicator, const ReduceScatter& operation) {
  check_divisor(communicator, operation);
  if (operation.shard_elements == 0) return;
  check_data(communicator, operation, operation.shard_elements * size_of(operation.wire));
  if (operation.result == nullptr) reject(communicator, signature_of(operation, 0), "result is null");
  check_result(communicator, operation);
}

void check(const Communicator& communicator, const AllReduce& operation) {
  check_divisor(communicator, operation);
  check_data(communicator, operation, operation.elements * size_of(DType::fp32));
}

void check(const Communicator& communicator, const Broadcast& operation) {
  if (operation.root < 0 || operation.root >= communicator.size()) {
    reject(communicator, signature_of(operation, 0),
           fmt::format("the root is rank {}, but there are {} ranks", operation.root, communicator.size()));
  }
  check_data(communicator, operation, operation.size);
}

void check(const Communicator&, const Barrier&) {}

}  // namespace tessera::comm
