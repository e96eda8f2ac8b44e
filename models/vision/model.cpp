// The models, and their passes. Gradients of stages' results take turns in two buffers.
#include "models/vision/model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "models/vision/convolutional.hpp"
#include "models/vision/residual.hpp"
#include "models/vision/transformer.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/counting_model.hpp"

namespace models {

namespace nn = tessera::nn;

template <typename T>
VisionModel<T>::VisionModel(const VisionShape& shape) : shape_(shape) {
  switch (shape.kind) {
    case VisionModelKind::cnn: make_convolutional(); break;
    case VisionModelKind::resnet18: make_residual({2, 2, 2, 2}, false); break;
    case VisionModelKind::resnet50: make_residual({3, 4, 6, 3}, true); break;
    case VisionModelKind::vit_s:
    case VisionModelKind::vit_b:
    case VisionModelKind::vit_l: make_transformer(); break;
  }
  if (shape.stages_save) make_stages_save();
}

// The pixels stay where they are.
template <typename T>
void VisionModel<T>::make_stages_save() {
  for (NamedStage& each : stages_) {
    auto saving = std::make_unique<SavingStage<T>>(std::move(each.stage), &each != &stages_.front());
    each.saving = saving.get();
    each.stage = std::move(saving);
  }
}

template <typename T>
void VisionModel<T>::add_to(tessera::FullyShard& model, std::size_t images, tessera::DeviceKind device) {
  std::vector<tessera::Bytes> saved(stages_.size());
  if (shape_.stages_save) saved = saved_bytes(shape_, images, device);
  for (std::size_t i = 0; i < stages_.size(); ++i)
    model.add(*stages_[i].stage, {.name = stages_[i].name, .saved = saved[i]});
  model.add(*head_, "fc");
}

template <typename T>
std::vector<tessera::Bytes> VisionModel<T>::saved_bytes(const VisionShape& shape, std::size_t images,
                                                        tessera::DeviceKind device) {
  VisionModel model(shape);
  model.count(images, device);
  std::vector<tessera::Bytes> result;
  for (const NamedStage& each : model.stages_) result.push_back(each.saving->saved_bytes());
  return result;
}

template <typename T>
void VisionModel<T>::make_convolutional() {
  if (shape_.image.height < 4 || shape_.image.width < 4) {
    throw tessera::UsageError("cnn: images must have at least 4 x 4 pixels, of which it makes a quarter twice");
  }
  stages_.push_back({"conv1", std::make_unique<PooledStage<T>>(shape_.image.channels, shape_.width)});
  stages_.push_back({"conv2", std::make_unique<PooledStage<T>>(shape_.width, 2 * shape_.width)});
  const std::size_t pixels = (shape_.image.height / 4) * (shape_.image.width / 4);
  head_ = std::make_unique<PerceptronHead<T>>(pixels * 2 * shape_.width, 4 * shape_.width, shape_.classes,
                                              shape_.label_smoothing);
}

template <typename T>
void VisionModel<T>::make_residual(const std::vector<std::size_t>& blocks, bool bottleneck) {
  stages_.push_back({"stem", std::make_unique<Stem<T>>(StemShape{.in = shape_.image.channels,
                                                                 .out = shape_.width,
                                                                 .keeps_size = keeps_size(shape_),
                                                                 .synchronised = shape_.synchronised_norms,
                                                                 .granules = shape_.granule_norms})});
  std::size_t channels = shape_.width;
  for (NamedBlock& block : residual_blocks(shape_.width, blocks, bottleneck)) {
    block.shape.synchronised = shape_.synchronised_norms;
    block.shape.granules = shape_.granule_norms;
    stages_.push_back({block.name, std::make_unique<ResidualStage<T>>(block.shape)});
    channels = block.shape.out();
  }
  head_ = std::make_unique<AverageHead<T>>(channels, shape_.classes, shape_.label_smoothing);
}

template <typename T>
void VisionModel<T>::make_transformer() {
  stages_.push_back({"patch_embed", make_patches<T>(shape_)});
  for (std::size_t i = 0; i < transformer_depth(shape_).layers; ++i) {
    stages_.push_back({fmt::format("blocks.{}", i), make_transformer_block<T>(shape_, i)});
  }
  head_ = make_class_head<T>(shape_);
}

template <typename T>
void VisionModel<T>::train(tessera::FullyShard& model, nn::MatrixView<const float> pixels,
                           const ImageAnswers& answers) {
  train_pass(model, pixels, answers);
}

template <typename T>
nn::MatrixView<T> VisionModel<T>::evaluate(tessera::FullyShard& model, nn::MatrixView<const float> pixels) {
  return evaluation_pass(model, pixels);
}

template <typename T>
tessera::Bytes VisionModel<T>::planned_activation_bytes(const VisionShape& shape, std::size_t images,
                                                        tessera::DeviceKind device) {
  VisionModel model(shape);
  model.count(images, device);
  return model.stack_.peak();
}

template <typename T>
void VisionModel<T>::count(std::size_t images, tessera::DeviceKind device) {
  stack_ = nn::ActivationStack(device);
  nn::CountingModel counting;
  const nn::MatrixView<const float> pixels{nullptr, images, shape_.image.elements()};
  train_pass(counting, pixels, {});
  evaluation_pass(counting, pixels);
}

template <typename T>
std::vector<CountedWindow> VisionModel<T>::counted_windows(const VisionShape& shape, std::size_t images) {
  VisionModel model(shape);
  nn::CountingModel counting;
  model.add_units(counting);
  model.train_pass(counting, {nullptr, images, shape.image.elements()}, {});
  std::vector<CountedWindow> windows;
  for (const nn::CountedWork& work : counting.works()) windows.push_back({{}, work});
  const std::vector<tessera::plan::WindowUse> uses = counting.take_windows();
  for (std::size_t i = 0; i < uses.size(); ++i) windows[i].use = uses[i];
  return windows;
}

template <typename T>
template <typename Model>
void VisionModel<T>::train_pass(Model& model, nn::MatrixView<const float> pixels, const ImageAnswers& answers) {
  const nn::ScratchScope pass(stack_);
  tessera::vision::ImageView<const T> x = pixels_as<T>(model, stack_, shape_, pixels);
  if (shape_.stages_save) place_results(x);
  for (NamedStage& each : stages_) {
    if (!shape_.stages_save) each.y = each.stage->push_result(stack_, x);
    model.forward(*each.stage, stack_, x, each.y);
    x = each.y;
  }
  const auto logits = stack_.push<T>(x.images, shape_.classes);
  model.forward(*head_, stack_, x, logits, answers);
  backward_pass(model, logits);
}

// Where no stage needs another's result later, they take turns in two places.
template <typename T>
void VisionModel<T>::place_results(tessera::vision::ImageView<const T> x) {
  nn::ActivationStack shapes(stack_.device());
  std::size_t most = 0;
  for (NamedStage& each : stages_) {
    each.y = each.stage->push_result(shapes, x);
    x = each.y;
    most = std::max(most, x.elements());
  }
  T* const places[2] = {stack_.push<T>(most).data(), stack_.push<T>(most).data()};
  for (std::size_t i = 0; i < stages_.size(); ++i) stages_[i].y.data = places[i % 2];
}

template <typename T>
template <typename Model>
void VisionModel<T>::backward_pass(Model& model, nn::MatrixView<T> logits) {
  std::size_t most = 0;
  for (const NamedStage& each : stages_) most = std::max(most, each.y.elements());
  T* const buffers[2] = {stack_.push<T>(most).data(), stack_.push<T>(most).data()};
  const auto gradient_of = [&](std::size_t stage) {
    tessera::vision::ImageView<T> gradient = stages_[stage].y;
    gradient.data = buffers[stage % 2];
    return gradient;
  };
  model.backward(*head_, stack_, logits, gradient_of(stages_.size() - 1));
  for (std::size_t i = stages_.size(); i-- > 0;) {
    model.backward(*stages_[i].stage, stack_, gradient_of(i),
                   i == 0 ? tessera::vision::ImageView<T>{} : gradient_of(i - 1));
  }
}

// The scope ends before the logits are read: nothing is pushed in between.
template <typename T>
template <typename Model>
nn::MatrixView<T> VisionModel<T>::evaluation_pass(Model& model, nn::MatrixView<const float> pixels) {
  const nn::ScratchScope pass(stack_);
  tessera::vision::ImageView<const T> x = pixels_as<T>(model, stack_, shape_, pixels);
  place_results(x);
  for (const NamedStage& each : stages_) {
    const nn::ScratchScope only_y_stays(stack_);
    model.evaluate(*each.stage, stack_, x, each.y);
    x = each.y;
  }
  const auto logits = stack_.push<T>(x.images, shape_.classes);
  model.evaluate(*head_, stack_, x, logits);
  return logits;
}

template class VisionModel<float>;
template class VisionModel<tessera::bf16>;
template class VisionModel<tessera::fp16>;

}  // namespace models
