// A collective inside a unit's windows: a batch norm gathers the statistics of all ranks' samples, a layer whose weight
// is cut over an axis sums what each rank's slice gives. A module declares it as a member and names it in visit(), like
// its parameters; the plan then has an operation for it in every window that does it, with its memory, so that it is
// verified, counted, simulated and traced.
//
// Order. Each window of the kinds that the options name does it once. A unit's collectives come in the order in which
// visit() names them, in windows that go back in reverse. Window::contribution() shows where this rank writes what it
// brings, Window::collect() runs it. One that comes out of order, twice, not at all, or in a window of another kind is
// a UsageError that names unit and rank.
//
// Overlap. One that overlaps runs on a stream of its own while the window goes on: begin() enqueues it, and collect()
// waits for it, as work does that is enqueued behind that. One at a time is on its way. What the next one brings may
// be written meanwhile where that overlaps, too, and the one of the two is a sum and the other is not.
//
// Messages (send, receive) go between neighbouring roles of ranks (finalize_roles()): forward ones to the next role,
// backward ones to the one before; behind the last role stands the first. The sender has contribution() and collect(),
// the receiver collect() alone. They travel on streams of their own: what a window receives has come when it opens, and
// what it sends goes when it has closed. Until then the message has one of its buffers; while all are on their way, the
// next window that sends waits. A schedule in which ranks wait for each other with the buffers that there are is
// refused.
//
// Ranks that skip a window (an optional unit, a step without data) bring zeros: values that add up have to mean
// nothing where they are all zero, as a sum of no samples with its count does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/dtype.hpp"
#include "tessera/base/shape.hpp"
#include "tessera/plan/layout.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class Window;

using plan::CollectiveKind;

struct CollectiveOptions {
  CollectiveKind kind = CollectiveKind::all_gather;  // sums are formed in fp32, and rounded to the type once
  std::optional<DType> type = std::nullopt;          // none: fp64, which is not summed
  // Which windows do it.
  bool forward = true;          // and recompute
  bool backward = true;         // the second one, where a schedule goes back in two
  bool backward_input = false;  // the first of the two
  bool evaluate = false;
  // The ranks that take part differ along these axes; default: all along which ranks have the unit in common. Where
  // ranks train by themselves, only those that train together. A gather is along at most two axes of several ranks, a
  // reduce-scatter and an all-to-all along one.
  std::optional<AxisSet> axes = std::nullopt;
  // This gather's contributions are used one by one, in the order of places (Collected::of_place), so that they are the
  // same for any number of ranks. With granules (FullyShardOptions::granules) there are no other collectives in
  // windows.
  bool of_granules = false;
  // Messages alone: each side has so many, which the windows that have it take in turn. At least 1, and as many on both
  // sides.
  std::size_t buffers = 1;
  bool overlaps = false;  // the window goes on between Window::begin() and collect(); no message
};

// The result of a collective, in device memory, as it stands once that has run on the stream; it stays until the next
// collective of the model, or of those that stand where it does (overlap). Rank r of the group is the r-th by number,
// whatever the mesh. Of a sum: one rank's. Of an all-to-all: what each brought for this rank.
template <typename T>
struct Collected {
  const T* first = nullptr;
  std::size_t values = 0;  // of each rank
  std::size_t stride = 0;  // elements from one rank's to the next one's
  std::uint32_t replicas = 1;
  std::uint32_t ranks_of_replica = 1;

  std::size_t ranks() const { return std::size_t{replicas} * ranks_of_replica; }
  // They stand in the order of the shards that ranks own.
  const T* of(std::size_t rank) const {
    return first + (rank % ranks_of_replica * replicas + rank / ranks_of_replica) * stride;
  }
  // In that order: of granules, of which each rank has brought one, or nothing.
  const T* of_place(std::size_t place) const { return first + place * stride; }
  template <typename U>
  Collected<U> as() const {
    return {reinterpret_cast<const U*>(first), values, stride, replicas, ranks_of_replica};
  }
};
using Contributions = Collected<double>;

class Collective {
 public:
  // `elements`: that each rank brings; of a reduce-scatter, that each gets; of an all-to-all, that each brings for
  // each: contribution() then has as many times that as there are ranks, in their order. Above 0: UsageError else.
  explicit Collective(std::size_t elements, const CollectiveOptions& options = {});

  std::size_t elements() const { return elements_; }
  Shape shape() const { return {elements_}; }
  const CollectiveOptions& options() const { return options_; }
  plan::CollectiveSpec spec() const;

  // A rank does this, once a gather of fp64 has run, in a window that it skips: buffers that follow what all bring stay
  // the same on all ranks. It may enqueue on the window's stream. Set in visit(), where the module has its place for
  // good.
  using WhenSkipped = std::function<void(Window&, const Contributions&)>;
  void when_skipped(WhenSkipped follow) { when_skipped_ = std::move(follow); }
  const WhenSkipped& when_skipped() const { return when_skipped_; }

  // Full name, "layer1.0.bn1.statistics"; empty before the module was added.
  const std::string& name() const { return membership_.name(); }
  const Unit* unit() const { return membership_.unit(); }  // as Parameter::unit()

 private:
  friend class Unit;
  std::size_t elements_;
  CollectiveOptions options_;
  WhenSkipped when_skipped_;
  UnitMembership membership_;  // its index is that within the unit's collectives
};

}  // namespace tessera

#pragma GCC visibility pop
