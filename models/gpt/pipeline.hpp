// A GPT as parts of a pipeline: the embedding and the first blocks, blocks, and the last ones with the norm and the
// output head, whose token table is tied to the embedding's. Ranks along Axis::tensor have slices of them all, and pass
// their own rows on, as those along Axis::context pass their positions'.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "models/gpt/model.hpp"
#include "models/gpt/shape.hpp"
#include "models/gpt/units.hpp"
#include "tessera/shard/pipeline.hpp"

namespace models {

// The blocks of each part, and how far the seconds of parts are apart, counted by products.
struct GptSplit {
  std::vector<std::size_t> begins;  // the first block of each part, and the end of the last one
  double imbalance;
};
// Throws UsageError for more parts than blocks.
GptSplit split_gpt(const GptShape& shape, std::size_t parts);

// A step or an evaluation brings this to one micro-batch: ids to the first part, answers to the last. The memory stays
// until its passes have run.
struct GptMicroBatch {
  TokenRows tokens;
  Answers answers;
  SamplePlace place;
  bool writes = false;  // an evaluation that forms logits in place of a loss
};

struct GptPartOptions {
  std::size_t begin, end;  // its blocks
  std::size_t batch;       // sequences of a micro-batch, of an evaluation at most
  tessera::DeviceKind device = tessera::DeviceKind::cpu;
};

template <typename T>
class GptPart final : public tessera::PipelinePart {
 public:
  GptPart(const GptShape& shape, const GptPartOptions& options);

  void bring(const std::vector<GptMicroBatch>& micro_batches) { micro_batches_ = micro_batches; }
  // The last part has those of the token that follows a micro-batch that writes, until the next pass.
  std::span<const float> logits() const { return {logits_.data, logits_.elements()}; }
  static std::size_t passed_elements(const GptShape& shape, std::size_t batch);

  void add_to(tessera::FullyShard& model) override { add_units(model); }
  std::vector<tessera::UnitWindow> windows(tessera::plan::WindowKind kind,
                                           std::span<const tessera::Unit* const> units) const override;
  tessera::Bytes activations() const override { return activations_; }
  tessera::Bytes scratch() const override { return scratch_size_; }
  void forward(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void backward(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void backward_input(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void evaluate(tessera::FullyShard& model, const tessera::PartMemory& memory) override;

 private:
  bool is_first() const { return begin_ == 0; }
  bool is_last() const { return end_ == shape_.layers; }
  bool recomputes(std::size_t hidden) const {
    return shape_.activation_checkpointing && begin_ + hidden < shape_.layers;
  }
  LossUnit* loss() const { return is_last() ? embedding_->loss() : nullptr; }
  template <typename Model>
  void add_units(Model& model);
  tessera::nn::ActivationStack& take_place(const tessera::PartMemory& memory, bool begins);
  std::size_t rows(const tessera::PartMemory& memory) const { return brought(memory).tokens.ids.size(); }
  const GptMicroBatch& brought(const tessera::PartMemory& memory) const { return micro_batches_[memory.micro_batch]; }
  // This rank's share of so many rows.
  tessera::nn::MatrixView<T> matrix(std::span<const std::byte> memory, std::size_t rows) const;
  tessera::nn::SequenceBatch sequences(const tessera::PartMemory& memory, tessera::plan::WindowKind kind) const;
  // The passes, for a FullyShard and for one that only counts.
  template <typename Model>
  void forward_pass(Model& model, tessera::plan::WindowKind kind, const tessera::PartMemory& memory,
                    tessera::nn::ActivationStack& stack);
  template <typename Model>
  tessera::nn::MatrixView<T> backward_pass(Model& model, const tessera::PartMemory& memory,
                                           tessera::nn::MatrixView<T> gradient, tessera::nn::ActivationStack& stack);
  // The same in two. The embedding's gradient has a place of its own between them.
  template <typename Model>
  tessera::nn::MatrixView<T> input_pass(Model& model, const tessera::PartMemory& memory,
                                        tessera::nn::MatrixView<T> gradient, tessera::nn::ActivationStack& stack);
  template <typename Model>
  void parameters_pass(Model& model, const tessera::PartMemory& memory, tessera::nn::MatrixView<T> of_embedding,
                       tessera::nn::ActivationStack& stack);
  template <typename Model>
  void embed_back(Model& model, const tessera::PartMemory& memory, tessera::nn::MatrixView<T> gradient,
                  tessera::nn::ActivationStack& stack);
  void copy(tessera::FullyShard& model, tessera::nn::MatrixView<T> from, std::byte* to) const;
  void count();

  GptShape shape_;
  tessera::nn::Slices slices_;
  std::size_t begin_, end_, most_rows_;
  tessera::DeviceKind device_;
  std::unique_ptr<EmbeddingUnit<T>> embedding_;           // of the first part and the last
  std::unique_ptr<SpreadUnit<T>> spread_;                 // of the first part, where ranks have slices
  std::vector<std::unique_ptr<HiddenUnit<T>>> hidden_;    // blocks, and the norm
  std::deque<tessera::nn::ActivationStack> stacks_;       // by place: calls that are made again refer to them
  tessera::nn::ActivationStack scratch_;                  // of blocks that are computed again
  std::vector<tessera::nn::MatrixView<T>> of_embedding_;  // its gradient, by place
  std::vector<GptMicroBatch> micro_batches_;
  tessera::nn::MatrixView<float> logits_ = {};
  tessera::Bytes activations_, scratch_size_;
};

struct GptSchedule {
  std::size_t batch = 1;  // sequences of a micro-batch
  tessera::plan::ScheduleKind kind = tessera::plan::ScheduleKind::one_f_one_b;
  tessera::plan::ScheduleShape shape;
};

template <typename T>
struct GptPipeline {
  GptPipeline(tessera::World& world, const tessera::FullyShardOptions& sharding, const GptShape& whole,
              const GptSchedule& schedule);
  GptSplit split;
  std::vector<GptPart<T>*> parts;  // which the pipeline has
  std::unique_ptr<tessera::Pipeline> pipeline;
};

}  // namespace models
