// Forward leaves on the stack of its place what backward finds there. Blocks that are computed again leave their input
// alone, and their backward the rest on a stack for one of them.
#include "models/gpt/pipeline.hpp"

#include <optional>
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
GptPart<T>::GptPart(const GptShape& shape, const GptPartOptions& options)
    : shape_(shape),
      slices_(slices_of(shape)),
      begin_(options.begin),
      end_(options.end),
      most_rows_(options.batch * shape.positions()),
      device_(options.device) {
  if (is_first() || is_last()) embedding_ = make_embedding<T>(shape);
  if (is_first()) spread_ = make_spread<T>(shape);
  for (std::size_t block = begin_; block < end_; ++block) hidden_.push_back(make_block<T>(shape, block));
  if (is_last()) hidden_.push_back(make_final<T>(shape));
  if (shape.slice == 0) {
    count();
  } else {  // no slice has more rows than the first, whose memory all have
    GptShape of_first = shape;
    of_first.slice = 0;
    const GptPart first(of_first, options);
    activations_ = first.activations(), scratch_size_ = first.scratch();
  }
}

template <typename T>
std::size_t GptPart<T>::passed_elements(const GptShape& shape, std::size_t batch) {
  return slices_of(shape).part(batch * shape.positions()) * shape.dim;
}

