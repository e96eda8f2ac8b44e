// Lists of passes.
#include "tessera/plan/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.hpp"

namespace tessera::plan {

std::string_view to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe: return "gpipe";
    case ScheduleKind::one_f_one_b: return "1f1b";
    case ScheduleKind::interleaved: return "interleaved";
    case ScheduleKind::zb_h1: return "zb-h1";
  }
  throw InternalError("a schedule without a name");
}

namespace {

using Stage = std::vector<ScheduledPass>;

Stage gpipe(const ScheduleShape& shape) {
  Stage result;
  for (const WindowKind kind : {WindowKind::forward, WindowKind::backward}) {
    for (std::size_t m = 0; m < shape.micro_batches; ++m) result.push_back({kind, m});
  }
  return result;
}

// The n-th pass of a stage that takes chunks in turn, P micro-batches at a time, back with the last chunk first.
ScheduledPass nth(const ScheduleShape& shape, WindowKind kind, std::size_t n) {
  const std::size_t round = n / (shape.stages * shape.chunks);
  const std::size_t chunk = n / shape.stages % shape.chunks;
  return {kind, round * shape.stages + n % shape.stages,
          kind == WindowKind::forward ? chunk : shape.chunks - 1 - chunk};
}

// After so many forward passes the stage goes forward and back by turns.
Stage by_turns(const ScheduleShape& shape, std::size_t ahead) {
  Stage result;
  const std::size_t passes = shape.micro_batches * shape.chunks;
  ahead = std::min(ahead, passes);
  for (std::size_t n = 0; n < passes + ahead; ++n) {
    if (n < passes) result.push_back(nth(shape, WindowKind::forward, n));
    if (n >= ahead) result.push_back(nth(shape, WindowKind::backward, n - ahead));
  }
  return result;
}

// Also by turns, but each backward pass forms the gradient of its input alone, and the rest follows as many
// micro-batches later as the stage would else hold fewer than the first one does.
Stage zb_h1(const ScheduleShape& shape, std::size_t stage) {
  Stage result;
  std::size_t rest = 0;
  for (const ScheduledPass& pass : by_turns(shape, shape.stages - 1 - stage)) {
    result.push_back(pass);
    if (pass.kind == WindowKind::forward) continue;
    result.back().kind = WindowKind::backward_input;
    if (pass.micro_batch >= stage) result.push_back({WindowKind::backward, rest++});
  }
  while (rest < shape.micro_batches) result.push_back({WindowKind::backward, rest++});
  return result;
}

void require_sense(ScheduleKind kind, const ScheduleShape& shape) {
  if (shape.stages == 0 || shape.micro_batches == 0 || shape.chunks == 0) {
    throw UsageError(fmt::format("a schedule of {} stages, {} micro-batches and {} chunks: choose 1 or more of each",
                                 shape.stages, shape.micro_batches, shape.chunks));
  }
  if (kind != ScheduleKind::interleaved && shape.chunks > 1) {
    throw UsageError(fmt::format("schedule {} has one chunk on each stage, not {}: choose interleaved for several",
                                 to_string(kind), shape.chunks));
  }
  if (kind == ScheduleKind::interleaved && shape.micro_batches % shape.stages != 0) {
    throw UsageError(fmt::format(
        "schedule interleaved takes micro-batches {} at a time, one for each stage, and there are {}: choose "
        "a multiple",
        shape.stages, shape.micro_batches));
  }
}

}  // namespace

Schedule schedule(ScheduleKind kind, const ScheduleShape& shape) {
  require_sense(kind, shape);
  Schedule result;
  for (std::size_t stage = 0; stage < shape.stages; ++stage) {
    const std::size_t ahead = shape.stages - 1 - stage;
    switch (kind) {
      case ScheduleKind::gpipe: result.push_back(gpipe(shape)); break;
      case ScheduleKind::one_f_one_b: result.push_back(by_turns(shape, ahead)); break;
      case ScheduleKind::interleaved:
        result.push_back(by_turns(shape, shape.chunks == 1 ? ahead : 2 * ahead + (shape.chunks - 1) * shape.stages));
        break;
      case ScheduleKind::zb_h1: result.push_back(zb_h1(shape, stage)); break;
    }
  }
  return result;
}

std::size_t in_flight(const std::vector<ScheduledPass>& stage) {
  std::size_t now = 0, most = 0;
  for (const ScheduledPass& pass : stage) {
    if (pass.kind == WindowKind::forward) most = std::max(most, ++now);
    if (pass.kind == WindowKind::backward) --now;
  }
  return most;
}

}  // namespace tessera::plan
