// A signature is what all ranks must agree on about one collective: compared at run time, formatted only for errors.
// Between processes signatures travel as bytes: equal ones have equal bytes, so ranks compare those, and read them only
// to tell how they differ.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/pinned.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/mesh.hpp"

namespace tessera::comm {

enum class CollectiveKind { creation, all_gather, reduce_scatter, all_reduce, broadcast, redistribute, barrier };

// "all-gather"; `creation` is World::make_communicator.
std::string_view to_string(CollectiveKind kind);

struct Barrier {
  std::string_view label;
};

// The segments of a grouped call after its first: a view of the caller's.
struct FurtherSegments {
  std::span<const AllGather> gathers = {};
  std::span<const ReduceScatter> reductions = {};
  std::size_t size() const { return gathers.size() + reductions.size(); }
  const std::byte* data(std::size_t segment) const {
    return gathers.empty() ? reductions[segment].data : gathers[segment].data;
  }
  friend bool operator==(const FurtherSegments& a, const FurtherSegments& b);
};

struct Signature {
  CollectiveKind kind = CollectiveKind::barrier;
  std::string_view label = {};  // of a creation: creation_label()
  Bytes bytes{};  // of one rank's part (all-gather, reduce-scatter), of the whole buffer, or of all transfers
  std::optional<DType> dtype = std::nullopt;  // of sums
  float divisor = 1.0f;                       // of sums
  int root = 0;                               // a rank of the job, also in a group
  std::uint64_t sequence = 0;                 // counts the calls on one communicator from 1; its creation is 0
  FurtherSegments further{};                  // label to divisor are those of the first

  std::size_t segments() const { return 1 + further.size(); }

  friend bool operator==(const Signature&, const Signature&) = default;
};

Signature signature_of(const AllGather& operation, std::uint64_t sequence);
Signature signature_of(const ReduceScatter& operation, std::uint64_t sequence);
Signature signature_of(const AllReduce& operation, std::uint64_t sequence);
Signature signature_of(const Broadcast& operation, std::uint64_t sequence);
Signature signature_of(const Redistribute& operation, std::uint64_t sequence);
Signature signature_of(const Barrier& operation, std::uint64_t sequence);
Signature signature_of(std::span<const AllGather> segments, std::uint64_t sequence);
Signature signature_of(std::span<const ReduceScatter> segments, std::uint64_t sequence);
Signature signature_of_creation(std::string_view label);

// Ranks agree on this label when they make a communicator: `reduce`; with a group, which all must mean the same,
// `reduce over shard of the mesh replicate 2 x shard 4`.
std::string creation_label(std::string_view name, const std::optional<Group>& group);
// This is its name from then on: `reduce`; with a group, `reduce over shard`.
std::string communicator_name(std::string_view name, const std::optional<Group>& group);

// An Opening is what a rank says of a communicator that is being made, beside its signature: which rank it is there.
struct Opening {
  std::string name = "";     // of the communicator
  std::uint32_t groups = 1;  // of equal size, into which the job's ranks are parted
  std::uint32_t group = 0;   // this rank's; they count in the order of their lowest ranks
  std::uint32_t place = 0;   // and its place there
};
// Turns what every rank has said, by rank, into the ranks of each group by place. Throws DataError unless all mean the
// same number of groups, and each has a place of its own.
std::vector<std::vector<int>> partition_of(const std::vector<Opening>& openings);

// One segment's part of a call, as if it were the only one.
Signature segment_of(const Signature& signature, std::size_t segment);

// `all-gather "blocks.3"`; of a group: `all-gather "blocks.3" (segment 2 of 5)`
std::string brief(const Signature& signature, std::size_t segment = 0);
// `#17 reduce-scatter "blocks.3" of 4096 bytes bf16, divided by 4`
std::string describe(const Signature& signature, std::size_t segment = 0);

// ---- as bytes ----

class FieldReader;  // fields.hpp

void append_opening(std::string& out, const Opening& opening);
// Throws DataError for what is no place among so many ranks.
Opening read_opening(FieldReader& reader, int ranks);

// Replaces what is in `out`; allocates nothing where its capacity is enough.
void encode(const Signature& signature, std::string& out);

// A signature that owns what it refers to. Its pointers are null: they are no part of a signature.
class DecodedSignature : Pinned {
 public:
  explicit DecodedSignature(std::string_view code);  // throws DataError

  const Signature& operator*() const { return signature_; }

 private:
  std::string code_;
  std::vector<AllGather> gathers_;
  std::vector<ReduceScatter> reductions_;
  Signature signature_;
};

}  // namespace tessera::comm
