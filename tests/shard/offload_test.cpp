// States and masters in the host's memory, or on disk, have the bits of those on the device.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../error_text.hpp"
#include "../extent.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/plan/memory.hpp"
#include "toy_model.hpp"

namespace offload_test {

using namespace tessera;
using toy::Run;
using toy::Values;

constexpr Offload states_alone{.optimizer = MemorySpace::host};
constexpr Offload masters_alone{.masters = MemorySpace::host};
constexpr Offload both{.optimizer = MemorySpace::host, .masters = MemorySpace::host};
constexpr Offload updated_there{
    .optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host};
constexpr Offload ahead{.optimizer = MemorySpace::host,
                        .masters = MemorySpace::host,
                        .update = MemorySpace::host,
                        .ahead = Ahead::revocable};
constexpr Offload on_disk{.optimizer = MemorySpace::disk, .masters = MemorySpace::disk};
constexpr Offload states_on_disk{.optimizer = MemorySpace::disk};
constexpr Offload first_two{.optimizer = MemorySpace::host, .masters = MemorySpace::host, .units = 2};

template <typename T>
void check(const Run& base, const std::vector<Offload>& offloads) {
  const TemporaryFolder folder;
  for (const auto& [ranks, replicas] : toy::flat_meshes_and_one_of_replicas()) {
    for (const Strategy strategy : all_strategies) {
      Run run = base;
      run.ranks = ranks;
      run.options.replicas = replicas;
      run.options.strategy = strategy;
      CAPTURE(toy::describe(run));
      const toy::Result reference = toy::train<T>(run);
      run.options.diagnostics = {.delay_seed = 5, .poison = true, .touch = true};
      for (const Offload& offload : offloads) {
        run.options.offload = offload;
        run.options.disk = folder.path();
        CAPTURE(static_cast<int>(offload.masters));
        CHECK(toy::same_bits(toy::train<T>(run), reference));
      }
    }
  }
}

Run of_16_bits() { return {.options = {.precision = bf16_mixed, .micro_batches = 2}, .frozen = {1, 2}}; }

std::unique_ptr<Optimizer> sgd(float) { return Sgd{.learning_rate = 0.05f, .momentum = 0.9f}; }

TEST_CASE("states_in_the_hosts_memory_have_the_bits_of_the_devices") {
  check<float>(Run{}, {states_alone, states_on_disk});
  Run run{.optimizer = sgd};
  check<float>(run, {states_alone});
}

TEST_CASE("masters_in_the_hosts_memory_have_the_bits_of_the_devices") {
  check<bf16>(of_16_bits(), {masters_alone, both, updated_there, ahead, first_two, on_disk});
  Run run = of_16_bits();
  run.optimizer = sgd;
  check<bf16>(run, {both});
}

TEST_CASE("masters_in_the_hosts_memory_are_rounded_by_the_runtime_where_the_optimizer_does_not") {
  Run run = of_16_bits();
  run.rounds = false;
  run.overflows = {1};
  check<bf16>(run, {both, updated_there, ahead});
}

constexpr Offload for_good{
    .optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host, .ahead = Ahead::final};

std::string failure_of(const Run& run) {
  return tests::error_text<std::exception>([&] { (void)toy::train<bf16>(run); });
}

TEST_CASE("updates_ahead_of_the_norm_for_good_have_the_bits_of_the_devices_and_refuse_what_the_norm_changes") {
  Run run = of_16_bits();
  run.clip = 0.0f;
  check<bf16>(run, {for_good});
  run.ranks = 2;
  run.options.offload = for_good;
  run.overflows = {1};
  CHECK(toy::contains(failure_of(run), "the step is skipped"));
  run.overflows = {};
  run.clip = 0.001f;
  CHECK(toy::contains(failure_of(run), "the step is to be multiplied"));
}

// Some steps are clipped, some overflow, and a loss scale that is a power of two or not is taken out ahead, too.
TEST_CASE("updates_ahead_of_the_norm_are_taken_back_where_that_changes_them") {
  for (const float clip : {0.0f, 0.5f}) {
    for (const float scale : {1.0f, 3.0f, 1024.0f}) {
      if (tests::sanitized && (clip == 0.0f || scale != 1024.0f)) continue;
      Run run = of_16_bits();
      run.steps = 8;
      run.clip = clip;
      run.overflows = {2, 5};
      run.options.loss_scaling = {.initial = scale, .dynamic = scale == 1024.0f, .growth_interval = 2};
      // In a selection optimizers take turns.
      const bool in_codes = (clip == 0.0f) == (scale == 3.0f);
      if (!tests::reduced() || !in_codes) check<bf16>(run, {ahead});
      run.optimizer = toy::in_eight_bits;
      if (!tests::reduced() || in_codes) check<bf16>(run, {ahead});
    }
  }
}

// Rates that were announced, or others, or none were; a plan made anew in between; weights; gradients that are dropped.
TEST_CASE("updates_ahead_of_the_norm_have_the_bits_of_whatever_the_step_is") {
  Run run = of_16_bits();
  run.steps = 10;
  run.clip = 0.0f;
  run.begin = [](FullyShard& model, int step) {
    if (step == 1 || step == 4) model.expect(0.03f);
    if (step == 2) model.expect(0.01f);
    if (step == 4) model.recompile();
  };
  run.update = [](FullyShard& model, int step) {
    switch (step) {
      case 1:
      case 2:
      case 3:
      case 4: return model.update(0.03f);
      case 5:
      case 6: return model.update({.weight = 7.0});
      case 7: return model.discard_gradients();
      case 8: return model.update({.learning_rate = 0.01f, .weight = 2.5});
      default: return model.update();
    }
  };
  check<bf16>(run, {ahead});
}

// Counts its updates, which change nothing.
class Counted final : public toy::IdleOptimizer {
 public:
  explicit Counted(std::atomic<std::size_t>& updates) : updates_(updates) {}
  void update(Stream&, const OptimizerSpans&, const OptimizerGroup&, const kernels::StepScalars*) const override {
    ++updates_;
  }

