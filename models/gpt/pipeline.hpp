// A GPT as parts of a pipeline: the embedding and the first blocks, blocks, and the last ones with the norm and the
// output head, whose token table is tied to the embedding's. Ranks along Axis::tensor have slices of them all, and pass
// their own rows on.
#pragma once

#include <cstddef>
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
};

template <typename T>
class GptPart final : public tessera::PipelinePart {
 public:
  // The blocks from `begin` to `end`; micro-batches are of `batch` sequences. Nothing is recomputed.
  GptPart(const GptShape& shape, std::size_t begin, std::size_t end, std::size_t batch, tessera::DeviceKind device);

  void bring(const std::vector<GptMicroBatch>& micro_batches) { micro_batches_ = micro_batches; }
  static std::size_t passed_elements(const GptShape& shape, std::size_t batch);

  void add_to(tessera::FullyShard& model) override { add_units(model); }
  std::vector<tessera::UnitWindow> windows(tessera::plan::WindowKind kind,
                                           std::span<const tessera::Unit* const> units) const override;
  tessera::Bytes activations() const override { return activations_; }
  void forward(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void backward(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void evaluate(tessera::FullyShard& model, const tessera::PartMemory& memory) override;

 private:
  bool is_first() const { return begin_ == 0; }
  bool is_last() const { return end_ == shape_.layers; }
  LossUnit* loss() const { return is_last() ? embedding_->loss() : nullptr; }
  template <typename Model>
  void add_units(Model& model);
  tessera::nn::ActivationStack& take_place(const tessera::PartMemory& memory, bool begins);
  tessera::nn::MatrixView<T> matrix(std::span<const std::byte> memory) const;  // of this rank's rows
  tessera::nn::SequenceBatch sequences(const tessera::PartMemory& memory, tessera::plan::WindowKind kind) const;
  // The passes, for a FullyShard and for one that only counts.
  template <typename Model>
  void forward_pass(Model& model, tessera::plan::WindowKind kind, const tessera::PartMemory& memory,
                    tessera::nn::ActivationStack& stack);
  template <typename Model>
  tessera::nn::MatrixView<T> backward_pass(Model& model, const tessera::PartMemory& memory,
                                           tessera::nn::MatrixView<T> gradient, tessera::nn::ActivationStack& stack);
  tessera::Bytes count();

  GptShape shape_;
  tessera::nn::Slices slices_;
  std::size_t begin_, end_, rows_;
  tessera::DeviceKind device_;
  std::unique_ptr<EmbeddingUnit<T>> embedding_;         // of the first part and the last
  std::unique_ptr<SpreadUnit<T>> spread_;               // of the first part, where ranks have slices
  std::vector<std::unique_ptr<HiddenUnit<T>>> hidden_;  // blocks, and the norm
  std::vector<tessera::nn::ActivationStack> stacks_;    // by place
  std::vector<GptMicroBatch> micro_batches_;
  tessera::Bytes activations_;
};

struct GptSchedule {
  std::size_t batch = 1;  // sequences of a micro-batch
  tessera::plan::ScheduleKind kind = tessera::plan::ScheduleKind::one_f_one_b;
  tessera::plan::ScheduleShape shape;
};

template <typename T>
struct GptPipeline {
  GptPipeline(tessera::World& world, const tessera::FullyShardOptions& sharding, const GptShape& shape,
              const GptSchedule& schedule);
  GptSplit split;
  std::vector<GptPart<T>*> parts;  // which the pipeline has
  std::unique_ptr<tessera::Pipeline> pipeline;
};

}  // namespace models
