// One rank's training run, for the loop that all trainers share: how much of the held-out samples the model gets right,
// the lines about it, and the training itself.
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "models/mlp/model.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/trainer.hpp"
#include "trainer/mlp/job.hpp"

namespace train_mlp {

namespace {

namespace nn = tessera::nn;

struct EvaluationResult {
  std::size_t correct = 0;
  std::size_t samples = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(samples); }
};

// Counts the held-out samples that the model gets right. It must stay until the model is gone.
template <typename T>
class Evaluation {
 public:
  Evaluation(const HeldOut& held_out, tessera::World& world, const RunOptions& options)
      : world_(world), rows_(*held_out.source, held_out.first, held_out.count, world, options) {}

  // Between steps. Collective; synchronises.
  EvaluationResult run(Mlp<T>& mlp, tessera::FullyShard& model, const PassDone& pass_done) {
    double correct = 0.0;
    tessera::Stream& stream = model.stream();
    rows_.for_each(stream, pass_done, [&](const LabelledRows& rows, std::span<const std::int32_t>) {
      nn::CrossEntropyRows<T> answer;
      answer.logits = mlp.evaluate(model, rows.features);
      answer.labels = rows.targets.labels.data();
      if (marks_) answer.marks = reinterpret_cast<float*>(marks_->data());
      nn::count_correct<T>(stream, answer, correct_.at(stream));
      correct_.fetch(stream);
      model.synchronize();
      correct += correct_.values().front();
    });
    return {static_cast<std::size_t>(std::llround(world_.sum(correct, "correct held-out samples"))), rows_.used()};
  }
  void reserve(tessera::Stream& stream, std::size_t samples) {
    rows_.reserve(stream, samples);
    correct_.at(stream);
    if (!computes_on_host(stream)) marks_.emplace(stream.device(), tessera::Bytes(samples * sizeof(float)));
  }

 private:
  tessera::World& world_;
  HeldOutRows rows_;
  FromDevice<double> correct_{1};        // of the last pass
  std::optional<tessera::Arena> marks_;  // of a device: a number for each sample of a pass
};

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

template <typename T>
class MlpTraining final : public Training {
 public:
  MlpTraining(tessera::World& world, const Job& job)
      : job_(job),
        batches_(*job.data.training, job.data.training_samples, world, job.options.run),
        mlp_(shape_of(job)),
        evaluation_(job.data.held_out, world, job.options.run),
        model_(world, job.sharding) {
    mlp_.add_to(model_, job.options.run.batch, model_.world().device().kind());
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    mlp_.use(model_.activation_memory(), model_.stream().device().kind());
    batches_.start(model_.stream(), from);
    if (has_held_out()) evaluation_.reserve(model_.stream(), job_.options.run.batch);
  }
  tessera::SamplerState sampler() const override { return batches_.state(); }
  std::string headline() override { return train_mlp::headline(job_, model_); }
  std::size_t begin_step(std::size_t) override { return batches_.next(); }
  void train_micro_batch(const MicroBatch& micro) override {
    const LabelledRows rows = batches_.rows(model_.stream(), micro);
    mlp_.train(model_, rows.features, {.targets = rows.targets, .loss = micro.loss});
  }

  bool has_held_out() const override { return job_.data.held_out.count > 0; }
  std::string evaluate(StepMetrics& now, const PassDone& pass_done) override {
    const EvaluationResult result = evaluation_.run(mlp_, model_, pass_done);
    now.accuracy = result.accuracy();
    now.held_out_samples = result.samples;
    return evaluation_line(now, job_, result);
  }
  tessera::Bytes batch_bytes() const override { return batches_.bytes(); }

 private:
  const Job& job_;
  // The model comes last, so that these outlive its queued work, which reads and writes them.
  LabelledBatches batches_;
  Mlp<T> mlp_;
  Evaluation<T> evaluation_;
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, RunMetrics* metrics) {
  tessera::trainer::train(world, {.options = job.options.run, .length = job.length, .metrics = metrics}, [&] {
    return tessera::nn::with_element(job.options.run.precision, [&](auto element) -> std::unique_ptr<Training> {
      return std::make_unique<MlpTraining<decltype(element)>>(world, job);
    });
  });
}

}  // namespace train_mlp
