// Work has a time at which it will be finished; that time moves only when the rate at which it goes on changes.
#include "plan/simulated_rank.hpp"

#include <algorithm>

namespace tessera::plan {

std::size_t SimulatedRank::head(std::size_t stream) const {
  const auto& launches = list_->of_stream(stream);
  const std::size_t position = lanes_[stream].position;
  return position < launches.size() ? launches[position] : LaunchList::none;
}

void SimulatedRank::settle(double now) {
  bool changed = true;
  while (changed) {
    changed = settle_host(now);
    for (std::size_t stream = 0; stream < stream_count; ++stream) changed = settle_stream(stream, now) || changed;
  }
}

bool SimulatedRank::settle_host(double now) {
  bool changed = false;
  while (launched_ < list_->size()) {
    LaunchTimes& times = times_[launched_];
    if (!launching_) {
      if (!may_launch(launched_)) return changed;
      launching_ = true;
      times.launch_begin = now;
      times.launch_end = now + pace_.on_host(launched_);
    }
    if (times.launch_end > now) return changed;
    launching_ = false;
    ++launched_;
    changed = true;
  }
  return changed;
}

bool SimulatedRank::may_launch(std::size_t launch) const {
  if (pace_.immediate_compute && launch > 0 && (*list_)[launch - 1].stream == compute_stream &&
      !has_ended(launch - 1)) {
    return false;
  }
  const auto waits = list_->throttle_waits(launch);
  return std::all_of(waits.begin(), waits.end(), [&](std::size_t awaited) { return has_ended(awaited); });
}

bool SimulatedRank::may_start(std::size_t launch) const {
  if (launch >= launched_) return false;
  const auto waits = list_->data_waits(launch);
  return std::all_of(waits.begin(), waits.end(), [&](std::size_t awaited) { return has_ended(awaited); });
}

bool SimulatedRank::settle_stream(std::size_t stream, double now) {
  Lane& lane = lanes_[stream];
  const std::size_t launch = head(stream);
  if (launch == LaunchList::none) return false;
  if (lane.state == State::working && lane.finish <= now) {
    times_[launch].work_end = lane.finish;
    if (is_collective((*list_)[launch].operation->kind)) {
      lane.state = State::done;
      notices_.push_back({stream, true});
      share(now);
    } else {
      end_work(stream, now);
    }
    return true;
  }
  if (lane.state != State::idle || !may_start(launch)) return false;
  times_[launch].ready = now;
  if (is_collective((*list_)[launch].operation->kind)) {
    lane.state = State::arrived;
    notices_.push_back({stream, false});
  } else {
    begin_work(stream, now);
  }
  return true;
}

void SimulatedRank::begin_work(std::size_t stream, double now) {
  Lane& lane = lanes_[stream];
  const std::size_t launch = head(stream);
  times_[launch].begin = now;
  lane.state = State::working;
  lane.rate = 1;
  lane.finish = now + pace_.on_stream(launch);
  share(now);
}

void SimulatedRank::end_work(std::size_t stream, double now) {
  times_[head(stream)].end = now;
  lanes_[stream].state = State::idle;
  ++lanes_[stream].position;
  --remaining_;
  share(now);
}

double SimulatedRank::next_event() const {
  double next = LaunchTimes::unknown;
  if (launching_) next = times_[launched_].launch_end;
  for (const Lane& lane : lanes_) {
    if (lane.state == State::working) next = std::min(next, lane.finish);
  }
  return next;
}

bool SimulatedRank::is_working_collective(std::size_t stream) const {
  return lanes_[stream].state == State::working && is_collective((*list_)[head(stream)].operation->kind);
}

double SimulatedRank::rate_of(std::size_t stream, std::size_t working, std::size_t collectives) const {
  double rate = std::min(1.0, pace_.sharing.processors / static_cast<double>(working));
  if (is_working_collective(stream)) {
    if (pace_.sharing.one_network) rate /= static_cast<double>(collectives);
  } else if (collectives > 0) {
    rate /= pace_.sharing.slowdown;
  }
  return rate;
}

void SimulatedRank::share(double now) {
  std::size_t working = 0, collectives = 0;
  for (std::size_t stream = 0; stream < stream_count; ++stream) {
    working += lanes_[stream].state == State::working;
    collectives += is_working_collective(stream);
  }
  for (std::size_t stream = 0; stream < stream_count; ++stream) {
    Lane& lane = lanes_[stream];
    if (lane.state != State::working) continue;
    const double rate = rate_of(stream, working, collectives);
    if (rate == lane.rate) continue;
    lane.finish = now + std::max(0.0, lane.finish - now) * lane.rate / rate;
    lane.rate = rate;
  }
}

}  // namespace tessera::plan
