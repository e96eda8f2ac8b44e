// A prediction is a simulation with durations of a model; comparisons are several.
#include "time_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accounting.hpp"
#include "cost/job.hpp"
#include "cost/quantity.hpp"
#include "plot/plot.hpp"
#include "stage_times.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/memory.hpp"

namespace tools {

namespace plan = tessera::plan;

TimeSetting time_setting(const TimeRequest& request) {
  TimeSetting setting{.machine = find_machine(*request.machine),
                      .profile = std::nullopt,
                      .slow = request.slow,
                      .jitter = request.jitter,
                      .seed = request.seed};
  if (request.what_if) setting.machine = what_if(setting.machine, *request.what_if);
  if (request.profile) setting.profile = profile_of(read_trace(*request.profile));
  return setting;
}

Workload workload_of(const Subject& subject, const Setting& setting) {
  const std::size_t positions = std::max<std::size_t>(setting.seq, 1) / setting.contexts();
  return {.shape = {.rows = setting.batch * positions, .seq = setting.seq}, .counted = subject.counted_work(setting)};
}

namespace {

constexpr std::size_t jittered_part = 50;  // steps in one simulation

std::vector<double> distribution(const plan::Plan& planned, const DurationModel& model,
                                 plan::SimulationOptions options) {
  std::vector<double> steps;
  options.steps = jittered_part;
  // A seed of its own for each simulation, that no other seed of the user's has, too.
  options.jitter.seed *= jittered_steps / jittered_part;
  while (steps.size() < jittered_steps) {
    ++options.jitter.seed;
    const std::vector<double> times = simulate(planned, model.durations(), options).step_times;
    steps.insert(steps.end(), times.begin(), times.end());
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace

TimeReport make_time_report(const plan::Plan& planned, const Subject& subject, const Setting& setting,
                            const TimeSetting& time) {
  const Workload load = workload_of(subject, setting);
  const DurationModel model(planned, time.machine, load, time.profile);
  plan::SimulationOptions options = model.simulation_options();
  options.slow = time.slow;
  TimeReport report{.plan = planned, .simulation = simulate(planned, model.durations(), options)};
  report.outer = outer_seconds(planned, model.durations(), options);
  // A rank's, on average: in the last round some may have no granule.
  const double micro_batches =
      static_cast<double>(planned.gradient_divisor(0)) / static_cast<double>(planned.training_ranks());
  const auto sharing = static_cast<double>(planned.mesh.size(tessera::same_samples));
  report.rows = static_cast<double>(load.shape.rows) * micro_batches / sharing;
  report.tokens = load.shape.seq > 0;
  report.flops = model_flops(planned, load) * micro_batches;
  report.peak = time.machine.peak[static_cast<std::size_t>(planned.options.precision.parameter)];
  if (time.jitter > 0) {
    options.jitter = {.deviation = time.jitter, .seed = time.seed};
    report.distribution = distribution(planned, model, options);
  }
  return report;
}

namespace {

TimedSetting timed(const Subject& subject, const Setting& setting, const std::vector<plan::StateSpec>& states,
                   const TimeSetting& time) {
  if (setting.stages() > 1) {
    const StageTimes times = stage_times(subject, setting, time);
    tessera::Bytes peak, host;
    for (const plan::RankRole& role : times.roles) {
      const plan::MemoryReport memory = plan::memory(role.plan);
      peak = std::max(peak, memory.device());
      host = std::max(host, memory.host);
    }
    return {.setting = setting,
            .step = times.step(),
            .rate = times.rate() / static_cast<double>(times.ranks()),
            .share_of_peak = times.share_of_peak(),
            .exposed = times.idle(),
            .peak = peak,
            .host = host};
  }
  const plan::Plan planned = compile(compile_input(subject, setting, states));
  const TimeReport report = make_time_report(planned, subject, setting, time);
  const plan::MemoryReport memory = plan::memory(planned);
  return {.setting = setting,
          .step = report.step(),
          .rate = report.rate(),
          .share_of_peak = report.share_of_peak(),
          .exposed = report.simulation.exposed_seconds(),
          .peak = memory.device(),
          .host = memory.host};
}

}  // namespace

double seconds_of_moving(const TimeReport& report, const Subject& subject, const Setting& setting,
                         const std::vector<plan::StateSpec>& states, const TimeSetting& time) {
  if (setting.options.offload == tessera::Offload{}) return 0;
  Setting here = setting;
  here.options.offload = {};
  return report.step() - timed(subject, here, states, time).step;
}

std::string moving_text(const TimeReport& report, double seconds) {
  if (seconds == 0) return "";
  const bool on_disk = plan::memory(report.plan).disk > tessera::Bytes(0);
  return fmt::format("copies {} and back cost {} of the step ({})\n",
                     on_disk ? "from the disk" : "to the device's memory", cost::seconds_text(seconds),
                     cost::percent_text(seconds / report.step()));
}

namespace {

// The mesh that was asked for, and one of a replica on each host where that is another.
std::vector<std::size_t> meshes(const Setting& setting, const Machine& machine) {
  const plan::PlanOptions& options = setting.options;
  std::vector<std::size_t> replicas = {options.replicas};
  const std::size_t hosts = options.ranks / machine.ranks_per_host;
  const bool whole_hosts = hosts > 1 && hosts * machine.ranks_per_host == options.ranks;
  if (whole_hosts && hosts != options.replicas && machine.ranks_per_host > 1) replicas.push_back(hosts);
  return replicas;
}

}  // namespace

std::vector<TimedSetting> compare_times(const Subject& subject, const Setting& setting,
                                        const std::vector<plan::StateSpec>& states, const TimeSetting& time) {
  std::vector<TimedSetting> result;
  for (const std::size_t replicas : meshes(setting, time.machine)) {
    Setting chosen = setting;
    chosen.options.replicas = replicas;
    for (const tessera::Strategy strategy : strategies_on(chosen.options)) {
      chosen.options.strategy = strategy;
      const bool gathers = !strategy.sharding.parameters.empty();
      for (const std::size_t prefetch : gathers ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{1}) {
        chosen.options.prefetch = prefetch;
        result.push_back(timed(subject, chosen, states, time));
      }
    }
  }
  return result;
}

namespace {

// A machine without a link to its host's memory moves nothing there, and needs no rate.
bool knows_updates_of_host(const Machine& machine) { return !machine.host_update.empty() || machine.to_host.empty(); }

// States and masters that are all in the host's memory may be updated there, too, also ahead of the norm: the quickest
// of these that fits.
TimedSetting timed_where_quickest(const FitQuestion& question, Setting setting,
                                  const std::vector<plan::StateSpec>& states, const TimeSetting& time) {
  using tessera::MemorySpace;
  TimedSetting best = timed(question.subject, setting, states, time);
  tessera::Offload& offload = setting.options.offload;
  const bool all_there = offload.optimizer == MemorySpace::host && offload.masters == MemorySpace::host;
  if (!question.freedom.offload || !all_there || !knows_updates_of_host(time.machine)) return best;
  offload.update = MemorySpace::host;
  for (const tessera::Ahead ahead : {tessera::Ahead::no, tessera::Ahead::revocable}) {
    offload.ahead = ahead;
    const TimedSetting other = timed(question.subject, setting, states, time);
    const bool fits = other.peak <= question.limit && other.host <= question.host_limit.value_or(other.host);
    if (fits && other.step < best.step) best = other;
  }
  return best;
}

}  // namespace

std::vector<TimedSetting> fastest_of(const Fit& fit, const FitQuestion& question,
                                     const std::vector<plan::StateSpec>& states, const TimeSetting& time) {
  // Settings that the machine's file cannot time stand back for others; alone, they get the error that says what to
  // add.
  const auto is_timed = [&](const FitCandidate& candidate) {
    return candidate.setting.options.offload.update != tessera::MemorySpace::host ||
           knows_updates_of_host(time.machine);
  };
  const bool all = std::none_of(fit.fitting.begin(), fit.fitting.end(), is_timed);
  std::vector<TimedSetting> result;
  for (const FitCandidate& candidate : fit.fitting)
    if (all || is_timed(candidate)) result.push_back(timed_where_quickest(question, candidate.setting, states, time));
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.rate > b.rate; });
  return result;
}

// ---- scaling ----

namespace {

// The same setting on fewer ranks, with as many replicas where they divide them. One replica has no outer steps.
Setting on_ranks(Setting setting, std::size_t ranks) {
  setting.options.ranks = ranks;
  if (ranks % setting.options.replicas != 0) setting.options.replicas = 1;
  if (setting.options.replicas == 1) setting.options.outer_every = 0;
  return setting;
}

// Keeps what matters to a mean step of so many ranks.
TimeSetting on_ranks(TimeSetting time, std::size_t ranks) {
  std::erase_if(time.slow, [&](const plan::SlowRank& slow) { return slow.rank >= ranks; });
  time.jitter = 0;
  return time;
}

struct Scaling {
  std::vector<std::uint64_t> ranks;
  std::vector<double> speedups;
};

// Amdahl's curve through the last point: what serial part explains it.
double serial_fraction(double speedup, double ranks) {
  return ranks > 1 ? std::clamp((ranks / speedup - 1) / (ranks - 1), 0.0, 1.0) : 0;
}

Json line_of(const std::string& name, const Scaling& scaling) {
  return {{"name", name}, {"x", scaling.ranks}, {"y", scaling.speedups}};
}

Json chart_of(const std::string& title, const std::string& rows, const Scaling& simulated) {
  Scaling amdahl = simulated, ideal = simulated;
  const double serial = serial_fraction(simulated.speedups.back(), static_cast<double>(simulated.ranks.back()));
  for (std::size_t i = 0; i < simulated.ranks.size(); ++i) {
    amdahl.speedups[i] = cost::amdahl_speedup(serial, simulated.ranks[i]);
    ideal.speedups[i] = static_cast<double>(simulated.ranks[i]);
  }
  const double efficiency = simulated.speedups.back() / static_cast<double>(simulated.ranks.back());
  Json lines = Json::array();
  lines.push_back(line_of(fmt::format("simulated: {:.1f} % efficient on all", 100 * efficiency), simulated));
  lines.push_back(line_of(fmt::format("Amdahl's law, {:.2g} % serial", 100 * serial), amdahl));
  Json reference = line_of("ideal: N times on N ranks", ideal);
  reference["reference"] = true;
  lines.push_back(reference);
  return {{"kind", "lines"},
          {"title", title},
          {"x", {{"label", "ranks"}, {"scale", "log2"}}},
          {"y", {{"label", rows + " per second, times those of one rank"}, {"scale", "log2"}}},
          {"series", lines}};
}

}  // namespace

void plot_scaling(const Subject& subject, const Setting& setting, const std::vector<plan::StateSpec>& states,
                  const TimeSetting& time, const std::string& figure) {
  Scaling scaling;
  double first = 0;
  const std::size_t most = setting.options.ranks;
  for (std::size_t ranks = 1; ranks <= most; ranks = ranks == most ? most + 1 : std::min(2 * ranks, most)) {
    const TimedSetting one = timed(subject, on_ranks(setting, ranks), states, on_ranks(time, ranks));
    const double rate = one.rate * static_cast<double>(ranks);
    if (ranks == 1) first = rate;
    scaling.ranks.push_back(ranks);
    scaling.speedups.push_back(rate / first);
  }
  if (scaling.ranks.size() < 2) throw tessera::UsageError("--plot needs a --world of 2 ranks or more");
  const std::string title =
      fmt::format("{}, {} on {}", subject.name(), to_string(setting.options.strategy), time.machine.name);
  plot(chart_of(title, setting.seq > 0 ? "tokens" : "samples", scaling), figure);
}

}  // namespace tools
