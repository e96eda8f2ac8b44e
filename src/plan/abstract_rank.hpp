// One representative rank while the verifier runs a plan in the abstract: its streams' clocks, the contents of its
// buffers, and the accesses that a later one could still conflict with.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/access_list.hpp"
#include "plan/contents.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan {

inline constexpr std::size_t party_count = 2;
// Per stream of every party: how many of its operations are known to have completed.
using FusedClock = std::array<std::uint64_t, party_count * stream_count>;

inline void join(FusedClock& into, const FusedClock& other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

struct PastAccess {
  Place place;  // of this rank alone: both ends are its own
  bool write;
  std::size_t lane;     // stream of the rank, in the fused clock
  std::uint64_t count;  // its place in that stream
  EventPoint by;
};

// A stream waits for a record that an earlier segment, or an earlier run of its own, has made.
struct EarlierRecord {
  EventPoint point;
  std::size_t waiter;  // the stream
};

using Report = std::function<void(ViolationKind, EventPoint here, EventPoint other, std::string text)>;

class AbstractRank {
 public:
  AbstractRank(const Plan& plan, std::size_t party, std::size_t rank);

  // ---- one segment ----
  void enter(std::size_t segment);
  bool finished() const;
  // The next operation of a stream; none when the stream has run all of the segment.
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  std::size_t head(std::size_t stream) const;
  // Whether every record that the operation's waits refer to has completed.
  bool runnable(std::size_t operation) const;
  // The clock at which the operation starts: its stream's and its waits'.
  FusedClock start_of(std::size_t operation) const;
  // Completes it at `clock`, after checking its accesses against the past.
  void complete(std::size_t operation, FusedClock clock, const Report& report);
  // What a fused collective's completion tells this rank's stream, about its peers too.
  void learn(std::size_t stream, const FusedClock& end);
  // Launch order of collectives: checks against the one launched before. In the order of the list.
  void check_launch_order(const Report& report);

  const Plan& plan() const { return *plan_; }
  const Operation& operation(std::size_t index) const { return plan_->segments[segment_].operations[index]; }
  EventPoint point(std::size_t index) const { return {segment_, index}; }
  std::size_t lane(StreamId stream) const { return party_ * stream_count + static_cast<std::size_t>(stream); }

  // Appends what the future can depend on, as far as `observers` of all parties know it: what streams know now, and
  // what each will know once it has waited for an earlier record.
  void append_signature(const std::vector<FusedClock>& observers, std::vector<std::uint64_t>& out) const;
  void append_observers(std::vector<FusedClock>& out) const;

 private:
  bool knows(const FusedClock& clock, const PastAccess& access) const { return clock[access.lane] >= access.count; }
  void check_access(EventPoint here, const Access& access, const FusedClock& start, const Report& report);
  void check_not_lost(EventPoint here, const Access& access, const Report& report);
  void note_unread(const Operation& operation, const Access& access);
  void apply_access(EventPoint here, const Access& access, std::uint64_t count);
  void write_shards_from_outside();
  void write_content(const Access& access);

  const Plan* plan_;
  std::size_t party_;
  std::size_t rank_;

  std::array<FusedClock, stream_count> streams_{};
  std::vector<std::vector<FusedClock>> completed_;  // latest record of every operation
  std::vector<Contents> contents_;                  // by buffer
  std::vector<AccessList<PastAccess>> past_;        // by buffer
  std::vector<bool> unread_;                        // by buffer: slots and sums on the rank that nobody has read yet
  EventPoint last_collective_{none, none};

  std::size_t segment_ = 0;
  std::vector<std::vector<std::size_t>> queues_;  // by stream: operations of the segment
  std::array<std::size_t, stream_count> position_{};
  std::vector<bool> done_;
  std::vector<FusedClock> started_;  // by operation of the segment
  std::vector<FusedClock> before_;   // completed_ of this segment when it was entered
  std::vector<EarlierRecord> earlier_records_;
};

}  // namespace tessera::plan
