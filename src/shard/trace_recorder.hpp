// The time stamps of a traced step: which there are (TraceLayout, a function of the plan alone, so equal on every
// rank), and taking them (TraceRecorder), in the order in which the executor comes to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/device/time_stamps.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/trace.hpp"

namespace tessera {

// Stamps are indices within a step: `arrival` + i is after the i-th of the `waits` data waits, the last of them when
// the operation starts.
struct TracedOperation {
  plan::EventPoint point;
  std::size_t micro_batch;
  std::size_t section;
  std::size_t arrival;
  std::size_t waits = 0;
  std::size_t end = 0;
  std::size_t throttle_waits = 0;  // two stamps of the host for each, one after the other: before it, and after
  std::size_t throttle = 0;        // the first of them

  std::size_t start() const { return arrival + waits; }
};

// A call of the user's into the runtime, or what an update has behind it. Stamps of the host.
struct HostSection {
  enum class Call { open, collect, close, update, outer };
  Call call;
  plan::WindowUse use;  // of calls about a window
  std::size_t micro_batch;
  std::size_t begin;
  std::size_t end;
};

// For every operation one stamp when its stream comes to it, one after each data wait and one at its end; for the host
// one at each end of a call into the runtime, and around each wait.
struct TraceLayout {
  // The layout is that of a step of the program that this outer segment follows, or none.
  TraceLayout(const plan::Plan& plan, std::size_t of, std::optional<std::size_t> outer = std::nullopt);

  std::size_t program;                      // whose steps they are
  std::vector<TracedOperation> operations;  // in the order of launch
  std::vector<HostSection> sections;
  std::size_t stamps = 0;       // of streams, in a step
  std::size_t host_stamps = 0;  // in a step

 private:
  void add_segment(const plan::Plan& plan, std::size_t segment, std::size_t micro_batch);
  void add_call(HostSection::Call call, const plan::Plan& plan, std::size_t segment, std::size_t micro_batch);
  void add_operation(const plan::Operation& operation, plan::EventPoint point, std::size_t micro_batch);
  void begin_section(HostSection::Call call, plan::WindowUse use, std::size_t micro_batch);
  void end_section() { sections.back().end = host_stamps++; }
};

// A TracedPlan says what the stamps of some steps of a plan mean.
class TracedPlan {
 public:
  // updates: that the model has done, by which outer steps are due.
  TracedPlan(const plan::Plan& plan, std::size_t program, TraceSteps steps, std::size_t updates);

  const plan::Plan& plan() const { return plan_; }
  std::size_t program() const { return layouts_.front().program; }  // whose steps are recorded
  const TraceLayout& layout(std::size_t step) const;                // of one to record
  const TraceSteps& steps() const { return steps_; }
  std::size_t sum_over_steps(std::size_t TraceLayout::*count) const;
  std::size_t stamps() const;  // of streams and the host together

 private:
  plan::Plan plan_;                   // a copy: what was measured may be written after the model has another
  std::vector<TraceLayout> layouts_;  // of a step without an outer one, and with each fragment's
  TraceSteps steps_;
  std::size_t updates_;  // before the first of them
};

// Takes the stamps of some steps of one rank. The executor tells it where it is; what the stamps mean is the layout's.
//
// Invariants: stamps are taken in the order of TraceLayout; nothing is allocated after construction. It outlives its
//   stamps in flight, because the executor shares it until its streams have ended.
class TraceRecorder {
 public:
  // plans: of all roles, of which this rank's is `role`.
  TraceRecorder(std::vector<TracedPlan> plans, std::size_t role, Device device);

  // Whether the step that begins now is one to record.
  bool begin_step();
  void stamp(Stream& stream) { stamps_.take(stream, next_stamp_++); }
  void stamp_host(Stream& host) { host_stamps_.take(host, next_host_stamp_++); }
  void end_step();  // of one that was recorded

  const TracedPlan& mine() const { return plans_[role_]; }
  const TracedPlan& of_rank(std::size_t rank) const;
  const std::vector<TracedPlan>& plans() const { return plans_; }
  const TraceSteps& steps() const { return mine().steps(); }
  std::size_t step_count() const { return steps().last - steps().first + 1; }
  std::size_t recorded_steps() const { return recorded_; }
  Bytes size() const { return stamps_.size() + host_stamps_.size(); }

  // All stamps, step by step: those of streams, and those of the host after them. Once the streams are synchronised.
  std::vector<std::int64_t> times();

 private:
  std::vector<TracedPlan> plans_;
  std::size_t role_;
  TimeStamps stamps_;
  TimeStamps host_stamps_;
  std::size_t next_step_;
  std::size_t recorded_ = 0;
  std::size_t next_stamp_ = 0;
  std::size_t next_host_stamp_ = 0;
  std::size_t expected_stamps_ = 0;  // of the steps recorded so far
  std::size_t expected_host_stamps_ = 0;
};

}  // namespace tessera
