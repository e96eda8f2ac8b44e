// The one object of a step, given to each.
#include "trainer/src/run_metrics.hpp"

#include "json/json.hpp"

namespace tessera::trainer {

namespace {

// True for members that are figures of this step, and change from step to step.
bool is_drawn(const tools::JsonMember& member) {
  for (const char* other : {"step", "memory", "simulated", "weights_hash", "tensor_hashes"}) {
    if (member.key == other) return false;
  }
  return true;
}

}  // namespace

RunMetrics::RunMetrics(const RunOptions& options) {
  if (options.metrics) lines_.emplace(*options.metrics);
  if (options.tensorboard) events_.emplace(*options.tensorboard);
}

void RunMetrics::begin() {
  if (lines_) lines_->empty();
}

void RunMetrics::keep_first(std::size_t steps) {
  if (lines_) lines_->keep_first(steps);
  if (events_) events_->begin_at(steps + 1);
}

void RunMetrics::write(const tools::Json& object) {
  if (lines_) lines_->write(object);
  if (!events_) return;
  tools::Json drawn = tools::Json::object();
  for (const tools::JsonMember& member : object.members()) {
    if (is_drawn(member)) drawn.append(member.key, member.value);
  }
  events_->write(object.at("step").whole(), drawn);
}

}  // namespace tessera::trainer
