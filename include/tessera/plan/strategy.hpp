// The options of a model that shape its plan.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/dtype.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Ranks stand in a mesh of R replicas by S ranks, N = R * S (by default R = 1): rank r * S + s is replica r's s-th. How
// much of a unit a rank holds: all of it; what its replica keeps at its place, 1/S, the same in every replica; or what
// this rank alone owns, 1/N. With one replica the last two are one.
enum class Extent { whole, group, mine };

// What each rank keeps between windows: parameters, summed gradients, the optimizer's states.
struct Sharding {
  Extent parameters;
  Extent gradients;
  Extent optimizer;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};
std::string to_string(const Sharding& sharding);  // "parameters group, gradients group, optimizer mine"

// What each rank keeps whole. ddp: everything. zero1, zero2: the parameters, and zero1 also the sums of several
// micro-batches (by its default accumulation mode). fsdp: nothing (ZeRO-3). Of several replicas, each may keep the
// model once: hsdp in all parts, so that parameters are gathered inside a replica only; hfsdp as well, but for the
// optimizer's states, which all ranks divide among them (updated parameters then travel across the replicas).
enum class Strategy { ddp, zero1, zero2, fsdp, hsdp, hfsdp };
inline constexpr Strategy all_strategies[] = {Strategy::ddp,  Strategy::zero1, Strategy::zero2,
                                              Strategy::fsdp, Strategy::hsdp,  Strategy::hfsdp};
// With one replica hsdp and hfsdp are fsdp, and there are these.
inline constexpr Strategy flat_strategies[] = {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp};

Sharding sharding_of(Strategy strategy, std::size_t replicas);  // with one replica never Extent::group

// What a rank holds of a unit that is gathered, between its windows of one pass: no more than between steps (true), so
// that each window may have to gather it anew; all of it (false); or what its replica has for it, Extent::group, so
// that it is gathered across replicas once a pass and then inside the replica (ZeRO++'s secondary shards, Wang et al.
// 2023). That means something where ranks keep parameters by Extent::mine and replicas have several ranks; of replicas
// of one rank it is `false`, everywhere else `true`.
struct Resharding {
  constexpr Resharding(bool reshards = true) : held(reshards ? Extent::mine : Extent::whole) {}
  constexpr Resharding(Extent between_windows) : held(between_windows) {}
  Extent held;
  friend bool operator==(const Resharding&, const Resharding&) = default;
};
std::string_view to_string(const Resharding& resharding);  // "true", "false", "group"

// Types of the four hops of a value (numerics.md). Masters, sums, accumulation, norms and optimizer are fp32 always.
struct Precision {
  DType parameter = DType::fp32;  // what windows show as parameters
  DType gradient = DType::fp32;   // what windows take as gradients
  DType wire = DType::fp32;       // what travels to the reduction; sums that add up on the rank travel in fp32
  friend bool operator==(const Precision&, const Precision&) = default;
};
inline constexpr Precision fp32_precision{};
inline constexpr Precision bf16_mixed{DType::bf16, DType::bf16, DType::bf16};
inline constexpr Precision fp16_mixed{DType::fp16, DType::fp16, DType::fp16};  // wants loss scaling

// Where micro-batches add up. reduced: each is reduced, and fp32 shards add up. local: whole fp32 gradients add up on
// the rank and are reduced once. automatic: local for ddp and zero1, reduced for zero2 and fsdp. With one micro-batch
// all are `reduced`.
enum class AccumulationMode { automatic, reduced, local };

// What the arena keeps for checkpoints. none: nothing, so none can be written or read. blocking: what a save needs
// while training waits for it. background: the same, and a copy of the rank's shards that is written while training
// goes on.
enum class Checkpointing { none, blocking, background };

// What collectives hold beside the data that they move, in the device's memory. none: nothing. parts: everybody's parts
// of what this rank sums, in rounds of at most 64 MiB. results: this rank's part of a sum, in the type in which it
// travels.
enum class CollectiveStaging { none, parts, results };

std::string_view to_string(Strategy strategy);
// The sharding where there is one, which then stands in place of the strategy's; else the strategy's name.
std::string to_string(Strategy strategy, const std::optional<Sharding>& sharding);
std::string_view to_string(AccumulationMode mode);
std::string_view to_string(Checkpointing checkpointing);
std::string_view to_string(CollectiveStaging staging);
Strategy strategy_from_string(std::string_view name);                   // throws UsageError, naming the choices
AccumulationMode accumulation_mode_from_string(std::string_view name);  // likewise

}  // namespace tessera

#pragma GCC visibility pop
