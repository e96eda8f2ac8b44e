// Training through the stages of a pipeline: the first one reads ids, the last one has the loss.
#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "models/gpt/pipeline.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/with_element.hpp"
#include "tessera/trainer/device_data.hpp"
#include "tessera/trainer/stages.hpp"
#include "trainer/gpt/gpt_training.hpp"

namespace train_gpt {

namespace {

template <typename T>
class GptStages final : public GptTraining {
 public:
  GptStages(tessera::World& world, const Job& job)
      : GptTraining(world, job),
        stages_(world, job.sharding, shape_on(world, job),
                {.batch = job.options.run.batch,
                 .kind = job.options.schedule.kind,
                 .shape = schedule_shape(job.options.run, job.options.schedule)}) {}

  tessera::FullyShard& model() override { return stages_.pipeline->model(); }
  void finalize(const std::function<std::unique_ptr<tessera::Optimizer>()>& optimizer) override {
    stages_.pipeline->finalize(optimizer);
  }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    unused_loss_.at(model().stream());
    GptTraining::ready(from);
  }
  bool has_losses() const override { return stages_.pipeline->is_last(); }

  std::string headline() override {
    const std::span begins(stages_.split.begins);
    return train_gpt::headline(job_, model()) +
           stages_lines(job_.options.run, {.schedule = job_.options.schedule,
                                           .begins = begins.first(begins.size() - 1),
                                           .imbalance = stages_.split.imbalance});
  }

  void train_micro_batch(const MicroBatch& micro) override { train_micro_batches({&micro, 1}); }
  // Where the last ones have no samples, their weights are 0.
  void train_micro_batches(std::span<const MicroBatch> all) override {
    tessera::Stream& stream = model().stream();
    const std::size_t count = job_.options.run.accumulate, tokens = job_.options.run.batch * batch_->columns;
    const auto inputs = inputs_.put(stream, std::span<const std::int32_t>(batch_->inputs));
    const auto targets = targets_.put(stream, std::span<const std::int32_t>(batch_->targets));
    const auto weights = weights_.put(stream, std::span<const float>(batch_->weights));
    for (const MicroBatch& micro : all) {
      tessera::kernels::fill_zero(stream, reinterpret_cast<std::byte*>(micro.loss), tessera::Bytes(sizeof(float)));
    }
    micro_batches_.clear();
    for (std::size_t micro = 0; micro < count; ++micro) {
      const auto part = [&](const auto& of) { return of.subspan(micro * tokens, tokens); };
      const bool is_whole = micro < all.size() && all[micro].samples == job_.options.run.batch;
      Answers answers{.targets = part(targets), .loss = micro < all.size() ? all[micro].loss : unused_loss_.at(stream)};
      if (!is_whole) answers.weights = part(weights);
      micro_batches_.push_back(
          {.tokens = {.ids = part(inputs), .sequence = batch_->columns},
           .answers = answers,
           .place = {.step = step_, .first_sample = all.front().first_sample + micro * job_.options.run.batch}});
    }
    for (GptPart<T>* part : stages_.parts) part->bring(micro_batches_);
    stages_.pipeline->train();
  }

 private:
  void evaluate_pass(const TokenRows& tokens, const Answers& answers) override {
    go_through(GptMicroBatch{.tokens = tokens, .answers = answers, .place = {}});
  }
  std::span<const float> next(const TokenRows& tokens) override {
    go_through(GptMicroBatch{.tokens = tokens, .answers = {}, .place = {}, .writes = true});
    return stages_.parts.back()->logits();
  }
  void go_through(const GptMicroBatch& micro_batch) {
    for (GptPart<T>* part : stages_.parts) part->bring({micro_batch});
    stages_.pipeline->evaluate();
  }
  std::size_t micro_batches_at_once() const override { return job_.options.run.accumulate; }

  FromDevice<float> unused_loss_{1};  // of micro-batches without samples
  std::vector<GptMicroBatch> micro_batches_;
  GptPipeline<T> stages_;
};

}  // namespace

std::unique_ptr<Training> make_pipeline(tessera::World& world, const Job& job) {
  return tessera::nn::with_element(job.options.run.precision, [&](auto element) -> std::unique_ptr<Training> {
    return std::make_unique<GptStages<decltype(element)>>(world, job);
  });
}

}  // namespace train_gpt
