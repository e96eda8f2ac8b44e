// The report as trainers write it: its shape, and that every rank's figures stand at its place.
#include <doctest/doctest.h>

#include <string>

#include "json/json.hpp"
#include "memory/trainee.hpp"
#include "probe/memory_probe.hpp"
#include "probe/memory_report.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/memory.hpp"

namespace {

using namespace tessera;

tools::Json report_of(const toy::Run& run, plan::MemoryReport& planned) {
  tools::Json report;
  launch({.ranks = run.ranks}, [&](World& world) {
    toy::Trainee<float> trainee(world, run);
    probe::RankMemory mine = probe::measure(trainee.model());
    mine.add_unplanned("activations", Bytes(1000 + static_cast<std::uint64_t>(world.rank())));
    mine.add_unplanned("runtime_heap", Bytes(17));
    const auto all = probe::gather(world, mine);
    if (world.rank() != 1) return;  // every rank has them all
    report = probe::to_json(all);
    planned = plan::memory(trainee.model().plan());
  });
  return report;
}

TEST_CASE("the_report_has_every_category_of_the_plan_and_no_other_for_every_rank") {
  for (const Strategy strategy : flat_strategies) {
    toy::Run run{.options = {.strategy = strategy}, .ranks = 3};
    plan::MemoryReport planned{};
    const auto report = report_of(run, planned);
    REQUIRE(report.at("ranks").size() == 3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const tools::Json& entry = report.at("ranks").entries()[rank];
      std::size_t categories = 0;
      for (const plan::CategoryBytes& category : planned.categories) {
        const std::string name(to_string(category.category));
        CAPTURE(name);
        REQUIRE(entry.at("categories").contains(name) == (category.size > Bytes(0)));
        if (category.size == Bytes(0)) continue;
        ++categories;
        CHECK(entry.at("categories").at(name).at("planned") == category.size.count());
        if (probe::available()) CHECK(entry.at("categories").at(name).at("measured") == category.size.count());
        if (!probe::available()) CHECK(entry.at("categories").at(name).at("measured").is_null());
      }
      CHECK(entry.at("categories").size() == categories);
      CHECK(entry.at("peak").at("planned") == planned.peak.count());
      CHECK(entry.at("peak").contains("measured"));
      CHECK(entry.at("live") == planned.live.count());
      CHECK(entry.at("unplanned") == tools::Json{{"activations", 1000 + rank}, {"runtime_heap", 17}});
    }
  }
}

TEST_CASE("unplanned_memory_with_too_long_a_name_or_too_many_entries_is_refused") {
  probe::RankMemory memory;
  CHECK_THROWS_AS(memory.add_unplanned(std::string(32, 'n'), Bytes(1)), InternalError);
  for (int i = 0; i < 8; ++i) memory.add_unplanned(std::string(31, 'n'), Bytes(1));
  CHECK_THROWS_AS(memory.add_unplanned("ninth", Bytes(1)), InternalError);
}

}  // namespace
