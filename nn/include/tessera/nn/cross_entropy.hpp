// Softmax and cross entropy against labels: loss = Σ weight[i] · -log softmax(logits[i])[label[i]] / denominator.
//
// With the number of rows as denominator, every rank's and micro-batch's mean counts the same in the runtime's average.
// Rows of weight 0 (which fill up a last batch) then make it smaller; weights of global batch / samples make that up.
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing.
// A label out of range is a UsageError in the stream. Rows of weight 0 are not looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/nn/matrix.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/window.hpp"

namespace tessera::nn {

// All memory belongs to the stream's device and must stay until the stream is through.
struct CrossEntropyRows {
  ConstMatrixView logits;                // [batch, classes]
  const std::int32_t* labels = nullptr;  // [batch], 0 … classes - 1
  const float* weights = nullptr;        // [batch]; null: 1 for all
  float denominator = 1.0f;              // > 0
  float* statistics = nullptr;  // [batch, 2]: forward leaves each row's largest logit and sum of exponentials here
};

void cross_entropy_forward(Stream& stream, const CrossEntropyRows& rows, float* loss);
// dlogits = (softmax - one-hot) · weight / denominator · *loss_scale. May be the logits themselves. After forward.
void cross_entropy_backward(Stream& stream, const CrossEntropyRows& rows, const float* loss_scale, MatrixView dlogits);

// *correct = Σ weight[i] where the largest logit (the first of equals) is the label's.
void count_correct(Stream& stream, const CrossEntropyRows& rows, double* correct);

// What a batch brings to its loss. `weights` may be empty: 1 for all.
struct Targets {
  std::span<const std::int32_t> labels;
  std::span<const float> weights = {};
};

class CrossEntropy final : public Module {
 public:
  void visit(ModuleVisitor&) override {}

  // *loss = the mean over the rows; 0 without rows. Logits and targets must stay until backward() has run. The first
  // form is for evaluation, and for losses between windows. Throws UsageError when there are not as many targets as
  // rows.
  void forward(Stream& stream, MatrixView logits, const Targets& targets, float* loss);
  void forward(Window& window, MatrixView logits, const Targets& targets, float* loss) {
    forward(window.stream(), logits, targets, loss);
  }

  // The gradient of the logits, times *loss_scale (Window::loss_scale), in their place.
  MatrixView backward(Stream& stream, const float* loss_scale);
  MatrixView backward(Window& window) { return backward(window.stream(), window.loss_scale()); }

  Bytes activation_bytes() const { return statistics_.bytes(); }

 private:
  CrossEntropyRows rows_;  // of the last forward()
  MatrixView logits_;
  Matrix statistics_;
};

}  // namespace tessera::nn