template <typename T>
template <typename Model>
void GptPart<T>::add_units(Model& model) {
  const auto add = [&](tessera::Module& unit, const std::string& name, bool tied = false) {
    tessera::UnitOptions options{.name = name, .tied = tied};
    if (stays_in_fp32(shape_, name)) options.precision = tessera::fp32_precision;
    options.recompute = shape_.activation_checkpointing && name.starts_with("blocks.");
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

// Losses of slices are made forward alone, and an embedding, and what spreads its rows, have no gradient of their
// input.
template <typename T>
std::vector<tessera::UnitWindow> GptPart<T>::windows(WindowKind kind,
                                                     std::span<const tessera::Unit* const> units) const {
  const bool of_input = kind == WindowKind::backward_input;
  const bool leaves_loss_out = (of_input || kind == WindowKind::backward) && loss() != nullptr;
  const std::size_t begin = of_input && is_first() ? (spread_ ? 2 : 1) : 0;
  return PipelinePart::windows(kind, units.first(units.size() - (leaves_loss_out ? 1 : 0)).subspan(begin));
}

template <typename T>
nn::ActivationStack& GptPart<T>::take_place(const PartMemory& memory, bool begins) {
  if (stacks_.size() <= memory.place) stacks_.resize(memory.place + 1);
  if (begins) stacks_[memory.place] = nn::ActivationStack(memory.activations, device_);
  scratch_ = nn::ActivationStack(memory.scratch, device_);
  if (embedding_) embedding_->take_place(memory.place);
  for (const auto& unit : hidden_) unit->take_place(memory.place);
  return stacks_[memory.place];
}

template <typename T>
MatrixView<T> GptPart<T>::matrix(std::span<const std::byte> memory, std::size_t rows) const {
  return {reinterpret_cast<T*>(const_cast<std::byte*>(memory.data())), slices_.rows_of(rows).count, shape_.dim};
}

template <typename T>
nn::SequenceBatch GptPart<T>::sequences(const PartMemory& memory, WindowKind kind) const {
  nn::SequenceBatch result{.length = brought(memory).tokens.sequence, .rows = rows(memory), .parts = parts_of(shape_)};
  if (kind == WindowKind::evaluate) return result;
  const SamplePlace& place = brought(memory).place;
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
  nn::ActivationStack& stack = take_place(memory, false);
  if (shape_.goes_back_in_two) return parameters_pass(model, memory, of_embedding_[memory.place], stack);
  const MatrixView<T> start = matrix(is_last() ? memory.input_gradient : memory.output_gradient, rows(memory));
  const MatrixView<T> found = backward_pass(model, memory, start, stack);
  if (!is_first()) copy(model, found, memory.input_gradient.data());
}
template <typename T>
void GptPart<T>::backward_input(tessera::FullyShard& model, const PartMemory& memory) {
  nn::ActivationStack& stack = take_place(memory, false);
  of_embedding_.resize(stacks_.size());
  const auto start = [&](std::span<const std::byte> at) { return matrix(at, rows(memory)); };
  MatrixView<T> gradient = start(is_last() ? memory.input_gradient : memory.output_gradient);
  if (is_first()) {
    gradient.data = stack.push<T>(gradient.rows, gradient.columns).data;
    if (!is_last()) copy(model, start(memory.output_gradient), reinterpret_cast<std::byte*>(gradient.data));
  }
  gradient = input_pass(model, memory, gradient, stack);
  if (is_first()) of_embedding_[memory.place] = gradient;
  if (!is_first()) copy(model, gradient, memory.input_gradient.data());
}

template <typename T>
void GptPart<T>::copy(tessera::FullyShard& model, MatrixView<T> from, std::byte* to) const {
  const auto* const bytes = reinterpret_cast<const std::byte*>(from.data);
  if (bytes != to) tessera::kernels::copy(model.stream(), to, bytes, tessera::Bytes(from.elements() * sizeof(T)));
}

template <typename T>
template <typename Model>
void GptPart<T>::forward_pass(Model& model, WindowKind kind, const PartMemory& memory, nn::ActivationStack& stack) {
  const GptMicroBatch& micro = brought(memory);
  const nn::SequenceBatch how = sequences(memory, kind);
  const std::size_t all = rows(memory), mine = slices_.rows_of(all).count;
  MatrixView<T> x = is_first() ? stack.push<T>(mine, shape_.dim) : matrix(memory.input, all);
  if (is_first()) {
    const nn::ScratchScope scratch(stack);
    const MatrixView<T> sum = spread_ ? stack.push<T>(all, shape_.dim) : x;
    model.pass(kind, *embedding_, stack, micro.tokens.ids, sum, how);
    if (spread_) model.pass(kind, *spread_, sum, x, how);
  }
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    const bool is_at_end = i + 1 == hidden_.size();
    const MatrixView<T> y =
        is_at_end && !is_last() ? matrix(memory.output, all) : stack.push<T>(is_at_end ? all : mine, shape_.dim);
    nn::ActivationStack& saved = recomputes(i) ? scratch_ : stack;
    std::optional<nn::ScratchScope> only_y;
    if (kind == WindowKind::evaluate) only_y.emplace(saved);
    model.pass(kind, *hidden_[i], saved, x, y, how);
    x = y;
  }
  if (!is_last()) return;
  if (micro.writes) {
    logits_ = push_next_logits<T>(model, *embedding_, stack, shape_, x, micro.tokens.behind);
    return;
  }
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
    const MatrixView<T> all = slices_.any() ? stack.push<T>(rows(memory), shape_.dim) : gradient;
    model.backward(*embedding_, stack, TiedHeadGradient<T>{all});
    model.backward(*hidden_[--behind], stack, all);
    gradient.data = all.data;
  }
  while (behind-- > 0) {
    nn::ActivationStack& saved = recomputes(behind) ? scratch_ : stack;
    const nn::ScratchScope computed_again(saved);
    model.backward(*hidden_[behind], saved, gradient);
  }
  if (is_first()) embed_back(model, memory, gradient, stack);
  return gradient;
}

template <typename T>
template <typename Model>
void GptPart<T>::embed_back(Model& model, const PartMemory& memory, MatrixView<T> gradient,
                            nn::ActivationStack& stack) {
  const nn::ScratchScope scratch(stack);
  const MatrixView<T> all = spread_ ? stack.push<T>(rows(memory), shape_.dim) : gradient;
  if (spread_) model.backward(*spread_, gradient, all, sequences(memory, WindowKind::backward));
  model.backward(*embedding_, stack, all);
}

