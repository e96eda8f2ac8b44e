// Runs the sequences of segments that a plan allows, of two phases each (sequences.hpp), sharing what they have in
// common. derive_waits() goes through them pair by pair instead, so that each checks the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plan/sequences.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// What a sequence has been in since the cold start: at most two phases.
class PhasesSoFar {
 public:
  bool may_enter(const Phase& phase) const { return count_ < phases_.size() || has(phase); }
  PhasesSoFar and_then(const Phase& phase) const {
    PhasesSoFar result = *this;
    if (phase.kind != SegmentKind::cold && !has(phase)) result.phases_[result.count_++] = phase;
    return result;
  }
  // Whoever was in these alone may still go wherever the others may.
  bool within(const PhasesSoFar& others) const {
    return std::all_of(begin(), end(), [&](const Phase& phase) { return others.has(phase); });
  }
  bool is_full() const { return count_ == phases_.size(); }

 private:
  const Phase* begin() const { return phases_.data(); }
  const Phase* end() const { return phases_.data() + count_; }
  bool has(const Phase& phase) const { return std::find(begin(), end(), phase) != end(); }

  std::array<Phase, 2> phases_{};
  std::size_t count_ = 0;
};

// Runs every sequence of segments of two phases, each state once with each segment that may follow it: what two
// sequences have in common, the steps of one program above all, is run for both.
template <typename State, typename Signature>
class SequenceWalk {
 public:
  // phases: by segment.
  SequenceWalk(const Plan& plan, std::vector<Phase> phases) : plan_(plan), phases_(std::move(phases)) {}

  // run(segment, state): false where nothing may follow. signature(state): equal where the future is.
  template <typename Run, typename Sign>
  void run(State start, const Run& run, const Sign& signature) {
    add({.segment = 0, .phases = {}, .from = std::make_shared<State>(std::move(start))});  // the cold start
    while (!pending_.empty() || !pending_in_two_.empty()) {
      // Those that have been in one phase come first, because they go on for all that come to the same state in two.
      Next next = take(pending_.empty() ? pending_in_two_ : pending_);
      State state = next.from.use_count() == 1 ? std::move(*next.from) : *next.from;
      next.from.reset();
      if (run(next.segment, state)) go_on(next, std::move(state), signature);
    }
  }

 private:
  struct Next {
    std::size_t segment;
    PhasesSoFar phases;  // with its own
    std::shared_ptr<State> from;
  };
  struct Followed {
    std::size_t segment;
    PhasesSoFar phases;
  };

  static Next take(std::vector<Next>& pending) {
    Next next = std::move(pending.back());
    pending.pop_back();
    return next;
  }
  void add(Next next) { (next.phases.is_full() ? pending_in_two_ : pending_).push_back(std::move(next)); }

  template <typename Sign>
  void go_on(const Next& last, State&& state, const Sign& signature) {
    std::vector<Followed>& followed = seen_[signature(state)];
    const auto from = std::make_shared<State>(std::move(state));
    for (const std::size_t segment : successors(plan_, last.segment)) {
      if (!last.phases.may_enter(phases_[segment])) continue;
      const PhasesSoFar phases = last.phases.and_then(phases_[segment]);
      const bool done = std::any_of(followed.begin(), followed.end(), [&](const Followed& before) {
        return before.segment == segment && before.phases.within(phases);
      });
      if (done) continue;
      followed.push_back({segment, phases});
      add({.segment = segment, .phases = phases, .from = from});
    }
  }

  const Plan& plan_;
  std::vector<Phase> phases_;
  std::vector<Next> pending_, pending_in_two_;
  std::map<Signature, std::vector<Followed>> seen_;
};

inline std::vector<Phase> phases_of(const Plan& plan) {
  std::vector<Phase> phases;
  for (const Segment& segment : plan.segments) phases.push_back(phase_of(segment));
  return phases;
}

}  // namespace tessera::plan
