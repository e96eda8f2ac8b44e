// One simulation with durations of each stage's plan.
#include "stage_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "cost/quantity.hpp"
#include "machine/durations.hpp"
#include "text.hpp"

namespace tools {

namespace plan = tessera::plan;
using cost::percent_text;
using cost::seconds_text;

// Steps of equal time in the end, whichever stage is asked.
double StageTimes::step() const {
  double longest = 0;
  for (const plan::Simulation& stage : stages) longest = std::max(longest, stage.step_seconds);
  return longest;
}

double StageTimes::idle() const {
  double sum = 0;
  for (const plan::Simulation& stage : stages) sum += step() - stage.computing;
  return sum / static_cast<double>(stages.size());
}

StageTimes stage_times(const Subject& subject, const Setting& setting, const TimeSetting& time) {
  StageTimes result{.micro_batches = setting.options.micro_batches, .roles = subject.stages(setting), .stages = {}};
  const Workload load = workload_of(subject, setting);
  std::deque<DurationModel> models;
  std::vector<plan::Durations> durations;
  for (const plan::RankRole& role : result.roles) {
    durations.push_back(models.emplace_back(role.plan, time.machine, load, std::nullopt).durations());
    result.flops += model_flops(role.plan, load) * static_cast<double>(role.plan.options.ranks);
  }
  result.stages = simulate(result.roles, durations, models.front().simulation_options());
  const plan::Plan& first = result.roles.front().plan;
  const std::size_t samples = result.micro_batches * first.options.ranks / first.mesh.size(tessera::same_samples);
  result.tokens = static_cast<double>(load.shape.rows * samples);
  result.peak = time.machine.peak[static_cast<std::size_t>(setting.options.precision.parameter)];
  return result;
}

std::string text_of(const StageTimes& times, const TimeSetting& time) {
  std::vector<std::vector<std::string>> rows = {
      {"in each step", "computes", "stands still", "of step", "communicates", "beside computation"}};
  for (std::size_t stage = 0; stage < times.stages.size(); ++stage) {
    const plan::Simulation& found = times.stages[stage];
    rows.push_back({times.roles[stage].name, seconds_text(found.computing),
                    seconds_text(times.step() - found.computing), percent_text(times.bubble(stage)),
                    seconds_text(found.communicating), percent_text(found.overlap())});
  }
  const auto ranks = static_cast<double>(times.ranks());
  std::string text = fmt::format("\non {}: {} a step, {} tokens/s on each rank, {} on all", time.machine.name,
                                 seconds_text(times.step()), rate_text(times.rate() / ranks), rate_text(times.rate()));
  if (times.peak > 0) {
    text += fmt::format(", {} of the peak of {:.4g} TFLOP/s", percent_text(times.share_of_peak()), times.peak / 1e12);
  }
  return text + "\n\n" + table(rows);
}

Json json_of(const StageTimes& times, const TimeSetting& time) {
  Json stages = Json::array();
  for (std::size_t stage = 0; stage < times.stages.size(); ++stage) {
    const plan::Simulation& found = times.stages[stage];
    stages.push_back({{"computing", found.computing},
                      {"bubble", times.bubble(stage)},
                      {"communicating", found.communicating},
                      {"hidden", found.hidden}});
  }
  return {{"machine", time.machine.name},
          {"step_seconds", times.step()},
          {"tokens_per_second_and_rank", times.rate() / static_cast<double>(times.ranks())},
          {"model_flops", times.flops / static_cast<double>(times.ranks())},
          {"share_of_peak", times.peak > 0 ? Json(times.share_of_peak()) : Json()},
          {"stages", stages}};
}

}  // namespace tools
