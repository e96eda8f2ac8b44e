// Checkpoints know nothing of where masters and states stand.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "checkpoint_model.hpp"
#include "shard/toy_model.hpp"
#include "temporary_folder.hpp"

namespace checkpoint_offload_test {

using namespace checkpoint_model;

constexpr Offload on_host{.optimizer = MemorySpace::host, .masters = MemorySpace::host};
constexpr Offload on_disk{.optimizer = MemorySpace::disk, .masters = MemorySpace::disk};

TEST_CASE("what_one_place_wrote_every_other_place_loads") {
  const TemporaryFolder folder;
  std::size_t number = 0;
  for (const Strategy strategy : tests::all_or_last({Strategy::ddp, Strategy::zero2, Strategy::hsdp})) {
    for (const bool sgd : {false, true}) {
      const auto directory = folder / std::to_string(number++);
      const Job plain{.ranks = 4, .replicas = 2, .strategy = strategy, .precision = bf16_mixed, .rows = 31, .sgd = sgd};
      Job offloaded = plain, stored = plain;
      offloaded.offload = on_host;
      stored.offload = on_disk;
      for (const Job& job : {offloaded, stored, plain}) {
        with_model(job, [&](FullyShard& model) {
          fill(model, 1);
          Checkpointer(model, {.directory = directory}).save({.step = 7});  // the others find the same bytes
        });
      }
      for (const Job& job : {offloaded, stored, plain}) {
        with_model(job, [&](FullyShard& model) {
          fill(model, 2);
          Checkpointer checkpoints(model, {.directory = directory});
          checkpoints.load(checkpoints.latest()->path);
          CHECK(differing(model, 1) == 0);
        });
      }
    }
  }
}

using Weights = std::map<std::string, toy::Values>;

// Trains from one step to another, from a checkpoint of the first and to one of the last.
Weights train(Strategy strategy, const Offload& offload, const std::filesystem::path& folder, int first, int last) {
  using Layer = toy::Layer<bf16>;
  Weights weights;
  launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    std::vector<std::unique_ptr<Layer>> layers;
    for (const std::size_t width : {9u, 131u, 5u}) layers.push_back(std::make_unique<Layer>(width, width, 2));
    FullyShard model(world, {.strategy = strategy,
                             .precision = bf16_mixed,
                             .offload = offload,
                             .disk = folder,
                             .checkpointing = Checkpointing::background});
    for (auto& layer : layers) model.add(*layer);
    model.finalize(AdamW{.learning_rate = 0.01f});
    Checkpointer checkpoints(model, {.directory = folder});
    if (first > 0) checkpoints.load(checkpoints.latest()->path);
    for (int step = first; step < last; ++step) {
      std::vector<toy::Values> inputs, gradients;
      for (std::size_t l = 0; l < layers.size(); ++l) {
        inputs.push_back(toy::sample(layers[l]->y.size(), step, l, world.rank(), 0));
        gradients.push_back(toy::sample(layers[l]->y.size(), step, l, world.rank(), 1));
      }
      for (std::size_t l = 0; l < layers.size(); ++l) model.forward(*layers[l], inputs[l]);
      for (std::size_t l = layers.size(); l-- > 0;) model.backward(*layers[l], gradients[l]);
      model.update();
      model.synchronize();
    }
    checkpoints.save_async({.step = static_cast<std::uint64_t>(last)});
    checkpoints.wait();
    toy::collect_weights(model, weights);
  });
  return weights;
}

TEST_CASE("a_run_goes_on_from_one_place_to_the_other_and_back_bitwise") {
  for (const Strategy strategy : flat_strategies) {
    CAPTURE(to_string(strategy));
    const TemporaryFolder straight, changing, back;
    const Weights expected = train(strategy, {}, straight.path(), 0, 4);
    train(strategy, on_host, changing.path(), 0, 2);
    CHECK(train(strategy, {}, changing.path(), 2, 4) == expected);
    train(strategy, {}, back.path(), 0, 2);
    CHECK(train(strategy, on_host, back.path(), 2, 4) == expected);
    const TemporaryFolder stored;
    train(strategy, on_disk, stored.path(), 0, 2);
    CHECK(train(strategy, on_disk, stored.path(), 2, 4) == expected);
  }
}

}  // namespace checkpoint_offload_test
