// What all ranks must agree on about one collective: compared at run time, formatted only for errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/comm/communicator.hpp"

namespace tessera::comm {

enum class CollectiveKind { creation, all_gather, reduce_scatter, all_reduce, broadcast, barrier };

// "all-gather"; `creation` is World::make_communicator.
std::string_view to_string(CollectiveKind kind);

struct Barrier {
  std::string_view label;
};

struct Signature {
  CollectiveKind kind = CollectiveKind::barrier;
  std::string_view label;                     // of a creation: the communicator's name
  Bytes bytes{};                              // of one rank's part (all-gather, reduce-scatter) or of the whole buffer
  std::optional<DType> dtype = std::nullopt;  // of sums
  float divisor = 1.0f;                       // of sums
  int root = 0;
  std::uint64_t sequence = 0;  // counts the calls on one communicator from 1; its creation is 0

  friend bool operator==(const Signature&, const Signature&) = default;
};

Signature signature_of(const AllGather& operation, std::uint64_t sequence);
Signature signature_of(const ReduceScatter& operation, std::uint64_t sequence);
Signature signature_of(const AllReduce& operation, std::uint64_t sequence);
Signature signature_of(const Broadcast& operation, std::uint64_t sequence);
Signature signature_of(const Barrier& operation, std::uint64_t sequence);
Signature signature_of_creation(std::string_view communicator);

// `all-gather "blocks.3"`
std::string brief(const Signature& signature);
// `#17 reduce-scatter "blocks.3" of 4096 bytes bf16, divided by 4`
std::string describe(const Signature& signature);

}  // namespace tessera::comm
