// One rank's training run, for the loop that all trainers share, and the lines about it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "models/gpt/model.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/stages.hpp"
#include "tessera/trainer/trainer.hpp"
#include "trainer/gpt/gpt_training.hpp"

namespace train_gpt {

namespace {

std::string shape_text(const GptShape& shape) {
  std::string text = fmt::format("GPT, {} layers of {} with {} heads", shape.layers, shape.dim, shape.heads);
  if (shape.activation_checkpointing) text += ", activations recomputed";
  if (!shape.fp32_units.empty()) text += fmt::format(", {} in fp32", fmt::join(shape.fp32_units, ", "));
  return text;
}

}  // namespace

std::map<std::string, std::string> aliases_of_weights() {
  return {{"lm_head.weight", std::string(embedding_name) + ".wte.weight"}};
}
std::map<std::string, std::string> settings_of_weights(const Job& job) {
  return {{"heads", std::to_string(job.shape.heads)}};
}

std::string headline(const Job& job, tessera::FullyShard& model) {
  const tessera::TokenSplit& parts = job.data.parts;
  return ranks_line(job.options.run, model) +
         fmt::format("data     {}: {} tokens to train on, {} held out; sequences of {}, vocabulary {}\n", job.data.name,
                     grouped(parts.training.tokens()), grouped(parts.held_out.tokens()), job.shape.seq,
                     grouped(job.shape.vocabulary)) +
         model_lines(shape_text(job.shape), model) + run_lines(job.options.run, job.length, parts.training.size());
}

namespace {

template <typename T>
class WholeGpt final : public GptTraining {
 public:
  WholeGpt(tessera::World& world, const Job& job)
      : GptTraining(world, job), gpt_(shape_on(world, job)), model_(world, job.sharding) {
    gpt_.add_to(model_, job.options.run.batch);
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    gpt_.use(model_.activation_memory(), model_.stream().device().kind());
    GptTraining::ready(from);
  }
  std::string headline() override { return train_gpt::headline(job_, model_); }

  void train_micro_batch(const MicroBatch& micro) override {
    const std::size_t samples = job_.options.run.batch;
    const std::size_t tokens = samples * batch_->columns;
    const auto part = [&](const auto& all) { return std::span(all).subspan(micro.index * tokens, tokens); };
    tessera::Stream& stream = model_.stream();
    Answers answers{.targets = targets_.put(stream, part(batch_->targets)), .loss = micro.loss};
    if (micro.samples < samples) answers.weights = weights_.put(stream, part(batch_->weights));  // the rest fills up
    gpt_.train(model_, {.ids = inputs_.put(stream, part(batch_->inputs)), .sequence = batch_->columns}, answers,
               {.step = step_, .first_sample = micro.first_sample});
  }

 private:
  void evaluate_pass(const TokenRows& tokens, const Answers& answers) override {
    gpt_.evaluate(model_, tokens, answers);
  }
  std::span<const float> next(const TokenRows& tokens) override { return gpt_.next(model_, tokens); }

  Gpt<T> gpt_;
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, RunMetrics* metrics) {
  const Run run{.options = job.options.run,
                .length = job.length,
                .metrics = metrics,
                .unit = {.name = "tokens", .per_sample = job.shape.seq}};
  tessera::trainer::train(world, run, [&]() -> std::unique_ptr<Training> {
    if (stages_of(job.options.run) > 1) return make_pipeline(world, job);
    return tessera::nn::with_element(job.options.run.precision, [&](auto element) -> std::unique_ptr<Training> {
      return std::make_unique<WholeGpt<decltype(element)>>(world, job);
    });
  });
}

}  // namespace train_gpt