template <typename T>
template <typename Model>
MatrixView<T> GptPart<T>::input_pass(Model& model, const PartMemory& memory, MatrixView<T> gradient,
                                     nn::ActivationStack& stack) {
  std::size_t behind = hidden_.size();
  if (is_last()) {
    const MatrixView<T> all = slices_.any() ? stack.push<T>(rows(memory), shape_.dim) : gradient;
    model.backward_input(*embedding_, stack, TiedHeadGradient<T>{all});
    model.backward_input(*hidden_[--behind], stack, all);
    gradient.data = all.data;
  }
  while (behind-- > 0) model.backward_input(*hidden_[behind], stack, gradient);
  return gradient;
}

template <typename T>
template <typename Model>
void GptPart<T>::parameters_pass(Model& model, const PartMemory& memory, MatrixView<T> of_embedding,
                                 nn::ActivationStack& stack) {
  if (is_last()) model.backward(*embedding_, stack, TiedHeadTable{});
  for (std::size_t behind = hidden_.size(); behind-- > 0;) model.backward(*hidden_[behind], stack);
  if (is_first()) embed_back(model, memory, of_embedding, stack);
}

// The passes ask for the number of ids only: none is read.
template <typename T>
void GptPart<T>::count() {
  nn::CountingModel counting;
  add_units(counting);
  nn::ActivationStack stack(device_);
  scratch_ = nn::ActivationStack(device_);
  const std::span<const std::int32_t> ids(static_cast<const std::int32_t*>(nullptr), most_rows_);
  micro_batches_ = {{.tokens = {.ids = ids, .sequence = shape_.positions()}, .answers = {.targets = ids}, .place = {}}};
  const PartMemory nothing{.micro_batch = 0, .place = 0, .activations = {}, .input = {}, .output = {}};
  forward_pass(counting, WindowKind::evaluate, nothing, stack);
  stack.rewind({});
  forward_pass(counting, WindowKind::forward, nothing, stack);
  const MatrixView<T> gradient = matrix({}, most_rows_);
  if (shape_.goes_back_in_two) {
    if (is_first()) stack.push<T>(gradient.rows, gradient.columns);
    parameters_pass(counting, nothing, input_pass(counting, nothing, gradient, stack), stack);
  } else {
    backward_pass(counting, nothing, gradient, stack);
  }
  stack.rewind({});
  micro_batches_[0].writes = true;
  forward_pass(counting, WindowKind::evaluate, nothing, stack);
  activations_ = stack.peak(), scratch_size_ = scratch_.peak();
  logits_ = {};
}

namespace {

void require_possible(const GptShape& shape) {
  if (shape.blocks_save_inputs) {
    throw tessera::UsageError("a pipeline's blocks leave their inputs on the device: several micro-batches follow");
  }
  if (!shape.goes_back_in_two || !shape.activation_checkpointing) return;
  throw tessera::UsageError(
      "zb-h1 with blocks that are computed again: what they save would stay until their parameters' gradients are "
      "formed, so that nothing is saved: choose another schedule, or compute nothing again");
}

}  // namespace

template <typename T>
GptPipeline<T>::GptPipeline(tessera::World& world, const tessera::FullyShardOptions& sharding, const GptShape& whole,
                            const GptSchedule& schedule)
    : split(split_gpt(whole, schedule.shape.stages * schedule.shape.chunks)) {
  GptShape shape = whole;
  shape.goes_back_in_two = schedule.kind == tessera::plan::ScheduleKind::zb_h1;
  require_possible(shape);
  std::vector<std::unique_ptr<tessera::PipelinePart>> made;
  for (std::size_t part = 0; part + 1 < split.begins.size(); ++part) {
    auto next = std::make_unique<GptPart<T>>(shape, GptPartOptions{.begin = split.begins[part],
                                                                   .end = split.begins[part + 1],
                                                                   .batch = schedule.batch,
                                                                   .device = world.device().kind()});
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
