// A GPT with GPT-2's architecture (Radford et al. 2019): token and position embeddings, pre-norm transformer blocks, a
// layer norm, and the token table again as output head. The embedding, each block and the last norm are units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/gpt/shape.hpp"
#include "models/gpt/units.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/sequence_batch.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace models {

// Which samples of the run a micro-batch has: what dropout masks depend on, and they on nothing else but the seed.
struct SamplePlace {
  std::size_t step = 0;
  std::size_t first_sample = 0;  // within the step's global batch
};

// T: the element type of activations, and of the parameters but for the units that stay in fp32.
template <typename T>
class Gpt {
 public:
  explicit Gpt(const GptShape& shape);

  // The model must have been made with program(shape), and with T's precision. Micro-batches have so many sequences at
  // most, which counts where blocks save their inputs.
  void add_to(tessera::FullyShard& model, std::size_t batch = 0);

  // Where activations stand from now on: as many bytes as planned, aligned to 64, as long as passes follow.
  void use(std::span<std::byte> memory, tessera::DeviceKind device = tessera::DeviceKind::cpu) {
    stack_ = tessera::nn::ActivationStack(memory, device);
  }

  // One micro-batch, forward and backward: *loss becomes the mean cross entropy of a token that this rank has.
  // Enqueues; what is passed in must stay until the stream is through.
  void train(tessera::FullyShard& model, const TokenRows& tokens, const Answers& answers, const SamplePlace& place);
  // The mean loss in evaluation windows, 0 without tokens.
  void evaluate(tessera::FullyShard& model, const TokenRows& tokens, const Answers& answers);
  // The logits of the token after the last one that this rank has of a single sequence, in memory of this model's until
  // its next pass; nothing without tokens. Evaluation windows.
  std::span<const float> next(tessera::FullyShard& model, const TokenRows& tokens);

  // The units as the model has them, whose micro-batches have so many sequences at most.
  static std::vector<tessera::plan::UnitSpec> units(const GptShape& shape, std::size_t batch);
  // The windows that the passes open. The unit "embedding" has two forward and two backward ones: it is the output
  // head, too.
  static tessera::plan::Program program(const GptShape& shape);
  // Returns what a unit saves of micro-batches of so many sequences (UnitOptions::saved).
  static tessera::Bytes saved_bytes(const GptShape& shape, std::string_view unit, std::size_t batch);
  // Returns the bytes that passes over micro-batches of so many sequences need, counted by the passes themselves.
  static tessera::Bytes planned_activation_bytes(const GptShape& shape, std::size_t batch,
                                                 tessera::DeviceKind device = tessera::DeviceKind::cpu);

 private:
  template <typename Model>
  void add_units(Model& model, std::size_t batch);
  // The passes, for a FullyShard and for one that only counts.
  template <typename Model>
  void train_pass(Model& model, const TokenRows& tokens, const Answers& answers, const SamplePlace& place);
  template <typename Model>
  void forward_pass(Model& model, std::span<const std::int32_t> ids, const tessera::nn::SequenceBatch& sequences);
  template <typename Model>
  void backward_pass(Model& model, tessera::nn::MatrixView<T> gradient, const tessera::nn::SequenceBatch& sequences);
  // This rank's tokens, embedded.
  template <typename Model>
  void embed(Model& model, tessera::plan::WindowKind kind, std::span<const std::int32_t> ids,
             tessera::nn::MatrixView<T> y, const tessera::nn::SequenceBatch& sequences);
  template <typename Model>
  tessera::nn::MatrixView<const T> evaluation_pass(Model& model, const TokenRows& tokens);
  template <typename Model>
  void loss_pass(Model& model, const TokenRows& tokens, const Answers& answers);
  template <typename Model>
  tessera::nn::MatrixView<float> next_pass(Model& model, const TokenRows& tokens);

  tessera::nn::SequenceBatch sequences(const TokenRows& tokens) const;
  tessera::nn::SequenceBatch sequences(const TokenRows& tokens, const SamplePlace& place) const;
  tessera::nn::MatrixView<T> push_rows(std::size_t tokens);  // of this rank

  GptShape shape_;
  tessera::nn::Slices slices_;
  std::unique_ptr<EmbeddingUnit<T>> embedding_;
  std::unique_ptr<SpreadUnit<T>> spread_;  // null where ranks have no slices
  std::vector<std::unique_ptr<HiddenUnit<T>>> blocks_;
  std::unique_ptr<HiddenUnit<T>> final_;
  // Each block's input, and the last one's output; where blocks save their inputs, two in turns.
  std::vector<tessera::nn::MatrixView<T>> hidden_;
  tessera::nn::ActivationStack stack_;
};

}  // namespace models
