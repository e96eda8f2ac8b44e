// The options of a model that shape its plan.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/dtype.hpp"
#include "tessera/plan/axes.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Where values are: in the device's own memory; in the host's, pinned for a device that copies from it and to it; or in
// a file of this rank's (FullyShardOptions::disk).
enum class MemorySpace { device, host, disk };
std::string_view to_string(MemorySpace space);

// How an update on the host begins ahead of the norm (Offload::ahead).
enum class Ahead { no, revocable, final };

// Where the first units of a model, in their order, keep what an update alone reads and writes. In the host's memory or
// on a disk it takes none of the device's but for slots, which two units share in turn: each update brings a unit's
// values there beside the update of the unit before, and takes them back. Bits are the same. A unit's own option goes
// first.
struct Offload {
  MemorySpace optimizer = MemorySpace::device;  // the optimizer's states
  // fp32 masters of units whose parameters are of another type, which then stand on the device by themselves. Masters
  // that windows read themselves (parameters of their type) stay; compile() refuses this where all do.
  MemorySpace masters = MemorySpace::device;
  // host: units whose states and masters all stand in the host's memory are updated there, by its processors, beside
  // the device's own updates. Reduced gradients then travel there beside the backward pass, and what windows read comes
  // back: with bf16 4 or 6 bytes of a parameter in place of 24, and no slots. compile() refuses this where no unit can.
  MemorySpace update = MemorySpace::device;
  // Whether each unit's update there begins as soon as its reduced gradient has arrived, beside the backward pass of
  // others, supposing that the norm changes nothing: no clipping, nothing skipped, also by all ranks, or dropped, the
  // learning rate of FullyShard::expect(), and ranks' parts that weigh together what those of the heaviest step so far
  // did (of the first: a weight of 1 for each micro-batch). revocable: where it does, the update is taken back and made
  // again; the values before a step stand in the host's memory meanwhile, as much again as masters and states. final:
  // nothing is kept, and a step that the norm changes ends the job with an error. Not where ranks have roles.
  Ahead ahead = Ahead::no;
  // host: what forward windows leave to backward ones (UnitOptions::saved) stands there in between, as far as other
  // units need its place: units take turns in two slots. Copies run beside the windows of others.
  MemorySpace activations = MemorySpace::device;
  std::size_t units = static_cast<std::size_t>(-1);  // so many; default: all
  friend bool operator==(const Offload&, const Offload&) = default;
};

// Where micro-batches add up. reduced: each is reduced, and fp32 shards add up. local: whole fp32 gradients add up on
// the rank and are reduced once. automatic: what the strategy's row says. With one micro-batch all are `reduced`.
enum class AccumulationMode { automatic, reduced, local };

// Each rank keeps this between windows, by role: the axes of the mesh over which it is sharded. Over the others it is
// whole. Axes that the mesh does not have count for nothing.
struct Sharding {
  AxisSet parameters;
  AxisSet gradients;  // summed
  AxisSet optimizer;  // its states
  friend bool operator==(const Sharding&, const Sharding&) = default;
};
std::string to_string(const Sharding& sharding);  // "parameters shard, gradients shard, optimizer shard x replicate"

// A row of the table below, which is all that a strategy is.
struct Strategy {
  std::string_view name;
  Sharding sharding;
  AccumulationMode accumulation;  // where it is automatic
  friend constexpr bool operator==(const Strategy& a, const Strategy& b) { return a.name == b.name; }

  static const Strategy ddp, zero1, zero2, fsdp, hsdp, hfsdp;
};

// ddp keeps everything whole. zero1 and zero2 keep the parameters, and zero1 also the sums of several micro-batches.
// fsdp keeps nothing whole (ZeRO-3). Of several replicas, each may keep the model once: hsdp in all parts, so that
// parameters are gathered inside a replica only; hfsdp as well, but for the optimizer's states, which all ranks divide
// among them (updated parameters then travel across the replicas).
inline constexpr AxisSet everywhere = AxisSet::all();
inline constexpr AxisSet inside_replicas = everywhere - Axis::replicate;
inline constexpr Strategy Strategy::ddp{"ddp", {{}, {}, {}}, AccumulationMode::local};
inline constexpr Strategy Strategy::zero1{"zero1", {{}, everywhere, everywhere}, AccumulationMode::local};
inline constexpr Strategy Strategy::zero2{"zero2", {{}, everywhere, everywhere}, AccumulationMode::reduced};
inline constexpr Strategy Strategy::fsdp{"fsdp", {everywhere, everywhere, everywhere}, AccumulationMode::reduced};
inline constexpr Strategy Strategy::hsdp{
    "hsdp", {inside_replicas, inside_replicas, inside_replicas}, AccumulationMode::reduced};
