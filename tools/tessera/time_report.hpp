// The predicted time of one plan's step on a machine: worked out, as text for people and as JSON for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fit_search.hpp"
#include "json/json.hpp"
#include "machine/durations.hpp"
#include "machine/machine.hpp"
#include "request.hpp"
#include "time_options.hpp"

namespace tools {

// All predictions of a command share this setting.
struct TimeSetting {
  Machine machine;
  std::optional<Profile> profile;
  std::vector<tessera::plan::SlowRank> slow;
  double jitter = 0;
  std::uint64_t seed = 0;
};
// Reads the machine and the profile. Throws UsageError and DataError.
TimeSetting time_setting(const TimeRequest& request);

// Returns what a micro-batch of the setting has to compute.
Workload workload_of(const Subject& subject, const Setting& setting);

inline constexpr std::size_t jittered_steps = 1000;

struct TimeReport {
  const tessera::plan::Plan& plan;
  tessera::plan::Simulation simulation;
  double rows = 0;  // tokens, or samples, of a step on a rank
  bool tokens = false;
  double outer = 0;                       // what outer steps add to a step, in the mean
  double flops = 0;                       // of a step on a rank, without recomputation
  double peak = 0;                        // FLOP/s of a rank; 0: not known
  std::vector<double> distribution = {};  // with jitter: steps in ascending order

  double step() const { return simulation.step_seconds + outer; }
  double rate() const { return rows / step(); }  // of a rank, per second
  double share_of_peak() const { return peak > 0 ? flops / step() / peak : 0; }
};

// The plan must outlive it. Throws UsageError for what cannot be predicted.
TimeReport make_time_report(const tessera::plan::Plan& plan, const Subject& subject, const Setting& setting,
                            const TimeSetting& time);

// Returns what a step takes longer because values stand in the host's memory or on disk; 0 where none do. It is the
// same plan's with everything on the device, however large that is, that it is compared with.
double seconds_of_moving(const TimeReport& report, const Subject& subject, const Setting& setting,
                         const std::vector<tessera::plan::StateSpec>& states, const TimeSetting& time);
std::string moving_text(const TimeReport& report, double seconds);  // a line; empty for 0

std::string rate_text(double rate);
std::string text_of(const TimeReport& report, const TimeSetting& time);
Json json_of(const TimeReport& report, const TimeSetting& time);

// Rows of settings side by side, the fastest first where asked.
struct TimedSetting {
  Setting setting;
  double step = 0;
  double rate = 0;
  double share_of_peak = 0;
  double exposed = 0;        // of stages: what each stands still in the mean, the bubble included
  tessera::Bytes peak = {};  // on the device
  tessera::Bytes host = {};
};
// Every strategy, with prefetch 0, 1 and 2 where it gathers, and all of that again with a replica for each host.
std::vector<TimedSetting> compare_times(const Subject& subject, const Setting& setting,
                                        const std::vector<tessera::plan::StateSpec>& states, const TimeSetting& time);
// States and masters that move are updated by the host's processors where that is quicker, and fits.
std::vector<TimedSetting> fastest_of(const Fit& fit, const FitQuestion& question,
                                     const std::vector<tessera::plan::StateSpec>& states, const TimeSetting& time);
std::string text_of(const Subject& subject, const std::vector<TimedSetting>& settings);
Json json_of(const std::vector<TimedSetting>& settings);

// A timeline that Perfetto draws, one process for each class of ranks. Throws DataError where it cannot be written.
void write_timeline(const TimeReport& report, const TimeSetting& time, const std::string& path);

// Tokens or samples per second from one rank to all, beside Amdahl's curve. Slow ranks count where they are among the
// ranks, jitter does not. Throws UsageError where there is one rank, and as plot() does.
void plot_scaling(const Subject& subject, const Setting& setting, const std::vector<tessera::plan::StateSpec>& states,
                  const TimeSetting& time, const std::string& figure);

}  // namespace tools
