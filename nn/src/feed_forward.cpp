// A transformer's feed-forward network.
#include "tessera/nn/feed_forward.hpp"

#include "src/operation.hpp"
#include "src/transformer_initial.hpp"

namespace tessera::nn {

template <Element T>
FeedForward<T>::FeedForward(const FeedForwardOptions& options)
    : slices_(options.slices),
      fc_(options.dim, options.hidden, normal_weights(transformer_deviation, slices_, LinearCut::outputs)),
      proj_(options.hidden, options.dim, normal_weights(options.projection_deviation, slices_, LinearCut::inputs)) {}

template <Element T>
void FeedForward<T>::visit(ModuleVisitor& visitor) {
  visitor("c_fc", fc_);
  visitor("c_proj", proj_);
}

template <Element T>
typename FeedForward<T>::Saved FeedForward<T>::forward(Window& window, ActivationStack& stack, MatrixView<const T> x,
                                                       Target<T> y, std::size_t all) {
  const std::size_t rows = slices_.any() ? all : x.rows;
  const auto sums = stack.push<T>(rows, fc_.out());
  const auto bent = stack.push<T>(rows, fc_.out());
  return {.fc = fc_.forward(window, stack, x, sums, bent), .sums = sums, .proj = proj_.forward(window, stack, bent, y)};
}

template <Element T>
void FeedForward<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                              MatrixView<T> dx) {
  const ScratchScope scope(stack);
  const auto dsums = stack.push<T>(saved.sums.rows, fc_.out());
  proj_.backward(window, stack, saved.proj, dy, dsums, saved.sums);
  fc_.backward(window, stack, saved.fc, dsums, dx);
}

template <Element T>
typename FeedForward<T>::Between FeedForward<T>::backward_input(Window& window, ActivationStack& stack,
                                                                const Saved& saved, MatrixView<const T> dy,
                                                                MatrixView<T> dx) {
  const auto dsums = stack.push<T>(saved.sums.rows, fc_.out());
  Between between;
  between.proj = proj_.backward_input(window, stack, saved.proj, dy, dsums, saved.sums);
  between.fc = fc_.backward_input(window, stack, saved.fc, dsums, dx);
  return between;
}

template <Element T>
void FeedForward<T>::backward_parameters(Window& window, ActivationStack& stack, const Saved& saved,
                                         const Between& between) {
  proj_.backward_parameters(window, stack, saved.proj, between.proj);
  fc_.backward_parameters(window, stack, saved.fc, between.fc);
}

#define TESSERA_FEED_FORWARD(T) template class FeedForward<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_FEED_FORWARD)

}  // namespace tessera::nn
