// Every rank opens the same windows, also with nothing to evaluate or to read in them.
#include "trainer/gpt/gpt_training.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/kernels/elementwise.hpp"
#include "tessera/trainer/gather_values.hpp"
#include "tessera/trainer/stages.hpp"
#include "trainer/gpt/text.hpp"

namespace train_gpt {

namespace {

constexpr const char* margin = "  | ";
constexpr std::size_t short_sample = 80;  // bytes, with an evaluation

// Leaves one of `count` equal parts of each sequence.
void keep_part(tessera::TokenBatch& batch, std::size_t count, std::size_t place) {
  const std::size_t all = batch.columns, each = all / count;
  const auto keep = [&](auto& values) {
    for (std::size_t row = 0; row < batch.rows; ++row) {
      const auto from = values.begin() + static_cast<std::ptrdiff_t>(row * all + place * each);
      std::copy(from, from + static_cast<std::ptrdiff_t>(each),
                values.begin() + static_cast<std::ptrdiff_t>(row * each));
    }
    values.resize(batch.rows * each);
  };
  if (count == 1) return;
  keep(batch.inputs), keep(batch.targets), keep(batch.weights);
  batch.columns = each;
}

}  // namespace

GptTraining::GptTraining(tessera::World& world, const Job& job)
    : job_(job),
      world_(world),
      context_(shape_on(world, job).context),
      slice_(job.data.parts.held_out.size(), world, job.options.run),
      writes_(job.options.run.data_rank(static_cast<std::size_t>(world.rank())) == 0),
      sampler_(sampler_options(job.options.run, job.data.parts.training.size(), world)) {}

// Reserves memory for the largest batches that come.
void GptTraining::ready(const std::optional<tessera::SamplerState>& from) {
  tessera::Stream& stream = model().stream();
  const std::size_t samples = job_.options.run.batch, positions = job_.shape.positions(),
                    tokens = samples * micro_batches_at_once() * positions;
  inputs_.reserve(stream, tokens);
  targets_.reserve(stream, tokens);
  weights_.reserve(stream, tokens);
  if (has_held_out()) {
    held_out_inputs_.reserve(stream, samples * positions);
    held_out_targets_.reserve(stream, samples * positions);
    held_out_loss_.at(stream);
  }
  if (job_.sample > 0) seen_.reserve(stream, positions);
  if (from) sampler_.restore(*from);
  loader_.emplace(sampler_, tessera::LoaderOptions{.depth = batches_ahead},
                  [this](const tessera::SampleBatch& chosen, tessera::TokenBatch& batch) {
                    job_.data.parts.training.read(chosen, batch);
                    keep_part(batch, job_.shape.contexts, context_);
                  });
}

std::size_t GptTraining::begin_step(std::size_t step) {
  step_ = step;
  batch_ = loader_->next();
  return batch_->global_samples;
}

std::string GptTraining::evaluate(StepMetrics& now, const PassDone& pass_done) {
  now.held_out_loss = held_out_loss(pass_done);
  now.held_out_samples = slice_.used();
  std::string text = fmt::format("{}   held-out loss {:.4f}", step_text(now, job_.length), *now.held_out_loss);
  const std::size_t all = job_.data.parts.held_out.size();
  if (slice_.used() < all) text += fmt::format(" ({} of {} sequences)", grouped(slice_.used()), grouped(all));
  const bool last = now.step == job_.length.last_step;  // the long text follows
  const std::string sample = last ? std::string() : write(std::min(short_sample, job_.sample));
  if (!sample.empty()) text += fmt::format("\n{}", indented(sample, margin));
  return text;
}

std::string GptTraining::last_words() {
  return job_.sample > 0 ? fmt::format("\n{}", indented(write(job_.sample), margin)) : std::string();
}

// The mean cross entropy of a token. Where ranks have stages, those of the last one know it for all; where they have
// parts of sequences, each knows that of its own.
double GptTraining::held_out_loss(const PassDone& pass_done) {
  const tessera::TokenSequences& held_out = job_.data.parts.held_out;
  const auto ranks_of_loss = static_cast<double>(stages_of(job_.options.run) * job_.shape.contexts);
  tessera::Stream& stream = model().stream();
  HeldOutSum sum(job_.options.run);
  for (std::size_t pass = 0; pass < slice_.passes(); ++pass) {
    held_out.read(slice_.samples(pass, 0), held_out_);
    keep_part(held_out_, job_.shape.contexts, context_);
    evaluate_pass({.ids = held_out_inputs_.put(stream, held_out_.inputs), .sequence = job_.shape.positions()},
                  {.targets = held_out_targets_.put(stream, held_out_.targets), .loss = held_out_loss_.at(stream)});
    held_out_loss_.fetch(stream);
    model().synchronize();
    const double tokens = ranks_of_loss * static_cast<double>(held_out_.targets.size());
    sum.add(has_losses() ? static_cast<double>(held_out_loss_.values().front()) * tokens : 0.0);
    pass_done(pass + 1, slice_.passes());
  }
  return sum.over_ranks(world_, "held-out loss") / static_cast<double>(slice_.used() * held_out.length());
}

// The prompt and `bytes` more, fit for a terminal; empty on ranks that do not write.
std::string GptTraining::write(std::size_t bytes) {
  if (bytes == 0 || job_.options.run.quiet) return {};
  text_ = tokens_of(job_.options.prompt.value_or(usual_prompt));
  for (std::size_t i = 0; i < bytes; ++i) {
    text_.push_back(next_token(uniform_number(job_.options.run.seed, step_, static_cast<std::uint32_t>(i))));
  }
  return writes_ ? printable(text_) : std::string();
}

TokenRows GptTraining::part_of(std::span<const std::int32_t> ids) {
  const std::size_t each = (ids.size() + job_.shape.contexts - 1) / job_.shape.contexts;
  const std::size_t begin = std::min(context_ * each, ids.size()), own = std::min(each, ids.size() - begin);
  part_.assign(each, 0);
  std::ranges::copy(ids.subspan(begin, own), part_.begin());
  return {.ids = seen_.put(model().stream(), std::span<const std::int32_t>(part_)),
          .sequence = std::max<std::size_t>(1, each),
          .behind = own == 0 ? 0 : each - own};
}

std::int32_t GptTraining::next_token(double uniform) {
  const std::span<const std::int32_t> text(text_);
  const std::span<const std::int32_t> seen = text.last(std::min(text.size(), job_.shape.seq));
  tessera::Stream& stream = model().stream();
  const std::span<const std::int32_t> read = writes_ ? seen : std::span<const std::int32_t>();
  const TokenRows mine = part_of(read);
  const bool ends_here = (read.size() + mine.sequence - 1) / mine.sequence == context_ + 1;
  const std::span<const float> found = next(mine);
  logits_.resize(found.size());
  tessera::kernels::copy(stream, logits_.data(), found.data(), tessera::Bytes(found.size_bytes()));
  model().synchronize();
  // The vocabulary may be padded beyond the data's ids.
  constexpr std::int32_t none = -1;
  std::int32_t token = none;
  if (!logits_.empty() && ends_here) {
    const std::span<const float> logits(logits_);
    token = choose_token(logits.first(job_.data.file().vocabulary()), job_.options.temperature, uniform);
  }
  if (stages_of(job_.options.run) * job_.shape.contexts == 1) return token;
  const std::vector<std::int32_t> all = tessera::trainer::gather_value(world_, token, "the next token");
  for (std::size_t rank = 0; token == none; ++rank) token = all.at(rank);
  return token;
}

}  // namespace train_gpt
