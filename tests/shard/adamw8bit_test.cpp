// 8-bit moments belong to blocks of the tensor: every strategy, wrapping, mesh and number of ranks has the bits of a
// plain update of whole tensors.
#include "tessera/optim/adamw8bit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "../extent.hpp"
#include "tensor_checks.hpp"
#include "tensors.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/adamw8bit.hpp"
#include "tessera/optim/sgd.hpp"
#include "toy_model.hpp"

namespace adamw8bit_shard_test {

using namespace tessera;
using tensors::bytes_of;
using tensors::steps;
using tensors::Training;
using tensors::Values;
using tensors::Wrapping;
using toy::contains;

const AdamW8bit settings{.learning_rate = 0.01f, .weight_decay = 0.1f};

// Sizes around a block and around what earlier shards had; some ranks have none of a tensor, or only padding.
const Wrapping each_alone = {{0}, {1}, {7}, {255}, {256}, {257}, {1031}, {2049}};
const Wrapping all_together = {{0, 1, 7, 255, 256, 257, 1031, 2049}};
const Wrapping in_pairs = {{2049, 1}, {0, 1031}, {257, 255}, {7, 256}};

Values train(const Training& training) { return tensors::train(training, settings); }

Values train_plainly() {
  Values result;
  Stream stream(Device::cpu(), {.mode = StreamMode::immediate});
  for (const std::vector<std::size_t>& unit : each_alone) {
    const std::size_t size = unit.front(), blocks = plan::values_of(size, kernels::moment_block);
    std::vector<float> master(size), gradient(size), m_scale(blocks), v_scale(blocks);
    std::vector<std::uint8_t> m(size), v(size);
    for (std::size_t i = 0; i < size; ++i) master[i] = tensors::weight_of(size, i);
    kernels::StepScalars scalars;
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < size; ++i) gradient[i] = tensors::gradient_of(size, step, i);
      const double norm[] = {1.0};
      kernels::begin_update(stream, &scalars, {norm, 1, 1}, {.decay = {settings.beta1, settings.beta2}});
      kernels::adamw8bit(
          stream, {master.data(), {m.data(), m_scale.data()}, {v.data(), v_scale.data()}, gradient.data(), size},
          {settings.learning_rate, settings.beta1, settings.beta2, settings.epsilon, settings.weight_decay}, &scalars);
    }
    if (size == 0) continue;
    const std::string name = tensors::name_of(size);
    result["master/" + name] = bytes_of(master);
    result["m/" + name] = bytes_of(m);
    result["m_scale/" + name] = bytes_of(m_scale);
    result["v/" + name] = bytes_of(v);
    result["v_scale/" + name] = bytes_of(v_scale);
  }
  return result;
}

TEST_CASE("eight_bit_moments_have_the_bits_of_whole_tensors_for_every_strategy_wrapping_and_number_of_ranks") {
  const Values expected = train_plainly();
  CHECK(expected.size() == 7 * 5);
  tensors::check_strategies(expected, {each_alone, all_together, in_pairs}, tests::rank_counts({1, 2, 3, 5}), train);
}

TEST_CASE("eight_bit_moments_have_the_same_bits_on_meshes_on_threads_in_the_hosts_memory_and_in_test_modes") {
  const Values expected = train_plainly();
  tensors::check_places(expected, in_pairs, train);
  parallel::set_threads(3);
  for (const int ranks : {1, 2}) {
    CHECK((train({ranks, {}, all_together}) == expected));
    CHECK((train({ranks, {.diagnostics = {.delay_seed = 7, .queue_compute = true}}, all_together}) == expected));
  }
  parallel::set_threads(1);
}

TEST_CASE("strategies_have_equal_bits_with_eight_bit_moments_in_mixed_precision") {
  for (const int ranks : {2, 3}) {
    toy::Run run{.options = {.precision = bf16_mixed}, .ranks = ranks, .optimizer = toy::in_eight_bits};
    const toy::Result expected = tensors::check_in_mixed_precision(run);
    run.optimizer = nullptr;
    CHECK_FALSE(toy::same_bits(toy::train<bf16>(run), expected));
  }
}

// Units of other optimizers keep the alignment, and with it the padding, that they had.
TEST_CASE("only_units_with_blocks_are_aligned_to_them") {
  launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    tensors::Unit first({130, 5}), second({130, 7});
    FullyShard model(world, {});
    model.add(first, {.name = "first"});
    model.add(second, {.name = "second", .optimizer = settings});
    model.finalize(Sgd{.momentum = 0.9f});
    const plan::Plan& plan = model.plan();
    CHECK((plan.layouts[0].offset(1) == 256 && plan.layouts[1].offset(1) == 256));
    CHECK((plan.layouts[0].shard_elements() == 128 && plan.layouts[1].shard_elements() == 256));
    CHECK_NOTHROW(model.pieces(model.unit(0), "velocity"));
    for (const char* state : {"m", "m_scale"}) {
      const auto message = [&](const auto& call) { return tests::error_text<UsageError>(call); };
      CHECK(contains(message([&] { model.pieces(model.unit(1), state); }), "state_pieces()"));
      CHECK(contains(message([&] { model.whole(*model.unit(1).parameters()[0], state); }), state));
    }
  });
}

// Shards of a recompiled model lie elsewhere, and moments go with the elements.
TEST_CASE("a_recompiled_model_goes_on_with_its_eight_bit_moments") {
  tensors::check_recompiled(train_plainly(), in_pairs, train);
}

}  // namespace adamw8bit_shard_test
