// AdamW8bit as the runtime sees it: its states, its settings, and that it moves weights as AdamW does.
#include "tessera/optim/adamw8bit.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/adamw.hpp"

namespace adamw8bit_test {

using tessera::AdamW8bit;
using tessera::DType;
using tessera::Optimizer;

using OptimizerPointer = std::unique_ptr<Optimizer>;

TEST_CASE("adamw8bit_keeps_codes_of_every_element_and_a_scale_for_256_of_them") {
  const OptimizerPointer optimizer = AdamW8bit{};
  CHECK(optimizer->name() == "adamw8bit");
  CHECK(optimizer->states() == std::vector<std::string>{"m", "m_scale", "v", "v_scale"});
  const auto specs = optimizer->state_specs();
  CHECK((specs[0].type == DType::u8 && specs[0].block == 1));
  CHECK((specs[1].type == DType::fp32 && specs[1].block == 256));
  CHECK((specs[2].type == DType::u8 && specs[3].type == DType::fp32));
  CHECK((optimizer->rounds() && optimizer->widens()));
}

TEST_CASE("settings_of_adamw8bit_that_are_out_of_range_are_named_as_its_own") {
  const auto message = [](const AdamW8bit& settings) {
    return tests::error_text<tessera::UsageError>([&] { const OptimizerPointer made = settings; });
  };
  CHECK(message({.beta1 = 1.0f}).find("AdamW8bit") != std::string::npos);
  CHECK(message({.beta1 = 1.0f}).find("beta1") != std::string::npos);
  CHECK(message({.epsilon = 0.0f}).find("epsilon") != std::string::npos);
  CHECK(message({.groups = {{.patterns = {"*"}, .beta2 = 2.0f}}}).find("groups[0].beta2") != std::string::npos);
  CHECK(message({}).empty());
}

// A badly scaled bowl: gradients of some elements are 100 times those of others in the same block.
TEST_CASE("adamw8bit_goes_where_adamw_goes") {
  constexpr std::size_t count = 600, blocks = 3;
  tessera::Stream stream(tessera::Device::cpu(), {.mode = tessera::StreamMode::immediate});
  const auto distance_after = [&](const Optimizer& optimizer, std::vector<std::vector<float>> kept) {
    std::vector<float> weights(count, 1.0f), gradient(count);
    std::vector<float*> states;
    for (auto& state : kept) states.push_back(state.data());
    tessera::kernels::StepScalars scalars;
    for (int step = 0; step < 300; ++step) {
      for (std::size_t i = 0; i < count; ++i) gradient[i] = weights[i] * (i % 7 == 0 ? 100.0f : 1.0f);
      const double norm[] = {1.0};
      tessera::kernels::begin_update(stream, &scalars, {norm, 1, 1}, optimizer.step_settings());
      optimizer.update(stream, {weights.data(), states, gradient.data(), count},
                       {.learning_rate = 0.01f, .weight_decay = 0.0f}, &scalars);
    }
    double sum = 0.0;
    for (const float each : weights) sum += std::fabs(double(each));
    return sum / count;
  };
  const OptimizerPointer wide = tessera::AdamW{}, narrow = AdamW8bit{};
  const double in_fp32 = distance_after(*wide, {std::vector<float>(count), std::vector<float>(count)});
  const double in_8bit = distance_after(*narrow, {std::vector<float>(count), std::vector<float>(blocks),
                                                  std::vector<float>(count), std::vector<float>(blocks)});
  CHECK(in_fp32 < 0.02);
  CHECK(in_8bit < 0.02);
}

}  // namespace adamw8bit_test
