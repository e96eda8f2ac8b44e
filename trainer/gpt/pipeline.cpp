// Training through the stages of a pipeline: the first one reads ids, the last one has the loss.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/gpt/pipeline.hpp"
#include "tessera/data/loader.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/with_element.hpp"
#include "tessera/shard/pipeline.hpp"
#include "tessera/trainer/device_data.hpp"
#include "tessera/trainer/trainer.hpp"
#include "trainer/gpt/job.hpp"

namespace train_gpt {

namespace {

template <typename T>
class GptStages final : public Training {
 public:
  GptStages(tessera::World& world, const Job& job)
      : job_(job),
        world_(world),
        slice_(job.data.parts.held_out.size(), world, job.options.run),
        sampler_(sampler_options(job.options.run, job.data.parts.training.size(), world)),
        stages_(world, job.sharding, shape_on(world, job),
                {.batch = job.options.run.batch, .kind = job.options.schedule.kind, .shape = schedule_shape()}) {}

  tessera::FullyShard& model() override { return stages_.pipeline->model(); }
  void finalize(const std::function<std::unique_ptr<tessera::Optimizer>()>& optimizer) override {
    stages_.pipeline->finalize(optimizer);
  }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    tessera::Stream& stream = model().stream();
    const std::size_t tokens = job_.options.run.samples_per_rank() * job_.shape.seq;
    inputs_.reserve(stream, tokens), targets_.reserve(stream, tokens), weights_.reserve(stream, tokens);
    loss_.at(stream);
    if (from) sampler_.restore(*from);
    loader_.emplace(sampler_, tessera::LoaderOptions{.depth = batches_ahead},
                    [this](const tessera::SampleBatch& chosen, tessera::TokenBatch& batch) {
                      job_.data.parts.training.read(chosen, batch);
                    });
  }
  std::map<std::string, std::string> aliases() const override { return aliases_of_weights(); }
  std::map<std::string, std::string> settings() const override { return settings_of_weights(job_); }
  bool has_losses() const override { return stages_.pipeline->is_last(); }
  tessera::SamplerState sampler() const override { return loader_->state(); }
  tessera::Bytes batch_bytes() const override { return train_gpt::batch_bytes(job_); }

  // Rank 0's part of the model is told; the schedule where the plan is.
  std::string headline() override {
    std::string text =
        train_gpt::headline(job_, model()) +
        fmt::format("pipeline {}, {} chunk{} on each of {} stages of blocks", to_string(job_.options.schedule.kind),
                    job_.options.schedule.chunks, job_.options.schedule.chunks == 1 ? "" : "s", job_.options.stages());
    for (const std::size_t begin : stages_.split.begins) text += fmt::format(" {}", begin);
    text += fmt::format("; the slowest part takes {:.2f} times the mean\n", stages_.split.imbalance);
    const tessera::plan::ScheduleShape shape = schedule_shape();
    const tessera::plan::Schedule lists = tessera::plan::schedule(job_.options.schedule.kind, shape);
    const tessera::plan::ScheduleTimes times = tessera::plan::times(lists, shape);
    text += fmt::format("bubble   {:.1f} % of a step, where parts take equal time\n", 100 * times.idle[0] / times.step);
    if (job_.options.run.draw_plan) text += fmt::format("\n{}", tessera::plan::draw(lists, shape));
    return text;
  }

  std::size_t begin_step(std::size_t step) override {
    step_ = step;
    batch_ = loader_->next();
    return batch_->global_samples;
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
      Answers answers{.targets = part(targets), .loss = micro < all.size() ? all[micro].loss : loss_.at(stream)};
      if (!is_whole) answers.weights = part(weights);
      micro_batches_.push_back(
          {.tokens = {.ids = part(inputs), .sequence = batch_->columns},
           .answers = answers,
           .place = {.step = step_, .first_sample = all.front().first_sample + micro * job_.options.run.batch}});
    }
    for (GptPart<T>* part : stages_.parts) part->bring(micro_batches_);
    stages_.pipeline->train();
  }

  bool has_held_out() const override { return job_.data.parts.held_out.size() > 0; }

  // Every pass is of a whole micro-batch, in which samples that are not there weigh nothing.
  std::string evaluate(StepMetrics& now, const PassDone& pass_done) override {
    HeldOutSum sum(job_.options.run);
    const std::size_t length = job_.data.parts.held_out.length(), tokens = job_.options.run.batch * length;
    tessera::Stream& stream = model().stream();
    for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
      job_.data.parts.held_out.read(slice_.samples(pass, 0), held_out_);
      std::vector<float> weights(held_out_.targets.size(), 1.0f);
      weights.resize(tokens);
      held_out_.inputs.resize(tokens), held_out_.targets.resize(tokens);
      micro_batches_.assign(1, {});
      micro_batches_[0].tokens = {.ids = inputs_.put(stream, std::span<const std::int32_t>(held_out_.inputs)),
                                  .sequence = length};
      micro_batches_[0].answers = {.targets = targets_.put(stream, std::span<const std::int32_t>(held_out_.targets)),
                                   .loss = loss_.at(stream),
                                   .weights = weights_.put(stream, std::span<const float>(weights))};
      for (GptPart<T>* part : stages_.parts) part->bring(micro_batches_);
      stages_.pipeline->evaluate();
      loss_.fetch(stream);
      model().synchronize();
      const double share = stages_.pipeline->is_last() ? static_cast<double>(job_.options.stages()) : 0.0;
      sum.add(static_cast<double>(loss_.values().front()) * static_cast<double>(tokens) * share);
      pass_done(pass + 1, slice_.passes());
    }
    now.held_out_loss = sum.over_ranks(world_, "held-out loss") / static_cast<double>(slice_.used() * length);
    now.held_out_samples = slice_.used();
    return evaluation_lines(now, job_, {});
  }

 private:
  tessera::plan::ScheduleShape schedule_shape() const {
    return {job_.options.stages(), job_.options.run.accumulate, job_.options.schedule.chunks};
  }

  const Job& job_;
  tessera::World& world_;
  HeldOutSlice slice_;
  std::size_t step_ = 0;
  // The pipeline comes last, so that these outlive its queued work, which reads and writes them.
  OnDevice<std::int32_t> inputs_;
  OnDevice<std::int32_t> targets_;
  OnDevice<float> weights_;
  FromDevice<float> loss_{1};  // of an evaluation's pass, and of micro-batches without samples
  tessera::TokenBatch held_out_;
  std::vector<GptMicroBatch> micro_batches_;
  tessera::DistributedSampler sampler_;
  std::optional<tessera::Loader<tessera::TokenBatch>> loader_;
  const tessera::TokenBatch* batch_ = nullptr;  // of this step
  GptPipeline<T> stages_;
};

}  // namespace

std::unique_ptr<Training> make_pipeline(tessera::World& world, const Job& job) {
  return tessera::nn::with_element(job.options.run.precision, [&](auto element) -> std::unique_ptr<Training> {
    return std::make_unique<GptStages<decltype(element)>>(world, job);
  });
}

}  // namespace train_gpt
