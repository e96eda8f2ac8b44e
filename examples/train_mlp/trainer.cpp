// One rank's training run, for the loop that all trainers share: how much of the held-out samples the model gets right,
// the lines about it, and the training itself.
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>

#include "common/device_data.hpp"
#include "common/element.hpp"
#include "common/held_out.hpp"
#include "common/metrics.hpp"
#include "common/number_text.hpp"
#include "common/run_options.hpp"
#include "common/run_summary.hpp"
#include "common/training_loop.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/loader.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "train_mlp/job.hpp"
#include "train_mlp/model.hpp"

namespace examples {

namespace {

namespace nn = tessera::nn;

struct EvaluationResult {
  std::size_t correct = 0;
  std::size_t samples = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(samples); }
};

template <typename T>
class Evaluation {
 public:
  // `held_out` must stay, and the evaluation until the model is gone.
  Evaluation(const HeldOut& held_out, tessera::World& world, const RunOptions& options)
      : held_out_(held_out), world_(world), slice_(held_out.count, world, options) {}

  // Between steps. Every rank opens the same number of windows, also with a shorter slice than others', or none.
  // Collective; synchronises.
  EvaluationResult run(Mlp<T>& mlp, tessera::FullyShard& model, const PassDone& pass_done);
  void reserve(tessera::Stream& stream, std::size_t samples, std::size_t columns) {
    features_.reserve(stream, samples * columns);
    labels_.reserve(stream, samples);
    correct_.at(stream);
    if (!computes_on_host(stream)) marks_.emplace(stream.device(), tessera::Bytes(samples * sizeof(float)));
  }

 private:
  void count(const tessera::SampleBatch& chosen, Mlp<T>& mlp, tessera::FullyShard& model);

  const HeldOut& held_out_;
  tessera::World& world_;
  HeldOutSlice slice_;
  tessera::LabelledBatch batch_;
  OnDevice<float> features_;
  OnDevice<std::int32_t> labels_;
  FromDevice<double> correct_{1};        // of the last pass
  std::optional<tessera::Arena> marks_;  // of a device: a number for each sample of a pass
};

template <typename T>
EvaluationResult Evaluation<T>::run(Mlp<T>& mlp, tessera::FullyShard& model, const PassDone& pass_done) {
  double correct = 0.0;
  for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
    count(slice_.samples(pass, held_out_.first), mlp, model);
    correct += correct_.values().front();
    pass_done(pass + 1, slice_.passes());
  }
  const double all = world_.sum(correct, "correct held-out samples");
  return {static_cast<std::size_t>(std::llround(all)), slice_.used()};
}

