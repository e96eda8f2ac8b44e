// The options of a trace, and its life in a run.
#include "trainer/src/run_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tessera::trainer {

namespace {

constexpr std::size_t most_traced_steps = 1000;  // a model of 100 units takes 2 MB for 100 of them

TracedSteps parse(const std::string& text) {
  const std::size_t dash = text.find('-');
  const auto first = number_in<std::uint64_t>(std::string_view(text).substr(0, dash));
  const auto last =
      dash == std::string::npos ? std::nullopt : number_in<std::uint64_t>(std::string_view(text).substr(dash + 1));
  if (!first || !last) {
    throw OptionError(fmt::format("--trace-steps takes the first and the last step, 3-5, and not \"{}\"", text));
  }
  if (*first == 0) throw OptionError(fmt::format("--trace-steps {}: steps count from 1", text));
  if (*last < *first) throw OptionError(fmt::format("--trace-steps {} ends before it begins", text));
  if (*last - *first >= most_traced_steps) {
    throw OptionError(fmt::format("--trace-steps {} is more than {} steps", text, most_traced_steps));
  }
  return {.first = *first, .last = *last};
}

TracedSteps default_steps(std::size_t done_before, std::size_t last_step) {
  const std::size_t count = std::min(default_traced_steps, last_step - done_before);
  const std::size_t first = std::min(done_before + untraced_steps, last_step - count) + 1;
  return {.first = first, .last = first + count - 1};
}

}  // namespace

void add_trace_options(CommandLine& line, RunOptions& options) {
  line.path("--trace", options.trace,
            "What every operation of some steps took, on every rank, for Perfetto (ui.perfetto.dev) and tessera trace "
            "summary");
  line.text("--trace-steps", options.trace_steps_text, "A-B",
            fmt::format("The first and the last of those steps [{} steps after the first {}]", default_traced_steps,
                        untraced_steps));
  line.flag("--draw-plan", options.draw_plan, "Prints the schedule: every operation with what it waits for");
}

void check_trace_options(const CommandLine& line, RunOptions& options) {
  if (!line.given("--trace-steps")) return;
  if (!options.trace) throw OptionError("--trace-steps needs --trace");
  options.trace_steps = parse(*options.trace_steps_text);
}

void require_traced_steps(const RunOptions& options, const RunLength& length) {
  if (!options.trace_steps || options.trace_steps->last <= length.last_step) return;
  throw OptionError(fmt::format("--trace-steps {} is beyond step {}, where this run ends", *options.trace_steps_text,
                                length.last_step));
}

RunTrace::RunTrace(tessera::FullyShard& model, const RunOptions& options, const RunLength& length,
                   std::size_t done_before) {
  if (!options.trace || done_before >= length.last_step) return;
  path_ = *options.trace;
  steps_ = options.trace_steps.value_or(default_steps(done_before, length.last_step));
  if (steps_.first <= done_before) {
    throw OptionError(
        fmt::format("--trace-steps {}: this run goes on from step {}", *options.trace_steps_text, done_before));
  }
  trace_.emplace(model.trace({.first = steps_.first, .last = steps_.last, .next = done_before + 1}));
}

void RunTrace::after(std::size_t step, const Say& say) {
  if (!trace_ || step != steps_.last) return;
  trace_->write(path_);
  say(fmt::format("trace    steps {} to {}, in {}", steps_.first, steps_.last, path_.string()));
}

}  // namespace tessera::trainer
