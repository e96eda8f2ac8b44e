// A vision transformer as parts of a pipeline: the patches and the first blocks, blocks, and the last ones with the
// head. Models with batch norms are none: their running moments are of the order in which micro-batches come.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "models/vision/shape.hpp"
#include "models/vision/transformer.hpp"
#include "tessera/shard/pipeline.hpp"

namespace models {

// A step or an evaluation brings this to one micro-batch: pixels to the first part, answers to the last. The memory
// stays until its passes have run. pixels: an image in each row.
struct ImageMicroBatch {
  nn::MatrixView<const float> pixels;
  ImageAnswers answers;
};

struct VisionPartOptions {
  std::size_t begin, end;         // its blocks
  std::size_t images;             // of a micro-batch, of an evaluation at most
  bool goes_back_in_two = false;  // each micro-batch, as zb-h1 has it
  tessera::DeviceKind device = tessera::DeviceKind::cpu;
};

template <typename T>
class VisionPart final : public tessera::PipelinePart {
 public:
  VisionPart(const VisionShape& shape, const VisionPartOptions& options);

  void bring(const std::vector<ImageMicroBatch>& micro_batches) { micro_batches_ = micro_batches; }
  // The last part has those of an evaluation, until the next pass.
  nn::MatrixView<T> logits() const { return logits_; }

  void add_to(tessera::FullyShard& model) override { add_units(model); }
  std::vector<tessera::UnitWindow> windows(tessera::plan::WindowKind kind,
                                           std::span<const tessera::Unit* const> units) const override;
  tessera::Bytes activations() const override { return activations_; }
  void forward(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void backward(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void backward_input(tessera::FullyShard& model, const tessera::PartMemory& memory) override;
  void evaluate(tessera::FullyShard& model, const tessera::PartMemory& memory) override;

 private:
  using Image = tessera::vision::ImageView<T>;
  bool is_first() const { return patches_ != nullptr; }
  bool is_last() const { return head_ != nullptr; }
  template <typename Model>
  void add_units(Model& model);
  nn::ActivationStack& take_place(const tessera::PartMemory& memory, bool begins);
  Image tokens(std::span<const std::byte> memory, const tessera::PartMemory& of) const;
  // The passes, for a FullyShard and for one that only counts.
  template <typename Model>
  void forward_pass(Model& model, tessera::plan::WindowKind kind, const tessera::PartMemory& memory,
                    nn::ActivationStack& stack);
  template <typename Model>
  void backward_pass(Model& model, nn::MatrixView<T> logits, Image gradient, nn::ActivationStack& stack);
  // The same in two. The gradient of the patches has a place of its own between them.
  template <typename Model>
  void input_pass(Model& model, nn::MatrixView<T> logits, Image gradient, nn::ActivationStack& stack);
  template <typename Model>
  void parameters_pass(Model& model, Image of_patches, nn::ActivationStack& stack);
  Image gradient_of(tessera::FullyShard& model, const tessera::PartMemory& memory, nn::ActivationStack& stack) const;
  void count(std::size_t images);

  VisionShape shape_;
  std::size_t begin_, tokens_;
  bool goes_back_in_two_;
  tessera::DeviceKind device_;
  std::unique_ptr<PatchStage<T>> patches_;  // of the first part
  std::vector<std::unique_ptr<TransformerStage<T>>> blocks_;
  std::unique_ptr<ClassTokenHead<T>> head_;         // of the last one
  std::deque<nn::ActivationStack> stacks_;          // by place
  std::vector<nn::MatrixView<T>> logits_of_place_;  // of the last part
  std::vector<Image> of_patches_;                   // their gradient, by place
  std::vector<ImageMicroBatch> micro_batches_;
  nn::MatrixView<T> logits_ = {};
  tessera::Bytes activations_;
};

struct VisionSchedule {
  std::size_t images = 1;  // of a micro-batch
  tessera::plan::ScheduleKind kind = tessera::plan::ScheduleKind::one_f_one_b;
  tessera::plan::ScheduleShape shape;
};

// The shape of a transformer. Throws UsageError for more parts than blocks.
template <typename T>
struct VisionPipeline {
  VisionPipeline(tessera::World& world, const tessera::FullyShardOptions& sharding, const VisionShape& shape,
                 const VisionSchedule& schedule);
  std::vector<std::size_t> begins;    // the first block of each part
  double imbalance;                   // EvenCut::imbalance
  std::vector<VisionPart<T>*> parts;  // which the pipeline has
  std::unique_ptr<tessera::Pipeline> pipeline;
};

}  // namespace models
