// Options and lines that trainers whose models flow through the stages of a pipeline have in common.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tessera/plan/schedule.hpp"
#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/mesh_option.hpp"
#include "tessera/trainer/run_options.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// Places along the axis pipeline; 1: no pipeline.
std::size_t stages_of(const RunOptions& options);
// Their micro-batches are those of --accumulate.
plan::ScheduleShape schedule_shape(const RunOptions& options, const ScheduleOptions& schedule);
// The blocks of a model that flows through stages.
struct LayersOfStages {
  std::size_t layers;
  bool recompute = false;
};
// Throws OptionError for a schedule that there is not (check_schedule()), and for options that stages do not have.
void check_stages(const CommandLine& line, const RunOptions& options, const ScheduleOptions& schedule,
                  const LayersOfStages& of);
// The schedule, which blocks the parts begin with, the bubble, and with --draw-plan the drawing.
struct StagesInWords {
  const ScheduleOptions& schedule;
  std::span<const std::size_t> begins;
  double imbalance;
};
std::string stages_lines(const RunOptions& options, const StagesInWords& stages);

}  // namespace tessera::trainer

#pragma GCC visibility pop
