// A walk through the lists of a schedule that knows only what waits for what.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/plan/schedule.hpp"

namespace tessera::plan {

namespace {

std::string describe(std::size_t stage, const ScheduledPass& pass) {
  return fmt::format("stage {}: {} of micro-batch {} through its chunk {}", stage, to_string(pass.kind),
                     pass.micro_batch, pass.chunk);
}

void check_stage(const std::vector<ScheduledPass>& passes, std::size_t stage, const ScheduleShape& shape) {
  std::set<std::tuple<WindowKind, std::size_t, std::size_t>> done;
  for (const ScheduledPass& pass : passes) {
    const auto is_done = [&](WindowKind kind) { return done.contains({kind, pass.micro_batch, pass.chunk}); };
    const auto refuse = [&](std::string_view why) {
      throw UsageError(fmt::format("{}: {}", describe(stage, pass), why));
    };
    const bool back = pass.kind == WindowKind::backward || pass.kind == WindowKind::backward_input;
    if (!back && pass.kind != WindowKind::forward) refuse("a schedule has forward and backward passes");
    if (pass.micro_batch >= shape.micro_batches || pass.chunk >= shape.chunks) refuse("there is none");
    if (back && !is_done(WindowKind::forward)) refuse("comes before it went forward");
    if (is_done(pass.kind)) refuse("comes twice");
    if (pass.kind == WindowKind::backward_input && is_done(WindowKind::backward)) refuse("comes behind the rest of it");
    done.insert({pass.kind, pass.micro_batch, pass.chunk});
  }
  for (std::size_t m = 0; m < shape.micro_batches; ++m) {
    for (std::size_t chunk = 0; chunk < shape.chunks; ++chunk) {
      for (const WindowKind kind : {WindowKind::forward, WindowKind::backward}) {
        if (!done.contains({kind, m, chunk})) throw UsageError(describe(stage, {kind, m, chunk}) + ": is missing");
      }
    }
  }
}

// A pass waits for another chunk of the model. What one stage does in turn needs no wait.
class ScheduleWalk {
 public:
  ScheduleWalk(const Schedule& schedule, const ScheduleShape& shape) : schedule_(schedule), shape_(shape) {
    for (std::size_t stage = 0; stage < schedule.size(); ++stage) {
      for (const ScheduledPass& pass : schedule[stage]) {
        if (pass.kind == WindowKind::backward_input) split_.insert({pass.micro_batch, place(stage, pass)});
      }
    }
  }

  ScheduleTimes run(const PassSeconds& seconds, const std::vector<double>& slowdown) {
    ScheduleTimes result;
    result.begins.resize(schedule_.size());
    std::vector<double> now(schedule_.size(), 0), busy(schedule_.size(), 0);
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (std::size_t stage = 0; stage < schedule_.size(); ++stage) {
        std::vector<double>& begins = result.begins[stage];
        for (; begins.size() < schedule_[stage].size(); goes_on = true) {
          const ScheduledPass& pass = schedule_[stage][begins.size()];
          const std::optional<double> ready = ready_at(stage, pass);
          if (!ready) break;
          const double takes = seconds_of(stage, pass, seconds) * (slowdown.empty() ? 1 : slowdown.at(stage));
          begins.push_back(std::max(now[stage], *ready));
          now[stage] = begins.back() + takes;
          busy[stage] += takes;
          ended_[{passes_on(stage, pass), pass.micro_batch, place(stage, pass)}] = now[stage];
        }
      }
    }
    require_end(result);
    result.step = *std::max_element(now.begin(), now.end());
    for (const double each : busy) result.idle.push_back(result.step - each);
    return result;
  }

 private:
  // Counts the whole model's chunks, from its first to its last.
  std::size_t place(std::size_t stage, const ScheduledPass& pass) const { return pass.chunk * shape_.stages + stage; }
  bool is_split(std::size_t stage, const ScheduledPass& pass) const {
    return split_.contains({pass.micro_batch, place(stage, pass)});
  }
  // Others wait for this: the gradient of the input, whichever pass forms it.
  WindowKind passes_on(std::size_t stage, const ScheduledPass& pass) const {
    if (pass.kind != WindowKind::backward || is_split(stage, pass)) return pass.kind;
    return WindowKind::backward_input;
  }

