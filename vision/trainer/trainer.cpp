// One rank's training run, for the loop that all trainers share: what it makes of held-out images, the lines about it,
// and the training itself.
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/vision/model.hpp"
#include "models/vision/pipeline.hpp"
#include "plot/plot.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/stages.hpp"
#include "tessera/trainer/trainer.hpp"
#include "tessera/vision/convolution.hpp"
#include "vision/trainer/job.hpp"
#include "vision/trainer/tally.hpp"

namespace train_vision {

namespace {

namespace nn = tessera::nn;

// Looks at the held-out images. It must stay until the model is gone, and the options as long.
template <typename T>
class Evaluation {
 public:
  Evaluation(const tessera::vision::ImageBatches& images, tessera::World& world, const RunOptions& options)
      : classes_(images.classes()), world_(world), options_(options), rows_(images, 0, images.size(), world, options) {}

  // Between steps. Collective; synchronises.
  // pass: enqueues, and returns the logits, on ranks that have them.
  using Pass = std::function<std::optional<nn::MatrixView<T>>(const LabelledRows& rows)>;
  Tally run(tessera::FullyShard& model, const Pass& pass, const PassDone& pass_done) {
    Tally tally(classes_);
    HeldOutSum loss(options_);
    const bool by_pass = options_.granules > 0;
    tessera::Stream& stream = model.stream();
    rows_.for_each(stream, pass_done, [&](const LabelledRows& rows, std::span<const std::int32_t> labels) {
      const std::optional<nn::MatrixView<T>> logits = pass(rows);
      if (!logits) return model.synchronize();  // the next pass takes the place of these rows
      stored_.resize(logits->elements());
      tessera::kernels::copy(stream, stored_.data(), logits->data, tessera::Bytes(stored_.size() * sizeof(T)));
      model.synchronize();
      logits_.resize(stored_.size());
      for (std::size_t i = 0; i < stored_.size(); ++i) logits_[i] = static_cast<float>(stored_[i]);
      tally.add(logits_, labels);
      if (by_pass) loss.add(tally.take_loss());
    });
    tally.add_up(world_);
    if (by_pass) tally.put_loss(loss.over_ranks(world_, "held-out loss"));
    return tally;
  }

 private:
  std::size_t classes_;
  tessera::World& world_;
  const RunOptions& options_;
  HeldOutRows rows_;
  std::vector<T> stored_;  // logits of the last pass, and as floats
  std::vector<float> logits_;
};

std::string headline(const Job& job, tessera::FullyShard& model) {
  const ImageData& data = job.data;
  const tessera::vision::ImageExtents size = data.extents();
  return ranks_line(job.options.run, model) +
         fmt::format("data     {}: {} images of {} x {} x {} to train on, {} held out; {} classes\n", data.name,
                     grouped(data.training_images), size.height, size.width, size.channels,
                     grouped(data.held_out->size()), data.classes().size()) +
         model_lines(in_words(shape_of(job)), model) + run_lines(job.options.run, job.length, data.training_images);
}

double share(std::size_t of, std::size_t all) { return static_cast<double>(of) / static_cast<double>(all); }

std::string evaluation_line(const StepMetrics& now, const Job& job, const Tally& tally) {
  std::string text = fmt::format("{}   held-out loss {:.4f}, top-1 {:.2f} %", step_text(now, job.length),
                                 tally.mean_loss(), 100.0 * share(tally.right(), tally.images()));
  if (tally.classes() > 5) text += fmt::format(", top-5 {:.2f} %", 100.0 * share(tally.among_five(), tally.images()));
  if (tally.images() < job.data.held_out->size()) {
    text += fmt::format(", of {} of {} images", grouped(tally.images()), grouped(job.data.held_out->size()));
  }
  return text;
}

template <typename T>
class VisionTraining : public Training {
 public:
  // The job must stay. Batch norms would see images that fill up.
  VisionTraining(tessera::World& world, const Job& job)
      : job_(job),
        batches_(*job.data.training, job.data.training_images, world, job.options.run, LabelledBatches::Short::cut),
        evaluation_(*job.data.held_out, world, job.options.run) {}

  std::map<std::string, std::string> settings() const override {
    return {{"--data", job_.data.name}, {"--model", std::string(to_string(job_.options.model))}};
  }
  tessera::SamplerState sampler() const override { return batches_.state(); }
  std::string headline() override { return train_vision::headline(job_, model()); }
  std::string computed_with() override {
    return fmt::format("{}; convolutions {}", Training::computed_with(),
                       tessera::vision::convolutions_in_words(model().world().device().kind()));
  }
  std::size_t begin_step(std::size_t) override { return batches_.next(); }

  void settle() override { model().synchronize_buffers(); }
  bool has_held_out() const override { return job_.data.held_out->size() > 0; }

  std::string evaluate(StepMetrics& now, const PassDone& pass_done) override {
    last_.emplace(evaluation_.run(
        model(), [this](const LabelledRows& rows) { return evaluate_pass(rows); }, pass_done));
    now.accuracy = share(last_->right(), last_->images());
    now.top5_accuracy = share(last_->among_five(), last_->images());
    now.held_out_loss = last_->mean_loss();
    now.held_out_samples = last_->images();
    draw_after(now);
    return evaluation_line(now, job_, *last_);
  }
  std::string last_words() override {
    return job_.options.confusion && last_ ? confusion_table(*last_, job_.data.classes()) : std::string();
  }
  tessera::Bytes batch_bytes() const override { return batches_.bytes(); }