 private:
  std::atomic<std::size_t>& updates_;
};

// In steps of such weights of each rank, with a plan made anew before the last.
std::size_t updates_ahead(const std::vector<double>& weights) {
  std::atomic<std::size_t> updates = 0;
  Run run = of_16_bits();
  run.ranks = 2;
  run.steps = static_cast<int>(weights.size());
  run.options.offload = ahead;
  run.optimizer = [&](float) { return std::make_unique<Counted>(updates); };
  run.begin = [&](FullyShard& model, int step) {
    if (step + 1 == run.steps) model.recompile();
  };
  run.update = [&](FullyShard& model, int step) { model.update({.weight = weights[static_cast<std::size_t>(step)]}); };
  (void)toy::train<bf16>(run);
  return updates;
}

TEST_CASE("updates_ahead_of_the_norm_suppose_the_heaviest_step_so_far_and_at_first_one_of_its_micro_batches") {
  const std::size_t of_a_step = updates_ahead({2, 2, 2, 2}) / 4;
  CHECK(of_a_step > 0);
  CHECK(updates_ahead({2, 6, 6, 2, 6, 6}) == of_a_step * (6 + 2));
}

// Nothing is kept of a rate that was announced, over a new plan, too.
TEST_CASE("updates_ahead_of_the_norm_for_good_are_of_the_rate_that_was_announced") {
  Run run = of_16_bits();
  run.clip = 0.0f;
  run.begin = [](FullyShard& model, int step) {
    model.expect(0.03f);
    if (step == 2) model.recompile();
  };
  run.update = [](FullyShard& model, int) { model.update(0.03f); };
  check<bf16>(run, {for_good});
  run.ranks = 2;
  run.options.offload = for_good;
  run.begin = {};
  CHECK(toy::contains(failure_of(run), "say it to FullyShard::expect()"));
  run.update = [](FullyShard& model, int) { model.discard_gradients(); };
  CHECK(toy::contains(failure_of(run), "the step is skipped or dropped"));
}

TEST_CASE("outer_steps_reach_masters_in_the_hosts_memory") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp}) {
    Run run{.options = {.strategy = strategy,
                        .replicas = 2,
                        .outer = {.every = 2, .learning_rate = 0.7f, .momentum = 0.9f, .fragments = 2},
                        .precision = bf16_mixed},
            .ranks = 4};
    CAPTURE(toy::describe(run));
    const toy::Result reference = toy::train<bf16>(run);
    const TemporaryFolder folder;
    run.options.disk = folder.path();
    run.options.diagnostics = {.delay_seed = 7, .poison = true, .touch = true};
    for (const Offload& offload : {both, updated_there, ahead, on_disk}) {
      run.options.offload = offload;
      CHECK(toy::same_bits(toy::train<bf16>(run), reference));
    }
  }
}

