// Labelled samples on their way to a training: dealt to ranks, loaded ahead, and brought to where the rank computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/labelled_source.hpp"
#include "tessera/data/loader.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/trainer/device_data.hpp"
#include "tessera/trainer/held_out.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/training.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// A model is given these rows of a micro-batch, for work that is enqueued before the next one is asked for.
struct LabelledRows {
  nn::MatrixView<const float> features;  // [rows, columns]
  nn::Targets targets;
};

// Samples of a batch on a device. Must outlive the work that reads them: a model stands behind it in its class.
class RowsOnDevice {
 public:
  void reserve(Stream& stream, std::size_t rows, std::size_t columns);
  // `weights` may be empty: 1 for all.
  LabelledRows put(Stream& stream, std::span<const float> features, std::span<const std::int32_t> labels,
                   std::span<const float> weights);

 private:
  OnDevice<float> features_;
  OnDevice<std::int32_t> labels_;
  OnDevice<float> weights_;
};

// The samples that a rank trains on. Short micro-batches (the end of an epoch) have as many rows as all others, those
// that fill up with weight 0; or, for networks that look at all rows together (batch norm), only rows that count, whose
// mean loss becomes a sum over as many as a whole micro-batch has by weights that are all alike.
class LabelledBatches {
 public:
  enum class Short { filled_up, cut };

  // The first `samples` of the source, which must stay, as must the options.
  LabelledBatches(const LabelledSource& source, std::size_t samples, World& world, const RunOptions& options,
                  Short of_short = Short::filled_up);

  // Once, after the model's finalize(): where a run before left off, or from the first.
  // at_once: micro-batches that stand on the device together; rows_of_step() has all of a step.
  void start(Stream& stream, const std::optional<SamplerState>& from, std::size_t threads = 1, std::size_t at_once = 1);
  SamplerState state() const { return loader_->state(); }
  std::size_t next();  // what Training::begin_step() returns
  LabelledRows rows(Stream& stream, const Training::MicroBatch& micro);
  // All micro-batches of a step at once, each filled up, for work that is enqueued before the next step: of those that
  // are not whole, also of those behind the last of `all`, rows have weights.
  std::vector<LabelledRows> rows_of_step(Stream& stream, std::span<const Training::MicroBatch> all);
  // Memory of the batches that are loaded ahead.
  static Bytes bytes(const LabelledSource& source, const RunOptions& options);
  Bytes bytes() const { return bytes(source_, options_); }

 private:
  const LabelledSource& source_;
  const RunOptions& options_;
  Short of_short_;
  DistributedSampler sampler_;  // where the loader starts
  std::optional<Loader<LabelledBatch>> loader_;
  const LabelledBatch* batch_ = nullptr;  // of this step
  std::vector<float> share_;
  RowsOnDevice on_device_;
};

// The held-out samples of an evaluation, pass by pass.
class HeldOutRows {
 public:
  // Samples [first, first + count) of the source, which must stay.
  HeldOutRows(const LabelledSource& source, std::size_t first, std::size_t count, const World& world,
              const RunOptions& options)
      : source_(source), first_(first), slice_(count, world, options) {}

  void reserve(Stream& stream, std::size_t rows) { on_device_.reserve(stream, rows, source_.columns()); }
  std::size_t used() const { return slice_.used(); }  // samples of an evaluation, over all ranks
  // Calls body(rows, labels as the host has them) for each pass; rows may be none. The same number on every rank.
  template <typename Body>
  void for_each(Stream& stream, const PassDone& pass_done, const Body& body) {
    for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
      source_.read(slice_.samples(pass, first_), batch_);
      LabelledRows rows = on_device_.put(stream, batch_.features, batch_.labels, {});
      rows.features.columns = source_.columns();  // also where there are no rows
      body(rows, std::span<const std::int32_t>(batch_.labels));
      pass_done(pass + 1, slice_.passes());
    }
  }

 private:
  const LabelledSource& source_;
  std::size_t first_;
  HeldOutSlice slice_;
  LabelledBatch batch_;
  RowsOnDevice on_device_;
};

}  // namespace tessera::trainer

#pragma GCC visibility pop
