// One representative rank while the verifier runs a plan in the abstract: its streams' clocks, the contents of its
// buffers, and the accesses that a later one could still conflict with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "plan/access_list.hpp"
#include "plan/ranges.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan {

// A clock has for each stream of the rank how many of its operations are known to have completed. A rank could learn of
// itself from its peers, but that does not count: no plan relies on it.
using Clock = std::array<std::uint32_t, stream_count>;

inline void join(Clock& into, const Clock& other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

// Sorted, disjoint intervals that do not touch. Most often there is one, which takes no memory of its own: a state has
// several for each unit, and states are copied.
class Intervals {
 public:
  std::span<const Interval> all() const {
    if (!more_.empty()) return more_;
    return std::span(&one_, one_.begin < one_.end ? 1u : 0u);
  }
  void clear() { one_ = {0, 0}, more_.clear(); }
  void insert(Interval bytes) {
    if (bytes.begin >= bytes.end) return;
    if (all().empty()) {
      one_ = bytes;
    } else if (more_.empty() && one_.begin <= bytes.end && bytes.begin <= one_.end) {
      one_ = {std::min(one_.begin, bytes.begin), std::max(one_.end, bytes.end)};
    } else {
      insert_among_several(bytes);
    }
  }

 private:
  void insert_among_several(Interval bytes) {
    if (more_.empty()) more_.push_back(one_);
    auto first = std::lower_bound(more_.begin(), more_.end(), bytes.begin,
                                  [](const Interval& known, std::uint64_t begin) { return known.end < begin; });
    auto last = first;
    for (; last != more_.end() && last->begin <= bytes.end; ++last) {
      bytes.begin = std::min(bytes.begin, last->begin);
      bytes.end = std::max(bytes.end, last->end);
    }
    first = more_.erase(first, last);
    more_.insert(first, bytes);
    if (more_.size() > 1) return;
    one_ = more_.front();
    more_.clear();
  }

  Interval one_{0, 0};          // unless there are several
  std::vector<Interval> more_;  // two at least, or none
};

// The contents of a buffer say whose they are, and which of its bytes were written since the tenant took it.
class Contents {
 public:
  void write(std::size_t tenant, Interval bytes) {
    if (tenant != tenant_) written_.clear();
    tenant_ = tenant;
    written_.insert(bytes);
  }
  // Where this rank's shard stands, and those of all ranks.
  struct Shards {
    Interval mine;
    Interval all;
  };
  // All ranks write their shards at once: what stands here of the others' is out of date.
  void write_shard(std::size_t tenant, Interval bytes, Shards shards) {
    const Interval current[] = {{0, shards.all.begin}, shards.mine, {shards.all.end, static_cast<std::uint64_t>(-1)}};
    Intervals kept;
    for (const Interval& known : written_.all()) {
      for (const Interval& part : current) {
        kept.insert({std::max(known.begin, part.begin), std::min(known.end, part.end)});
      }
    }
    written_ = std::move(kept);
    write(tenant, bytes);
  }
  void discard() { written_.clear(); }
  bool readable(std::size_t tenant, Interval bytes) const {
    if (bytes.begin >= bytes.end) return true;
    if (tenant != tenant_) return false;
    const std::span<const Interval> written = written_.all();
    return std::any_of(written.begin(), written.end(), [&](const Interval& known) { return contains(known, bytes); });
  }

  std::size_t tenant() const { return tenant_; }
  std::span<const Interval> written() const { return written_.all(); }

 private:
  std::size_t tenant_ = no_unit;
  Intervals written_;
};

struct PastAccess {
  Place place;  // of this rank alone: both ends are its own
  bool write;
  std::size_t lane;     // stream of the rank
  std::uint32_t count;  // its place in that stream
  EventPoint by;
};

// A Sum says over how many ranks those bytes of a buffer are summed, and how often with another role's.
struct Sum {
  std::size_t ranks = 1;
  Interval bytes{0, 0};
  std::size_t tied = 0;
};

// A unit's masters and states are the step's; or they are, and kept; or supposed, ahead of the norm.
enum class Standing { settled, kept, supposed };

// A stream waits for a record that an earlier segment, or an earlier run of its own, has made.
struct EarlierRecord {
  EventPoint point;
  std::size_t waiter;  // the stream
};

using Report = std::function<void(ViolationKind, EventPoint here, EventPoint other, std::string text)>;

class AbstractRank {
 public:
  AbstractRank(const Plan& plan, const Coordinates& place, std::size_t role);

  // ---- one segment ----
  void enter(std::size_t segment);
  bool finished() const;
  // The next operation of a stream; none when the stream has run all of the segment.
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  std::size_t head(std::size_t stream) const;
  // Whether every record that the operation's waits refer to has completed.
  bool runnable(std::size_t operation) const;
  // Completes it, after checking its accesses against the past.
  void complete(std::size_t operation, const Report& report);
  // At the end. Launch order of collectives: checks each against the one launched before, in the order of the list.
  // Forgets what is settled.
  void leave(const Report& report);

  const Plan& plan() const { return *plan_; }
  const Coordinates& place() const { return place_; }
  std::size_t role() const { return role_; }  // of several plans that run together
  const Operation& operation(std::size_t index) const { return plan_->segments[segment_].operations[index]; }
  EventPoint point(std::size_t index) const { return {segment_, index}; }

  // Appends what the future can depend on.
  void append_signature(std::vector<std::uint64_t>& out) const;

 private:
  // Who knows what: a stream now, or a stream once it has waited for an earlier record that tells it something.
  struct Observer {
    std::uint64_t who;
    Clock clock;
  };
  std::vector<Observer> observers() const;
  // The clock at which the operation starts: its stream's and its waits'.
  Clock start_of(std::size_t operation) const;
  static bool knows(const Clock& clock, const PastAccess& access) { return clock[access.lane] >= access.count; }
  // Every stream here knows of its end: it can no longer race.
  bool settled(const PastAccess& access) const;
  void check_access(EventPoint here, const Access& access, const Clock& start, const Report& report);
  void check_not_lost(EventPoint here, const Access& access, const Report& report);
  void check_summed(EventPoint here, const Access& access, const Report& report);
  void note_unread(const Operation& operation, const Access& access);
  void note_summed(const Operation& operation);
  void check_supposed(EventPoint here, const Report& report);
  void check_launch_order(const Report& report);
  void forget_settled(std::size_t buffer);
  void apply_access(EventPoint here, const Access& access, std::uint32_t count);
  std::size_t must_be_summed(EventPoint here, const Access& access) const;
  void write_shards_from_outside();
  void write_content(const Range& range, std::size_t tenant);

  const Plan* plan_;
  Coordinates place_;
  std::size_t role_;

  std::array<Clock, stream_count> streams_{};
  using Clocks = std::vector<Clock>;
  std::vector<std::shared_ptr<Clocks>> completed_;  // by segment: the latest record of every operation. Copies share it
  std::vector<Contents> contents_;                  // by buffer
  std::vector<AccessList<PastAccess>> past_;        // by buffer; what is settled goes now and then
  std::vector<std::size_t> prune_at_;               // by buffer: when past_ has grown to so many
  std::vector<bool> unread_;                        // by buffer: slots and sums on the rank that nobody has read yet
  std::vector<bool> owed_;                          // by buffer: slots whose new values have not been brought home
  std::vector<Sum> summed_;                         // by buffer
  std::vector<Standing> standings_;                 // by unit
  EventPoint last_collective_{none, none};

  std::size_t segment_ = 0;
  std::vector<std::vector<std::size_t>> queues_;  // by stream: operations of the segment
  std::array<std::size_t, stream_count> position_{};
  std::vector<bool> done_;
  struct Started {
    std::size_t operation;
    Clock clock;
  };
  std::vector<Started> collectives_;  // of the segment, and what was known when they began
  std::shared_ptr<Clocks> before_;    // completed_ of this segment when it was entered
  std::vector<EarlierRecord> earlier_records_;
};

}  // namespace tessera::plan
