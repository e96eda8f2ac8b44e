// The time of a training step, from its plan and from how long each operation takes: the steps of a job that nobody
// has.
//
// A discrete-event walk over representative ranks: the first and the last along each axis of the mesh, as the verifier
// takes them, and every rank that is said to be slow. On each the host launches operations in the order of the plan,
// and each stream runs its own in order, as the executor does: data waits hold the stream, throttle waits the host, and
// order waits are kept by the order of launch. A collective begins when the representatives of its group have arrived
// and ends when all are done. Outer steps are looked at where they are asked for. Cost: linear in operations,
// independent of the number of ranks.
//
// Without Sharing all times grow with every duration: nothing is faster because something else is slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/plan/plan.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

struct RankRole;

// Seconds, finite and not negative, the same on all ranks.
struct Durations {
  // On its stream, while nothing runs beside it; of a collective from when its ranks have met.
  std::function<double(const Operation&)> on_stream;
  // The host takes this until the operation is launched. None: no time.
  std::function<double(const Operation&)> on_host = nullptr;
};

// Operations that run at once on one rank take this from each other.
struct Sharing {
  double processors = std::numeric_limits<double>::infinity();  // of a rank, for its streams; may be a fraction
  double slowdown = 1;       // of whatever is no collective, while a collective runs beside it; 1 or more
  bool one_network = false;  // collectives at once have a part of the network each
};

// A rank that takes so many times as long as the others.
struct SlowRank {
  std::size_t rank;
  double computation = 1;
  double communication = 1;  // its link is slow
};

// Every operation that is no collective takes exp(deviation x N(0, 1)) times its duration, drawn for each rank and each
// time that it runs. Up to most_jittered ranks are then walked, spread evenly over the job: of a larger one the slowest
// rank of all is not seen.
struct Jitter {
  double deviation = 0;
  std::uint64_t seed = 0;
};
inline constexpr std::size_t most_jittered = 32;

struct SimulationOptions {
  std::size_t program = 0;         // whose steps, one after the other
  bool immediate_compute = false;  // the host runs the compute stream's operations itself, as on the CPU
  Sharing sharing = {};
  std::vector<SlowRank> slow = {};
  Jitter jitter = {};
  std::size_t steps = 0;  // to look at, after two to warm up; 0: one, once steps take equal time, or else a few
  // After so many steps each an outer step runs, of one fragment after the other; 0: none. What of it is not over when
  // a step's update ends, belongs to the next step.
  std::size_t outer_spacing = 0;
};

// Seconds from the beginning of the window, which the operations of the steps before and after it may reach into.
struct TimedOperation {
  EventPoint point;
  std::size_t step;  // of the window, counted from 0
  std::size_t micro_batch;
  double ready;  // launched, its waits over, its stream free; a collective then waits for its peers
  double begin;
  double end;
};

struct RankTimeline {
  std::size_t rank;
  Coordinates place;
  std::vector<TimedOperation> operations;  // of the window's steps, in the order of launch
};

// A piece of the path that decides how long a step takes: each begins when the one before it ends.
struct PathPart {
  std::size_t rank;
  std::optional<EventPoint> operation;  // none: the host's launching
  double begin;
  double end;
};

// A simulation looks at a window of whole steps, from the end of the compute stream's last operation in an update to
// the same some steps later.
struct Simulation {
  double begin = 0;         // of the window, in seconds from the first of all steps: the same clock for all roles
  double step_seconds = 0;  // the window's, divided by its steps
  std::size_t window_steps = 0;
  std::vector<double> step_times;       // of each step in the window
  std::vector<RankTimeline> ranks;      // the representatives, in the order of their numbers
  std::vector<PathPart> critical_path;  // from the window's beginning to its end: parts add up to its steps' seconds

  // These are the first representative's, per step. Busy: time in which the compute stream runs something, in which any
  // stream runs a collective (waiting for peers is not counted), and in which both is so.
  double computing = 0;
  double communicating = 0;
  double hidden = 0;
  // An entry for each unit, and one at the end for what belongs to none, is the time in which the compute stream stands
  // still because of a collective. A bucket's counts for its first unit.
  std::vector<double> exposed;

  double exposed_seconds() const;
  // How much of communication computation hides; 1 where there is none.
  double overlap() const { return communicating > 0 ? hidden / communicating : 1; }
};

// Throws UsageError for durations, sharing, slow ranks or jitter that make no sense, naming the operation or the value,
// and where the plan has no step; InternalError for a plan that never ends, which verify() would have refused.
Simulation simulate(const Plan& plan, const Durations& durations, const SimulationOptions& options = {});

// The same where ranks have roles, of each with the durations of its plan; a message takes the longer of both sides'.
// A step's time that `computing` does not cover is its role's bubble. Critical paths and exposed times are left out.
std::vector<Simulation> simulate(std::span<const RankRole> roles, std::span<const Durations> durations,
                                 const SimulationOptions& options = {});

// Seconds that a plan's outer steps add to a step, in the mean over PlanOptions::outer_every of them: what they do not
// hide beside the steps that follow. They are taken to be at most 8 steps apart, and closer where there are more than
// 16 fragments, so that the walk is short; what one of them has left to do after so many steps then shows, though it
// might not. 0 for a plan without outer steps. `options` as for simulate(), with its steps and outer_spacing left
// alone.
double outer_seconds(const Plan& plan, const Durations& durations, const SimulationOptions& options = {});

}  // namespace tessera::plan

#pragma GCC visibility pop
