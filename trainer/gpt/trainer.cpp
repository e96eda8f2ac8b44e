// One rank's training run, for the loop that all trainers share: the loss on held-out tokens, the text that the model
// writes, the lines about both, and the training itself.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/gpt/model.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/loader.hpp"
#include "tessera/data/tokens.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/trainer.hpp"
#include "trainer/gpt/job.hpp"
#include "trainer/gpt/text.hpp"

namespace train_gpt {

namespace {

template <typename T>
class Evaluation {
 public:
  // `held_out` and the options must stay, and the evaluation until the model is gone.
  Evaluation(const tessera::TokenSequences& held_out, tessera::World& world, const RunOptions& options)
      : held_out_(held_out), world_(world), options_(options), slice_(held_out.size(), world, options) {}

  std::size_t sequences() const { return slice_.used(); }
  void reserve(tessera::Stream& stream, std::size_t samples) {
    inputs_.reserve(stream, samples * held_out_.length());
    targets_.reserve(stream, samples * held_out_.length());
    loss_.at(stream);
  }

  // The mean cross entropy of a token. Between steps. Every rank opens the same number of windows, also with a shorter
  // slice than others', or none. Collective; synchronises.
  double run(Gpt<T>& gpt, tessera::FullyShard& model, const PassDone& pass_done);

 private:
  const tessera::TokenSequences& held_out_;
  tessera::World& world_;
  const RunOptions& options_;
  HeldOutSlice slice_;
  tessera::TokenBatch batch_;
  OnDevice<std::int32_t> inputs_;
  OnDevice<std::int32_t> targets_;
  FromDevice<float> loss_{1};  // of the last pass
};

// Lets a model of bytes continue a prompt, in evaluation windows that all ranks open; only rank 0 computes in them.

template <typename T>
class Writer {
 public:
  Writer(const Job& job, const tessera::World& world)
      : job_(job), writes_(job.options.run.data_rank(static_cast<std::size_t>(world.rank())) == 0) {}

  // The prompt and `bytes` more, fit for a terminal; empty on other ranks than 0. `draw` tells texts of one run apart.
  // Between steps. Collective; synchronises.
  std::string write(Gpt<T>& gpt, tessera::FullyShard& model, std::size_t bytes, std::size_t draw);
  void reserve(tessera::Stream& stream) { seen_.reserve(stream, job_.shape.seq); }

 private:
  void write_byte(Gpt<T>& gpt, tessera::FullyShard& model, double uniform);

  const Job& job_;
  bool writes_;                     // this rank, and those that have other slices of the same text
  std::vector<std::int32_t> text_;  // prompt included
  OnDevice<std::int32_t> seen_;     // the part of it that the model reads
  std::vector<float> logits_;       // of the next token
};

template <typename T>
double Evaluation<T>::run(Gpt<T>& gpt, tessera::FullyShard& model, const PassDone& pass_done) {
  HeldOutSum sum(options_);
  for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
    held_out_.read(slice_.samples(pass, 0), batch_);
    tessera::Stream& stream = model.stream();
    gpt.evaluate(model, {.ids = inputs_.put(stream, batch_.inputs), .sequence = held_out_.length()},
                 {.targets = targets_.put(stream, batch_.targets), .loss = loss_.at(stream)});
    loss_.fetch(stream);
    model.synchronize();
    sum.add(static_cast<double>(loss_.values().front()) * static_cast<double>(batch_.targets.size()));
    pass_done(pass + 1, slice_.passes());
  }
  return sum.over_ranks(world_, "held-out loss") / static_cast<double>(slice_.used() * held_out_.length());
}

template <typename T>
std::string Writer<T>::write(Gpt<T>& gpt, tessera::FullyShard& model, std::size_t bytes, std::size_t draw) {
  text_ = tokens_of(job_.options.prompt.value_or(usual_prompt));
  for (std::size_t i = 0; i < bytes; ++i) {
    write_byte(gpt, model, uniform_number(job_.options.run.seed, draw, static_cast<std::uint32_t>(i)));
  }
  return writes_ ? printable(text_) : std::string();
}

template <typename T>
void Writer<T>::write_byte(Gpt<T>& gpt, tessera::FullyShard& model, double uniform) {
  const std::span<const std::int32_t> text(text_);
  const std::span<const std::int32_t> seen = text.last(std::min(text.size(), job_.shape.seq));
  tessera::Stream& stream = model.stream();
  const std::span<const std::int32_t> read = writes_ ? seen : std::span<const std::int32_t>();
  const std::span<const float> found = gpt.next(model, seen_.put(stream, read));
  logits_.resize(found.size());
  tessera::kernels::copy(stream, logits_.data(), found.data(), tessera::Bytes(found.size_bytes()));
  model.synchronize();
  // The vocabulary may be padded beyond the data's ids.
  if (writes_) {
    const std::span<const float> logits(logits_);
    text_.push_back(choose_token(logits.first(job_.data.file().vocabulary()), job_.options.temperature, uniform));
  }
}

constexpr const char* margin = "  | ";

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

std::string evaluation_lines(const StepMetrics& now, const Job& job, const std::string& sample) {
  std::string text = fmt::format("{}   held-out loss {:.4f}", step_text(now, job.length), *now.held_out_loss);
  const std::size_t all = job.data.parts.held_out.size();
  if (*now.held_out_samples < all) {
    text += fmt::format(" ({} of {} sequences)", grouped(*now.held_out_samples), grouped(all));
  }
  if (!sample.empty()) text += fmt::format("\n{}", indented(sample, margin));
  return text;
}

namespace {

std::string closing_sample(const std::string& sample) { return fmt::format("\n{}", indented(sample, margin)); }

using tessera::TokenBatch;

constexpr std::size_t short_sample = 80;  // bytes, with an evaluation

template <typename T>
class GptTraining final : public Training {
 public:
  GptTraining(tessera::World& world, const Job& job)
      : job_(job),
        gpt_(shape_on(world, job)),
        evaluation_(job.data.parts.held_out, world, job.options.run),
        writer_(job, world),
        sampler_(sampler_options(job.options.run, job.data.parts.training.size(), world)),
        model_(world, job.sharding) {
    gpt_.add_to(model_, job.options.run.batch);
  }

