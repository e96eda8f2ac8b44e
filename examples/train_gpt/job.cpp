// Limits on options keep every product here below 2^64.
#include "train_gpt/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "common/device_options.hpp"
#include "common/element.hpp"
#include "common/fit.hpp"
#include "tessera/base/error.hpp"
#include "train_gpt/model.hpp"

namespace examples {

using tessera::Bytes;

namespace {

constexpr std::size_t default_epochs = 3;
constexpr std::size_t default_sample = 300;

GptShape shape_of(const GptOptions& options, const TokenData& data) {
  return {.layers = options.layers,
          .dim = options.dim,
          .heads = options.heads,
          .seq = options.seq,
          .vocabulary = data.vocabulary,
          .dropout = static_cast<float>(options.dropout),
          .dropout_seed = options.run.seed,
          .activation_checkpointing = options.activation_checkpointing,
          .fp32_units = options.fp32_units};
}

// A pattern that matches nothing is a mistake.
void require_units(const GptShape& shape) {
  const std::vector<std::string> names = unit_names(shape);
  for (const std::string& pattern : shape.fp32_units) {
    GptShape alone = shape;
    alone.fp32_units = {pattern};
    const bool used =
        std::any_of(names.begin(), names.end(), [&](const auto& name) { return stays_in_fp32(alone, name); });
    if (used) continue;
    throw OptionError(fmt::format("--fp32-units: \"{}\" matches no unit; there are {}, {} to {} and {}", pattern,
                                  embedding_name, block_name(0), block_name(shape.layers - 1), final_name));
  }
}

std::size_t sample_length(const GptOptions& options, const TokenData& data) {
  const std::size_t sample = options.sample.value_or(data.is_text() ? default_sample : 0);
  if (sample == 0 || data.is_text()) return sample;
  throw OptionError(
      fmt::format("--sample {}: {} has token ids, and this program cannot turn them into text", sample, data.name));
}

Bytes activation_bytes(const Job& job) {
  return with_element(job.options.run.precision, [&](auto element) {
    return Gpt<decltype(element)>::planned_activation_bytes(job.shape, job.options.run.batch,
                                                            device_kind(job.options.run));
  });
}

}  // namespace

Bytes batch_bytes(const Job& job) {
  constexpr std::size_t slots = batches_ahead + 1;
  constexpr std::size_t per_token = 2 * sizeof(std::int32_t) + sizeof(float);
  return Bytes(slots * per_token * job.shape.seq * job.options.run.samples_per_rank());
}

Job make_job(const GptOptions& options) {
  const RunOptions& run = options.run;
  Job job{.options = options, .data = load_tokens(options)};
  const std::size_t samples = job.data.parts.training.size();
  job.shape = shape_of(options, job.data);
  require_units(job.shape);
  require_enough_samples(run, job.data.name, samples);
  job.length = run_length(run, samples / run.samples_per_step(), default_epochs);
  job.sample = sample_length(options, job.data);
  job.sharding =
      fitting_options(run, {.activations = activation_bytes(job),
                            .batches = batch_bytes(job),
                            .smaller = "--batch, --seq, --layers or --dim, or --activation-checkpointing yes"});
  job.sharding.program = program(job.shape);
  return job;
}

}  // namespace examples
