// In an exchange ranks bring values together inside a unit's windows: so many fp64 values of each, which all then see,
// as a batch norm does that takes its statistics over the samples of all ranks. A module declares it as a member and
// names it in visit(), like its parameters; the plan then has an operation for it in every window that does it, with
// its memory, so that it is verified, counted, simulated and traced.
//
// Order. Each window of the kinds that the options name does it once. A unit's exchanges come in the order in which
// visit() names them, in backward windows in reverse. Window::contribution() shows where this rank writes,
// Window::exchange() moves. One that comes out of order, twice, not at all, or in a window of another kind is a
// UsageError that names unit and rank.
//
// Ranks that skip a window (an optional unit, a step without data) bring zeros: values that add up have to mean
// nothing where they are all zero, as a sum of no samples with its count does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "tessera/base/shape.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class Window;

struct ExchangeOptions {
  // Which windows do it.
  bool forward = true;  // and recompute
  bool backward = true;
  bool evaluate = false;
  bool in_replica = false;  // among the ranks of a replica only; where replicas train by themselves, always
};

// Everybody's values, in device memory, as they stand once the exchange has run on the stream; they stay until the next
// exchange of the model. Rank r of the group is the r-th by number, whatever the mesh.
struct Contributions {
  const double* first = nullptr;
  std::size_t values = 0;  // of each rank
  std::uint32_t replicas = 1;
  std::uint32_t ranks_of_replica = 1;

  std::size_t ranks() const { return std::size_t{replicas} * ranks_of_replica; }
  // They stand in the order of the shards that ranks own.
  const double* of(std::size_t rank) const {
    return first + (rank % ranks_of_replica * replicas + rank / ranks_of_replica) * values;
  }
};

class Exchange {
 public:
  // `values` > 0: UsageError else.
  explicit Exchange(std::size_t values, const ExchangeOptions& options = {});

  std::size_t values() const { return values_; }
  Shape shape() const { return {values_}; }
  const ExchangeOptions& options() const { return options_; }

  // A rank does this, once the exchange has run, in a window that it skips: buffers that follow what all bring stay the
  // same on all ranks. It may enqueue on the window's stream. Set in visit(), where the module has its place for good.
  using WhenSkipped = std::function<void(Window&, const Contributions&)>;
  void when_skipped(WhenSkipped follow) { when_skipped_ = std::move(follow); }
  const WhenSkipped& when_skipped() const { return when_skipped_; }

  // Full name, "layer1.0.bn1.statistics"; empty before the module was added.
  const std::string& name() const { return membership_.name(); }
  const Unit* unit() const { return membership_.unit(); }  // as Parameter::unit()

 private:
  friend class Unit;
  std::size_t values_;
  ExchangeOptions options_;
  WhenSkipped when_skipped_;
  Membership membership_;  // its index is that within the unit's exchanges
};

}  // namespace tessera

#pragma GCC visibility pop
