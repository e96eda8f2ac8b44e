// One rank's training run, for the loop that all trainers share: what it makes of held-out images, the lines about it,
// and the training itself.
#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "command_line/streams.hpp"
#include "common/device_data.hpp"
#include "common/element.hpp"
#include "common/held_out.hpp"
#include "common/metrics.hpp"
#include "common/number_text.hpp"
#include "common/run_options.hpp"
#include "common/run_summary.hpp"
#include "common/training_loop.hpp"
#include "models/vision/model.hpp"
#include "plot/plot.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/loader.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/vision/convolution.hpp"
#include "vision/trainer/job.hpp"
#include "vision/trainer/tally.hpp"

namespace examples {

namespace {

namespace nn = tessera::nn;
using tessera::LabelledBatch;

// Looks at the held-out images.
template <typename T>
class Evaluation {
 public:
  // `images` must stay, and the evaluation until the model is gone.
  Evaluation(const tessera::vision::ImageBatches& images, tessera::World& world, const RunOptions& options)
      : images_(images), world_(world), slice_(images.size(), world, options) {}

  // Between steps. Every rank opens the same number of windows, also with a shorter slice than others', or none.
  // Collective; synchronises.
  Tally run(VisionModel<T>& vision, tessera::FullyShard& model, const PassDone& pass_done);

 private:
  std::span<const float> logits_of(const tessera::SampleBatch& chosen, VisionModel<T>& vision,
                                   tessera::FullyShard& model);

  const tessera::vision::ImageBatches& images_;
  tessera::World& world_;
  HeldOutSlice slice_;
  LabelledBatch batch_;
  OnDevice<float> pixels_;
  std::vector<T> stored_;  // logits of the last pass, and as floats
  std::vector<float> logits_;
};

template <typename T>
Tally Evaluation<T>::run(VisionModel<T>& vision, tessera::FullyShard& model, const PassDone& pass_done) {
  Tally tally(images_.classes());
  for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
    const std::span<const float> logits = logits_of(slice_.samples(pass, 0), vision, model);
    tally.add(logits, batch_.labels);
    pass_done(pass + 1, slice_.passes());
  }
  tally.add_up(world_);
  return tally;
}

template <typename T>
std::span<const float> Evaluation<T>::logits_of(const tessera::SampleBatch& chosen, VisionModel<T>& vision,
                                                tessera::FullyShard& model) {
  images_.read(chosen, batch_);
  tessera::Stream& stream = model.stream();
  const std::span<const float> pixels = pixels_.put(stream, batch_.features);
  const nn::MatrixView<T> logits = vision.evaluate(model, {pixels.data(), batch_.rows, batch_.columns});
  stored_.resize(logits.elements());
  tessera::kernels::copy(stream, stored_.data(), logits.data, tessera::Bytes(stored_.size() * sizeof(T)));
  model.synchronize();
  logits_.resize(stored_.size());
  for (std::size_t i = 0; i < stored_.size(); ++i) logits_[i] = static_cast<float>(stored_[i]);
  return logits_;
}

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
  VisionTraining(tessera::World& world, const Job& job)
      : job_(job),
        vision_(shape_of(job)),
        evaluation_(*job.data.held_out, world, job.options.run),
        sampler_(sampler_options(job.options.run, job.data.training_images, world)),
        model_(world, job.sharding) {
    vision_.add_to(model_);
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    vision_.use(model_.activation_memory(), model_.stream().device().kind());
    if (from) sampler_.restore(*from);
    loader_.emplace(
        sampler_, tessera::LoaderOptions{.depth = batches_ahead, .threads = job_.options.loader_threads},
        [this](const tessera::SampleBatch& chosen, LabelledBatch& batch) { job_.data.training->read(chosen, batch); });
  }
  std::map<std::string, std::string> settings() const override {
    return {{"--data", job_.data.name}, {"--model", std::string(to_string(job_.options.model))}};
  }
  tessera::SamplerState sampler() const override { return loader_->state(); }
  std::string headline() override { return examples::headline(job_, model_); }
  std::string computed_with() override {
    return fmt::format("{}; convolutions {}", Training::computed_with(),
                       tessera::vision::convolutions_in_words(model_.world().device().kind()));
  }
  std::size_t begin_step(std::size_t) override {
    batch_ = loader_->next();
    return batch_->global_samples;
  }

  // Only images that count are looked at: one that fills up would be seen by batch norm. Their mean loss becomes a sum
  // over as many as a whole micro-batch has by weights that are all alike.
  void train_micro_batch(const MicroBatch& micro) override {
    const std::size_t first = micro.index * job_.options.run.batch;
    const std::size_t columns = batch_->columns;
    tessera::Stream& stream = model_.stream();
    const std::span<const float> pixels =
        pixels_.put(stream, std::span(batch_->features).subspan(first * columns, micro.samples * columns));
    nn::Targets targets{.labels = labels_.put(stream, std::span(batch_->labels).subspan(first, micro.samples))};
    if (micro.samples < job_.options.run.batch) {
      share_.assign(micro.samples, static_cast<float>(share(micro.samples, job_.options.run.batch)));
      targets.weights = weights_.put(stream, share_);
    }
    vision_.train(model_, {pixels.data(), micro.samples, columns}, {.targets = targets, .loss = micro.loss});
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

  void add_unplanned(tessera::probe::RankMemory& memory) const override {
    memory.add_unplanned("batches", batch_bytes(job_));
  }

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
      tools::tell(fmt::format("warning: --plot {}: {}", job_.options.run.plot->string(), error.what()));
    }
  }

  const Job& job_;
  // The model comes last, so that these outlive its queued work, which reads and writes them.
  OnDevice<float> pixels_;
  OnDevice<std::int32_t> labels_;
  OnDevice<float> weights_;
  std::vector<float> share_;
  VisionModel<T> vision_;
  Evaluation<T> evaluation_;
  std::optional<Tally> last_;
  tessera::DistributedSampler sampler_;  // where the loader starts
  std::optional<tessera::Loader<LabelledBatch>> loader_;
  const LabelledBatch* batch_ = nullptr;  // of this step
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, RunMetrics* metrics) {
  TrainingLoop loop(world, job.options.run, job.length, metrics, {.name = "images"});
  with_element(job.options.run.precision, [&](auto element) {
    VisionTraining<decltype(element)> training(world, job);
    loop.run(training);
  });
}

}  // namespace examples