  std::optional<double> ready_at(std::size_t stage, const ScheduledPass& pass) const {
    const std::size_t mine = place(stage, pass), last = shape_.stages * shape_.chunks - 1;
    const WindowKind kind = passes_on(stage, pass);
    if (kind == WindowKind::backward) return 0;
    if (mine == (kind == WindowKind::forward ? 0 : last)) return 0;
    const auto found = ended_.find({kind, pass.micro_batch, kind == WindowKind::forward ? mine - 1 : mine + 1});
    if (found == ended_.end()) return std::nullopt;
    return found->second;
  }

  double seconds_of(std::size_t stage, const ScheduledPass& pass, const PassSeconds& seconds) const {
    if (pass.kind == WindowKind::forward) return seconds.forward;
    if (pass.kind == WindowKind::backward_input) return seconds.backward_input;
    return seconds.backward_parameters + (is_split(stage, pass) ? 0 : seconds.backward_input);
  }

  void require_end(const ScheduleTimes& result) const {
    std::string text;
    for (std::size_t stage = 0; stage < schedule_.size(); ++stage) {
      const std::size_t at = result.begins[stage].size();
      if (at == schedule_[stage].size()) continue;
      text += fmt::format("{}{}", text.empty() ? "" : "; ", describe(stage, schedule_[stage][at]));
    }
    if (!text.empty()) throw UsageError("stages wait for each other for ever: " + text);
  }

  const Schedule& schedule_;
  ScheduleShape shape_;
  std::set<std::pair<std::size_t, std::size_t>> split_;  // micro-batches and places whose backward pass is in two
  std::map<std::tuple<WindowKind, std::size_t, std::size_t>, double> ended_;
};

}  // namespace

ScheduleTimes times(const Schedule& schedule, const ScheduleShape& shape, const PassSeconds& seconds,
                    const std::vector<double>& slowdown) {
  if (schedule.size() != shape.stages) {
    throw UsageError(
        fmt::format("a schedule of {} lists for {} stages: give one for each", schedule.size(), shape.stages));
  }
  for (std::size_t stage = 0; stage < schedule.size(); ++stage) check_stage(schedule[stage], stage, shape);
  return ScheduleWalk(schedule, shape).run(seconds, slowdown);
}

void check(const Schedule& schedule, const ScheduleShape& shape) { times(schedule, shape); }

std::string draw(const Schedule& schedule, const ScheduleShape& shape) {
  const ScheduleTimes all = times(schedule, shape);
  std::string text;
  for (std::size_t stage = 0; stage < schedule.size(); ++stage) {
    std::vector<std::string> cells(static_cast<std::size_t>(all.step), ".");
    std::set<std::pair<std::size_t, std::size_t>> split;
    for (std::size_t i = 0; i < schedule[stage].size(); ++i) {
      const ScheduledPass& pass = schedule[stage][i];
      const std::pair key(pass.micro_batch, pass.chunk);
      const bool forward = pass.kind == WindowKind::forward, half = pass.kind == WindowKind::backward_input;
      if (half) split.insert(key);
      const bool whole = !forward && !half && !split.contains(key);
      const std::string label = fmt::format("{}{}{}",
                                            forward ? 'F'
                                            : half  ? 'b'
                                            : whole ? 'B'
                                                    : 'W',
                                            pass.micro_batch, std::string(pass.chunk, '\''));
      const auto first = static_cast<std::size_t>(all.begins[stage][i]);
      for (std::size_t cell = first; cell < first + (whole ? 2 : 1); ++cell) cells[cell] = label;
    }
    text += fmt::format("stage {} ", stage);
    for (const std::string& cell : cells) text += fmt::format(" {:<4}", cell);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace tessera::plan
