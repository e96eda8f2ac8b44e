// Memory that a rank's checkpoints take: decided here, because the arena holds it from the start.
#pragma once

#include <cstddef>

#include "tessera/base/bytes.hpp"
#include "tessera/plan/plan.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

// Files are cut into blocks of this size, each written by one rank (docs/checkpoint_format.md).
inline constexpr Bytes checkpoint_block{std::uint64_t{4} << 20};

// One block that is put together here, and the part of every rank in one round of the exchange of what others write.
// Parts shrink as ranks grow in number, down to a page: 8 MiB in all up to 1,024 ranks.
struct CheckpointStaging {
  Bytes block;
  Bytes part;  // 0 on a single rank, which exchanges nothing
  std::size_t ranks;
  Bytes size() const { return block + ranks * part; }
};
CheckpointStaging checkpoint_staging(std::size_t ranks);  // ranks > 0

// This rank's shards of masters and optimizer states, without padding at most so much, and the untrained state.
Bytes checkpoint_copy(const Plan& plan);

}  // namespace tessera::plan

#pragma GCC visibility pop
