// The multilayer perceptron: input → hidden, `depth` times hidden → hidden, each followed by a GELU, then hidden →
// classes with the cross entropy. Each layer is a unit.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace examples {

class HiddenLayer : public tessera::Module {
 public:
  HiddenLayer(std::size_t in, std::size_t out) : linear_(in, out) {}

  void visit(tessera::ModuleVisitor& visitor) override { linear_.visit(visitor); }

  tessera::nn::MatrixView forward(tessera::Window& window, tessera::nn::ConstMatrixView x);
  tessera::nn::MatrixView backward(tessera::Window& window, tessera::nn::MatrixView dy,
                                   tessera::nn::InputGradient input);

  tessera::Bytes activation_bytes() const { return linear_.activation_bytes() + gelu_.activation_bytes(); }

 private:
  tessera::nn::Linear linear_;
  tessera::nn::Gelu gelu_;
};

class OutputLayer : public tessera::Module {
 public:
  OutputLayer(std::size_t in, std::size_t classes) : linear_(in, classes) {}

  void visit(tessera::ModuleVisitor& visitor) override { linear_.visit(visitor); }

  // The logits.
  tessera::nn::MatrixView forward(tessera::Window& window, tessera::nn::ConstMatrixView x) {
    return linear_.forward(window, x);
  }
  // The logits, and *loss becomes the batch's mean loss. What `targets` points to must stay until backward() has run.
  tessera::nn::MatrixView forward(tessera::Window& window, tessera::nn::ConstMatrixView x,
                                  const tessera::nn::Targets& targets, float* loss);
  tessera::nn::MatrixView backward(tessera::Window& window);

  tessera::Bytes activation_bytes() const { return linear_.activation_bytes() + loss_.activation_bytes(); }

 private:
  tessera::nn::Linear linear_;
  tessera::nn::CrossEntropy loss_;
};

struct MlpShape {
  std::size_t in;
  std::size_t hidden;
  std::size_t depth;
  std::size_t classes;
};

class Mlp {
 public:
  explicit Mlp(const MlpShape& shape);

  void add_to(tessera::FullyShard& model);

  // One micro-batch, forward and backward. Enqueues; x, targets and loss must stay until the stream is through.
  void train(tessera::FullyShard& model, tessera::nn::ConstMatrixView x, const tessera::nn::Targets& targets,
             float* loss);
  // The logits in evaluation windows, valid until the next pass. x may have no rows.
  tessera::nn::MatrixView evaluate(tessera::FullyShard& model, tessera::nn::ConstMatrixView x);

  tessera::Bytes activation_bytes() const;  // held by the layers now

  // What the layers will hold for micro-batches of so many rows.
  static tessera::Bytes planned_activation_bytes(const MlpShape& shape, std::size_t rows);

 private:
  std::vector<std::unique_ptr<HiddenLayer>> hidden_;
  OutputLayer output_;
};

}  // namespace examples
