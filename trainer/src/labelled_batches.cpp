// Short micro-batches are the only ones with weights.
#include "tessera/trainer/labelled_batches.hpp"

namespace tessera::trainer {

void RowsOnDevice::reserve(Stream& stream, std::size_t rows, std::size_t columns) {
  features_.reserve(stream, rows * columns);
  labels_.reserve(stream, rows);
  weights_.reserve(stream, rows);
}

LabelledRows RowsOnDevice::put(Stream& stream, std::span<const float> features, std::span<const std::int32_t> labels,
                               std::span<const float> weights) {
  const std::size_t columns = labels.empty() ? 0 : features.size() / labels.size();
  LabelledRows rows{.features = {features_.put(stream, features).data(), labels.size(), columns},
                    .targets = {.labels = labels_.put(stream, labels)}};
  if (!weights.empty()) rows.targets.weights = weights_.put(stream, weights);
  return rows;
}

LabelledBatches::LabelledBatches(const LabelledSource& source, std::size_t samples, World& world,
                                 const RunOptions& options, Short of_short)
    : source_(source), options_(options), of_short_(of_short), sampler_(sampler_options(options, samples, world)) {}

void LabelledBatches::start(Stream& stream, const std::optional<SamplerState>& from, std::size_t threads,
                            std::size_t at_once) {
  on_device_.reserve(stream, options_.batch * at_once, source_.columns());
  if (from) sampler_.restore(*from);
  loader_.emplace(sampler_, LoaderOptions{.depth = batches_ahead, .threads = threads},
                  [this](const SampleBatch& chosen, LabelledBatch& batch) { source_.read(chosen, batch); });
}

std::size_t LabelledBatches::next() {
  batch_ = loader_->next();
  return batch_->global_samples;
}

LabelledRows LabelledBatches::rows(Stream& stream, const Training::MicroBatch& micro) {
  const std::size_t first = micro.index * options_.batch;
  const bool is_short = micro.samples < options_.batch;
  const bool cuts = of_short_ == Short::cut;
  const std::size_t rows = cuts ? micro.samples : options_.batch;
  std::span<const float> weights;
  if (is_short && cuts) {
    share_.assign(rows, static_cast<float>(static_cast<double>(rows) / static_cast<double>(options_.batch)));
    weights = share_;
  } else if (is_short) {
    weights = std::span(batch_->weights).subspan(first, rows);
  }
  return on_device_.put(stream, std::span(batch_->features).subspan(first * batch_->columns, rows * batch_->columns),
                        std::span(batch_->labels).subspan(first, rows), weights);
}

std::vector<LabelledRows> LabelledBatches::rows_of_step(Stream& stream, std::span<const Training::MicroBatch> all) {
  const std::size_t rows = options_.batch, columns = source_.columns();
  const LabelledRows step = on_device_.put(stream, batch_->features, batch_->labels, batch_->weights);
  std::vector<LabelledRows> result;
  for (std::size_t micro = 0; micro < options_.accumulate; ++micro) {
    result.push_back({.features = {step.features.data + micro * rows * columns, rows, columns},
                      .targets = {.labels = step.targets.labels.subspan(micro * rows, rows)}});
    const bool is_whole = micro < all.size() && all[micro].samples == rows;
    if (!is_whole) result.back().targets.weights = step.targets.weights.subspan(micro * rows, rows);
  }
  return result;
}

Bytes LabelledBatches::bytes(const LabelledSource& source, const RunOptions& options) {
  constexpr std::size_t slots = batches_ahead + 1;
  const std::size_t per_sample = source.columns() * sizeof(float) + sizeof(std::int32_t) + sizeof(float);
  return Bytes(slots * per_sample * options.samples_per_rank());
}

}  // namespace tessera::trainer