TEST_CASE("what_windows_save_comes_back_from_the_hosts_memory") {
  Run run = of_16_bits();
  run.evaluate_every = 2;
  const Offload saved{.activations = MemorySpace::host};
  Offload everything = updated_there;
  everything.activations = MemorySpace::host;
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp}) {
    run.ranks = 3;
    run.options.strategy = strategy;
    run.saves = false;
    const toy::Result reference = toy::train<bf16>(run);
    run.saves = true;
    for (const Offload& offload : {Offload{}, saved, everything}) {
      run.options.offload = offload;
      run.options.diagnostics = {.delay_seed = 11, .poison = true, .touch = true};
      CHECK(toy::same_bits(toy::train<bf16>(run), reference));
      run.options.diagnostics.queue_compute = true;
      CHECK(toy::same_bits(toy::train<bf16>(run), reference));
    }
    run.options.offload = {};
    run.options.diagnostics = {};
  }
}

// One unit's states in the host's memory, and several's, beside others' on the device.
TEST_CASE("units_choose_for_themselves") {
  for (const std::set<std::size_t>& offloaded : {std::set<std::size_t>{1}, std::set<std::size_t>{0, 3}}) {
    Run run = of_16_bits();
    run.ranks = 3;
    const toy::Result reference = toy::train<bf16>(run);
    run.offloaded = offloaded;
    CHECK(toy::same_bits(toy::train<bf16>(run), reference));
  }
}

using Tensors = std::map<std::string, Values>;

// Three layers in bf16, which are trained, given other masters and states by hand, trained, compiled anew with a weight
// frozen, and trained again. Returns every tensor as whole() has it.
Tensors train_with_hands(int ranks, Strategy strategy, const Offload& offload) {
  using Layer = toy::Layer<bf16>;
  Tensors result;
  std::mutex mutex;
  const TemporaryFolder folder;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    std::vector<std::unique_ptr<Layer>> layers;
    for (const std::size_t width : {9u, 131u, 5u}) layers.push_back(std::make_unique<Layer>(width, width, 2));
    FullyShard model(world, {.strategy = strategy, .precision = bf16_mixed, .offload = offload, .disk = folder.path()});
    std::vector<Values> inputs, gradients;
    for (auto& layer : layers) {
      model.add(*layer);
      const auto seed = static_cast<int>(inputs.size());
      inputs.push_back(toy::sample(layer->y.size(), seed, 0, world.rank(), 0));
      gradients.push_back(toy::sample(layer->y.size(), seed, 0, world.rank(), 1));
    }
    model.finalize(AdamW{.learning_rate = 0.01f});
    const auto train = [&] {
      for (int step = 0; step < 2; ++step) {
        for (std::size_t l = 0; l < layers.size(); ++l) model.forward(*layers[l], inputs[l]);
        for (std::size_t l = layers.size(); l-- > 0;) model.backward(*layers[l], gradients[l]);
        model.update();
      }
      model.synchronize();
    };
    train();
    for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
      for (const char* state : {"master", "v"}) {
        for (const ParameterPiece& piece : model.pieces(model.unit(unit), state)) {
          for (float& value : piece.values) value *= 0.75f;
        }
      }
    }
    model.shards_changed();
    train();
    layers[1]->weight.set_frozen(true);
    model.recompile();
    train();
    for (auto& layer : layers) {
      for (const Parameter* parameter : {&layer->weight, &layer->bias}) {
        for (const std::string state : {"master", "m", "v"}) {
          if (state != "master" && parameter == &layers[1]->weight) continue;
          Values whole = model.whole(*parameter, state);
          const std::lock_guard lock(mutex);
          result[state + " of " + parameter->name() + " on " + std::to_string(world.rank())] = std::move(whole);
        }
      }
    }
  });
  return result;
}

TEST_CASE("masters_and_states_are_looked_at_written_and_carried_wherever_they_stand") {
  for (const int ranks : {1, 3}) {
    for (const Strategy strategy : flat_strategies) {
      CAPTURE(ranks);
      CAPTURE(to_string(strategy));
      const Tensors expected = train_with_hands(ranks, strategy, {});
      CHECK(train_with_hands(ranks, strategy, both) == expected);
      CHECK(train_with_hands(ranks, strategy, updated_there) == expected);
      CHECK(train_with_hands(ranks, strategy, on_disk) == expected);
    }
  }
}

