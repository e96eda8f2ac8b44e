// The operations of some training steps, one after the other as the host launches them, each with what it waits for: a
// wait means the latest record, which is known once the order of launch is.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

inline constexpr auto compute_stream = static_cast<std::size_t>(StreamId::compute);

// Returns the kind of a step's n-th micro-batch, counted from 0.
SegmentKind kind_of(std::size_t micro_batch, std::size_t micro_batches);

struct Launch {
  const Operation* operation;
  EventPoint point;
  std::size_t step;
  std::size_t micro_batch;
  std::size_t stream;
  std::size_t first_wait;  // in LaunchList::waits
  std::size_t data_waits;
  std::size_t throttle_waits;  // after the data waits
};

class LaunchList {
 public:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  // Steps of one program. After every `outer_spacing` of them one outer step, of each fragment in turn; 0: none. Throws
  // UsageError for a program that the plan does not have, a plan without steps, or for too many operations.
  LaunchList(const Plan& plan, std::size_t program, std::size_t steps, std::size_t outer_spacing = 0);

  std::size_t size() const { return launches_.size(); }
  const Launch& operator[](std::size_t index) const { return launches_[index]; }
  // Indices of launches. A wait for what was not launched yet counts as over, and is not here.
  std::span<const std::size_t> data_waits(std::size_t index) const {
    return {waits_.data() + launches_[index].first_wait, launches_[index].data_waits};
  }
  std::span<const std::size_t> throttle_waits(std::size_t index) const {
    const Launch& launch = launches_[index];
    return {waits_.data() + launch.first_wait + launch.data_waits, launch.throttle_waits};
  }
  const std::vector<std::size_t>& of_stream(std::size_t stream) const { return streams_[stream]; }
  // The launch before it on its stream, or none.
  std::size_t before(std::size_t index) const { return before_[index]; }
  // A step ends with the last of the update's operations on the compute stream.
  std::size_t end_of_step(std::size_t step) const { return ends_[step]; }
  std::size_t steps() const { return ends_.size(); }

 private:
  void add_step(std::size_t step);
  void add_segment(SegmentKind kind, std::size_t step, std::size_t micro_batch);
  void add_outer_step(std::size_t turn, std::size_t step);
  void add_operations(std::size_t segment, std::size_t step, std::size_t micro_batch);
  void add(EventPoint point, std::size_t step, std::size_t micro_batch);

  const Plan& plan_;
  std::size_t program_;
  std::vector<Launch> launches_;
  std::vector<std::size_t> waits_;
  std::vector<std::size_t> before_;
  std::array<std::vector<std::size_t>, stream_count> streams_;
  std::vector<std::size_t> ends_;
  std::vector<std::vector<std::size_t>> latest_;  // by segment and operation: its latest launch
};

}  // namespace tessera::plan
