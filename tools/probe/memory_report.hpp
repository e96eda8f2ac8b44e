// The report has what the runtime of each rank holds, planned beside measured: the object "memory" of a trainer's
// metrics, and the figures of its table. Planned comes from plan::memory, measured from the probe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "json/json.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::probe {

struct Figure {
  Bytes planned;
  Bytes measured;
};

// Bytes that no plan promises: activations, heap.
struct Unplanned {
  std::array<char, 32> name;  // ends with a zero
  Bytes size;
};

// One rank's memory. Trivially copyable, so that ranks can exchange it.
struct RankMemory {
  bool measurable = false;  // false: the probe is not available, and `measured` means nothing
  std::array<Figure, plan::category_count> categories;  // by plan::Category; planned 0 where the plan has none
  Figure peak;                                          // the arena; measured: the mapping that it stands in
  Bytes live;                                           // planned
  std::array<Unplanned, 8> unplanned = {};
  std::size_t unplanned_count = 0;

  // `name` has at most 31 characters; at most 8 calls. Throws InternalError beyond that.
  void add_unplanned(std::string_view name, Bytes size);
};

// Measures now. The model is finalized. Memory of a CUDA device is not measurable here.
RankMemory measure(FullyShard& model);

// Every rank's, in rank order, on every rank. Collective.
std::vector<RankMemory> gather(World& world, const RankMemory& mine);

// {"ranks": [{"categories": {"parameters": {"planned": …, "measured": …}, …}, "peak": {…}, "live": …, "unplanned":
// {…}}]}, in bytes, with every category that the plan has. `measured` is null where it cannot be known.
tools::Json to_json(std::span<const RankMemory> ranks);

}  // namespace tessera::probe
