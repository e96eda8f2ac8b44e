// Attention on both kinds of device, for tests of what computes it.
#pragma once

#include <algorithm>
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

template <typename T>
struct AttentionCase {
  AttentionCase(const nn::AttentionShape& of, const nn::Dropout& dropout_)
      : shape(of),
        dropout(dropout_),
        qkv(random_elements<T>(of.rows() * 3 * of.dim(), 1)),
        dout(random_elements<T>(of.rows() * of.dim(), 2)),
        out(dout.size()),
        dqkv(qkv.size()),
        statistics(of.statistics()) {
    for (T& element : qkv) element = T(2.0f * static_cast<float>(element));
  }

  nn::AttentionShape shape;
  nn::Dropout dropout;
  std::vector<T> qkv, dout, out, dqkv;
  std::vector<float> statistics;
};

// How many elements behind an aligned address the matrices begin.
struct Shifts {
  std::size_t qkv = 0, out = 0, dout = 0, dqkv = 0;
};

template <typename T>
void run(DeviceKind kind, AttentionCase<T>& c, const Shifts& shifts = {}) {
  Stream stream = stream_on(kind);
  const nn::AttentionShape& s = c.shape;
  DeviceMatrix<T> qkv(kind, c.qkv, s.rows(), 3 * s.dim(), shifts.qkv);
  DeviceMatrix<T> dqkv(kind, s.rows(), 3 * s.dim(), shifts.dqkv);
  DeviceMatrix<T> out(kind, s.rows(), s.dim(), shifts.out), dout(kind, c.dout, s.rows(), s.dim(), shifts.dout);
  DeviceMatrix<float> statistics(kind, 1, s.statistics());
  DeviceBuffer<float> forward_scratch(kind, nn::attention_forward_scratch<T>(s, kind));
  DeviceBuffer<float> scratch(kind, nn::attention_backward_scratch<T>(s, kind));
  nn::attention_forward<T>(stream, {.shape = s,
                                    .qkv = qkv.view(),
                                    .out = out.view(),
                                    .statistics = statistics.data(),
                                    .dropout = c.dropout,
                                    .scratch = forward_scratch.data()});
  nn::attention_backward<T>(stream, {.shape = s,
                                     .qkv = qkv.view(),
                                     .statistics = statistics.data(),
                                     .out = out.view(),
                                     .dout = dout.view(),
                                     .dqkv = dqkv.view(),
                                     .dropout = c.dropout,
                                     .scratch = scratch.data()});
  stream.synchronize();
  CHECK(forward_scratch.guards_intact());
  CHECK(scratch.guards_intact());
  c.out = out.values(), c.dqkv = dqkv.values(), c.statistics = statistics.values();
}

// Probabilities and their gradients may be rounded to T before they are multiplied, and backward reads a rounded `out`.
template <typename T>
inline constexpr double rounded_operands = std::is_same_v<T, float> ? 1e-5 : 4.0 * rounding<T>;

}  // namespace tessera::test
