// One rank's training run, for the loop that all trainers share: what it makes of held-out images, the lines about it,
// and the training itself.
#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <string>

#include "models/vision/model.hpp"
#include "plot/plot.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/shard/fully_shard.hpp"
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
  Tally run(VisionModel<T>& vision, tessera::FullyShard& model, const PassDone& pass_done) {
    Tally tally(classes_);
    HeldOutSum loss(options_);
    const bool by_pass = options_.granules > 0;
    tessera::Stream& stream = model.stream();
    rows_.for_each(stream, pass_done, [&](const LabelledRows& rows, std::span<const std::int32_t> labels) {
      const nn::MatrixView<T> logits = vision.evaluate(model, rows.features);
      stored_.resize(logits.elements());
      tessera::kernels::copy(stream, stored_.data(), logits.data, tessera::Bytes(stored_.size() * sizeof(T)));
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
class VisionTraining final : public Training {
 public:
  // Batch norms would see images that fill up.
  VisionTraining(tessera::World& world, const Job& job)
      : job_(job),
        batches_(*job.data.training, job.data.training_images, world, job.options.run, LabelledBatches::Short::cut),
        vision_(shape_of(job)),
        evaluation_(*job.data.held_out, world, job.options.run),
        model_(world, job.sharding) {
    vision_.add_to(model_, job.options.run.batch, model_.world().device().kind());
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    vision_.use(model_.activation_memory(), model_.stream().device().kind());
    batches_.start(model_.stream(), from, job_.options.loader_threads);
  }
  std::map<std::string, std::string> settings() const override {
    return {{"--data", job_.data.name}, {"--model", std::string(to_string(job_.options.model))}};
  }
  tessera::SamplerState sampler() const override { return batches_.state(); }
  std::string headline() override { return train_vision::headline(job_, model_); }
  std::string computed_with() override {
    return fmt::format("{}; convolutions {}", Training::computed_with(),
                       tessera::vision::convolutions_in_words(model_.world().device().kind()));
  }
  std::size_t begin_step(std::size_t) override { return batches_.next(); }
  void train_micro_batch(const MicroBatch& micro) override {
    const LabelledRows rows = batches_.rows(model_.stream(), micro);
    vision_.train(model_, rows.features, {.targets = rows.targets, .loss = micro.loss});
  }

  void settle() override { model_.synchronize_buffers(); }
  bool has_held_out() const override { return job_.data.held_out->size() > 0; }

  std::string evaluate(StepMetrics& now, const PassDone& pass_done) override {
    last_.emplace(evaluation_.run(vision_, model_, pass_done));
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

 private:
  // After the last step the figure of --plot. That it cannot be drawn is no reason to lose the run.
  void draw_after(const StepMetrics& now) {
    if (!job_.options.run.plot || now.step != job_.length.last_step ||
        !speaks_for_all(job_.options.run, model_.world())) {
      return;
    }
    try {
      tools::plot(confusion_chart(*last_, job_.data.classes()), job_.options.run.plot->string());
    } catch (const std::exception& error) {
      tessera::trainer::tell(fmt::format("warning: --plot {}: {}", job_.options.run.plot->string(), error.what()));
    }
  }

  const Job& job_;
  // The model comes last, so that these outlive its queued work, which reads and writes them.
  LabelledBatches batches_;
  VisionModel<T> vision_;
  Evaluation<T> evaluation_;
  std::optional<Tally> last_;
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, RunMetrics* metrics) {
  const Run run{.options = job.options.run, .length = job.length, .metrics = metrics, .unit = {.name = "images"}};
  tessera::trainer::train(world, run, [&] {
    return tessera::nn::with_element(job.options.run.precision, [&](auto element) -> std::unique_ptr<Training> {
      return std::make_unique<VisionTraining<decltype(element)>>(world, job);
    });
  });
}

}  // namespace train_vision
