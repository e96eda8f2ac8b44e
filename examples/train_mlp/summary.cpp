// What a run is, in five lines, and what became of it.
#include "train_mlp/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/number_text.hpp"
#include "train_mlp/fit.hpp"

namespace examples {

namespace {

std::size_t parameter_count(const tessera::FullyShard& model) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < model.unit_count(); ++i) {
    for (const tessera::Parameter* parameter : model.unit(i).parameters()) count += parameter->elements();
  }
  return count;
}

std::size_t operation_count(const tessera::plan::Plan& plan) {
  std::size_t count = 0;
  for (const tessera::plan::Segment& segment : plan.segments) count += segment.operations.size();
  return count;
}

std::string layers_text(const MlpShape& shape) {
  std::string text = fmt::format("{} -> {}", shape.in, shape.hidden);
  if (shape.depth > 2) {
    text += fmt::format(" -> ({} more of {})", shape.depth, shape.hidden);
  } else {
    for (std::size_t i = 0; i < shape.depth; ++i) text += fmt::format(" -> {}", shape.hidden);
  }
  return text + fmt::format(" -> {}", shape.classes);
}

std::string sharding_text(const RunOptions& options) {
  std::string text = fmt::format("strategy {}", to_string(options.strategy));
  if (options.strategy == tessera::Strategy::fsdp) {
    text += fmt::format(", prefetch {}", options.prefetch);
    if (!options.reshard_after_forward) text += ", units stay whole from forward to backward";
  }
  return text;
}

std::string threads_text(int threads) {
  return threads == 1 ? "threads of this process" : fmt::format("with {} threads each", threads);
}

std::string notes(const RunOptions& options) {
  std::string text;
  for (const std::string& name : options.without_effect) {
    text += fmt::format("\nnote     {} is without effect: strategy {} keeps every unit whole", name,
                        to_string(options.strategy));
  }
  return text;
}

std::string batch_text(const RunOptions& options) {
  std::string text = fmt::format("{} ranks x {}", options.ranks, options.batch);
  if (options.accumulate > 1) text += fmt::format(" x {} micro-batches", options.accumulate);
  return text;
}

}  // namespace

std::string headline(const Job& job, tessera::FullyShard& model) {
  const RunOptions& run = job.options.run;
  const Dataset& data = job.data;
  const double epochs =
      static_cast<double>(job.length.steps) / static_cast<double>(data.training_samples / run.samples_per_step());
  std::string text =
      fmt::format("ranks    {}, {}; {}, fp32\n", run.ranks, threads_text(model.world().threads()), sharding_text(run));
  text += fmt::format("data     {}: {} samples to train on, {} held out; {} features, {} classes\n", data.name,
                      grouped(data.training_samples), grouped(data.held_out.count), data.columns(), data.classes());
  text += fmt::format("model    {}: {} parameters in {} units\n", layers_text(shape_of(job)),
                      grouped(parameter_count(model)), model.unit_count());
  text += fmt::format("plan     {} operations in {} segments, verified\n", grouped(operation_count(model.plan())),
                      model.plan().segments.size());
  text += fmt::format("run      {} steps of {} samples ({}), {:.1f} epochs; {}, learning rate {}",
                      grouped(job.length.steps), grouped(run.samples_per_step()), batch_text(run), epochs,
                      to_string(run.optimizer), learning_rate(run));
  if (job.length.last_step < job.length.steps) text += fmt::format(", ends after step {}", job.length.last_step);
  return text + notes(run) + "\n";
}

std::string evaluation_line(const StepMetrics& now, std::size_t steps, const EvaluationResult& result) {
  return fmt::format("step {:>{}}/{}   loss {:.4f}   held-out accuracy {:5.1f} % ({} of {})", now.step,
                     fmt::formatted_size("{}", steps), steps, now.loss, 100.0 * result.accuracy(), result.correct,
                     result.samples);
}

std::string closing_line(const Job& job, double seconds) {
  const double samples =
      static_cast<double>(job.length.last_step) * static_cast<double>(job.options.run.samples_per_step());
  return fmt::format("\n{} steps in {}, {} samples/s with evaluations", grouped(job.length.last_step),
                     shown_seconds(seconds), grouped(static_cast<std::uint64_t>(std::llround(samples / seconds))));
}

}  // namespace examples
