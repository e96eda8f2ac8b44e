// Options and lines of a pipeline's stages.
#include "tessera/trainer/stages.hpp"

#include <fmt/format.h>

namespace tessera::trainer {

std::size_t stages_of(const RunOptions& options) { return options.mesh_of_job().size(Axis::pipeline); }

plan::ScheduleShape schedule_shape(const RunOptions& options, const ScheduleOptions& schedule) {
  return {stages_of(options), options.accumulate, schedule.chunks};
}

void check_stages(const CommandLine& line, const RunOptions& options, const ScheduleOptions& schedule,
                  const LayersOfStages& of) {
  check_schedule(line, schedule,
                 {.stages = stages_of(options),
                  .micro_batches = options.accumulate,
                  .layers = of.layers,
                  .recompute = of.recompute},
                 "--accumulate");
  if (stages_of(options) == 1) return;
  if (options.simulated) {
    throw OptionError(
        "--simulate-world has no neighbours that a stage would talk to: leave pipeline out of --mesh, or ask `tessera "
        "plan --mesh`");
  }
  for (const char* name : {"--granules", "--outer-every", "--accumulate-mode"}) {
    if (line.given(name)) throw OptionError(fmt::format("{} is not possible with a pipeline: leave it out", name));
  }
  if (line.given("--wire") && options.accumulate > 1) {
    throw OptionError(
        "--wire is without effect: gradients of a pipeline's micro-batches add up in fp32 before they travel; leave it "
        "out");
  }
  if (options.offload.activations != MemorySpace::device)
    throw OptionError("--offload activations is not possible with a pipeline: leave activations on the device");
  if (options.offload.ahead == Ahead::final)
    throw OptionError("--offload ahead-for-good is not possible with a pipeline: take ahead");
}

std::string stages_lines(const RunOptions& options, const StagesInWords& stages) {
  const ScheduleOptions& schedule = stages.schedule;
  const plan::ScheduleShape shape = schedule_shape(options, schedule);
  std::string text = fmt::format("pipeline {}, {} chunk{} on each of {} stages of blocks", to_string(schedule.kind),
                                 schedule.chunks, schedule.chunks == 1 ? "" : "s", shape.stages);
  for (const std::size_t begin : stages.begins) text += fmt::format(" {}", begin);
  text += fmt::format("; the slowest part takes {:.2f} times the mean\n", stages.imbalance);
  const plan::Schedule lists = plan::schedule(schedule.kind, shape);
  const plan::ScheduleTimes times = plan::times(lists, shape);
  text += fmt::format("bubble   {:.1f} % of a step, where parts take equal time\n", 100 * times.idle[0] / times.step);
  if (options.draw_plan) text += fmt::format("\n{}", plan::draw(lists, shape));
  return text;
}

}  // namespace tessera::trainer
