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
    : shape_(shape), slices_(slices_of(shape)), begin_(begin), end_(end), rows_(batch * shape.seq), device_(device) {
  if (is_first() || is_last()) embedding_ = make_embedding<T>(shape);
  if (is_first()) spread_ = make_spread<T>(shape);
  for (std::size_t block = begin; block < end; ++block) hidden_.push_back(make_block<T>(shape, block));
  if (is_last()) hidden_.push_back(make_final<T>(shape));
  if (shape.slice == 0) {
    activations_ = count();
  } else {  // no slice has more rows than the first, whose memory all have
    GptShape of_first = shape;
    of_first.slice = 0;
    activations_ = GptPart(of_first, begin, end, batch, device).activations();
  }
}

template <typename T>
std::size_t GptPart<T>::passed_elements(const GptShape& shape, std::size_t batch) {
  return slices_of(shape).part(batch * shape.seq) * shape.dim;
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
  if (spread_) add(*spread_, spread_name);
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    add(*hidden_[i], begin_ + i == shape_.layers ? final_name : block_name(begin_ + i));
  }
  if (is_last()) add(*embedding_, embedding_name, true);
  if (loss() != nullptr) add(*loss(), loss_name);
}

// Losses of slices are made forward alone.
template <typename T>
std::vector<tessera::UnitWindow> GptPart<T>::windows(WindowKind kind,
                                                     std::span<const tessera::Unit* const> units) const {
  const bool leaves_loss_out = kind == WindowKind::backward && loss() != nullptr;
  return PipelinePart::windows(kind, units.first(units.size() - (leaves_loss_out ? 1 : 0)));
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
  return {reinterpret_cast<T*>(const_cast<std::byte*>(memory.data())), slices_.rows_of(rows_).count, shape_.dim};
}

template <typename T>
nn::SequenceBatch GptPart<T>::sequences(const PartMemory& memory, WindowKind kind) const {
  nn::SequenceBatch result{.length = shape_.seq, .rows = rows_};
  if (kind == WindowKind::evaluate) return result;
  const SamplePlace& place = micro_batches_[memory.micro_batch].place;
  result.dropout = {.probability = shape_.dropout,
                    .key = {.seed = shape_.dropout_seed,
                            .step = static_cast<std::uint32_t>(place.step),
                            .first_row = place.first_sample * shape_.seq}};
  return result;
}

template <typename T>
void GptPart<T>::forward(tessera::FullyShard& model, const PartMemory& memory) {
  forward_pass(model, WindowKind::forward, memory, take_place(memory, true));
}
template <typename T>
void GptPart<T>::evaluate(tessera::FullyShard& model, const PartMemory& memory) {
  forward_pass(model, WindowKind::evaluate, memory, take_place(memory, true));
}
// Each unit's gradient takes the place of the one behind it.
template <typename T>
void GptPart<T>::backward(tessera::FullyShard& model, const PartMemory& memory) {
  const MatrixView<T> start = matrix(is_last() ? memory.input_gradient : memory.output_gradient);
  const MatrixView<T> found = backward_pass(model, memory, start, take_place(memory, false));
  std::byte* const to = memory.input_gradient.data();
  if (is_first() || reinterpret_cast<std::byte*>(found.data) == to) return;
  tessera::kernels::copy(model.stream(), to, reinterpret_cast<const std::byte*>(found.data),
                         tessera::Bytes(found.elements() * sizeof(T)));
}

template <typename T>
template <typename Model>
void GptPart<T>::forward_pass(Model& model, WindowKind kind, const PartMemory& memory, nn::ActivationStack& stack) {
  const GptMicroBatch& micro = micro_batches_[memory.micro_batch];
  const nn::SequenceBatch how = sequences(memory, kind);
  const std::size_t mine = slices_.rows_of(rows_).count;
  MatrixView<T> x = is_first() ? stack.push<T>(mine, shape_.dim) : matrix(memory.input);
  if (is_first()) {
    const nn::ScratchScope scratch(stack);
    const MatrixView<T> sum = spread_ ? stack.push<T>(rows_, shape_.dim) : x;
    model.pass(kind, *embedding_, stack, micro.tokens.ids, sum, how);
    if (spread_) model.pass(kind, *spread_, sum, x, how);
  }
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    const bool is_at_end = i + 1 == hidden_.size();
    const MatrixView<T> y =
        is_at_end && !is_last() ? matrix(memory.output) : stack.push<T>(is_at_end ? rows_ : mine, shape_.dim);
    model.pass(kind, *hidden_[i], stack, x, y, how);
    x = y;
  }
  if (!is_last()) return;
  model.pass(kind, *embedding_, stack, x, micro.answers);
  if (loss() != nullptr) model.pass(kind, *loss());
}

// Returns where the gradient of this part's input stands. The head and the last norm have those of all rows.
template <typename T>
template <typename Model>
MatrixView<T> GptPart<T>::backward_pass(Model& model, const PartMemory& memory, MatrixView<T> gradient,
                                        nn::ActivationStack& stack) {
  std::size_t behind = hidden_.size();
  if (is_last()) {
    const MatrixView<T> all = slices_.any() ? stack.push<T>(rows_, shape_.dim) : gradient;
    model.backward(*embedding_, stack, TiedHeadGradient<T>{all});
    model.backward(*hidden_[--behind], stack, all);
    gradient.data = all.data;
  }
  while (behind-- > 0) model.backward(*hidden_[behind], stack, gradient);
  if (!is_first()) return gradient;
  const nn::ScratchScope scratch(stack);
  const MatrixView<T> all = spread_ ? stack.push<T>(rows_, shape_.dim) : gradient;
  if (spread_) model.backward(*spread_, gradient, all, sequences(memory, WindowKind::backward));
  model.backward(*embedding_, stack, all);
  return gradient;
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
  backward_pass(counting, nothing, matrix({}), stack);
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
