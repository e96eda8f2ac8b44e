// Two optimizers that see tensors whole, in plain loops: LAMB as a user would write it, and one whose work on a tensor
// depends on the order of its elements.
#pragma once

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/half.hpp"
#include "tessera/shard/optimizer.hpp"
#include "tessera/shard/whole_tensors.hpp"

namespace whole_optimizers {

using namespace tessera;
using kernels::StepScalars;
using kernels::Target;

// LAMB (You et al. 2020, algorithm 2): AdamW whose step is scaled, for each tensor, by |weights| / |step|.
class Lamb final : public Optimizer, WholeTensors {
 public:
  explicit Lamb(float clip) : clip_(clip) {}

  std::string_view name() const override { return "lamb"; }
  std::vector<std::string> states() const override { return {"m", "v"}; }
  float learning_rate() const override { return 0.01f; }
  float weight_decay() const override { return 0.1f; }
  kernels::StepSettings step_settings() const override { return {.clip_norm = clip_, .decay = {beta1, beta2}}; }
  const WholeTensors* whole_tensors() const override { return this; }
  void update(Stream&, const OptimizerSpans&, const OptimizerGroup&, const StepScalars*) const override {
    throw InternalError("LAMB sees all tensors whole");
  }

  DType type() const override { return DType::fp32; }
  std::size_t planes() const override { return 2; }
  std::optional<plan::WholeSpec> wants(std::string_view, const Shape& shape, DeviceKind) const override {
    return plan::WholeSpec{.cost = element_count(shape)};
  }
  void direct(Stream& stream, const OptimizerSpans& spans, std::span<const Target> directions,
              const OptimizerGroup& group, const StepScalars* scalars) const override {
    stream.submit([spans_master = spans.master, m = spans.states[0], v = spans.states[1],
                   gradient = static_cast<const float*>(spans.gradient.data), count = spans.count,
                   step = static_cast<float*>(directions[0].data), weights = static_cast<float*>(directions[1].data),
                   decay = group.weight_decay, scalars] {
      if (scalars->skip != 0) return;
      const float first = 1.0f - float(scalars->decay_power[0]), second = 1.0f - float(scalars->decay_power[1]);
      for (std::size_t i = 0; i < count; ++i) {
        const float g = gradient[i] * scalars->gradient_factor;
        m[i] = beta1 * m[i] + (1.0f - beta1) * g;
        v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
        step[i] = (m[i] / first) / (std::sqrt(v[i] / second) + 1e-6f) + decay * spans_master[i];
        weights[i] = spans_master[i];
      }
    });
  }
  void transform(Stream& stream, std::span<const WholeTensor> tensors) const override {
    for (const WholeTensor& tensor : tensors) {
      stream.submit([step = static_cast<float*>(tensor.planes[0].data),
                     weights = static_cast<const float*>(tensor.planes[1].data), count = element_count(tensor.shape)] {
        double of_step = 0, of_weights = 0;
        for (std::size_t i = 0; i < count; ++i) {
          of_step += double(step[i]) * double(step[i]);
          of_weights += double(weights[i]) * double(weights[i]);
        }
        const float trust = of_step > 0 && of_weights > 0 ? float(std::sqrt(of_weights / of_step)) : 1.0f;
        for (std::size_t i = 0; i < count; ++i) step[i] *= trust;
      });
    }
  }
  void apply(Stream& stream, const AppliedSpans& spans, const OptimizerGroup& group,
             const StepScalars* scalars) const override {
    stream.submit([master = spans.master, step = static_cast<const float*>(spans.direction.data), count = spans.count,
                   rate = group.learning_rate, scalars] {
      if (scalars->skip != 0) return;
      for (std::size_t i = 0; i < count; ++i) master[i] -= rate * step[i];
    });
  }

 private:
  static constexpr float beta1 = 0.9f, beta2 = 0.99f;
  float clip_;
};

// Momentum whose step is, for each element of a matrix, the rounded sum of all before it in memory, kept small. Vectors
// are updated elementwise.
class Running final : public Optimizer, WholeTensors {
 public:
  explicit Running(float clip, float decay = 0.9f) : clip_(clip), decay_(decay) {}

  std::string_view name() const override { return "running"; }
  std::vector<std::string> states() const override { return {"momentum"}; }
  float learning_rate() const override { return 0.02f; }
  float weight_decay() const override { return 0.0f; }
  kernels::StepSettings step_settings() const override { return {.clip_norm = clip_}; }
  const WholeTensors* whole_tensors() const override { return this; }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const StepScalars* scalars) const override {
    stream.submit([master = spans.master, gradient = static_cast<const float*>(spans.gradient.data),
                   count = spans.count, rate = group.learning_rate, scalars] {
      if (scalars->skip != 0) return;
      for (std::size_t i = 0; i < count; ++i) master[i] -= rate * (gradient[i] * scalars->gradient_factor);
    });
  }

  DType type() const override { return DType::bf16; }
  std::optional<plan::WholeSpec> wants(std::string_view, const Shape& shape, DeviceKind) const override {
    if (shape.size() != 2) return std::nullopt;
    return plan::WholeSpec{.workspace = Bytes(4), .cost = shape[0] * shape[1]};
  }
  void direct(Stream& stream, const OptimizerSpans& spans, std::span<const Target> directions, const OptimizerGroup&,
              const StepScalars* scalars) const override {
    stream.submit([momentum = spans.states[0], gradient = static_cast<const float*>(spans.gradient.data),
                   count = spans.count, to = static_cast<bf16*>(directions[0].data), scalars] {
      if (scalars->skip != 0) return;
      for (std::size_t i = 0; i < count; ++i) {
        momentum[i] = 0.9f * momentum[i] + gradient[i] * scalars->gradient_factor;
        to[i] = bf16(momentum[i]);
      }
    });
  }
  void transform(Stream& stream, std::span<const WholeTensor> tensors) const override {
    for (const WholeTensor& tensor : tensors) {
      stream.submit([x = static_cast<bf16*>(tensor.planes[0].data), count = element_count(tensor.shape),
                     sum = reinterpret_cast<float*>(tensor.workspace), decay = decay_] {
        *sum = 0.0f;
        for (std::size_t i = 0; i < count; ++i) {
          *sum = decay * *sum + float(x[i]);
          x[i] = bf16(*sum);
        }
      });
    }
  }
  void apply(Stream& stream, const AppliedSpans& spans, const OptimizerGroup& group,
             const StepScalars* scalars) const override {
    stream.submit([master = spans.master, step = static_cast<const bf16*>(spans.direction.data), count = spans.count,
                   rate = group.learning_rate / float(spans.shape[0]), scalars] {
      if (scalars->skip != 0) return;
      for (std::size_t i = 0; i < count; ++i) master[i] -= rate * float(step[i]);
    });
  }

 private:
  float clip_, decay_;
};

}  // namespace whole_optimizers
