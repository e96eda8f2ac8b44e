// The passes. Everything that they need stands on one stack, so that a pass that only counts is their plan.
#include "models/gpt/model.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/nn/counting_model.hpp"

namespace models {

namespace nn = tessera::nn;
using nn::MatrixView;
using nn::SequenceBatch;

template <typename T>
Gpt<T>::Gpt(const GptShape& shape)
    : shape_(shape),
      slices_(slices_of(shape)),
      embedding_(make_embedding<T>(shape)),
      spread_(make_spread<T>(shape)),
      final_(make_final<T>(shape)),
      hidden_(shape.layers + 1) {
  for (std::size_t i = 0; i < shape.layers; ++i) blocks_.push_back(make_block<T>(shape, i));
}

template <typename T>
void Gpt<T>::add_to(tessera::FullyShard& model, std::size_t batch) {
  add_units(model, batch);
}

template <typename T>
tessera::Bytes Gpt<T>::saved_bytes(const GptShape& shape, std::string_view unit, std::size_t batch) {
  if (!shape.blocks_save_inputs || !unit.starts_with("blocks.")) return {};
  return tessera::Bytes(sizeof(T) * slices_of(shape).part(batch * shape.positions()) * shape.dim);
}

template <typename T>
template <typename Model>
void Gpt<T>::add_units(Model& model, std::size_t batch) {
  const auto add = [&](tessera::Module& unit, const std::string& name) {
    tessera::UnitOptions options{.name = name};
    if (stays_in_fp32(shape_, name)) options.precision = tessera::fp32_precision;
    options.recompute = shape_.activation_checkpointing && name.starts_with("blocks.");
    options.saved = saved_bytes(shape_, name, batch);
    model.add(unit, options);
  };
  add(*embedding_, embedding_name);
  if (spread_) add(*spread_, spread_name);
  for (std::size_t i = 0; i < blocks_.size(); ++i) add(*blocks_[i], block_name(i));
  add(*final_, final_name);
  if (embedding_->loss() != nullptr) add(*embedding_->loss(), loss_name);
}

template <typename T>
void Gpt<T>::train(tessera::FullyShard& model, const TokenRows& tokens, const Answers& answers,
                   const SamplePlace& place) {
  train_pass(model, tokens, answers, place);
}

template <typename T>
void Gpt<T>::evaluate(tessera::FullyShard& model, const TokenRows& tokens, const Answers& answers) {
  loss_pass(model, tokens, answers);
}

template <typename T>
std::span<const float> Gpt<T>::next(tessera::FullyShard& model, const TokenRows& tokens) {
  const auto logits = next_pass(model, tokens);
  return {logits.data, logits.elements()};
}

namespace {

// The passes ask for the number of ids only: none is read.
TokenRows counted_tokens(const GptShape& shape, std::size_t sequences) {
  return {.ids = {static_cast<const std::int32_t*>(nullptr), sequences * shape.positions()},
          .sequence = shape.positions()};
}
Answers counted_answers(const TokenRows& tokens) { return {.targets = tokens.ids}; }

// Writes down the units that are added.
class SpecModel : private tessera::ModuleVisitor {
 public:
  void add(tessera::Module& module, const tessera::UnitOptions& options) {
    module.visit(*this);
    specs.push_back(tessera::Unit(options, specs.size(), parameters_, {}, collectives_).spec());
    parameters_.clear();
    collectives_.clear();
  }
  std::vector<tessera::plan::UnitSpec> specs;

 private:
  void operator()(std::string_view name, tessera::Parameter& parameter) override {
    parameters_.push_back({prefix_ + std::string(name), &parameter});
  }
  void operator()(std::string_view, tessera::Buffer&) override {}
  void operator()(std::string_view name, tessera::Collective& collective) override {
    collectives_.push_back({prefix_ + std::string(name), &collective});
  }
  void operator()(std::string_view name, tessera::Module& part) override {
    const std::string outer = prefix_;
    prefix_ += std::string(name) + ".";
    part.visit(*this);
    prefix_ = outer;
  }