template <typename T>
void Evaluation<T>::count(const tessera::SampleBatch& chosen, Mlp<T>& mlp, tessera::FullyShard& model) {
  held_out_.source->read(chosen, batch_);
  nn::CrossEntropyRows<T> answer;
  tessera::Stream& stream = model.stream();
  const std::span<const float> features = features_.put(stream, batch_.features);
  answer.logits = mlp.evaluate(model, {features.data(), batch_.rows, batch_.columns});
  answer.labels = labels_.put(stream, batch_.labels).data();
  if (marks_) answer.marks = reinterpret_cast<float*>(marks_->data());
  nn::count_correct<T>(stream, answer, correct_.at(stream));
  correct_.fetch(stream);
  model.synchronize();
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

std::string headline(const Job& job, tessera::FullyShard& model) {
  const Dataset& data = job.data;
  return ranks_line(job.options.run, model) +
         fmt::format("data     {}: {} samples to train on, {} held out; {} features, {} classes\n", data.name,
                     grouped(data.training_samples), grouped(data.held_out.count), data.columns(), data.classes()) +
         model_lines(layers_text(shape_of(job)), model) + run_lines(job.options.run, job.length, data.training_samples);
}

std::string evaluation_line(const StepMetrics& now, const Job& job, const EvaluationResult& result) {
  std::string text = fmt::format("{}   held-out accuracy {:5.1f} % ({} of {})", step_text(now, job.length),
                                 100.0 * result.accuracy(), result.correct, result.samples);
  if (result.samples < job.data.held_out.count) text += fmt::format(", {} held out", grouped(job.data.held_out.count));
  return text;
}

using tessera::LabelledBatch;

template <typename T>
class MlpTraining final : public Training {
 public:
  MlpTraining(tessera::World& world, const Job& job)
      : job_(job),
        mlp_(shape_of(job)),
        evaluation_(job.data.held_out, world, job.options.run),
        sampler_(sampler_options(job.options.run, job.data.training_samples, world)),
        model_(world, job.sharding) {
    mlp_.add_to(model_);
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    mlp_.use(model_.activation_memory(), model_.stream().device().kind());
    reserve();
    if (from) sampler_.restore(*from);
    loader_.emplace(
        sampler_, tessera::LoaderOptions{.depth = batches_ahead},
        [this](const tessera::SampleBatch& chosen, LabelledBatch& batch) { job_.data.training->read(chosen, batch); });
  }
  tessera::SamplerState sampler() const override { return loader_->state(); }
  std::string headline() override { return examples::headline(job_, model_); }
  std::size_t begin_step(std::size_t) override {
    batch_ = loader_->next();
    return batch_->global_samples;
  }

  void train_micro_batch(const MicroBatch& micro) override {
    const std::size_t rows = job_.options.run.batch;
    const std::size_t first = micro.index * rows;
    const std::span<const float> features = features_.put(
        model_.stream(), std::span(batch_->features).subspan(first * batch_->columns, rows * batch_->columns));
    const std::span<const std::int32_t> labels =
        labels_.put(model_.stream(), std::span(batch_->labels).subspan(first, rows));
    nn::Targets targets{.labels = labels};
    if (micro.samples < rows) {  // the rest fills up
      targets.weights = weights_.put(model_.stream(), std::span(batch_->weights).subspan(first, rows));
    }
    mlp_.train(model_, {features.data(), rows, batch_->columns}, {.targets = targets, .loss = micro.loss});
  }

  bool has_held_out() const override { return job_.data.held_out.count > 0; }

  std::string evaluate(StepMetrics& now, const PassDone& pass_done) override {
    const EvaluationResult result = evaluation_.run(mlp_, model_, pass_done);
    now.accuracy = result.accuracy();
    now.held_out_samples = result.samples;
    return evaluation_line(now, job_, result);
  }

  void add_unplanned(tessera::probe::RankMemory& memory) const override {
    memory.add_unplanned("batches", batch_bytes(job_));
  }

 private:
  // Reserves memory for the largest batches that come.
  void reserve() {
    tessera::Stream& stream = model_.stream();
    const std::size_t samples = job_.options.run.batch;
    features_.reserve(stream, samples * job_.data.columns());
    labels_.reserve(stream, samples);
    weights_.reserve(stream, samples);
    if (has_held_out()) evaluation_.reserve(stream, samples, job_.data.columns());
  }

  const Job& job_;
  // The model comes last, so that these outlive its queued work, which reads and writes them.
  OnDevice<float> features_;
  OnDevice<std::int32_t> labels_;
  OnDevice<float> weights_;
  Mlp<T> mlp_;
  Evaluation<T> evaluation_;
  tessera::DistributedSampler sampler_;  // where the loader starts
  std::optional<tessera::Loader<LabelledBatch>> loader_;
  const LabelledBatch* batch_ = nullptr;  // of this step
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, RunMetrics* metrics) {
  TrainingLoop loop(world, job.options.run, job.length, metrics, {});
  with_element(job.options.run.precision, [&](auto element) {
    MlpTraining<decltype(element)> training(world, job);
    loop.run(training);
  });
}

}  // namespace examples
