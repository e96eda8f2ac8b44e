// Planned bytes equal measured bytes in every category: five models × strategies × precisions × prefetch × ranks, each
// really run. a reduced matrix takes fewer ranks.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "../extent.hpp"
#include "memory/measured.hpp"
#include "memory/models.hpp"
#include "memory/require_probe.hpp"
#include "probe/hollow_model.hpp"
#include "tessera/comm/run.hpp"

namespace {

using namespace tessera;

std::vector<int> ranks_of_matrix() {
  if (tests::reduced()) return {1, 3, 8};
  return {1, 2, 3, 4, 5, 6, 7, 8};
}

std::vector<probe::RankMemory> measure_trained(int ranks, const models::Model& model, FullyShardOptions options) {
  options.program = model.program;
  std::vector<probe::RankMemory> figures;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    probe::HollowModel hollow(world, model.units, options);
    hollow.step();
    hollow.evaluate();
    hollow.step();
    hollow.model().synchronize();
    const auto all = probe::gather(world, probe::measure(hollow.model()));
    if (world.rank() == 0) figures = all;
  });
  return figures;
}

void check_model(const measured::NamedModel& named, Precision precision) {
  for (const Strategy strategy : flat_strategies) {
    for (std::size_t prefetch = 0; prefetch <= (strategy == Strategy::fsdp ? 2u : 0u); ++prefetch) {
      for (const int ranks : ranks_of_matrix()) {
        CAPTURE(to_string(strategy));
        CAPTURE(prefetch);
        CAPTURE(ranks);
        const FullyShardOptions options{
            .strategy = strategy, .precision = precision, .micro_batches = 2, .prefetch = prefetch};
        const auto figures = measure_trained(ranks, named.model, options);
        REQUIRE(figures.size() == std::size_t(ranks));
        measured::check_as_planned(figures);
      }
    }
  }
}

TEST_CASE("planned_bytes_equal_measured_bytes_of_six_models") {
  REQUIRE_PROBE();
  for (const measured::NamedModel& named : measured::six_models()) {
    for (const measured::NamedPrecision& types : measured::precisions) {
      CAPTURE(named.name);
      CAPTURE(types.name);
      check_model(named, types.precision);
    }
  }
}

}  // namespace
