// Masters in bf16, rounded by chance: every strategy, wrapping, mesh and number of ranks has the bits of whole tensors
// in plain memory that are widened, updated and rounded.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "tensor_checks.hpp"
#include "tensors.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/kernels/rounding.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/adamw8bit.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"
#include "whole_optimizers.hpp"

namespace bf16_masters_test {

using namespace tessera;
using tensors::bytes_of;
using tensors::steps;
using tensors::Training;
using tensors::Values;
using tensors::Wrapping;
using toy::contains;
using toy::failure_of;

constexpr std::uint64_t seed = 11;
const AdamW settings{.learning_rate = 0.01f, .weight_decay = 0.1f};
constexpr Precision in_bf16{.parameter = DType::bf16, .masters = DType::bf16};

const Wrapping each_alone = {{0}, {1}, {7}, {129}, {257}, {1031}, {2049}};
const Wrapping all_together = {{0, 1, 7, 129, 257, 1031, 2049}};
const Wrapping in_pairs = {{2049, 1}, {0, 1031}, {257, 129}, {7}};

FullyShardOptions with(FullyShardOptions options) {
  options.precision = in_bf16;
  options.seed = seed;
  return options;
}

Values train(Training training) {
  training.options = with(training.options);
  return tensors::train(training, settings, "");
}

Values train_plainly() {
  Values result;
  Stream stream(Device::cpu(), {.mode = StreamMode::immediate});
  for (std::size_t unit = 0; unit < each_alone.size(); ++unit) {
    const std::size_t size = each_alone[unit].front();
    std::vector<float> widened(size), gradient(size), m(size), v(size);
    std::vector<bf16> master(size);
    for (std::size_t i = 0; i < size; ++i) master[i] = bf16(tensors::weight_of(size, i));
    kernels::StepScalars scalars;
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < size; ++i) gradient[i] = tensors::gradient_of(size, step, i);
      for (std::size_t i = 0; i < size; ++i) widened[i] = static_cast<float>(master[i]);
      const double norm[] = {1.0};
      kernels::begin_update(stream, &scalars, {norm, 1, 1}, {.decay = {settings.beta1, settings.beta2}});
      kernels::adamw(stream, {widened.data(), m.data(), v.data(), gradient.data(), size},
                     {settings.learning_rate, settings.beta1, settings.beta2, settings.epsilon, settings.weight_decay},
                     &scalars);
      kernels::round_stochastically(
          stream, {master.data(), widened.data(), size, key_of(seed, tensors::name_of(size)), 0}, &scalars);
    }
    if (size == 0) continue;
    result["master/" + tensors::name_of(size)] = bytes_of(master);
    result["m/" + tensors::name_of(size)] = bytes_of(m);
    result["v/" + tensors::name_of(size)] = bytes_of(v);
  }
  return result;
}

// Its gradient is 1 everywhere.
struct Slope : Module {
  Parameter weight{{4096}, Initial::ones()};
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window) {
    const std::span<float> gradient = window.gradient<float>(weight);
    window.stream().submit([gradient] { std::fill(gradient.begin(), gradient.end(), 1.0f); });
  }
};

TEST_CASE("bf16_masters_have_the_bits_of_whole_tensors_for_every_strategy_wrapping_and_number_of_ranks") {
  const Values expected = train_plainly();
  CHECK(expected.size() == 6 * 3);
  tensors::check_strategies(expected, {each_alone, all_together, in_pairs}, {1, 2, 3, 5}, train);
}

TEST_CASE("bf16_masters_have_the_same_bits_on_meshes_on_threads_beside_states_of_the_host_and_in_test_modes") {
  const Values expected = train_plainly();
  tensors::check_places(expected, in_pairs, train);
  parallel::set_threads(3);
  CHECK((train({.ranks = 2, .wrapping = all_together}) == expected));
  parallel::set_threads(1);
}

// Optimizers of other states, and one that sees tensors whole.
TEST_CASE("strategies_have_equal_bits_with_bf16_masters_whatever_the_optimizer") {
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(float)>;
  const MakeOptimizer optimizers[] = {
      nullptr, toy::in_eight_bits,
      [](float clip) -> std::unique_ptr<Optimizer> {
        return Sgd{.learning_rate = 0.05f, .momentum = 0.9f, .clip_norm = clip};
      },
      [](float clip) -> std::unique_ptr<Optimizer> { return std::make_unique<whole_optimizers::Lamb>(clip); }};
  for (const MakeOptimizer& optimizer : optimizers) {
    for (const int ranks : {1, 3}) {
      toy::Run run{.options = {.precision = bf16_mixed}, .ranks = ranks, .optimizer = optimizer};
      run.options.precision.masters = DType::bf16;
      const toy::Result expected = tensors::check_in_mixed_precision(run);
      run.options.precision.masters = DType::fp32;
      CHECK_FALSE(toy::same_bits(toy::train<bf16>(run), expected));
    }
  }
}

TEST_CASE("a_recompiled_model_goes_on_with_its_bf16_masters") {
  tensors::check_recompiled(train_plainly(), in_pairs, train);
}

// Updates of a hundredth of bf16's last place move the mean as fp32 masters would; to nearest nothing would move.
TEST_CASE("small_updates_are_not_lost_in_bf16_masters") {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Slope slope;
    FullyShard model(world, {.precision = in_bf16});
    model.add(slope, "slope");
    model.finalize(Sgd{.learning_rate = 0x1p-15f});
    for (int step = 0; step < 512; ++step) {
      model.forward(slope);
      model.backward(slope);
      model.update();
    }
    double sum = 0;
    for (const float value : model.whole(slope.weight)) sum += value;
    CHECK(sum / 4096 == doctest::Approx(1.0 - 512 * 0x1p-15).epsilon(0.0005));
  });
}

TEST_CASE("masters_that_cannot_be_bf16_are_refused_by_name") {
  const auto message = [](const FullyShardOptions& options) {
    return failure_of(2, [&](World& world) { tensors::Net(world, options, {{7}}, settings); });
  };
  FullyShardOptions options{.precision = {.masters = DType::bf16}};
  CHECK(contains(message(options), "masters of the model are bf16, and its parameters fp32"));
  options.precision = fp16_mixed;
  options.precision.masters = DType::fp16;
  CHECK(contains(message(options), "masters are fp32, or bf16 where parameters are"));
  options.precision = in_bf16;
  options.precision.gather = DType::int8;
  CHECK(contains(message(options), "masters of the model are bf16, and its parameters are to travel in int8"));
  options = with({.strategy = Strategy::hsdp, .replicas = 2, .outer = {.every = 2}});
  CHECK(contains(message(options), "does not go with outer steps"));
  options = with({.offload = {.masters = MemorySpace::host}});
  CHECK(contains(message(options), "move the optimizer's states alone"));
}

}  // namespace bf16_masters_test
