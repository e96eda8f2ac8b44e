// Attention on both kinds of device, for tests of what computes it.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "../nn/chosen.hpp"
#include "nn_device.hpp"
#include "src/cuda/attention_choice.hpp"
#include "tessera/nn/attention.hpp"

namespace tessera::test {

// Chooses what computes attention while it lives.
using WithAttention = Chosen<nn::cuda::attentions::select, nn::cuda::attentions::active>;

inline const nn::Dropout some_dropout{.probability = 0.25f,
                                      .key = {.seed = 3, .step = 2, .layer = 1, .first_row = 1000}};

// Probabilities and their gradients may be rounded to T before they are multiplied, and backward reads a rounded `out`.
template <typename T>
inline constexpr double rounded_operands = std::is_same_v<T, float> ? 1e-5 : 4.0 * rounding<T>;

template <typename T>
std::vector<T> attention_inputs(const nn::AttentionShape& of) {
  std::vector<T> qkv = random_elements<T>(of.rows() * 3 * of.dim(), 1);
  for (T& element : qkv) element = T(2.0f * static_cast<float>(element));
  return qkv;
}

// How many elements behind an aligned address the matrices begin.
struct Shifts {
  std::size_t qkv = 0, out = 0, dout = 0, dqkv = 0;
};

enum class AttentionPasses { forward, both };

template <typename T>
void compare_attentions(Comparison comparison, const nn::AttentionShape& s, const nn::Dropout& dropout,
                        const std::vector<T>& inputs, const Shifts& shifts = {},
                        AttentionPasses passes = AttentionPasses::both) {
  const std::size_t elements = s.rows() * s.dim();
  const auto attention = [&](Stream& on, T* qkv, T* dout, T* out, T* dqkv, float* statistics, float* forward_scratch,
                             float* scratch) {
    const auto of_dim = [&](T* data) { return nn::MatrixView<T>{data, s.rows(), s.dim()}; };
    nn::attention_forward<T>(on, {.shape = s,
                                  .qkv = nn::MatrixView<T>{qkv, s.rows(), 3 * s.dim()},
                                  .out = of_dim(out),
                                  .statistics = statistics,
                                  .dropout = dropout,
                                  .scratch = forward_scratch});
    for (std::size_t i = 0; on.device().kind() == DeviceKind::cpu && i < elements; ++i) {
      REQUIRE(std::isfinite(static_cast<float>(out[i])));
    }
    if (passes == AttentionPasses::forward) return;
    nn::attention_backward<T>(on, {.shape = s,
                                   .qkv = nn::MatrixView<T>{qkv, s.rows(), 3 * s.dim()},
                                   .statistics = statistics,
                                   .out = of_dim(out),
                                   .dout = of_dim(dout),
                                   .dqkv = nn::MatrixView<T>{dqkv, s.rows(), 3 * s.dim()},
                                   .dropout = dropout,
                                   .scratch = scratch});
  };
  compare(comparison, attention, same(inputs, shifts.qkv), same(random_elements<T>(elements, 2), shifts.dout),
          near(unset<T>(elements), rounded_operands<T>, shifts.out),
          near(unset<T>(3 * elements), rounded_operands<T>, shifts.dqkv), near(unset<float>(s.statistics()), 1e-5),
          Scratch{nn::attention_forward_scratch<T>(s, DeviceKind::cpu),
                  nn::attention_forward_scratch<T>(s, DeviceKind::cuda)},
          Scratch{nn::attention_backward_scratch<T>(s, DeviceKind::cpu),
                  nn::attention_backward_scratch<T>(s, DeviceKind::cuda)});
}

}  // namespace tessera::test
