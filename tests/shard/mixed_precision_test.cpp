// Types per unit, and the loss scale: what they do to a run, and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "../error_text.hpp"
#include "tessera/base/error.hpp"
#include "toy_model.hpp"

namespace mixed_precision_test {

using namespace tessera;
using toy::Run;
using toy::Values;

double last_loss(const toy::Result& result) { return double(std::bit_cast<float>(result.losses.back())); }

TEST_CASE("sixteen_bit_training_follows_fp32_within_its_rounding") {
  Run run{.ranks = 2, .steps = 20};
  const double fp32 = last_loss(toy::train(run));
  run.options.precision = bf16_mixed;
  CHECK(last_loss(toy::train<bf16>(run)) == doctest::Approx(fp32).epsilon(0.02));
  run.options.precision = fp16_mixed;
  run.options.loss_scaling = kernels::LossScaling{.initial = 64};
  CHECK(last_loss(toy::train<fp16>(run)) == doctest::Approx(fp32).epsilon(0.005));
}

TEST_CASE("fp16_survives_overflows_on_one_rank_and_every_rank_has_the_same_scale") {
  for (const Strategy strategy : flat_strategies) {
    for (const int ranks : {1, 3}) {
      Run run{.options = {.strategy = strategy,
                          .precision = fp16_mixed,
                          .loss_scaling = kernels::LossScaling{.initial = 1024, .dynamic = true, .growth_interval = 4}},
              .ranks = ranks,
              .steps = 14,
              .overflows = {1, 2, 9}};
      const toy::Result result = toy::train<fp16>(run);
      CHECK(result.loss_scales ==
            std::vector<float>{1024, 512, 256, 256, 256, 256, 512, 512, 512, 256, 256, 256, 256, 512});
      CHECK(result.skipped.back() == 3);
      for (const auto& [name, values] : result.weights) {
        for (const float value : values) CHECK(std::isfinite(value));
      }
    }
  }
}

TEST_CASE("parameters_rounded_by_the_update_or_after_it_have_the_same_bits") {
  for (const Strategy strategy : all_strategies) {
    for (const std::size_t replicas : {1u, 2u}) {
      Run run{.options = {.strategy = strategy,
                          .replicas = replicas,
                          .precision = fp16_mixed,
                          .loss_scaling = kernels::LossScaling{.initial = 1024, .dynamic = true, .growth_interval = 4},
                          .diagnostics = {.poison = true}},
              .ranks = 4,
              .steps = 5,
              .overflows = {2},
              .frozen = {1}};
      const toy::Result by_the_update = toy::train<fp16>(run);
      run.rounds = false;
      CHECK(toy::same_bits(toy::train<fp16>(run), by_the_update));
    }
  }
}

// One rank, or replicas of one rank that meet in outer steps alone.
TEST_CASE("gradients_that_nobody_adds_to_stay_in_16_bits_with_the_bits_of_sums_in_fp32") {
  for (const Strategy strategy : all_strategies) {
    for (const std::size_t replicas : {1u, 3u}) {
      Run run{.options = {.strategy = strategy, .replicas = replicas}, .ranks = static_cast<int>(replicas), .steps = 5};
      if (replicas > 1) run.options.outer.every = 2;
      run.options.diagnostics.poison = true;
      run.options.precision = fp16_mixed;
      run.options.loss_scaling = kernels::LossScaling{.initial = 1024, .dynamic = true, .growth_interval = 4};
      if (replicas == 1) run.overflows = {2};  // replicas that train by themselves scale by themselves
      run.frozen = {1};
      if (replicas > 1 && strategy == Strategy::hfsdp) continue;  // refused with outer steps
      const toy::Result narrow = toy::train<fp16>(run);
      run.rounds = false;
      CHECK(toy::same_bits(toy::train<fp16>(run), narrow));
    }
  }
}

TEST_CASE("a_gradient_in_16_bits_is_looked_at_in_fp32") {
  const auto gradients = [](bool hooked) {
    std::vector<Values> result;
    launch({.ranks = 1}, [&](World& world) {
      toy::Layer<bf16> layer(5, 7, 3);
      FullyShard model(world, {.precision = bf16_mixed});
      if (hooked) model.on_reduced_gradient([](const ReducedGradient&) {});
      const Unit& unit = model.add(layer, "layer");
      model.finalize(AdamW{});
      const plan::UnitBuffers& buffers = model.plan().unit_buffers[0];
      using plan::Role;
      CHECK((buffers[Role::gradient].buffer == buffers[Role::gradient_slot].buffer) == !hooked);
      Values dy(3 * 7, 0.25f);
      for (int step = 0; step < 2; ++step) {
        const Values x = toy::sample(3 * 5, step, 0, 0, 0);
        model.forward(layer, x);
        model.backward(layer, dy);
        model.update();
        for (const ParameterPiece& piece : model.pieces(unit, "gradient")) {
          result.emplace_back(piece.values.begin(), piece.values.end());
          CHECK(toy::same_bits(model.whole(*piece.parameter, "gradient"), result.back()));
        }
        for (const GradientNorm& entry : model.gradient_norms()) {
          result.push_back({static_cast<float>(entry.norm)});
        }
      }
    });
    return result;
  };
  const std::vector<Values> narrow = gradients(false);
  const std::vector<Values> summed = gradients(true);
  REQUIRE(narrow.size() == 8);
  REQUIRE(summed.size() == narrow.size());
  CHECK(narrow[0] != narrow[4]);
  for (std::size_t i = 0; i < narrow.size(); ++i) CHECK(toy::same_bits(narrow[i], summed[i]));
}

TEST_CASE("fp16_is_scaled_by_default_from_the_first_step_also_where_it_is_frozen_at_first") {
  launch({.ranks = 2}, [](World& world) {
    for (const bool half : {true, false}) {
      toy::Layer<fp16> first(5, 7, 2);
      toy::Layer<float> second(7, 3, 2);
      first.weight.set_frozen(true);
      first.bias.set_frozen(true);
      FullyShard model(world);
      const Precision types = half ? fp16_mixed : fp32_precision;
      model.add(first, {.name = "first", .precision = types});
      model.add(second, "second");
      model.finalize(AdamW{});
      CHECK(model.last_step().loss_scale == (half ? 65536.0f : 1.0f));
      first.weight.set_frozen(false);
      model.recompile();
      CHECK(model.last_step().loss_scale == (half ? 65536.0f : 1.0f));
    }
  });
}

// A loss scale that is a power of two changes no bit as long as nothing under- or overflows.
TEST_CASE("a_static_loss_scale_leaves_fp32_bits_alone") {
  Run run{.ranks = 3};
  const toy::Result reference = toy::train(run);
  run.options.loss_scaling = kernels::LossScaling{.initial = 64};
  const toy::Result scaled = toy::train(run);
  CHECK(scaled.losses == reference.losses);
  CHECK(scaled.norms == reference.norms);
  CHECK(scaled.loss_scales.back() == 64);
}

TEST_CASE("a_loss_scale_out_of_range_is_refused_by_name") {
  const auto names = [](kernels::LossScaling scaling, const char* part) {
    Run run{.options = {.loss_scaling = scaling}};
    return toy::contains(tests::error_text<UsageError>([&] { toy::train(run); }), part);
  };
  CHECK(names({.initial = 0}, "loss_scaling.initial is 0"));
  CHECK(names({.initial = INFINITY}, "loss_scaling.initial"));
  CHECK(names({.initial = 8, .dynamic = true, .growth = 1}, "loss_scaling.growth"));
  CHECK(names({.initial = 8, .dynamic = true, .backoff = 1}, "loss_scaling.backoff"));
  CHECK(names({.initial = 8, .dynamic = true, .growth_interval = 0}, "loss_scaling.growth_interval"));
  CHECK(names({.initial = 8, .dynamic = true, .smallest = 16}, "loss_scaling.smallest"));
  CHECK(names({.initial = 8, .dynamic = true, .largest = 4}, "loss_scaling.largest"));
}

TEST_CASE("a_unit_kept_in_fp32_shows_fp32_and_the_table_says_so") {
  launch({.ranks = 3}, [](World& world) {
    toy::Layer<bf16> half(5, 7, 2);
    toy::Layer<float> full(7, 3, 2);
    FullyShardOptions options{.precision = bf16_mixed};
    FullyShard model(world, options);
    model.add(half, "half");
    model.add(full, {.name = "full", .precision = fp32_precision});
    model.finalize(AdamW{});
    const toy::Values x = toy::sample(10, 0, 0, world.rank(), 0);
    const toy::Values dy(6, 1.0f);
    for (int step = 0; step < 3; ++step) {
      model.forward(half, x);
      model.forward(full, half.y);
      model.backward(full, dy);
      model.backward(half, full.dx);
      model.update();
    }
    const std::string table = model.types_table();
    INFO(table);
    CHECK(table.find("half        bf16      bf16   bf16  fp32    fp32            42             0") !=
          std::string::npos);
    CHECK(table.find("full        fp32      fp32   fp32  fp32    fp32            24             0") !=
          std::string::npos);
  });
}

// Where small units are reduced in one operation, too.
TEST_CASE("the_table_says_of_every_unit_in_a_bucket_how_it_travels") {
  launch({.ranks = 2}, [](World& world) {
    toy::Layer<float> first(5, 7, 2), second(7, 3, 2);
    FullyShardOptions options{.strategy = Strategy::ddp};
    toy::Model model(world, options, AdamW{}, first, second);
    const std::string table = model.types_table();
    INFO(table);
    CHECK(table.find("first         fp32      fp32   fp32  fp32") != std::string::npos);
    CHECK(table.find("second        fp32      fp32   fp32  fp32") != std::string::npos);
  });
}

}  // namespace mixed_precision_test
