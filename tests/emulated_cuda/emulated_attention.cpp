// Fused attention of the emulated device by the formula, in place of cuDNN's: what is checked is where things stand,
// and how calls are cut. It overwrites its whole workspace.
#include "emulated_attention.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "cuda_runtime.h"
#include "emulated_elements.hpp"
#include "src/cuda/fused_attention.hpp"

namespace tessera::nn::cuda {

namespace {

// One head of one sequence.
class Head {
 public:
  Head(const FusedAttention& operation, std::size_t sequence, std::size_t head)
      : a_(operation), sequence_(sequence), head_(head) {}

  void forward() const {
    for (std::size_t row = 0; row < a_.rows; ++row) {
      double sum = 0.0;
      std::vector<double> out(a_.head_dim);
      const std::vector<double> scores = scores_of(row);
      double largest = scores[0];
      for (const double score : scores) largest = std::max(largest, score);
      for (std::size_t key = 0; key <= row; ++key) {
        const double p = std::exp(scores[key] - largest);
        sum += p;
        for (std::size_t i = 0; i < a_.head_dim; ++i) out[i] += p * at(a_.v, key, i);
      }
      for (std::size_t i = 0; i < a_.head_dim; ++i) put(a_.out, row, i, out[i] / sum);
      if (a_.statistics != nullptr) *statistic(row) = static_cast<float>(largest + std::log(sum));
    }
  }

  void backward() const {
    std::vector<double> dq(a_.rows * a_.head_dim), dk(dq.size()), dv(dq.size());
    for (std::size_t row = 0; row < a_.rows; ++row) {
      const double delta = dot(a_.dout, row, a_.out, row);
      const std::vector<double> scores = scores_of(row);
      for (std::size_t key = 0; key <= row; ++key) {
        const double p = std::exp(scores[key] - static_cast<double>(*statistic(row)));
        const double ds = p * (dot(a_.dout, row, a_.v, key) - delta) * static_cast<double>(a_.scale);
        for (std::size_t i = 0; i < a_.head_dim; ++i) {
          dq[row * a_.head_dim + i] += ds * at(a_.k, key, i);
          dk[key * a_.head_dim + i] += ds * at(a_.q, row, i);
          dv[key * a_.head_dim + i] += p * at(a_.dout, row, i);
        }
      }
    }
    for (std::size_t i = 0; i < dq.size(); ++i) {
      put(a_.dq, i / a_.head_dim, i % a_.head_dim, dq[i]);
      put(a_.dk, i / a_.head_dim, i % a_.head_dim, dk[i]);
      put(a_.dv, i / a_.head_dim, i % a_.head_dim, dv[i]);
    }
  }

 private:
  std::size_t place(const Heads& of, std::size_t row, std::size_t i) const {
    return sequence_ * of.sequence_stride + head_ * of.head_stride + row * of.row_stride + i;
  }
  double at(const Heads& of, std::size_t row, std::size_t i) const {
    return static_cast<double>(get(a_.format, of.data, place(of, row, i)));
  }
  void put(const Heads& of, std::size_t row, std::size_t i, double value) const {
    set(a_.format, const_cast<void*>(of.data), place(of, row, i), static_cast<float>(value));
  }
  float* statistic(std::size_t row) const { return a_.statistics + (sequence_ * a_.heads + head_) * a_.rows + row; }

  double dot(const Heads& a, std::size_t a_row, const Heads& b, std::size_t b_row) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < a_.head_dim; ++i) sum += at(a, a_row, i) * at(b, b_row, i);
    return sum;
  }
  std::vector<double> scores_of(std::size_t row) const {
    std::vector<double> scores;
    for (std::size_t key = 0; key <= row; ++key) {
      scores.push_back(dot(a_.q, row, a_.k, key) * static_cast<double>(a_.scale));
    }
    return scores;
  }

  const FusedAttention& a_;
  std::size_t sequence_;
  std::size_t head_;
};

std::optional<std::size_t> workspace_of(const FusedAttention& a) {
  if (!emulated_attention().has_kernels) return std::nullopt;
  return a.sequences * a.heads * emulated_attention().bytes_of_head;
}

void run(void* native, const FusedAttention& a) {
  emulated_attention().calls.emplace_back(a.sequences, a.heads);
  const std::size_t workspace = *workspace_of(a);
  const cudaLaunchConfig_t one{dim3(1), dim3(1), 0, static_cast<cudaStream_t>(native)};
  ::emulated::launch(one, [a, workspace] {
    if (a.workspace.data != nullptr) std::memset(a.workspace.data, 0xff, workspace);
    for (std::size_t sequence = 0; sequence < a.sequences; ++sequence) {
      for (std::size_t head = 0; head < a.heads; ++head) {
        const Head now(a, sequence, head);
        a.backward ? now.backward() : now.forward();
      }
    }
  });
}

}  // namespace

EmulatedAttention& emulated_attention() {
  static EmulatedAttention state;
  return state;
}

const FusedAttentionLibrary& fused_attention_library() {
  static const FusedAttentionLibrary of_tests{
      .missing = {}, .in_words = "the tests' attention", .workspace_bytes = workspace_of, .run = run};
  return of_tests;
}

}  // namespace tessera::nn::cuda
