// One representative rank while a plan is walked in time: its host, which launches, its streams, which work, and when
// everything happened.
//
// Invariants: times only grow; what may begin at `now` has begun when settle(now) returns, but for collectives, which
// begin and end when whoever knows all ranks says so.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "plan/launch_list.hpp"
#include "tessera/plan/simulate.hpp"

namespace tessera::plan {

// LaunchTimes are those of one launch on one rank; `unknown` before it happened.
struct LaunchTimes {
  static constexpr double unknown = std::numeric_limits<double>::infinity();
  double launch_begin = unknown;  // the host's
  double launch_end = unknown;
  double ready = unknown;
  double begin = unknown;
  double work_end = unknown;  // of a collective: this rank's part
  double end = unknown;
};

// How long things take on one rank.
struct RankPace {
  std::function<double(std::size_t launch)> on_stream;
  std::function<double(std::size_t launch)> on_host;
  Sharing sharing;
  bool immediate_compute = false;
};

class SimulatedRank {
 public:
  SimulatedRank(const LaunchList& list, std::size_t rank, const Coordinates& place, RankPace pace)
      : list_(&list), rank_(rank), place_(place), pace_(std::move(pace)), times_(list.size()) {}

  // Does all that this rank can do by itself at `now`.
  void settle(double now);
  // When it has something to do next, if nobody else does anything.
  double next_event() const;

  // A stream whose collective has arrived, or whose part of it is done, since the last call.
  struct Notice {
    std::size_t stream;
    bool done;
  };
  std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }
  std::size_t head(std::size_t stream) const;  // the launch at which the stream is, or none at its end
  // Called by whoever knows all ranks, of a collective.
  void begin_work(std::size_t stream, double now);
  void end_work(std::size_t stream, double now);

  bool finished() const { return remaining_ == 0; }
  std::size_t rank() const { return rank_; }
  const Coordinates& place() const { return place_; }
  bool immediate_compute() const { return pace_.immediate_compute; }
  const LaunchTimes& times(std::size_t launch) const { return times_[launch]; }

 private:
  enum class State { idle, arrived, working, done };
  struct Lane {
    std::size_t position = 0;  // in LaunchList::of_stream
    State state = State::idle;
    double finish = 0;  // of what works
    double rate = 1;
  };

  bool settle_host(double now);
  bool settle_stream(std::size_t stream, double now);
  bool may_launch(std::size_t launch) const;
  bool may_start(std::size_t launch) const;
  bool has_ended(std::size_t launch) const { return times_[launch].end != LaunchTimes::unknown; }
  void share(double now);
  double rate_of(std::size_t stream, std::size_t working, std::size_t collectives) const;
  bool is_working_collective(std::size_t stream) const;

  const LaunchList* list_;
  std::size_t rank_;
  Coordinates place_;
  RankPace pace_;
  std::vector<LaunchTimes> times_;
  std::size_t launched_ = 0;
  bool launching_ = false;
  std::array<Lane, stream_count> lanes_ = {};
  std::size_t remaining_ = times_.size();
  std::vector<Notice> notices_;
};

}  // namespace tessera::plan