 protected:
  // In evaluation windows, which all ranks open; enqueues. The logits, on ranks that have them.
  virtual std::optional<nn::MatrixView<T>> evaluate_pass(const LabelledRows& rows) = 0;

  const Job& job_;
  // A model's queued work reads and writes these, so it ends before them, with what is derived from this.
  LabelledBatches batches_;

 private:
  // After the last step the figure of --plot. That it cannot be drawn is no reason to lose the run.
  void draw_after(const StepMetrics& now) {
    if (!job_.options.run.plot || now.step != job_.length.last_step ||
        !speaks_for_all(job_.options.run, model().world())) {
      return;
    }
    try {
      tools::plot(confusion_chart(*last_, job_.data.classes()), job_.options.run.plot->string());
    } catch (const std::exception& error) {
      tessera::trainer::tell(fmt::format("warning: --plot {}: {}", job_.options.run.plot->string(), error.what()));
    }
  }

  Evaluation<T> evaluation_;
  std::optional<Tally> last_;
};

template <typename T>
class WholeVision final : public VisionTraining<T> {
 public:
  WholeVision(tessera::World& world, const Job& job)
      : VisionTraining<T>(world, job), vision_(shape_of(job)), model_(world, job.sharding) {
    vision_.add_to(model_, job.options.run.batch, world.device().kind());
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    vision_.use(model_.activation_memory(), model_.stream().device().kind());
    this->batches_.start(model_.stream(), from, this->job_.options.loader_threads);
  }
  void train_micro_batch(const Training::MicroBatch& micro) override {
    const LabelledRows rows = this->batches_.rows(model_.stream(), micro);
    vision_.train(model_, rows.features, {.targets = rows.targets, .loss = micro.loss});
  }

 private:
  std::optional<nn::MatrixView<T>> evaluate_pass(const LabelledRows& rows) override {
    return vision_.evaluate(model_, rows.features);
  }

  VisionModel<T> vision_;
  tessera::FullyShard model_;
};

// Through the stages of a pipeline: the first one reads pixels, the last one has the logits.
template <typename T>
class VisionStages final : public VisionTraining<T> {
 public:
  VisionStages(tessera::World& world, const Job& job)
      : VisionTraining<T>(world, job),
        stages_(world, job.sharding, shape_of(job),
                {.images = job.options.run.batch,
                 .kind = job.options.schedule.kind,
                 .shape = schedule_shape(job.options.run, job.options.schedule)}) {}

  tessera::FullyShard& model() override { return stages_.pipeline->model(); }
  void finalize(const std::function<std::unique_ptr<tessera::Optimizer>()>& optimizer) override {
    stages_.pipeline->finalize(optimizer);
  }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    unused_loss_.at(model().stream());
    const VisionOptions& options = this->job_.options;
    this->batches_.start(model().stream(), from, options.loader_threads, options.run.accumulate);
  }
  bool has_losses() const override { return stages_.pipeline->is_last(); }
  std::string headline() override {
    return VisionTraining<T>::headline() +
           stages_lines(
               this->job_.options.run,
               {.schedule = this->job_.options.schedule, .begins = stages_.begins, .imbalance = stages_.imbalance});
  }

  void train_micro_batch(const Training::MicroBatch& micro) override { train_micro_batches({&micro, 1}); }
  // Where the last ones have no samples, their weights are 0.
  void train_micro_batches(std::span<const Training::MicroBatch> all) override {
    tessera::Stream& stream = model().stream();
    for (const Training::MicroBatch& micro : all) {
      tessera::kernels::fill_zero(stream, reinterpret_cast<std::byte*>(micro.loss), tessera::Bytes(sizeof(float)));
    }
    micro_batches_.clear();
    for (const LabelledRows& rows : this->batches_.rows_of_step(stream, all)) {
      const std::size_t micro = micro_batches_.size();
      float* const loss = micro < all.size() ? all[micro].loss : unused_loss_.at(stream);
      micro_batches_.push_back({.pixels = rows.features, .answers = {.targets = rows.targets, .loss = loss}});
    }
    for (VisionPart<T>* part : stages_.parts) part->bring(micro_batches_);
    stages_.pipeline->train();
  }

 private:
  std::optional<nn::MatrixView<T>> evaluate_pass(const LabelledRows& rows) override {
    for (VisionPart<T>* part : stages_.parts) part->bring({{.pixels = rows.features, .answers = {}}});
    stages_.pipeline->evaluate();
    if (!has_losses()) return std::nullopt;
    return stages_.parts.back()->logits();
  }

  FromDevice<float> unused_loss_{1};  // of micro-batches without samples
  std::vector<ImageMicroBatch> micro_batches_;
  VisionPipeline<T> stages_;
};

}  // namespace

void train(tessera::World& world, const Job& job, RunMetrics* metrics) {
  const Run run{.options = job.options.run, .length = job.length, .metrics = metrics, .unit = {.name = "images"}};
  tessera::trainer::train(world, run, [&] {
    return tessera::nn::with_element(job.options.run.precision, [&](auto element) -> std::unique_ptr<Training> {
      if (stages_of(job.options.run) > 1) return std::make_unique<VisionStages<decltype(element)>>(world, job);
      return std::make_unique<WholeVision<decltype(element)>>(world, job);
    });
  });
}

}  // namespace train_vision
