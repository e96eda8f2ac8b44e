// The models whose bytes are measured: perceptrons and GPTs, small ones and such whose sizes divide by nothing, and one
// whose first unit is its last, too, or whose units' windows open inside each other.
#pragma once

#include <string>
#include <vector>

#include "models/gpt.hpp"
#include "models/model.hpp"
#include "tessera/plan/strategy.hpp"

namespace measured {

struct NamedModel {
  std::string name;
  models::Model model;
};

// Unit 0 opens again after the others, forward and backward.
inline models::Model tied(const std::vector<std::size_t>& widths) {
  using tessera::plan::WindowKind;
  models::Model model = models::perceptron(widths);
  auto& micro_batch = model.program.micro_batch;
  const auto middle = micro_batch.begin() + std::ptrdiff_t(model.units.size());
  micro_batch.insert(middle, {{0, WindowKind::forward}, {0, WindowKind::backward}});
  model.program.evaluation.push_back({0, WindowKind::evaluate});
  return model;
}

// Each unit's windows open inside those of the unit before.
inline models::Model nested(const std::vector<std::size_t>& widths) {
  using tessera::plan::WindowKind;
  models::Model model = models::perceptron(widths);
  const std::size_t units = model.units.size();
  const auto inside_each_other = [units](std::vector<tessera::plan::WindowUse>& windows, WindowKind kind) {
    for (std::size_t unit = 0; unit < units; ++unit) windows.push_back({unit, kind});
    for (std::size_t unit = units - 1; unit > 0; --unit) windows.push_back({unit - 1, kind, true});
  };
  model.program = {};
  inside_each_other(model.program.micro_batch, WindowKind::forward);
  inside_each_other(model.program.micro_batch, WindowKind::backward);
  inside_each_other(model.program.evaluation, WindowKind::evaluate);
  return model;
}

inline std::vector<NamedModel> six_models() {
  return {{"mlp small", models::perceptron({64, 128, 128, 10})},
          {"mlp odd", models::perceptron({5, 13, 131, 7, 3, 1})},
          {"gpt tiny", models::gpt({.layers = 2, .dim = 32, .heads = 2, .seq = 16, .vocabulary = 256})},
          {"gpt odd", models::gpt({.layers = 3,
                                   .dim = 15,
                                   .heads = 3,
                                   .seq = 7,
                                   .vocabulary = 101,
                                   .activation_checkpointing = true,
                                   .fp32_units = {"final"}})},
          {"tied", tied({17, 11, 29, 17})},
          {"nested", nested({5, 131, 7, 29})}};
}

struct NamedPrecision {
  const char* name;
  tessera::Precision precision;
};
inline constexpr NamedPrecision precisions[] = {{"fp32", tessera::fp32_precision},
                                                {"bf16", tessera::bf16_mixed},
                                                {"fp16", tessera::fp16_mixed},
                                                {"bf16, masters too",
                                                 {.parameter = tessera::DType::bf16,
                                                  .gradient = tessera::DType::bf16,
                                                  .wire = tessera::DType::bf16,
                                                  .masters = tessera::DType::bf16}}};

}  // namespace measured
