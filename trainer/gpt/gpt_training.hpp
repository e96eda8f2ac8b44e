// A GPT's training, whether a rank has all of it or a stage: its batches, the loss on held-out tokens, and the
// text that it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/gpt/model.hpp"
#include "tessera/data/loader.hpp"
#include "tessera/data/tokens.hpp"
#include "tessera/trainer/device_data.hpp"
#include "tessera/trainer/trainer.hpp"
#include "trainer/gpt/job.hpp"

namespace train_gpt {

class GptTraining : public Training {
 public:
  // The job must stay.
  GptTraining(tessera::World& world, const Job& job);

  void ready(const std::optional<tessera::SamplerState>& from) override;
  std::map<std::string, std::string> aliases() const override { return aliases_of_weights(); }
  std::map<std::string, std::string> settings() const override { return settings_of_weights(job_); }
  tessera::SamplerState sampler() const override { return loader_->state(); }
  tessera::Bytes batch_bytes() const override { return train_gpt::batch_bytes(job_); }
  std::size_t begin_step(std::size_t step) override;
  bool has_held_out() const override { return job_.data.parts.held_out.size() > 0; }
  std::string evaluate(StepMetrics& now, const PassDone& pass_done) override;
  std::string last_words() override;

 protected:
  // In evaluation windows, which all ranks open; both enqueue. The mean loss, where this rank has losses.
  virtual void evaluate_pass(const TokenRows& tokens, const Answers& answers) = 0;
  // The logits that follow one sequence, on the device until the next pass; none where this rank has none.
  virtual std::span<const float> next(const TokenRows& tokens) = 0;
  virtual std::size_t micro_batches_at_once() const { return 1; }

  const Job& job_;
  std::size_t step_ = 0;
  // A model's queued work reads and writes these, so it ends before them, with what is derived from this.
  OnDevice<std::int32_t> inputs_;
  OnDevice<std::int32_t> targets_;
  OnDevice<float> weights_;
  const tessera::TokenBatch* batch_ = nullptr;  // of this step

 private:
  // This rank's part of the ids, with others that fill up behind them so that all have as many.
  TokenRows part_of(std::span<const std::int32_t> ids);
  double held_out_loss(const PassDone& pass_done);
  std::string write(std::size_t bytes);
  std::int32_t next_token(double uniform);

  tessera::World& world_;
  std::size_t context_;  // this rank's place among those that have parts of the same sequences
  HeldOutSlice slice_;
  tessera::TokenBatch held_out_;
  OnDevice<std::int32_t> held_out_inputs_;
  OnDevice<std::int32_t> held_out_targets_;
  FromDevice<float> held_out_loss_{1};   // of the last pass
  bool writes_;                          // this rank, and those that have other parts of the same text's model
  std::vector<std::int32_t> text_;       // prompt included
  std::vector<std::int32_t> part_;       // this rank's of what the model reads
  OnDevice<std::int32_t> seen_;          // the same on the device
  std::vector<float> logits_;            // of the next token
  tessera::DistributedSampler sampler_;  // where the loader starts
  std::optional<tessera::Loader<tessera::TokenBatch>> loader_;
};

}  // namespace train_gpt
