// A vision model: stages and a head, each a unit, and the passes through them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/vision/pixels.hpp"
#include "models/vision/shape.hpp"
#include "models/vision/stage.hpp"
#include "tessera/nn/counted_work.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace models {

// A window of a micro-batch, and what is computed in it.
struct CountedWindow {
  tessera::plan::WindowUse use;
  nn::CountedWork work;
};

template <typename T>
class VisionModel {
 public:
  explicit VisionModel(const VisionShape& shape);

  // For micro-batches of at most so many images on devices of this kind.
  void add_to(tessera::FullyShard& model, std::size_t images, tessera::DeviceKind device = tessera::DeviceKind::cpu);
  // To whatever takes modules as a FullyShard does: add(module, name).
  template <typename Model>
  void add_units(Model& model) {
    for (const NamedStage& each : stages_) model.add(*each.stage, each.name);
    model.add(*head_, "fc");
  }

  // Where activations stand from now on: planned_activation_bytes(), aligned to 64 bytes, as long as passes follow.
  void use(std::span<std::byte> memory, tessera::DeviceKind device = tessera::DeviceKind::cpu) {
    stack_ = nn::ActivationStack(memory, device);
  }

  // One micro-batch, forward and backward. Enqueues; images, targets and loss must stay until the stream is through.
  // pixels: an image in each row, [height, width, channels].
  void train(tessera::FullyShard& model, nn::MatrixView<const float> pixels, const ImageAnswers& answers);
  // The logits in evaluation windows, valid until the next pass. There may be no images.
  nn::MatrixView<T> evaluate(tessera::FullyShard& model, nn::MatrixView<const float> pixels);

  // Returns the bytes that passes over micro-batches of so many images need, counted by the passes themselves.
  static tessera::Bytes planned_activation_bytes(const VisionShape& shape, std::size_t images,
                                                 tessera::DeviceKind device = tessera::DeviceKind::cpu);
  // Returns those that each stage leaves to its backward window in memory of its own (VisionShape::stages_save).
  static std::vector<tessera::Bytes> saved_bytes(const VisionShape& shape, std::size_t images,
                                                 tessera::DeviceKind device = tessera::DeviceKind::cpu);
  // Those of a micro-batch of so many images, counted likewise.
  static std::vector<CountedWindow> counted_windows(const VisionShape& shape, std::size_t images);

 private:
  struct NamedStage {
    std::string name;
    std::unique_ptr<Stage<T>> stage;
    SavingStage<T>* saving = nullptr;      // the same, where it saves
    tessera::vision::ImageView<T> y = {};  // of the pass at hand
  };
  void place_results(tessera::vision::ImageView<const T> x);
  void make_stages_save();
  void count(std::size_t images, tessera::DeviceKind device);
  void make_convolutional();
  void make_transformer();
  void make_residual(const std::vector<std::size_t>& blocks, bool bottleneck);

  // The passes, for a FullyShard and for one that only counts.
  template <typename Model>
  void train_pass(Model& model, nn::MatrixView<const float> pixels, const ImageAnswers& answers);
  template <typename Model>
  void backward_pass(Model& model, nn::MatrixView<T> logits);
  template <typename Model>
  nn::MatrixView<T> evaluation_pass(Model& model, nn::MatrixView<const float> pixels);

  VisionShape shape_;
  std::vector<NamedStage> stages_;
  std::unique_ptr<Head<T>> head_;
  nn::ActivationStack stack_;
};

}  // namespace models
