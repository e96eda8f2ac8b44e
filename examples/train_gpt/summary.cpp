// What a run is, and what it writes.
#include "train_gpt/summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/number_text.hpp"
#include "common/run_summary.hpp"
#include "train_gpt/text.hpp"

namespace examples {

namespace {

constexpr const char* margin = "  | ";

std::string shape_text(const GptShape& shape) {
  std::string text = fmt::format("GPT, {} layers of {} with {} heads", shape.layers, shape.dim, shape.heads);
  if (shape.activation_checkpointing) text += ", activations recomputed";
  if (!shape.fp32_units.empty()) text += fmt::format(", {} in fp32", fmt::join(shape.fp32_units, ", "));
  return text;
}

}  // namespace

std::string headline(const Job& job, tessera::FullyShard& model) {
  const tessera::TokenSplit& parts = job.data.parts;
  return ranks_line(job.options.run, model) +
         fmt::format("data     {}: {} tokens to train on, {} held out; sequences of {}, vocabulary {}\n", job.data.name,
                     grouped(parts.training.tokens()), grouped(parts.held_out.tokens()), job.shape.seq,
                     grouped(job.shape.vocabulary)) +
         model_lines(shape_text(job.shape), model) + run_lines(job.options.run, job.length, parts.training.size());
}

std::string evaluation_lines(const StepMetrics& now, const RunLength& length, const std::string& sample) {
  std::string text = fmt::format("{}   held-out loss {:.4f}", step_text(now, length), *now.held_out_loss);
  if (!sample.empty()) text += fmt::format("\n{}", indented(sample, margin));
  return text;
}

std::string closing_sample(const std::string& sample) { return fmt::format("\n{}", indented(sample, margin)); }

}  // namespace examples
