// What a run is, in five lines.
#include "train_mlp/summary.hpp"

#include <fmt/format.h>

#include "common/number_text.hpp"
#include "common/run_summary.hpp"

namespace examples {

namespace {

std::string layers_text(const MlpShape& shape) {
  std::string text = fmt::format("{} -> {}", shape.in, shape.hidden);
  if (shape.depth > 2) {
    text += fmt::format(" -> ({} more of {})", shape.depth, shape.hidden);
  } else {
    for (std::size_t i = 0; i < shape.depth; ++i) text += fmt::format(" -> {}", shape.hidden);
  }
  return text + fmt::format(" -> {}", shape.classes);
}

}  // namespace

std::string headline(const Job& job, tessera::FullyShard& model) {
  const Dataset& data = job.data;
  return ranks_line(job.options.run, model) +
         fmt::format("data     {}: {} samples to train on, {} held out; {} features, {} classes\n", data.name,
                     grouped(data.training_samples), grouped(data.held_out.count), data.columns(), data.classes()) +
         model_lines(layers_text(shape_of(job)), model) + run_lines(job.options.run, job.length, data.training_samples);
}

std::string evaluation_line(const StepMetrics& now, const RunLength& length, const EvaluationResult& result) {
  return fmt::format("{}   held-out accuracy {:5.1f} % ({} of {})", step_text(now, length), 100.0 * result.accuracy(),
                     result.correct, result.samples);
}

}  // namespace examples
