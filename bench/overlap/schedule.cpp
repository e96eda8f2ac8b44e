// Two steps are scheduled after a first one: what the third adds is a step among others.
#include "overlap/schedule.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace bench {

using namespace tessera::plan;

double best_step(const Plan& plan, const std::function<double(const Operation&)>& seconds_of) {
  std::vector<double> recorded(plan.events.size(), 0.0);
  std::array<double, stream_count> free{};
  std::vector<double> step_ends;
  const std::size_t segments[] = {*plan.find(SegmentKind::only), *plan.find(SegmentKind::update)};
  for (int step = 0; step < 4; ++step) {
    for (const std::size_t segment : segments) {
      const auto& operations = plan.segments[segment].operations;
      for (std::size_t index = 0; index < operations.size(); ++index) {
        const Operation& operation = operations[index];
        double& stream = free[static_cast<std::size_t>(operation.stream)];
        double start = stream;
        for (const Wait& wait : operation.waits) {
          if (wait.type == WaitType::data) start = std::max(start, recorded[wait.event]);
        }
        stream = start + seconds_of(operation);
        for (std::size_t event = 0; event < recorded.size(); ++event) {
          if (plan.events[event] == EventPoint{segment, index}) recorded[event] = stream;
        }
      }
    }
    step_ends.push_back(free[static_cast<std::size_t>(StreamId::compute)]);
  }
  return step_ends[3] - step_ends[2];
}

}  // namespace bench
