// Limits on options keep every product here below 2^64.
#include "train_mlp/job.hpp"

#include "common/device_options.hpp"
#include "common/element.hpp"
#include "common/fit.hpp"

namespace examples {

using tessera::Bytes;

namespace {

Bytes activation_bytes(const Job& job) {
  return with_element(job.options.run.precision, [&](auto element) {
    return Mlp<decltype(element)>::planned_activation_bytes(shape_of(job), job.options.run.batch,
                                                            device_kind(job.options.run));
  });
}

}  // namespace

MlpShape shape_of(const Job& job) {
  return {.in = job.data.columns(),
          .hidden = job.options.hidden,
          .depth = job.options.depth,
          .classes = job.data.classes()};
}

Bytes batch_bytes(const Job& job) {
  constexpr std::size_t slots = batches_ahead + 1;
  const std::size_t per_sample = job.data.columns() * sizeof(float) + sizeof(std::int32_t) + sizeof(float);
  return Bytes(slots * per_sample * job.options.run.samples_per_rank());
}

Job make_job(const MlpOptions& options) {
  const RunOptions& run = options.run;
  Job job{.options = options, .data = load_dataset(options.data, run.seed)};
  require_enough_samples(run, job.data.name, job.data.training_samples);
  job.length = run_length(run, job.data.training_samples / run.samples_per_step(), job.data.default_epochs);
  job.sharding = fitting_options(
      run,
      {.activations = activation_bytes(job), .batches = batch_bytes(job), .smaller = "--batch, --hidden or --depth"});
  return job;
}

}  // namespace examples
