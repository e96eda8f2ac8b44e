// Layers from nn, one unit each, called through the windows of the runtime.
#include "train_mlp/model.hpp"

#include <fmt/format.h>

namespace examples {

namespace nn = tessera::nn;

nn::MatrixView HiddenLayer::forward(tessera::Window& window, nn::ConstMatrixView x) {
  return gelu_.forward(window, linear_.forward(window, x));
}

nn::MatrixView HiddenLayer::backward(tessera::Window& window, nn::MatrixView dy, nn::InputGradient input) {
  return linear_.backward(window, gelu_.backward(window, dy), input);
}

nn::MatrixView OutputLayer::forward(tessera::Window& window, nn::ConstMatrixView x, const nn::Targets& targets,
                                    float* loss) {
  const nn::MatrixView logits = linear_.forward(window, x);
  loss_.forward(window, logits, targets, loss);
  return logits;
}

nn::MatrixView OutputLayer::backward(tessera::Window& window) {
  return linear_.backward(window, loss_.backward(window));
}

Mlp::Mlp(const MlpShape& shape) : output_(shape.hidden, shape.classes) {
  hidden_.push_back(std::make_unique<HiddenLayer>(shape.in, shape.hidden));
  for (std::size_t i = 0; i < shape.depth; ++i) {
    hidden_.push_back(std::make_unique<HiddenLayer>(shape.hidden, shape.hidden));
  }
}

void Mlp::add_to(tessera::FullyShard& model) {
  model.add(*hidden_.front(), "input");
  for (std::size_t i = 1; i < hidden_.size(); ++i) model.add(*hidden_[i], fmt::format("hidden.{}", i - 1));
  model.add(output_, "output");
}

void Mlp::train(tessera::FullyShard& model, nn::ConstMatrixView x, const nn::Targets& targets, float* loss) {
  for (const auto& layer : hidden_) x = model.forward(*layer, x);
  model.forward(output_, x, targets, loss);
  nn::MatrixView dy = model.backward(output_);
  for (std::size_t i = hidden_.size(); i-- > 0;) {
    dy = model.backward(*hidden_[i], dy, i == 0 ? nn::InputGradient::skip : nn::InputGradient::compute);
  }
}

nn::MatrixView Mlp::evaluate(tessera::FullyShard& model, nn::ConstMatrixView x) {
  for (const auto& layer : hidden_) x = model.evaluate(*layer, x);
  return model.evaluate(output_, x);
}

tessera::Bytes Mlp::activation_bytes() const {
  tessera::Bytes bytes = output_.activation_bytes();
  for (const auto& layer : hidden_) bytes += layer->activation_bytes();
  return bytes;
}

tessera::Bytes Mlp::planned_activation_bytes(const MlpShape& shape, std::size_t rows) {
  // A hidden layer keeps y, GELU(y) and dx (the first: no dx); the last one logits, dx and two statistics of the loss.
  const std::size_t per_row = 2 * shape.hidden + shape.depth * 3 * shape.hidden + shape.classes + shape.hidden + 2;
  return tessera::Bytes(per_row * sizeof(float)) * rows;
}

}  // namespace examples