inline constexpr Strategy Strategy::hfsdp{
    "hfsdp", {inside_replicas, inside_replicas, everywhere}, AccumulationMode::reduced};

inline constexpr Strategy all_strategies[] = {Strategy::ddp,  Strategy::zero1, Strategy::zero2,
                                              Strategy::fsdp, Strategy::hsdp,  Strategy::hfsdp};
// With one replica the hybrid ones are fsdp, and there are these.
inline constexpr Strategy flat_strategies[] = {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp};
// These need several replicas to be what they are named.
inline constexpr bool is_hybrid(const Strategy& strategy) {
  return strategy == Strategy::hsdp || strategy == Strategy::hfsdp;
}

// Between outer steps ranks that differ along this axis train by themselves.
inline constexpr AxisSet outer_axes = Axis::replicate;
// Ranks that differ along these axes work on the same samples.
inline constexpr AxisSet same_samples = Axis::tensor;

// Resharding says what a rank holds of a unit that is gathered, between its windows of one pass: no more than between
// steps (true), so that each window may have to gather it anew; all of it (false); or what is sharded over fewer axes
// than between steps, so that it is gathered along the others once a pass, and along these for each window (over a
// replica's ranks: ZeRO++'s secondary shards, Wang et al. 2023). Where these axes have one rank, that is `false`, where
// parameters are not sharded over others besides, `true`.
struct Resharding {
  constexpr Resharding(bool reshards = true) : held(reshards ? AxisSet::all() : AxisSet()) {}
  constexpr Resharding(AxisSet between_windows) : held(between_windows) {}
  constexpr Resharding(Axis between_windows) : held(between_windows) {}
  AxisSet held;  // over these it is sharded
  friend bool operator==(const Resharding&, const Resharding&) = default;
};
std::string to_string(const Resharding& resharding);  // "true", "false", "shard"

// Types of the five hops of a value, and of masters (numerics.md). Sums, accumulation, norms and optimizer are fp32
// always.
struct Precision {
  DType parameter = DType::fp32;  // what windows show as parameters
  DType gradient = DType::fp32;   // what windows take as gradients
  DType wire = DType::fp32;  // what travels to the reduction, int8 too; sums that add up on the rank travel in fp32
  // Parameters travel to windows in this type, and are rounded to it on their way whatever the strategy, also where
  // nothing travels: a smaller one than their own, int8 too. None: their own.
  std::optional<DType> gather = std::nullopt;
  DType gathered() const { return gather.value_or(parameter); }
  bool encodes() const { return gathered() != parameter; }
  // fp32; or bf16 where parameters are and travel so, which windows then read themselves, of 2 bytes in place of 4
  // or 6. An update widens them, computes in fp32, and rounds once, up or down by chance (kernels/rounding.hpp). Not
  // with outer steps.
  DType masters = DType::fp32;
  // Whether windows read masters, or what travels from them as it is.
  bool reads_masters() const { return parameter == masters && !encodes(); }
  friend bool operator==(const Precision&, const Precision&) = default;
};
inline constexpr Precision fp32_precision{};
inline constexpr Precision bf16_mixed{DType::bf16, DType::bf16, DType::bf16};
inline constexpr Precision fp16_mixed{DType::fp16, DType::fp16, DType::fp16};  // wants loss scaling

// The arena keeps this for checkpoints. none: nothing, so none can be written or read. blocking: what a save needs
// while training waits for it. background: the same, and a copy of the rank's shards that is written while training
// goes on.
enum class Checkpointing { none, blocking, background };

// Collectives hold this beside the data that they move, in the device's memory. none: nothing. parts: everybody's parts
// of what this rank sums, in rounds of at most 64 MiB. results: this rank's part of a sum, in the type in which it
// travels.
enum class CollectiveStaging { none, parts, results };

inline std::string_view to_string(const Strategy& strategy) { return strategy.name; }
// The sharding where there is one, which then stands in place of the strategy's; else the strategy's name.
std::string to_string(const Strategy& strategy, const std::optional<Sharding>& sharding);
std::string_view to_string(AccumulationMode mode);
std::string_view to_string(Checkpointing checkpointing);
std::string_view to_string(CollectiveStaging staging);

}  // namespace tessera

#pragma GCC visibility pop
