// Attention on both kinds of device, for tests of what computes it.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "nn_device.hpp"
#include "src/cuda/attention_choice.hpp"
#include "tessera/nn/attention.hpp"

namespace tessera::test {

// Chooses what computes attention while it lives.
class WithAttention {
 public:
  explicit WithAttention(nn::cuda::attentions::Set set) { nn::cuda::attentions::select(set); }
  ~WithAttention() { nn::cuda::attentions::select(before_); }
  WithAttention(const WithAttention&) = delete;
  WithAttention& operator=(const WithAttention&) = delete;

 private:
  nn::cuda::attentions::Set before_ = nn::cuda::attentions::active();
};

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

template <typename T>
void run_on_cpu(AttentionCase<T>& c) {
  Stream host = host_stream();
  const nn::AttentionShape& s = c.shape;
  std::vector<float> scratch(std::max(nn::attention_forward_scratch<T>(s), nn::attention_backward_scratch<T>(s)));
  nn::attention_forward<T>(host, {.shape = s,
                                  .qkv = matrix(c.qkv, s.rows(), 3 * s.dim()),
                                  .out = matrix(c.out, s.rows(), s.dim()),
                                  .statistics = c.statistics.data(),
                                  .dropout = c.dropout,
                                  .scratch = scratch.data()});
  nn::attention_backward<T>(host, {.shape = s,
                                   .qkv = matrix(c.qkv, s.rows(), 3 * s.dim()),
                                   .statistics = c.statistics.data(),
                                   .dout = matrix(c.dout, s.rows(), s.dim()),
                                   .dqkv = matrix(c.dqkv, s.rows(), 3 * s.dim()),
                                   .dropout = c.dropout,
                                   .scratch = scratch.data()});
  host.synchronize();
}

template <typename T>
void run_on_cuda(AttentionCase<T>& c) {
  Stream stream = cuda_stream();
  const nn::AttentionShape& s = c.shape;
  DeviceMatrix<T> qkv(c.qkv, s.rows(), 3 * s.dim()), dqkv(s.rows(), 3 * s.dim());
  DeviceMatrix<T> out(s.rows(), s.dim()), dout(c.dout, s.rows(), s.dim());
  DeviceMatrix<float> statistics(1, s.statistics());
  DeviceBuffer<float> forward_scratch(nn::attention_forward_scratch<T>(s, DeviceKind::cuda));
  DeviceBuffer<float> scratch(nn::attention_backward_scratch<T>(s, DeviceKind::cuda));
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
