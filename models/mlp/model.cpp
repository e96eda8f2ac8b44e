// Layers from nn, one unit each, called through the windows of the runtime.
#include "models/mlp/model.hpp"

#include <fmt/format.h>

#include <type_traits>

#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/counting_model.hpp"

namespace models {

namespace nn = tessera::nn;

template <typename T>
typename HiddenLayer<T>::Saved HiddenLayer<T>::forward(tessera::Window& window, nn::ActivationStack& stack,
                                                       nn::MatrixView<const T> x, nn::MatrixView<T> y) {
  Saved saved;
  const auto compute = [&](nn::ActivationStack& here, nn::MatrixView<const T> input) {
    const auto sums = here.push<T>(y.rows, y.columns);
    saved = {.linear = linear_.forward(window, here, input, sums), .gelu = gelu_.forward(window, here, sums, y)};
  };
  if (!saves_ || window.kind() == tessera::plan::WindowKind::evaluate) {
    compute(stack, x);
    return saved;
  }
  memory_.forward(window, stack, [&](nn::ActivationStack& own) {
    if (!copies_) return compute(own, x);
    const auto copy = own.push<T>(x.rows, x.columns);
    copy_values(window, copy.data, x.data, x.elements());
    compute(own, copy);
  });
  return saved;
}

template <typename T>
void HiddenLayer<T>::backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved,
                              nn::MatrixView<T> dy, nn::MatrixView<T> dx) {
  gelu_.backward(window, stack, saved.gelu, dy, dy);
  linear_.backward(window, stack, saved.linear, dy, dx);
}

template <typename T>
void OutputLayer<T>::forward(tessera::Window& window, nn::ActivationStack& stack, nn::MatrixView<const T> x,
                             nn::MatrixView<T> logits) {
  linear_.forward(window, stack, x, logits);
}

template <typename T>
typename OutputLayer<T>::Saved OutputLayer<T>::forward(tessera::Window& window, nn::ActivationStack& stack,
                                                       nn::MatrixView<const T> x, nn::MatrixView<T> logits,
                                                       const MlpAnswers& answers) {
  return {.linear = linear_.forward(window, stack, x, logits),
          .loss = loss_.forward(window, stack, logits, answers.targets, answers.loss)};
}

template <typename T>
void OutputLayer<T>::backward(tessera::Window& window, nn::ActivationStack& stack, const Saved& saved,
                              nn::MatrixView<T> logits, nn::MatrixView<T> dx) {
  loss_.backward(window, stack, saved.loss, logits);
  linear_.backward(window, stack, saved.linear, logits, dx);
}

template <typename T>
Mlp<T>::Mlp(const MlpShape& shape) : shape_(shape), output_(shape.hidden, shape.classes), kept_(shape.depth + 1) {
  hidden_.push_back(std::make_unique<HiddenLayer<T>>(shape.in, shape.hidden));
  for (std::size_t i = 0; i < shape.depth; ++i) {
    hidden_.push_back(std::make_unique<HiddenLayer<T>>(shape.hidden, shape.hidden));
  }
  // The features stay where they are.
  for (std::size_t i = 0; shape.layers_save && i < hidden_.size(); ++i) hidden_[i]->save(i > 0);
}

template <typename T>
void Mlp<T>::add_to(tessera::FullyShard& model, std::size_t rows, tessera::DeviceKind device) {
  Mlp counted(shape_);
  if (shape_.layers_save) counted.count(rows, device);
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    model.add(*hidden_[i],
              {.name = i == 0 ? "input" : fmt::format("hidden.{}", i - 1), .saved = counted.hidden_[i]->saved_bytes()});
  }
  model.add(output_, "output");
}

template <typename T>
void Mlp<T>::train(tessera::FullyShard& model, nn::MatrixView<const float> x, const MlpAnswers& answers) {
  train_pass(model, x, answers);
}

template <typename T>
nn::MatrixView<T> Mlp<T>::evaluate(tessera::FullyShard& model, nn::MatrixView<const float> x) {
  return evaluation_pass(model, x);
}

template <typename T>
tessera::Bytes Mlp<T>::planned_activation_bytes(const MlpShape& shape, std::size_t rows, tessera::DeviceKind device) {
  Mlp mlp(shape);
  mlp.count(rows, device);
  return mlp.stack_.peak();
}

template <typename T>
void Mlp<T>::count(std::size_t rows, tessera::DeviceKind device) {
  stack_ = nn::ActivationStack(device);
  nn::CountingModel counting;
  const nn::MatrixView<const float> x{nullptr, rows, shape_.in};
  train_pass(counting, x, {});
  evaluation_pass(counting, x);
}

template <typename T>
template <typename Model>
void Mlp<T>::train_pass(Model& model, nn::MatrixView<const float> features, const MlpAnswers& answers) {
  const nn::ScratchScope pass(stack_);
  nn::MatrixView<const T> x = as_input(model, features);
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    // A layer has a copy of its input, whose place the layer behind the next one takes.
    const bool in_turns = shape_.layers_save && i >= 2;
    kept_[i].y = in_turns ? kept_[i - 2].y : stack_.push<T>(x.rows, hidden_[i]->out());
    kept_[i].saved = model.forward(*hidden_[i], stack_, x, kept_[i].y);
    x = kept_[i].y;
  }
  const auto logits = stack_.push<T>(x.rows, output_.out());
  const auto saved = model.forward(output_, stack_, x, logits, answers);
  const auto dx = stack_.push<T>(x.rows, x.columns);
  model.backward(output_, stack_, saved, logits, dx);
  backward_pass(model, dx);
}

// A layer's output is of no use to those before it, and as large as the gradient of its input: dx takes its place.
template <typename T>
template <typename Model>
void Mlp<T>::backward_pass(Model& model, nn::MatrixView<T> dy) {
  for (std::size_t i = hidden_.size(); i-- > 0;) {
    const nn::MatrixView<T> dx = i == 0 ? nn::MatrixView<T>{} : kept_[i].y;
    model.backward(*hidden_[i], stack_, kept_[i].saved, dy, dx);
    dy = dx;
  }
}

// The scope ends before the logits are read: nothing is pushed in between.
template <typename T>
template <typename Model>
nn::MatrixView<T> Mlp<T>::evaluation_pass(Model& model, nn::MatrixView<const float> features) {
  const nn::ScratchScope pass(stack_);
  nn::MatrixView<const T> x = as_input(model, features);
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    const auto y = i < 2 ? stack_.push<T>(x.rows, hidden_[i]->out()) : kept_[i - 2].y;
    kept_[i].y = y;
    const nn::ScratchScope only_y_stays(stack_);
    model.evaluate(*hidden_[i], stack_, x, y);
    x = y;
  }
  const auto logits = stack_.push<T>(x.rows, output_.out());
  model.evaluate(output_, stack_, x, logits);
  return logits;
}

// The features in the type that the layers compute with.
template <typename T>
template <typename Model>
nn::MatrixView<const T> Mlp<T>::as_input(Model& model, nn::MatrixView<const float> features) {
  if constexpr (std::is_same_v<T, float>) {
    return features;
  } else {
    const auto x = stack_.push<T>(features.rows, features.columns);
    if constexpr (std::is_same_v<Model, tessera::FullyShard>) {
      tessera::kernels::cast(model.stream(), {x.data, tessera::dtype_of<T>}, {features.data, tessera::DType::fp32},
                             x.elements());
    }
    return x;
  }
}

template class Mlp<float>;
template class Mlp<tessera::bf16>;
template class Mlp<tessera::fp16>;

}  // namespace models
