// The GPT on sequences of tokens.
#include "train_gpt/trainer.hpp"

#include <algorithm>

#include "common/device_data.hpp"
#include "common/element.hpp"
#include "common/training_loop.hpp"
#include "tessera/data/loader.hpp"
#include "train_gpt/evaluation.hpp"
#include "train_gpt/model.hpp"
#include "train_gpt/summary.hpp"
#include "train_gpt/writer.hpp"

namespace examples {

namespace {

using tessera::TokenBatch;

constexpr std::size_t short_sample = 80;  // bytes, with an evaluation

template <typename T>
class GptTraining final : public Training {
 public:
  GptTraining(tessera::World& world, const Job& job)
      : job_(job),
        first_sample_(static_cast<std::size_t>(world.rank()) * job.options.run.samples_per_rank()),
        gpt_(job.shape),
        evaluation_(job.data.parts.held_out, world, job.options.run.batch),
        writer_(job, world),
        sampler_(sampler_options(job.options.run, job.data.parts.training.size(), world)),
        model_(world, job.sharding) {
    gpt_.add_to(model_);
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    gpt_.use(model_.activation_memory(), model_.stream().device().kind());
    if (from) sampler_.restore(*from);
    loader_.emplace(sampler_, tessera::LoaderOptions{.depth = batches_ahead},
                    [this](const tessera::SampleBatch& chosen, TokenBatch& batch) {
                      job_.data.parts.training.read(chosen, batch);
                    });
  }
  std::map<std::string, std::string> aliases() const override {
    return {{"lm_head.weight", std::string(embedding_name) + ".wte.weight"}};
  }
  tessera::SamplerState sampler() const override { return loader_->state(); }
  std::string headline() override { return examples::headline(job_, model_); }

  void begin_step(std::size_t step) override {
    step_ = step;
    batch_ = loader_->next();
  }

  void train_micro_batch(std::size_t micro, float* loss) override {
    const std::size_t samples = job_.options.run.batch;
    const std::size_t tokens = samples * batch_->columns;
    const auto part = [&](const std::vector<std::int32_t>& all) {
      return std::span(all).subspan(micro * tokens, tokens);
    };
    tessera::Stream& stream = model_.stream();
    gpt_.train(model_, {.ids = inputs_.put(stream, part(batch_->inputs)), .sequence = batch_->columns},
               {.targets = targets_.put(stream, part(batch_->targets)), .loss = loss},
               {.step = step_, .first_sample = first_sample_ + micro * samples});
  }

  bool has_held_out() const override { return job_.data.parts.held_out.size() > 0; }

  std::string evaluate(StepMetrics& now) override {
    now.held_out_loss = evaluation_.run(gpt_, model_);
    const bool last = now.step == job_.length.last_step;  // the long text follows
    return evaluation_lines(now, job_.length, last ? std::string() : write(std::min(short_sample, job_.sample)));
  }

  std::string last_words() override { return job_.sample > 0 ? closing_sample(write(job_.sample)) : std::string(); }

  void add_unplanned(tessera::probe::RankMemory& memory) const override {
    memory.add_unplanned("batches", batch_bytes(job_));
  }

 private:
  std::string write(std::size_t bytes) {
    if (bytes == 0 || job_.options.run.quiet) return {};
    return writer_.write(gpt_, model_, bytes, step_);
  }

  const Job& job_;
  std::size_t first_sample_;  // of this rank within a step's global batch
  std::size_t step_ = 0;
  // What the model's queued work writes to or reads from must outlive it: the model comes last.
  OnDevice<std::int32_t> inputs_;
  OnDevice<std::int32_t> targets_;
  Gpt<T> gpt_;
  Evaluation<T> evaluation_;
  Writer<T> writer_;
  tessera::DistributedSampler sampler_;  // where the loader starts
  std::optional<tessera::Loader<TokenBatch>> loader_;
  const TokenBatch* batch_ = nullptr;  // of this step
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, MetricsFile* metrics) {
  TrainingLoop loop(world, job.options.run, job.length, metrics, {.name = "tokens", .per_sample = job.shape.seq});
  with_element(job.options.run.precision, [&](auto element) {
    GptTraining<decltype(element)> training(world, job);
    loop.run(training);
  });
}

}  // namespace examples
