// Checks of collectives' arguments and of who calls them. Each text names the rank, the communicator and the
// collective.
#include "comm/task_communicator.hpp"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "tessera/base/error.hpp"

namespace tessera::comm {

namespace {

[[noreturn]] void reject(const MembersCommunicator& communicator, const Signature& signature, const std::string& why) {
  throw UsageError(fmt::format("rank {}, {} (communicator {}): {}", communicator.members().rank(), brief(signature),
                               communicator.name(), why));
}

template <typename Operation>
void check_data(const MembersCommunicator& communicator, const Operation& operation, Bytes size) {
  if (operation.data != nullptr || size == Bytes(0)) return;
  reject(communicator, signature_of(operation, 0), fmt::format("data is null, but its size is {} bytes", size.count()));
}

template <typename Operation>
void check_divisor(const MembersCommunicator& communicator, const Operation& operation) {
  if (std::isfinite(operation.divisor) && operation.divisor != 0.0f) return;
  reject(communicator, signature_of(operation, 0), fmt::format("the divisor is {}", operation.divisor));
}

struct Memory {
  const void* begin;
  Bytes size;
};

bool overlap(Memory a, Memory b) {
  if (a.size == Bytes(0) || b.size == Bytes(0)) return false;
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.begin);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.begin);
  return a_begin < b_begin + b.size.count() && b_begin < a_begin + a.size.count();
}

Memory data_of(const MembersCommunicator& communicator, const AllGather& operation) {
  return {operation.data, operation.shard * static_cast<std::uint64_t>(communicator.size())};
}
Memory data_of(const MembersCommunicator& communicator, const ReduceScatter& operation) {
  const Bytes part = bytes_of(operation.wire, operation.shard_elements);
  return {operation.data, part * static_cast<std::uint64_t>(communicator.size())};
}
Memory written_by(const MembersCommunicator& communicator, const AllGather& operation) {
  return data_of(communicator, operation);
}
Memory written_by(const MembersCommunicator&, const ReduceScatter& operation) {
  return {operation.result, operation.shard_elements * size_of(DType::fp32)};
}

// Peers read `data` while the result is written; only this rank's own part is read by nobody else.
void check_result(const MembersCommunicator& communicator, const ReduceScatter& operation) {
  const Bytes part = bytes_of(operation.wire, operation.shard_elements);
  const void* own_part = operation.data + static_cast<std::uint64_t>(communicator.rank()) * part.count();
  if (operation.wire == DType::fp32 && operation.result == own_part) return;
  if (!overlap(written_by(communicator, operation), data_of(communicator, operation))) return;
  reject(communicator, signature_of(operation, 0), "the result overlaps data that is not this rank's own fp32 part");
}

void check_segment(const MembersCommunicator& communicator, const AllGather& operation) {
  check_data(communicator, operation, operation.shard);
}

void check_segment(const MembersCommunicator& communicator, const ReduceScatter& operation) {
  check_divisor(communicator, operation);
  if (operation.shard_elements == 0) return;
  if (operation.shard_elements % block_of(operation.wire) != 0) {
    reject(communicator, signature_of(operation, 0),
           fmt::format("{} elements are not whole blocks of {}", operation.shard_elements, to_string(operation.wire)));
  }
  check_data(communicator, operation, bytes_of(operation.wire, operation.shard_elements));
  if (operation.result == nullptr) reject(communicator, signature_of(operation, 0), "result is null");
  check_result(communicator, operation);
}

// Peers read every segment while this rank writes every segment.
template <typename Operation>
void check_group(const MembersCommunicator& communicator, std::span<const Operation> segments) {
  if (segments.empty()) reject(communicator, signature_of(segments, 0), "a group needs a segment at least");
  for (const Operation& segment : segments) check_segment(communicator, segment);
  for (const Operation& one : segments) {
    const Memory written = written_by(communicator, one);
    for (const Operation& other : segments) {
      if (&one == &other) continue;
      const bool clash =
          overlap(written, data_of(communicator, other)) || overlap(written, written_by(communicator, other));
      if (!clash) continue;
      reject(communicator, signature_of(one, 0), fmt::format("it writes what segment \"{}\" uses", other.label));
    }
  }
}

}  // namespace

void check_stream(const MembersCommunicator& communicator, const Stream& stream, const Signature& signature) {
  if (stream.meets_peers()) return;
  reject(
      communicator, signature,
      fmt::format("stream {} is immediate; collectives need a queued stream, or one that meets peers", stream.name()));
}

void check(const MembersCommunicator& communicator, std::span<const AllGather> segments) {
  check_group(communicator, segments);
}

void check(const MembersCommunicator& communicator, std::span<const ReduceScatter> segments) {
  check_group(communicator, segments);
}

void check(const MembersCommunicator& communicator, const AllReduce& operation) {
  check_divisor(communicator, operation);
  check_data(communicator, operation, operation.elements * size_of(DType::fp32));
}

void check(const MembersCommunicator& communicator, const Broadcast& operation) {
  if (operation.root < 0 || operation.root >= communicator.size()) {
    reject(communicator, signature_of(operation, 0),
           fmt::format("the root is rank {}, but there are {} ranks", operation.root, communicator.size()));
  }
  check_data(communicator, operation, operation.size);
}

void check(const MembersCommunicator& communicator, const Redistribute& operation) {
  const auto is_place = [&](int place) { return place >= 0 && place < communicator.size(); };
  for (const Transfer& transfer : operation.transfers) {
    if (is_place(transfer.from) && is_place(transfer.to)) continue;
    reject(communicator, signature_of(operation, 0),
           fmt::format("a transfer goes from rank {} to rank {}, but there are {} ranks", transfer.from, transfer.to,
                       communicator.size()));
  }
  check_data(communicator, operation, signature_of(operation, 0).bytes);
}

void check(const MembersCommunicator&, const Barrier&) {}

Claim::Claim(std::atomic<bool>& busy, JobMember& job, std::string_view communicator) : busy_(busy) {
  if (const JobFailure* failure = job.failure()) throw_aborted(*failure);
  if (!busy.exchange(true)) return;
  const UsageError error(
      fmt::format("rank {} drives communicator {} from two streams at once; give each stream its own communicator",
                  job.rank(), communicator));
  job.abort(error.what(), std::make_exception_ptr(error));
  throw error;
}

}  // namespace tessera::comm
