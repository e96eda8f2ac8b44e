// Forward leaves on the stack of its place what backward finds there. All blocks' results have one size, so that each
// gradient takes the place of the one behind it.
#include "models/vision/pipeline.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "models/vision/pixels.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/counting_model.hpp"

namespace models {

using tessera::PartMemory;
using tessera::plan::WindowKind;

namespace {

std::size_t tokens_of(const VisionShape& shape) {
  const std::size_t patch = transformer_depth(shape).patch;
  return 1 + shape.image.height / patch * (shape.image.width / patch);
}

}  // namespace

template <typename T>
VisionPart<T>::VisionPart(const VisionShape& shape, const VisionPartOptions& options)
    : shape_(shape),
      begin_(options.begin),
      tokens_(tokens_of(shape)),
      goes_back_in_two_(options.goes_back_in_two),
      device_(options.device) {
  if (begin_ == 0) patches_ = make_patches<T>(shape);
  for (std::size_t block = begin_; block < options.end; ++block) {
    blocks_.push_back(make_transformer_block<T>(shape, block));
  }
  if (options.end == transformer_depth(shape).layers) head_ = make_class_head<T>(shape);
  count(options.images);
}

template <typename T>
template <typename Model>
void VisionPart<T>::add_units(Model& model) {
  if (is_first()) model.add(*patches_, "patch_embed");
  for (std::size_t i = 0; i < blocks_.size(); ++i) model.add(*blocks_[i], fmt::format("blocks.{}", begin_ + i));
  if (is_last()) model.add(*head_, "fc");
}

// Pixels have no gradient.
template <typename T>
std::vector<tessera::UnitWindow> VisionPart<T>::windows(WindowKind kind,
                                                        std::span<const tessera::Unit* const> units) const {
  return PipelinePart::windows(kind, units.subspan(kind == WindowKind::backward_input && is_first() ? 1 : 0));
}

template <typename T>
nn::ActivationStack& VisionPart<T>::take_place(const PartMemory& memory, bool begins) {
  if (stacks_.size() <= memory.place) stacks_.resize(memory.place + 1);
  logits_of_place_.resize(stacks_.size());
  of_patches_.resize(stacks_.size());
  if (begins) stacks_[memory.place] = nn::ActivationStack(memory.activations, device_);
  if (is_first()) patches_->take_place(memory.place);
  for (const auto& block : blocks_) block->take_place(memory.place);
  if (is_last()) head_->take_place(memory.place);
  return stacks_[memory.place];
}

template <typename T>
tessera::vision::ImageView<T> VisionPart<T>::tokens(std::span<const std::byte> memory, const PartMemory& of) const {
  return {reinterpret_cast<T*>(const_cast<std::byte*>(memory.data())), micro_batches_[of.micro_batch].pixels.rows,
          tokens_, 1, shape_.width};
}

template <typename T>
void VisionPart<T>::forward(tessera::FullyShard& model, const PartMemory& memory) {
  forward_pass(model, WindowKind::forward, memory, take_place(memory, true));
}
template <typename T>
void VisionPart<T>::evaluate(tessera::FullyShard& model, const PartMemory& memory) {
  forward_pass(model, WindowKind::evaluate, memory, take_place(memory, true));
}

// Where a pass back starts: in the place of what goes to the part before, or on the stack.
template <typename T>
tessera::vision::ImageView<T> VisionPart<T>::gradient_of(tessera::FullyShard& model, const PartMemory& memory,
                                                         nn::ActivationStack& stack) const {
  Image gradient = tokens(memory.input_gradient, memory);
  if (is_first()) gradient.data = stack.push<T>(gradient.elements()).data();
  if (is_last()) return gradient;
  tessera::kernels::copy(model.stream(), gradient.data, reinterpret_cast<const T*>(memory.output_gradient.data()),
                         tessera::Bytes(gradient.elements() * sizeof(T)));
  return gradient;
}

template <typename T>
void VisionPart<T>::backward(tessera::FullyShard& model, const PartMemory& memory) {
  nn::ActivationStack& stack = take_place(memory, false);
  if (goes_back_in_two_) return parameters_pass(model, of_patches_[memory.place], stack);
  backward_pass(model, logits_of_place_[memory.place], gradient_of(model, memory, stack), stack);
}
template <typename T>
void VisionPart<T>::backward_input(tessera::FullyShard& model, const PartMemory& memory) {
  nn::ActivationStack& stack = take_place(memory, false);
  of_patches_[memory.place] = gradient_of(model, memory, stack);
  input_pass(model, logits_of_place_[memory.place], of_patches_[memory.place], stack);
}

template <typename T>
template <typename Model>
void VisionPart<T>::forward_pass(Model& model, WindowKind kind, const PartMemory& memory, nn::ActivationStack& stack) {
  const ImageMicroBatch& micro = micro_batches_[memory.micro_batch];
  Image x = tokens(memory.input, memory);
  const auto result = [&](bool is_at_end) {
    Image y = tokens(memory.output, memory);
    if (!is_at_end || is_last()) y.data = stack.push<T>(y.elements()).data();
    return y;
  };
  if (is_first()) {
    x = result(false);
    model.pass(kind, *patches_, stack, pixels_as<T>(model, stack, shape_, micro.pixels), x);
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Image y = result(i + 1 == blocks_.size());
    std::optional<nn::ScratchScope> only_y;
    if (kind == WindowKind::evaluate) only_y.emplace(stack);
    model.pass(kind, *blocks_[i], stack, tessera::vision::ImageView<const T>(x), y);
    x = y;
  }
  if (!is_last()) return;
  logits_ = stack.push<T>(x.images, shape_.classes);
  logits_of_place_[memory.place] = logits_;
  const tessera::vision::ImageView<const T> seen = x;
  if (kind == WindowKind::evaluate) {
    model.pass(kind, *head_, stack, seen, logits_);
  } else {
    model.pass(kind, *head_, stack, seen, logits_, micro.answers);
  }
}

template <typename T>
template <typename Model>
void VisionPart<T>::backward_pass(Model& model, nn::MatrixView<T> logits, Image gradient, nn::ActivationStack& stack) {
  if (is_last()) model.backward(*head_, stack, logits, gradient);
  for (std::size_t i = blocks_.size(); i-- > 0;) model.backward(*blocks_[i], stack, gradient, Image{});
  if (is_first()) model.backward(*patches_, stack, gradient, Image{});
}

template <typename T>
template <typename Model>
void VisionPart<T>::input_pass(Model& model, nn::MatrixView<T> logits, Image gradient, nn::ActivationStack& stack) {
  if (is_last()) model.backward_input(*head_, stack, logits, gradient);
  for (std::size_t i = blocks_.size(); i-- > 0;) model.backward_input(*blocks_[i], stack, gradient);
}

template <typename T>
template <typename Model>
void VisionPart<T>::parameters_pass(Model& model, Image of_patches, nn::ActivationStack& stack) {
  if (is_last()) model.backward(*head_, stack);
  for (std::size_t i = blocks_.size(); i-- > 0;) model.backward(*blocks_[i], stack);
  if (is_first()) model.backward(*patches_, stack, of_patches, Image{});
}

template <typename T>
void VisionPart<T>::count(std::size_t images) {
  nn::CountingModel counting;
  add_units(counting);
  nn::ActivationStack stack(device_);
  micro_batches_ = {{.pixels = {nullptr, images, shape_.image.elements()}, .answers = {}}};
  logits_of_place_.resize(1);
  const PartMemory nothing{.micro_batch = 0, .place = 0, .activations = {}, .input = {}, .output = {}};
  forward_pass(counting, WindowKind::evaluate, nothing, stack);
  stack.rewind({});
  forward_pass(counting, WindowKind::forward, nothing, stack);
  Image gradient = tokens({}, nothing);
  if (is_first()) gradient.data = stack.push<T>(gradient.elements()).data();
  if (goes_back_in_two_) {
    input_pass(counting, logits_, gradient, stack);
    parameters_pass(counting, gradient, stack);
  } else {
    backward_pass(counting, logits_, gradient, stack);
  }
  activations_ = stack.peak();
  logits_ = {};
}

namespace {

// Products of numbers in one image's forward pass. The first block brings the patches with it, the last one the head,
// which sees only the class token.
std::vector<double> work_of_blocks(const VisionShape& shape) {
  const TransformerDepth depth = transformer_depth(shape);
  const auto dim = static_cast<double>(shape.width);
  const auto tokens = static_cast<double>(tokens_of(shape));
  std::vector<double> blocks(depth.layers, tokens * (12 * dim * dim + 2 * tokens * dim));
  blocks.front() += static_cast<double>(shape.image.elements()) * dim;
  blocks.back() += static_cast<double>(shape.classes) * dim;
  return blocks;
}

}  // namespace

template <typename T>
VisionPipeline<T>::VisionPipeline(tessera::World& world, const tessera::FullyShardOptions& sharding,
                                  const VisionShape& shape, const VisionSchedule& schedule) {
  const std::size_t layers = transformer_depth(shape).layers;
  tessera::EvenCut cut = tessera::cut_evenly(work_of_blocks(shape), schedule.shape.stages * schedule.shape.chunks);
  begins = std::move(cut.begins);
  imbalance = cut.imbalance;
  std::vector<std::unique_ptr<tessera::PipelinePart>> made;
  for (std::size_t part = 0; part < begins.size(); ++part) {
    auto next = std::make_unique<VisionPart<T>>(
        shape, VisionPartOptions{.begin = begins[part],
                                 .end = part + 1 < begins.size() ? begins[part + 1] : layers,
                                 .images = schedule.images,
                                 .goes_back_in_two = schedule.kind == tessera::plan::ScheduleKind::zb_h1,
                                 .device = world.device().kind()});
    parts.push_back(next.get());
    made.push_back(std::move(next));
  }
  pipeline = std::make_unique<tessera::Pipeline>(
      world, sharding,
      tessera::PipelineOptions{.schedule = tessera::plan::schedule(schedule.kind, schedule.shape),
                               .shape = schedule.shape,
                               .elements = schedule.images * tokens_of(shape) * shape.width,
                               .type = tessera::dtype_of<T>},
      std::move(made));
}

template class VisionPart<float>;
template class VisionPart<tessera::bf16>;
template class VisionPart<tessera::fp16>;
template struct VisionPipeline<float>;
template struct VisionPipeline<tessera::bf16>;
template struct VisionPipeline<tessera::fp16>;

}  // namespace models
