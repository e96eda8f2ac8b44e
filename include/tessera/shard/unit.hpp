// A unit: the parameters that are gathered, computed with and reduced together. Made by FullyShard::add.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/layout.hpp"
#include "tessera/plan/strategy.hpp"
#include "tessera/shard/buffer.hpp"
#include "tessera/shard/collective.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class Optimizer;

template <typename Tensor>
struct Named {
  std::string name;  // within the unit
  Tensor* tensor;
};
using NamedParameter = Named<Parameter>;
using NamedBuffer = Named<Buffer>;
using NamedCollective = Named<Collective>;

struct UnitOptions {
  std::string name = {};  // default: "units.N"
  // These three are the unit's, in place of the model's. One that is gathered late (prefetch 0) holds a slot during its
  // windows alone; one that stays whole (reshard_after_forward false) is gathered once a micro-batch, one of which a
  // replica's share stays (Axis::shard) across replicas once. The last two do nothing where parameters are whole
  // anyway.
  std::optional<Precision> precision = std::nullopt;
  std::optional<std::size_t> prefetch = std::nullopt;
  std::optional<Resharding> reshard_after_forward = std::nullopt;
  // Activation checkpointing: right before each backward window forward() is called once more, in a recompute window
  // and with what it was given (kept_calls.hpp), so that what backward reads need not be kept until then
  // (Window::recomputes). Whoever opens windows by hand opens the recompute window, too.
  bool recompute = false;
  // This trains the unit, in place of its program's optimizer: another rule, other rates or decays, other states.
  // Units may share one. Its learning rate follows that of each step as the program's does: where update() is given
  // half of the program's, it is half, too. Clipping is by the norm of all units and the program's optimizer's. Not
  // with outer steps.
  std::shared_ptr<const Optimizer> optimizer = nullptr;
  bool optional = false;  // its windows may be skipped (FullyShard::skip)
  // Ranks that differ along these axes of the mesh have other values of the unit: an expert of each replica
  // (Axis::replicate), a slice of a layer (Axis::tensor). It is sharded, gathered and reduced among the others alone.
  // Its gradient is that of the mean loss of all ranks, as every unit's is: the sum over those that have it in common,
  // divided by all ranks x micro-batches, where ranks along Axis::tensor, which compute on the same samples, count
  // once. In files, and for initial values, its tensors have the number of the variant behind the prefix:
  // "experts.up.weight" of replica 3 is "experts.3.up.weight". Its collectives are among the ranks that have it in
  // common, unless they say other axes. Not with outer steps. Slices of one tensor say so themselves
  // (ParameterOptions::slice).
  AxisSet apart = {};
  // Where the states of its optimizer, and its masters, stand between updates, in place of what the model's
  // FullyShardOptions::offload says. The host's memory is pinned, of a device. Masters that windows read themselves
  // (parameters of their type) stay on the device: UsageError from finalize() else.
  std::optional<MemorySpace> states_in = std::nullopt;
  std::optional<MemorySpace> masters_in = std::nullopt;
  // The unit's forward window leaves so many bytes to its backward one (Window::saved()), in the plan's memory: what it
  // was given, say, where it recomputes the rest. They may stand in the host's memory in between, as saved_in says, or
  // FullyShardOptions::offload for all. In the host's memory only of units with one forward window a micro-batch.
  Bytes saved{};
  std::optional<MemorySpace> saved_in = std::nullopt;
  // In the last role, a unit has the name and the parameters of one in the first (finalize_roles()): each step sums
  // both their gradients, so they stay equal bit by bit, and count once, in the norm and in files.
  bool tied = false;
  // Full names of its tensors begin with this; default: the unit's name and a dot.
  std::optional<std::string> prefix = std::nullopt;
};

class Unit {
 public:
  Unit(UnitOptions options, std::size_t index, std::span<const NamedParameter> parameters,
       std::span<const NamedBuffer> buffers = {}, std::span<const NamedCollective> collectives = {});
  ~Unit();  // its parameters, buffers and collectives are free again
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return options_.name; }
  const UnitOptions& options() const { return options_; }
  std::size_t index() const { return index_; }
  // All throw UsageError when one of the unit's parameters, buffers or collectives has moved or ended since it was
  // added.
  std::span<Parameter* const> parameters() const;
  std::span<Buffer* const> buffers() const;
  std::span<Collective* const> collectives() const;

  // Where a parameter of this unit stands in parameters(). Throws UsageError for another unit's.
  std::size_t index_of(const Parameter& parameter) const;
  // Where a buffer of this unit stands in buffers(). Throws UsageError for another unit's.
  std::size_t index_of(const Buffer& buffer) const;
  // Where a collective of this unit stands in collectives(). Throws UsageError for another unit's.
  std::size_t index_of(const Collective& collective) const;
  plan::UnitSpec spec() const;

 private:
  template <typename Tensor>
  void enrol(std::span<const Named<Tensor>> tensors, std::vector<Tensor*>& members);
  template <typename Tensor>
  std::size_t index_among(const Tensor& tensor, std::string_view what) const;
  void require_all_there() const;

  UnitOptions options_;
  std::size_t index_;
  std::shared_ptr<UnitMembership::Roll> roll_;
  std::vector<Parameter*> parameters_;
  std::vector<Buffer*> buffers_;
  std::vector<Collective*> collectives_;
};

}  // namespace tessera

#pragma GCC visibility pop