  std::string prefix_;
  std::vector<tessera::NamedParameter> parameters_;
  std::vector<tessera::NamedCollective> collectives_;
};

}  // namespace

template <typename T>
std::vector<tessera::plan::UnitSpec> Gpt<T>::units(const GptShape& shape, std::size_t batch) {
  Gpt gpt(shape);
  SpecModel model;
  gpt.add_units(model, batch);
  return model.specs;
}

template <typename T>
tessera::plan::Program Gpt<T>::program(const GptShape& shape) {
  Gpt gpt(shape);
  gpt.stack_ = nn::ActivationStack(tessera::DeviceKind::cpu);  // counts
  nn::CountingModel counting;
  gpt.add_units(counting, 1);
  const TokenRows tokens = counted_tokens(shape, 1);
  tessera::plan::Program result;
  gpt.train_pass(counting, tokens, counted_answers(tokens), {});
  result.micro_batch = counting.take_windows();
  gpt.loss_pass(counting, tokens, counted_answers(tokens));
  result.evaluation = counting.take_windows();
  return result;
}

template <typename T>
tessera::Bytes Gpt<T>::planned_activation_bytes(const GptShape& shape, std::size_t batch, tessera::DeviceKind device) {
  Gpt gpt(shape);
  gpt.stack_ = nn::ActivationStack(device);  // counts
  nn::CountingModel counting;
  gpt.add_units(counting, batch);
  const TokenRows tokens = counted_tokens(shape, batch);
  gpt.train_pass(counting, tokens, counted_answers(tokens), {});
  gpt.loss_pass(counting, tokens, counted_answers(tokens));
  gpt.next_pass(counting, counted_tokens(shape, 1));
  return gpt.stack_.peak();
}

template <typename T>
SequenceBatch Gpt<T>::sequences(const TokenRows& tokens) const {
  return {.length = tokens.sequence, .rows = tokens.ids.size(), .parts = parts_of(shape_)};
}
template <typename T>
SequenceBatch Gpt<T>::sequences(const TokenRows& tokens, const SamplePlace& place) const {
  SequenceBatch result = sequences(tokens);
  result.dropout = {.probability = shape_.dropout,
                    .key = {.seed = shape_.dropout_seed,
                            .step = static_cast<std::uint32_t>(place.step),
                            .first_row = place.first_sample * tokens.sequence * shape_.contexts}};
  return result;
}

template <typename T>
template <typename Model>
void Gpt<T>::train_pass(Model& model, const TokenRows& tokens, const Answers& answers, const SamplePlace& place) {
  const nn::ScratchScope pass(stack_);
  const SequenceBatch how = sequences(tokens, place);
  forward_pass(model, tokens.ids, how);
  const MatrixView<T> normed = stack_.push<T>(tokens.ids.size(), shape_.dim);
  model.forward(*final_, stack_, hidden_.back(), normed, how);
  const MatrixView<T> gradient = stack_.push<T>(tokens.ids.size(), shape_.dim);
  {
    const nn::ScratchScope head(stack_);
    model.forward(*embedding_, stack_, normed, answers);
    if (embedding_->loss() != nullptr) model.forward(*embedding_->loss());
    model.backward(*embedding_, stack_, HeadGradient<T>{gradient});
  }
  model.backward(*final_, stack_, gradient);
  backward_pass(model, gradient, how);
}

template <typename T>
MatrixView<T> Gpt<T>::push_rows(std::size_t tokens) {
  return stack_.push<T>(slices_.rows_of(tokens).count, shape_.dim);
}

template <typename T>
template <typename Model>
void Gpt<T>::embed(Model& model, tessera::plan::WindowKind kind, std::span<const std::int32_t> ids, MatrixView<T> y,
                   const SequenceBatch& how) {
  const bool evaluates = kind == tessera::plan::WindowKind::evaluate;
  const nn::ScratchScope scratch(stack_);
  const MatrixView<T> sum = spread_ ? stack_.push<T>(ids.size(), shape_.dim) : y;
  evaluates ? model.evaluate(*embedding_, stack_, ids, sum, how) : model.forward(*embedding_, stack_, ids, sum, how);
  if (!spread_) return;
  evaluates ? model.evaluate(*spread_, sum, y, how) : model.forward(*spread_, sum, y, how);
}

template <typename T>
template <typename Model>
void Gpt<T>::forward_pass(Model& model, std::span<const std::int32_t> ids, const SequenceBatch& how) {
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    const bool in_turns = shape_.blocks_save_inputs && i >= 2;
    hidden_[i] = in_turns ? hidden_[i - 2] : push_rows(ids.size());
  }
  embed(model, tessera::plan::WindowKind::forward, ids, hidden_.front(), how);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    model.forward(*blocks_[i], stack_, hidden_[i], hidden_[i + 1], how);  // rewound by a block that recomputes
  }
}

template <typename T>
template <typename Model>
void Gpt<T>::backward_pass(Model& model, MatrixView<T> gradient, const SequenceBatch& how) {
  const MatrixView<T> mine{gradient.data, slices_.rows_of(gradient.rows).count, gradient.columns};
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const nn::ScratchScope recomputed(stack_);
    model.backward(*blocks_[i], stack_, mine);
  }
  if (!spread_) return model.backward(*embedding_, stack_, gradient);
  const MatrixView<T> all = stack_.push<T>(gradient.rows, gradient.columns);
  model.backward(*spread_, mine, all, how);
  model.backward(*embedding_, stack_, all);
}

// The last norm's output; two matrices in turns.
template <typename T>
template <typename Model>
MatrixView<const T> Gpt<T>::evaluation_pass(Model& model, const TokenRows& tokens) {
  const SequenceBatch how = sequences(tokens);
  MatrixView<T> x = push_rows(tokens.ids.size()), y = push_rows(tokens.ids.size());
  const MatrixView<T> all = spread_ ? stack_.push<T>(tokens.ids.size(), shape_.dim) : MatrixView<T>{};
  embed(model, tessera::plan::WindowKind::evaluate, tokens.ids, x, how);
  for (std::size_t i = 0; i <= blocks_.size(); ++i) {
    const nn::ScratchScope only_output(stack_);
    if (i == blocks_.size() && spread_) y = all;
    model.evaluate(i < blocks_.size() ? *blocks_[i] : *final_, stack_, x, y, how);
    std::swap(x, y);
  }
  return x;
}

template <typename T>
template <typename Model>
void Gpt<T>::loss_pass(Model& model, const TokenRows& tokens, const Answers& answers) {
  const nn::ScratchScope pass(stack_);
  const MatrixView<const T> x = evaluation_pass(model, tokens);
  model.evaluate(*embedding_, stack_, x, answers);
  if (embedding_->loss() != nullptr) model.evaluate(*embedding_->loss());
}

// The scope ends before the logits are read: nothing is pushed in between.
template <typename T>
template <typename Model>
MatrixView<float> Gpt<T>::next_pass(Model& model, const TokenRows& tokens) {
  const nn::ScratchScope pass(stack_);
  return push_next_logits<T>(model, *embedding_, stack_, shape_, evaluation_pass(model, tokens), tokens.behind);
}

template class Gpt<float>;
template class Gpt<tessera::bf16>;
template class Gpt<tessera::fp16>;

}  // namespace models
