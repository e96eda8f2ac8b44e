// Takes the time stamps of some steps of one rank. The executor tells it where it is; what the stamps mean is the
// layout's.
//
// Invariants: stamps are taken in the order of TraceLayout; nothing is allocated after construction. It outlives its
//   stamps in flight, because the executor shares it until its streams have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shard/trace_layout.hpp"
#include "tessera/device/time_stamps.hpp"
#include "tessera/shard/trace.hpp"

namespace tessera {

class TraceRecorder {
 public:
  TraceRecorder(const plan::Plan& plan, Device device, TraceSteps steps);

  // Whether the step that begins now is one to record.
  bool begin_step();
  void stamp(Stream& stream) { stamps_.take(stream, next_stamp_++); }
  void stamp_host(Stream& host) { host_stamps_.take(host, next_host_stamp_++); }
  void end_step();  // of one that was recorded

  const plan::Plan& plan() const { return plan_; }
  const TraceLayout& layout() const { return layout_; }
  const TraceSteps& steps() const { return steps_; }
  std::size_t step_count() const { return steps_.last - steps_.first + 1; }
  std::size_t recorded_steps() const { return recorded_; }
  Bytes size() const { return stamps_.size() + host_stamps_.size(); }

  // All stamps, step by step: those of streams, and those of the host after them. Once the streams are synchronised.
  std::vector<std::int64_t> times();

 private:
  plan::Plan plan_;  // a copy: what was measured may be written after the model has another
  TraceLayout layout_;
  TraceSteps steps_;
  TimeStamps stamps_;
  TimeStamps host_stamps_;
  std::size_t next_step_;
  std::size_t recorded_ = 0;
  std::size_t next_stamp_ = 0;
  std::size_t next_host_stamp_ = 0;
};

}  // namespace tessera
