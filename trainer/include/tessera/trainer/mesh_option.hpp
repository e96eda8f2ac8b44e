// --strategy and --mesh: what ranks keep, along which axes they stand, and how micro-batches flow through stages. The
// trainers and `tessera plan` share them.
#pragma once

#include <cstddef>
#include <optional>

#include "tessera/plan/axes.hpp"
#include "tessera/plan/schedule.hpp"
#include "tessera/plan/strategy.hpp"
#include "tessera/trainer/command_line.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

void add_strategy_option(CommandLine& line, tessera::Strategy& strategy);

// Adds --mesh AXIS=N,…, whose axes are some of `axes`. `mesh` must stay.
void add_mesh_option(CommandLine& line, std::optional<tessera::plan::MeshShape>& mesh, tessera::AxisSet axes);

struct ScheduleOptions {
  tessera::plan::ScheduleKind kind = tessera::plan::ScheduleKind::one_f_one_b;
  std::size_t chunks = 1;  // of each stage
};
// Adds --schedule and --chunks. `micro_batches`: the option that says how many there are.
void add_schedule_options(CommandLine& line, ScheduleOptions& options, const char* micro_batches);
// Throws OptionError for a schedule where the mesh has no stages, for chunks and micro-batches that the schedule does
// not have, for more parts than layers, and for zb-h1 of layers that are computed again.
struct ScheduledLayers {
  std::size_t stages, micro_batches, layers;
  bool recompute = false;
};
void check_schedule(const CommandLine& line, const ScheduleOptions& options, const ScheduledLayers& of,
                    const char* micro_batches);

}  // namespace tessera::trainer

#pragma GCC visibility pop
