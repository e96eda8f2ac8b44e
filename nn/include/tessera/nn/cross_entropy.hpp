// Softmax and cross entropy against labels: loss = Σ weight[i] · -log softmax(logits[i])[label[i]] / denominator.
//
// With label smoothing (Szegedy et al. 2016) a row's target is not its label alone, but 1 - smoothing of it and
// smoothing / classes of every class: its loss becomes log Σ e^logits - (1 - smoothing) · logits[label] - smoothing ·
// mean(logits).
//
// With the number of rows as denominator, every rank's and micro-batch's mean counts the same in the runtime's average.
// Rows of weight 0 (which fill up a last batch) then make it smaller; a weight of the other rows / all rows, given to
// FullyShard::update(), makes that up.
//
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing.
// A label out of range is a UsageError in the stream; on a CUDA device, where kernels cannot throw, the loss, the count
// and the row's gradient become NaN. Rows of weight 0 are not looked at. On CUDA, the sum over rows runs in fp64 in an
// order that depends on the number of rows alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// All memory belongs to the stream's device and must stay until the stream is through.
template <Element T>
struct CrossEntropyRows {
  MatrixView<const T> logits;            // [batch, classes]
  const std::int32_t* labels = nullptr;  // [batch], 0 … classes - 1
  const float* weights = nullptr;        // [batch]; null: 1 for all
  float denominator = 1.0f;              // > 0
  // cross_entropy_statistics(batch, smoothing): forward leaves each row's largest logit and sum of exponentials here.
  Arithmetic<T>* statistics = nullptr;
  float smoothing = 0.0f;  // 0 … 1
  std::size_t stride = 0;  // elements from row to row of logits and dlogits; 0: classes. Others on CUDA devices alone
  float* marks = nullptr;  // [batch], scratch memory of count_correct(), on CUDA devices alone
  // The logits are those of some of so many classes, from one on: cross_entropy_of_slice(). 0: of all.
  std::size_t all_classes = 0;
  std::size_t first_class = 0;
};

// Elements of CrossEntropyRows::statistics.
constexpr std::size_t cross_entropy_statistics(std::size_t batch, float smoothing) {
  return smoothing == 0.0f ? 2 * batch : 3 * batch;
}

// Returns the number of statistics of cross_entropy_at_once().
constexpr std::size_t cross_entropy_at_once_statistics(std::size_t batch, float smoothing, DeviceKind device) {
  return cross_entropy_statistics(batch, smoothing) + (device == DeviceKind::cuda ? batch : 0);
}

template <Element T>
void cross_entropy_forward(Stream& stream, const CrossEntropyRows<T>& rows, Arithmetic<T>* loss);
// dlogits = (softmax - target) · weight / denominator · *loss_scale. May be the logits themselves. After forward.
template <Element T>
void cross_entropy_backward(Stream& stream, const CrossEntropyRows<T>& rows, const float* loss_scale,
                            MatrixView<T> dlogits);
// Both, with the same bits. While a row's logits are near, so that they come from memory once; the gradient may take
// their place. `statistics` has room for cross_entropy_at_once_statistics().
template <Element T>
void cross_entropy_at_once(Stream& stream, const CrossEntropyRows<T>& rows, Arithmetic<T>* loss,
                           const float* loss_scale, MatrixView<T> dlogits);

// The loss of classes that several ranks have some of each, without smoothing. Each brings three numbers of every row,
// [3, batch]: its largest logit, its sum of exponentials, and the label's logit where it has that one, else 0. From
// those of all, one after the other, come the statistics of all classes, in rows.statistics, and the loss;
// cross_entropy_backward() makes of them the gradients of this rank's logits.
template <Element T>
void cross_entropy_of_slice(Stream& stream, const CrossEntropyRows<T>& rows, Arithmetic<T>* brought);
template <typename T>
struct BroughtBySlices {
  const T* first;
  std::size_t stride;  // elements from one slice's to the next one's
  std::size_t count;   // of slices
};
template <Element T>
void cross_entropy_of_slices(Stream& stream, const CrossEntropyRows<T>& rows,
                             const BroughtBySlices<Arithmetic<T>>& brought, Arithmetic<T>* loss);

// *correct = Σ weight[i] where the label's logit is among the `among` largest, of equals the first ones. A row with a
// NaN counts those as larger than the label's. Throws UsageError on a CUDA device without `marks`.
template <Element T>
void count_correct(Stream& stream, const CrossEntropyRows<T>& rows, double* correct, std::size_t among = 1);

// Targets are what a batch brings to its loss. `weights` may be empty: 1 for all.
struct Targets {
  std::span<const std::int32_t> labels;
  std::span<const float> weights = {};
};

template <Element T>
class CrossEntropy final : public Module {
 public:
  explicit CrossEntropy(float smoothing = 0.0f) : smoothing_(smoothing) {}

  void visit(ModuleVisitor&) override {}

  struct Saved {
    CrossEntropyRows<T> rows;
  };
  // *loss = the mean over the rows; 0 without rows. stride as in CrossEntropyRows. Logits and targets must stay until
  // backward() has run. Throws UsageError when there are not as many targets as rows.
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> logits, const Targets& targets,
                Arithmetic<T>* loss, std::size_t stride = 0);
  // The gradient of the logits, times the window's loss scale. dlogits may be the logits.
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dlogits);
  // Returns what this rank brings to the loss of all classes, of which it has some; `saved` is for backward().
  struct SliceOfClasses {
    std::size_t first;
    std::size_t all;
  };
  std::span<const Arithmetic<T>> of_slice(Window& window, ActivationStack& stack, Saved& saved,
                                          MatrixView<const T> logits, const Targets& targets, std::size_t stride,
                                          const SliceOfClasses& slice);
  // Both in a backward window, where nobody needs the loss before: the logits become their gradient.
  void at_once(Window& window, ActivationStack& stack, MatrixView<T> logits, const Targets& targets,
               Arithmetic<T>* loss, std::size_t stride = 0);

 private:
  CrossEntropyRows<T> rows_of(Window& window, MatrixView<const T> logits, const Targets& targets,
                              std::size_t stride) const;

  float smoothing_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
