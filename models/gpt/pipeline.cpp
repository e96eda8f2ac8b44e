// Forward leaves on the stack of its place what backward finds there.
#include "models/gpt/pipeline.hpp"

#include <span>
#include <string>
#include <utility>

#include "tessera/nn/counting_model.hpp"

namespace models {

namespace nn = tessera::nn;
using nn::MatrixView;
using tessera::PartMemory;
using tessera::plan::WindowKind;

// For a token: a block's matrices and its attention to all others; the head's matrix.
GptSplit split_gpt(const GptShape& shape, std::size_t parts) {
  const auto dim = static_cast<double>(shape.dim);
  std::vector<double> blocks(shape.layers, 12 * dim * dim + 2 * static_cast<double>(shape.seq) * dim);
  blocks.back() += static_cast<double>(shape.vocabulary) * dim;
  const tessera::EvenCut cut = tessera::cut_evenly(blocks, parts);
  GptSplit result{cut.begins, cut.imbalance};
  result.begins.push_back(shape.layers);
  return result;
}

template <typename T>
GptPart<T>::GptPart(const GptShape& shape, std::size_t begin, std::size_t end, std::size_t batch,
                    tessera::DeviceKind device)
    : shape_(shape), begin_(begin), end_(end), rows_(batch * shape.seq), device_(device) {
  if (is_first() || is_last()) embedding_ = make_embedding<T>(shape);
  for (std::size_t block = begin; block < end; ++block) hidden_.push_back(make_block<T>(shape, block));
  if (is_last()) hidden_.push_back(make_final<T>(shape));
  activations_ = count();
}

template <typename T>
template <typename Model>
void GptPart<T>::add_units(Model& model) {
  const auto add = [&](tessera::Module& unit, const std::string& name, bool tied = false) {
    tessera::UnitOptions options{.name = name, .tied = tied};
    if (stays_in_fp32(shape_, name)) options.precision = tessera::fp32_precision;
    model.add(unit, options);
  };
  if (is_first()) add(*embedding_, embedding_name);
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    add(*hidden_[i], begin_ + i == shape_.layers ? final_name : block_name(begin_ + i));
  }
  if (is_last()) add(*embedding_, embedding_name, true);
}

template <typename T>
nn::ActivationStack& GptPart<T>::take_place(const PartMemory& memory, bool begins) {
  if (stacks_.size() <= memory.place) stacks_.resize(memory.place + 1);
  if (begins) stacks_[memory.place] = nn::ActivationStack(memory.activations, device_);
  if (embedding_) embedding_->take_place(memory.place);
  for (const auto& unit : hidden_) unit->take_place(memory.place);
  return stacks_[memory.place];
}

template <typename T>
MatrixView<T> GptPart<T>::matrix(std::span<const std::byte> memory) const {
  return {reinterpret_cast<T*>(const_cast<std::byte*>(memory.data())), rows_, shape_.dim};
}

template <typename T>
void GptPart<T>::forward(tessera::FullyShard& model, const PartMemory& memory) {
  forward_pass(model, WindowKind::forward, memory, take_place(memory, true));
}
template <typename T>
void GptPart<T>::evaluate(tessera::FullyShard& model, const PartMemory& memory) {
  forward_pass(model, WindowKind::evaluate, memory, take_place(memory, true));
}
template <typename T>
void GptPart<T>::backward(tessera::FullyShard& model, const PartMemory& memory) {
  PartMemory in_place = memory;  // each unit's gradient takes the place of the one behind it
  const tessera::Bytes size(memory.input_gradient.size());
  if (!is_first() && !is_last()) {
    tessera::kernels::copy(model.stream(), memory.input_gradient.data(), memory.output_gradient.data(), size);
  }
  if (!is_first()) in_place.output_gradient = memory.input_gradient;
  backward_pass(model, in_place, take_place(memory, false));
}

template <typename T>
template <typename Model>
void GptPart<T>::forward_pass(Model& model, WindowKind kind, const PartMemory& memory, nn::ActivationStack& stack) {
  const GptMicroBatch& micro = micro_batches_[memory.micro_batch];
  const bool trains = kind == WindowKind::forward;
  nn::SequenceBatch how{.length = shape_.seq};
  if (trains) {
    how.dropout = {.probability = shape_.dropout,
                   .key = {.seed = shape_.dropout_seed,
                           .step = static_cast<std::uint32_t>(micro.place.step),
                           .first_row = micro.place.first_sample * shape_.seq}};
  }
  MatrixView<T> x = is_first() ? stack.push<T>(rows_, shape_.dim) : matrix(memory.input);
  if (is_first()) model.pass(kind, *embedding_, stack, micro.tokens.ids, x, how);
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    const bool is_sent = !is_last() && i + 1 == hidden_.size();
    const MatrixView<T> y = is_sent ? matrix(memory.output) : stack.push<T>(rows_, shape_.dim);
    model.pass(kind, *hidden_[i], stack, x, y, how);
    x = y;
  }
  if (is_last()) model.pass(kind, *embedding_, stack, x, micro.answers);
}

template <typename T>
template <typename Model>
void GptPart<T>::backward_pass(Model& model, const PartMemory& memory, nn::ActivationStack& stack) {
  const MatrixView<T> gradient = matrix(memory.output_gradient);
  if (is_last()) model.backward(*embedding_, stack, TiedHeadGradient<T>{gradient});
  for (std::size_t i = hidden_.size(); i-- > 0;) model.backward(*hidden_[i], stack, gradient);
  if (is_first()) model.backward(*embedding_, stack, gradient);
}

// The passes ask for the number of ids only: none is read.
template <typename T>
tessera::Bytes GptPart<T>::count() {
  nn::CountingModel counting;
  add_units(counting);
  nn::ActivationStack stack(device_);
  const std::span<const std::int32_t> ids(static_cast<const std::int32_t*>(nullptr), rows_);
  micro_batches_ = {{.tokens = {.ids = ids, .sequence = shape_.seq}, .answers = {.targets = ids}, .place = {}}};
  const PartMemory nothing{.micro_batch = 0, .place = 0, .activations = {}, .input = {}, .output = {}};
  forward_pass(counting, WindowKind::evaluate, nothing, stack);
  stack.rewind({});
  forward_pass(counting, WindowKind::forward, nothing, stack);
  backward_pass(counting, nothing, stack);
  return stack.peak();
}

template <typename T>
GptPipeline<T>::GptPipeline(tessera::World& world, const tessera::FullyShardOptions& sharding, const GptShape& shape,
                            const GptSchedule& schedule)
    : split(split_gpt(shape, schedule.shape.stages * schedule.shape.chunks)) {
  std::vector<std::unique_ptr<tessera::PipelinePart>> made;
  for (std::size_t part = 0; part + 1 < split.begins.size(); ++part) {
    auto next = std::make_unique<GptPart<T>>(shape, split.begins[part], split.begins[part + 1], schedule.batch,
                                             world.device().kind());
    parts.push_back(next.get());
    made.push_back(std::move(next));
  }
  pipeline = std::make_unique<tessera::Pipeline>(
      world, sharding,
      tessera::PipelineOptions{.schedule = tessera::plan::schedule(schedule.kind, schedule.shape),
                               .shape = schedule.shape,
                               .elements = GptPart<T>::passed_elements(shape, schedule.batch),
                               .type = tessera::dtype_of<T>},
      std::move(made));
}

template class GptPart<float>;
template class GptPart<tessera::bf16>;
template class GptPart<tessera::fp16>;
template struct GptPipeline<float>;
template struct GptPipeline<tessera::bf16>;
template struct GptPipeline<tessera::fp16>;

}  // namespace models