  tessera::FullyShard& model() override { return model_; }
  void ready(const std::optional<tessera::SamplerState>& from) override {
    gpt_.use(model_.activation_memory(), model_.stream().device().kind());
    reserve();
    if (from) sampler_.restore(*from);
    loader_.emplace(sampler_, tessera::LoaderOptions{.depth = batches_ahead},
                    [this](const tessera::SampleBatch& chosen, TokenBatch& batch) {
                      job_.data.parts.training.read(chosen, batch);
                    });
  }
  std::map<std::string, std::string> aliases() const override { return aliases_of_weights(); }
  std::map<std::string, std::string> settings() const override { return settings_of_weights(job_); }
  tessera::SamplerState sampler() const override { return loader_->state(); }
  std::string headline() override { return train_gpt::headline(job_, model_); }

  std::size_t begin_step(std::size_t step) override {
    step_ = step;
    batch_ = loader_->next();
    return batch_->global_samples;
  }

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

  bool has_held_out() const override { return job_.data.parts.held_out.size() > 0; }

  std::string evaluate(StepMetrics& now, const PassDone& pass_done) override {
    now.held_out_loss = evaluation_.run(gpt_, model_, pass_done);
    now.held_out_samples = evaluation_.sequences();
    const bool last = now.step == job_.length.last_step;  // the long text follows
    return evaluation_lines(now, job_, last ? std::string() : write(std::min(short_sample, job_.sample)));
  }

  std::string last_words() override { return job_.sample > 0 ? closing_sample(write(job_.sample)) : std::string(); }

  tessera::Bytes batch_bytes() const override { return train_gpt::batch_bytes(job_); }

 private:
  // Reserves memory for the largest batches that come.
  void reserve() {
    tessera::Stream& stream = model_.stream();
    const std::size_t samples = job_.options.run.batch;
    inputs_.reserve(stream, samples * job_.shape.seq);
    targets_.reserve(stream, samples * job_.shape.seq);
    weights_.reserve(stream, samples * job_.shape.seq);
    if (has_held_out()) evaluation_.reserve(stream, samples);
    if (job_.sample > 0) writer_.reserve(stream);
  }

  std::string write(std::size_t bytes) {
    if (bytes == 0 || job_.options.run.quiet) return {};
    return writer_.write(gpt_, model_, bytes, step_);
  }

  const Job& job_;
  std::size_t step_ = 0;
  // The model comes last, so that these outlive its queued work, which reads and writes them.
  OnDevice<std::int32_t> inputs_;
  OnDevice<std::int32_t> targets_;
  OnDevice<float> weights_;
  Gpt<T> gpt_;
  Evaluation<T> evaluation_;
  Writer<T> writer_;
  tessera::DistributedSampler sampler_;  // where the loader starts
  std::optional<tessera::Loader<TokenBatch>> loader_;
  const TokenBatch* batch_ = nullptr;  // of this step
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, RunMetrics* metrics) {
  const Run run{.options = job.options.run,
                .length = job.length,
                .metrics = metrics,
                .unit = {.name = "tokens", .per_sample = job.shape.seq}};
  tessera::trainer::train(world, run, [&]() -> std::unique_ptr<Training> {
    if (job.options.stages() > 1) return make_pipeline(world, job);
    return tessera::nn::with_element(job.options.run.precision, [&](auto element) -> std::unique_ptr<Training> {
      return std::make_unique<GptTraining<decltype(element)>>(world, job);
    });
  });
}

}  // namespace train_gpt
