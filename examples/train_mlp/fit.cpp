// Limits on options keep every product here below 2^64.
#include "train_mlp/fit.hpp"

#include <fmt/format.h>

#include "common/host_memory.hpp"
#include "common/number_text.hpp"
#include "tessera/base/error.hpp"
#include "train_mlp/element.hpp"

namespace examples {

using tessera::Bytes;

MlpShape shape_of(const Job& job) {
  return {.in = job.data.columns(),
          .hidden = job.options.hidden,
          .depth = job.options.depth,
          .classes = job.data.classes()};
}

void require_enough_samples(const RunOptions& options, const Dataset& data) {
  if (options.samples_per_step() <= data.training_samples) return;
  throw OptionError(
      fmt::format("--batch {} × --accumulate {} × --ranks {} takes {} samples for a step, but {} has {} to "
                  "train on",
                  options.batch, options.accumulate, options.ranks, grouped(options.samples_per_step()), data.name,
                  grouped(data.training_samples)));
}

Bytes batch_bytes(const Job& job) {
  constexpr std::size_t slots = batches_ahead + 1;
  const std::size_t per_sample = job.data.columns() * sizeof(float) + sizeof(std::int32_t) + sizeof(float);
  return Bytes(slots * per_sample * job.options.run.samples_per_rank());
}

namespace {

// Of a rank, for micro-batches of --batch rows.
Bytes activation_bytes(const Job& job) {
  return with_element(job.options.run.precision, [&](auto element) {
    return Mlp<decltype(element)>::planned_activation_bytes(shape_of(job), job.options.run.batch);
  });
}

}  // namespace

tessera::FullyShardOptions fitting_options(const Job& job) {
  const Bytes share(host_memory().count() / job.options.run.ranks);
  const Bytes activations = activation_bytes(job);
  const Bytes batches = batch_bytes(job);
  if (activations + batches >= share) {
    throw tessera::MemoryError(fmt::format(
        "activations and batches need {} per rank, but each of the {} ranks has {} of this machine's memory: "
        "take a smaller --batch, --hidden or --depth",
        to_string(activations + batches), job.options.run.ranks, to_string(share)));
  }
  tessera::FullyShardOptions options = sharding_options(job.options.run);
  options.activations = activations;
  options.memory_limit = share - batches;
  return options;
}

}  // namespace examples
