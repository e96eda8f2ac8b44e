// The options of a model: what shapes its plan, and what the runtime does beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "tessera/base/bytes.hpp"
#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/axes.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/plan/strategy.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Test modes. None of them changes a bit of the results.
struct Diagnostics {
  std::optional<std::uint64_t> delay_seed = std::nullopt;  // random delays on every queued stream
  bool poison = false;                                     // freed slots are filled with NaN
  bool touch = false;          // every operation touches the ends of the ranges that it declares, for sanitizers
  bool queue_compute = false;  // CPU: the compute stream is a queue, so the host runs ahead as it does with CUDA
};

// Rare synchronisation (DiLoCo, Douillard et al. 2023): replicas train each by themselves, and after every so many
// updates SGD with Nesterov's momentum takes them all from the weights that they had in common towards the mean of what
// they have become (numerics.md). The default is to the mean itself, which is local SGD. DiLoCo's 0.7 and 0.9 are for
// hundreds of outer steps from a model that was trained before; in short runs they end higher.
struct OuterOptions {
  std::size_t every = 0;  // updates; 0: there is none of this, and replicas are summed in every step
  float learning_rate = 1.0f;
  float momentum = 0.0f;      // in [0, 1)
  std::size_t fragments = 1;  // runs of units that take turns, so that less travels at a time
};

struct FullyShardOptions {
  // These change results or memory.
  Strategy strategy = Strategy::fsdp;
  // Instead of the strategy's: whom each rank shares parameters, summed gradients and the optimizer's states with. Of
  // the first two it keeps as much as of the last, or more. The bits are those of every strategy on the same mesh.
  std::optional<Sharding> sharding = std::nullopt;
  // R of the mesh of R replicas by S ranks; divides the number of ranks. Gradients are summed inside each replica and
  // then across them, whatever the strategy (numerics.md); hsdp and hfsdp keep the model once in each.
  std::size_t replicas = 1;
  // Instead of `replicas`: the ranks along named axes, outermost first, whose sizes multiply to the number of ranks.
  std::optional<plan::MeshShape> mesh = std::nullopt;
  // With it, everything that a step reports or shows is this rank's replica's: norms, loss scale, skipped steps,
  // pieces(), whole(). Not with hfsdp.
  OuterOptions outer = {};
  Precision precision = fp32_precision;
  std::size_t micro_batches = 1;  // of a step; ProgramOptions may differ
  // A step has so many granules, each a micro-batch whose contents do not depend on the number of ranks (granules.hpp):
  // with the same granules any number of ranks up to theirs, any mesh and strategy have the same bits (numerics.md).
  // Micro-batches follow from it, and ProgramOptions::micro_batches counts granules. 0: none, and another number of
  // ranks rounds otherwise. Not with mode `local`, outer steps, ranks along `tensor`, roles of ranks, units apart, or
  // collectives in windows.
  std::size_t granules = 0;
  AccumulationMode accumulation = AccumulationMode::automatic;
  std::uint64_t seed = 0;  // of the initial values
  // Default: dynamic, from 65536, when gradients of any unit are fp16, frozen now or not; else the loss is not scaled.
  std::optional<kernels::LossScaling> loss_scaling = std::nullopt;

  // These change memory and speed only. The first two are for parameters that are gathered: of fsdp,
  // hsdp and hfsdp.
  std::size_t prefetch = 1;  // units gathered ahead of the window that computes
  // false: units stay whole from forward to backward; Axis::shard: a replica's share of them does (Resharding).
  Resharding reshard_after_forward = true;
  bool overlap_reduction = true;  // a second gradient slot, so that a reduction runs beside the next backward window
  // Gradients of at most so many bytes, in the type in which they travel, are reduced in one operation, so that small
  // units share a synchronisation; a larger unit's alone, never split. 0: each unit's alone. Default: 1 MiB; 0 for
  // fsdp, where merging keeps more gradients alive at once.
  std::optional<Bytes> bucket_cap = std::nullopt;
  // Values that an update alone reads and writes may stand in the host's memory, or on disk, which makes room on the
  // device and takes the time of two copies in each update; .units keeps the last units there, so that no more moves
  // than has to. A unit's own option (UnitOptions::states_in, masters_in) goes first.
  Offload offload = {};
  // The folder in which each rank has a file for what stands on disk (MemorySpace::disk): best of a local file system
  // that takes O_DIRECT, and with room for it. The file has no name and ends with the rank, also with one that is
  // killed. Ranks may name folders of their own.
  std::filesystem::path disk = {};
  // The program by numbers; default: Program::chain. By units, and for several: FullyShard::add_program().
  std::optional<plan::Program> program = std::nullopt;

  // Bytes of the arena that belong to the user's layers: FullyShard::activation_memory().
  Bytes activations{};
  Checkpointing checkpointing = Checkpointing::none;  // what a Checkpointer (checkpoint/checkpointer.hpp) needs

  std::optional<Bytes> memory_limit =
      std::nullopt;  // finalize() refuses a plan whose arena on the device is larger, and names a setting that fits
  Diagnostics diagnostics = {};
  // On a CUDA device the model computes on this cudaStream_t of the program's own, which outlives it. Default: a new
  // one.
  std::optional<void*> cuda_stream = std::nullopt;
};

}  // namespace tessera

#pragma GCC visibility pop
