// Simulates a plan on every rank of a job, and not on representatives, without a thought for speed: at every moment it
// looks at everything, and what works has so much left to do. Written apart from src/plan, to be held against it.
#pragma once

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tessera/plan/simulate.hpp"

namespace tessera::plan {

class NaiveSimulation {
 public:
  NaiveSimulation(const Plan& plan, const Durations& durations, const SimulationOptions& options, std::size_t steps)
      : plan_(plan), durations_(durations), options_(options) {
    const std::size_t count = plan.micro_batches(0);
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t micro = 0; micro < count; ++micro) {
        append(count == 1           ? SegmentKind::only
               : micro == 0         ? SegmentKind::first
               : micro + 1 == count ? SegmentKind::last
                                    : SegmentKind::middle);
      }
      append(SegmentKind::update);
      std::size_t end = entries_.size() - 1;
      while (entries_[end].operation->stream != StreamId::compute) --end;
      step_ends_.push_back(end);
      const std::size_t spacing = options.outer_spacing;
      if (spacing > 0 && (step + 1) % spacing == 0) {
        append(plan.find_outer(((step + 1) / spacing - 1) % plan.options.outer_fragments).value());
      }
    }
    items_.assign(plan.options.ranks, std::vector<Item>(entries_.size()));
  }

  // When each step's update has ended on rank 0's compute stream.
  std::vector<double> run() {
    while (!all_ended()) {
      bool changed = true;
      while (changed) changed = change_something();
      if (!all_ended()) pass_time();
    }
    std::vector<double> ends;
    for (const std::size_t index : step_ends_) ends.push_back(items_[0][index].end);
    return ends;
  }

 private:
  struct Entry {
    const Operation* operation;
    EventPoint point;
    std::vector<std::size_t> data;
    std::vector<std::size_t> throttle;
  };
  enum class Stage { unlaunched, launching, launched, arrived, working, done, ended };
  struct Item {
    Stage stage = Stage::unlaunched;
    double left = 0;  // to launch, or to work
    double end = 0;
  };

  void append(SegmentKind kind) { append(plan_.find(kind).value()); }
  void append(std::size_t segment) {
    for (std::size_t index = 0; index < plan_.segments[segment].operations.size(); ++index) {
      Entry entry{&plan_.segments[segment].operations[index], {segment, index}, {}, {}};
      for (const Wait& wait : entry.operation->waits) {
        for (std::size_t earlier = entries_.size(); earlier-- > 0;) {
          if (!(entries_[earlier].point == plan_.events[wait.event])) continue;
          if (wait.type == WaitType::data) entry.data.push_back(earlier);
          if (wait.type == WaitType::throttle) entry.throttle.push_back(earlier);
          break;
        }
      }
      entries_.push_back(entry);
    }
  }

  bool all_ended() const {
    return std::all_of(items_.begin(), items_.end(), [](const auto& items) {
      return std::all_of(items.begin(), items.end(), [](const Item& item) { return item.stage == Stage::ended; });
    });
  }

  bool ended(std::size_t rank, const std::vector<std::size_t>& awaited) const {
    return std::all_of(awaited.begin(), awaited.end(),
                       [&](std::size_t index) { return items_[rank][index].stage == Stage::ended; });
  }
  bool collective(std::size_t index) const { return is_collective(entries_[index].operation->kind); }
  double factor(std::size_t rank, bool communication) const {
    double factor = 1;
    for (const SlowRank& slow : options_.slow) {
      if (slow.rank == rank) factor *= communication ? slow.communication : slow.computation;
    }
    return factor;
  }

  bool stream_is_free(std::size_t rank, std::size_t index) const {
    for (std::size_t earlier = 0; earlier < index; ++earlier) {
      const bool same = entries_[earlier].operation->stream == entries_[index].operation->stream;
      if (same && items_[rank][earlier].stage != Stage::ended) return false;
    }
    return true;
  }
  bool host_is_free(std::size_t rank, std::size_t index) const {
    for (std::size_t earlier = 0; earlier < index; ++earlier) {
      const Stage stage = items_[rank][earlier].stage;
      if (stage == Stage::unlaunched || stage == Stage::launching) return false;
      const bool computes = entries_[earlier].operation->stream == StreamId::compute;
      if (options_.immediate_compute && computes && stage != Stage::ended) return false;
    }
    return true;
  }

  bool in_group(std::size_t a, std::size_t b, AxisSet group) const {
    const AxisSet others = AxisSet::all() - group;
    return plan_.mesh.index_of(others, plan_.mesh.place_of(a)) == plan_.mesh.index_of(others, plan_.mesh.place_of(b));
  }
  bool group_is_at(std::size_t rank, std::size_t index, Stage stage) const {
    for (std::size_t other = 0; other < items_.size(); ++other) {
      if (in_group(rank, other, entries_[index].operation->group) && items_[other][index].stage != stage) return false;
    }
    return true;
  }
  void move_group(std::size_t rank, std::size_t index, Stage stage) {
    for (std::size_t other = 0; other < items_.size(); ++other) {
      if (!in_group(rank, other, entries_[index].operation->group)) continue;
      items_[other][index].stage = stage;
      if (stage == Stage::working) items_[other][index].left = work(other, index);
      items_[other][index].end = now_;
    }
  }
  double work(std::size_t rank, std::size_t index) const {
    return durations_.on_stream(*entries_[index].operation) * factor(rank, collective(index));
  }

  bool change_something() {
    bool changed = false;
    for (std::size_t rank = 0; rank < items_.size(); ++rank) {
      for (std::size_t index = 0; index < entries_.size(); ++index) changed = change(rank, index) || changed;
    }
    return changed;
  }

  bool change(std::size_t rank, std::size_t index) {
    Item& item = items_[rank][index];
    const Entry& entry = entries_[index];
    switch (item.stage) {
      case Stage::unlaunched:
        if (!host_is_free(rank, index) || !ended(rank, entry.throttle)) return false;
        item.left = durations_.on_host ? durations_.on_host(*entry.operation) * factor(rank, false) : 0;
        item.stage = Stage::launching;
        return true;
      case Stage::launching:
        if (item.left > 0) return false;
        item.stage = Stage::launched;
        return true;
      case Stage::launched:
        if (!stream_is_free(rank, index) || !ended(rank, entry.data)) return false;
        item.stage = collective(index) ? Stage::arrived : Stage::working;
        item.left = work(rank, index);
        return true;
      case Stage::arrived:
        if (!group_is_at(rank, index, Stage::arrived)) return false;
        move_group(rank, index, Stage::working);
        return true;
      case Stage::working:
        if (item.left > 0) return false;
        item.stage = collective(index) ? Stage::done : Stage::ended;
        item.end = now_;
        return true;
      case Stage::done:
        if (!group_is_at(rank, index, Stage::done)) return false;
        move_group(rank, index, Stage::ended);
        return true;
      case Stage::ended: return false;
    }
    throw std::logic_error("a stage without a meaning");
  }

  double rate(std::size_t rank, std::size_t index) const {
    double working = 0, collectives = 0;
    for (std::size_t other = 0; other < entries_.size(); ++other) {
      if (items_[rank][other].stage != Stage::working) continue;
      working += 1;
      if (collective(other)) collectives += 1;
    }
    double rate = std::min(1.0, options_.sharing.processors / working);
    if (collective(index)) return options_.sharing.one_network ? rate / collectives : rate;
    return collectives > 0 ? rate / options_.sharing.slowdown : rate;
  }

  struct Moving {
    Item* item;
    double rate;
  };
  void pass_time() {
    std::vector<Moving> moving;
    for (std::size_t rank = 0; rank < items_.size(); ++rank) {
      for (std::size_t index = 0; index < entries_.size(); ++index) {
        Item& item = items_[rank][index];
        if (item.stage == Stage::launching) moving.push_back({&item, 1});
        if (item.stage == Stage::working) moving.push_back({&item, rate(rank, index)});
      }
    }
    double shortest = std::numeric_limits<double>::infinity();
    for (const Moving& each : moving) shortest = std::min(shortest, each.item->left / each.rate);
    if (moving.empty()) throw std::logic_error("nothing moves, and not everything has ended");
    now_ += shortest;
    for (const Moving& each : moving) {
      const double left = each.item->left - shortest * each.rate;
      each.item->left = left < 1e-12 ? 0 : left;  // durations in tests are far larger than that
    }
  }

  const Plan& plan_;
  const Durations& durations_;
  const SimulationOptions& options_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> step_ends_;
  std::vector<std::vector<Item>> items_;  // by rank and entry
  double now_ = 0;
};

}  // namespace tessera::plan