// Everything else that saves memory is chosen already.
TEST_CASE("a_limit_is_of_the_devices_memory_and_names_offload_where_that_fits") {
  const auto finalize = [](const Offload& offload, std::optional<Bytes> limit) {
    Bytes taken;
    const std::string failure = toy::failure_of(1, [&](World& world) {
      std::vector<std::unique_ptr<toy::Layer<float>>> layers;
      FullyShard model(world, {.prefetch = 0, .overlap_reduction = false, .offload = offload, .memory_limit = limit});
      for (int l = 0; l < 6; ++l) model.add(*layers.emplace_back(std::make_unique<toy::Layer<float>>(64, 64, 1)));
      model.finalize(AdamW{});
      taken = plan::memory(model.plan()).device();
    });
    return std::pair(taken, failure);
  };
  const Bytes limit = finalize(states_alone, std::nullopt).first;
  CHECK(finalize(states_alone, limit).second.empty());
  const std::string refusal = finalize({}, limit).second;
  CHECK_MESSAGE(toy::contains(refusal, "offload.optimizer = host"), refusal);
}

// Updates several fp32 states of its own, each a mean of gradients over another time, and the masters by their sum.
class Averages final : public toy::IdleOptimizer {
 public:
  static constexpr std::size_t count = 12;
  std::vector<std::string> states() const override {
    std::vector<std::string> names;
    for (std::size_t state = 0; state < count; ++state) names.push_back("mean" + std::to_string(state));
    return names;
  }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars*) const override {
    std::array<float*, count> means{};
    std::copy(spans.states.begin(), spans.states.end(), means.begin());
    stream.submit([spans, means, rate = group.learning_rate] {
      const auto* const gradient = static_cast<const float*>(spans.gradient.data);
      for (std::size_t i = 0; i < spans.count; ++i) {
        for (std::size_t state = 0; state < count; ++state) {
          float& mean = means[state][i];
          mean += (gradient[i] - mean) / static_cast<float>(std::size_t{2} << state);
          spans.master[i] -= rate * mean;
        }
      }
    });
  }
};

// AdamW moves 12 bytes of a parameter, and 4 or 6 stay; this optimizer moves 52. Two units of 48 have slots.
TEST_CASE("a_model_trains_whose_states_are_four_times_what_its_arena_may_take") {
  Run run;
  run.widths.assign(49, 24);
  run.steps = 3;
  run.ranks = 2;
  run.options.precision = bf16_mixed;
  run.options.prefetch = 0;
  run.options.overlap_reduction = false;
  run.optimizer = [](float) { return std::make_unique<Averages>(); };
  const toy::Result reference = toy::train<bf16>(run);
  const TemporaryFolder folder;
  run.options.disk = folder.path();
  for (const Offload& offload : {both, on_disk}) {
    run.options.offload = offload;
    plan::MemoryReport report{};
    launch({.ranks = run.ranks}, [&](World& world) {
      std::vector<std::unique_ptr<toy::Layer<bf16>>> layers;
      for (int l = 0; l < 48; ++l) layers.push_back(std::make_unique<toy::Layer<bf16>>(24, 24, 3));
      FullyShard model(world, run.options);
      toy::add_layers(model, layers, run);
      model.finalize(toy::optimizer_of(run));
      if (world.rank() == 0) report = plan::memory(model.plan());
    });
    CHECK((report.host + report.disk).count() > 4 * report.device().count());
    run.options.memory_limit = report.device();
    CHECK(toy::same_bits(toy::train<bf16>(run), reference));
    Run refused = run;
    refused.options.offload = {};
    refused.options.memory_limit = report.device() * 4;
    CHECK_THROWS_AS(toy::train<bf16>(refused), MemoryError);
    run.options.memory_limit.reset();
  }
}

TEST_CASE("values_on_disk_want_a_folder_that_is_there") {
  const auto failure = [](const std::filesystem::path& folder) {
    return toy::failure_of(2, [&](World& world) {
      toy::Layer<float> layer(4, 4, 1);
      toy::Model model(world, {.offload = states_on_disk, .disk = folder}, AdamW{}, layer);
    });
  };
  CHECK_MESSAGE(toy::contains(failure({}), "set FullyShardOptions::disk"), failure({}));
  CHECK(toy::contains(failure("/nowhere/at/all"), "/nowhere/at/all: no file"));
  const TemporaryFolder folder;
  CHECK(failure(folder.path()).empty());
  CHECK(folder.empty());
}

}  // namespace offload_test
