// The multilayer perceptron on labelled samples.
#include "train_mlp/trainer.hpp"

#include "common/device_data.hpp"
#include "common/element.hpp"
#include "common/training_loop.hpp"
#include "tessera/data/loader.hpp"
#include "train_mlp/evaluation.hpp"
#include "train_mlp/model.hpp"
#include "train_mlp/summary.hpp"

namespace examples {

namespace {

using tessera::LabelledBatch;

template <typename T>
class MlpTraining final : public Training {
 public:
  MlpTraining(tessera::World& world, const Job& job)
      : job_(job),
        mlp_(shape_of(job)),
        evaluation_(job.data.held_out, world, job.options.run.batch),
        sampler_(sampler_options(job.options.run, job.data.training_samples, world)),
        model_(world, job.sharding) {
    mlp_.add_to(model_);
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    mlp_.use(model_.activation_memory(), model_.stream().device().kind());
    if (from) sampler_.restore(*from);
    loader_.emplace(
        sampler_, tessera::LoaderOptions{.depth = batches_ahead},
        [this](const tessera::SampleBatch& chosen, LabelledBatch& batch) { job_.data.training->read(chosen, batch); });
  }
  tessera::SamplerState sampler() const override { return loader_->state(); }
  std::string headline() override { return examples::headline(job_, model_); }
  void begin_step(std::size_t) override { batch_ = loader_->next(); }

  void train_micro_batch(std::size_t micro, float* loss) override {
    const std::size_t rows = job_.options.run.batch;
    const std::size_t first = micro * rows;
    const std::span<const float> features = features_.put(
        model_.stream(), std::span(batch_->features).subspan(first * batch_->columns, rows * batch_->columns));
    const std::span<const std::int32_t> labels =
        labels_.put(model_.stream(), std::span(batch_->labels).subspan(first, rows));
    mlp_.train(model_, {features.data(), rows, batch_->columns}, {.targets = {.labels = labels}, .loss = loss});
  }

  bool has_held_out() const override { return job_.data.held_out.count > 0; }

  std::string evaluate(StepMetrics& now) override {
    const EvaluationResult result = evaluation_.run(mlp_, model_);
    now.accuracy = result.accuracy();
    return evaluation_line(now, job_.length, result);
  }

  void add_unplanned(tessera::probe::RankMemory& memory) const override {
    memory.add_unplanned("batches", batch_bytes(job_));
  }

 private:
  const Job& job_;
  // What the model's queued work writes to or reads from must outlive it: the model comes last.
  OnDevice<float> features_;
  OnDevice<std::int32_t> labels_;
  Mlp<T> mlp_;
  Evaluation<T> evaluation_;
  tessera::DistributedSampler sampler_;  // where the loader starts
  std::optional<tessera::Loader<LabelledBatch>> loader_;
  const LabelledBatch* batch_ = nullptr;  // of this step
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, MetricsFile* metrics) {
  TrainingLoop loop(world, job.options.run, job.length, metrics, {});
  with_element(job.options.run.precision, [&](auto element) {
    MlpTraining<decltype(element)> training(world, job);
    loop.run(training);
  });
}

}  // namespace examples
