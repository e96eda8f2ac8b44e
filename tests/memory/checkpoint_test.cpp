// Saving and loading takes no memory but what the plan has for it: measured as the process's peak of resident memory,
// by the kernel.
#include <doctest/doctest.h>
#include <malloc.h>

#include <fstream>
#include <string>

#include "checkpoint/checkpoint_model.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "memory/measured.hpp"
#include "memory/require_probe.hpp"
#include "tessera/base/error.hpp"

namespace {

using namespace checkpoint_model;

std::size_t status_kibibytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoul(line.substr(name.size() + 1));
  }
  throw DataError("/proc/self/status has no " + name);
}

// From now on the kernel's peak is that of what follows.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << 5 << std::flush;
  return file.good();
}

// KiB by which resident memory rose above what it was, at most, while rank 0 and all others do the work.
std::size_t growth(World& world, const std::function<void()>& work) {
  std::size_t before = 0;
  world.barrier("before");
  if (world.rank() == 0) {
    ::malloc_trim(0);
    REQUIRE(reset_peak());
    before = status_kibibytes("VmRSS");
  }
  world.barrier("measured");
  work();
  world.barrier("after");
  const std::size_t peak = status_kibibytes("VmHWM");
  return world.rank() == 0 && peak > before ? peak - before : 0;
}

// 5.2 million parameters: 60 MiB of masters and states.
Job large_job(int ranks, Strategy strategy) {
  return {.ranks = ranks, .strategy = strategy, .checkpointing = Checkpointing::background, .rows = 4001};
}

void check_as_planned(FullyShard& model) {
  const probe::RankMemory mine = probe::measure(model);
  measured::check_as_planned(std::span(&mine, 1));
  CHECK(mine.categories[static_cast<std::size_t>(plan::Category::checkpoints)].planned > Bytes(0));
}

// Threads, names, headers, manifests, lists of blocks: nothing that has the model's size.
constexpr std::size_t control_kibibytes = 4096;

TEST_CASE("no_rank_holds_more_than_its_shards_and_the_planned_staging_while_it_saves_and_loads") {
  REQUIRE_PROBE();
  const TemporaryFolder folder;
  for (const int ranks : {1, 3}) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      const std::filesystem::path directory = folder / (std::to_string(ranks) + std::string(to_string(strategy)));
      with_model(large_job(ranks, strategy), [&](FullyShard& model) {
        check_as_planned(model);
        Checkpointer checkpoints(model, {.directory = directory, .keep = 1});
        fill(model, 1);
        CHECK(growth(model.world(), [&] { checkpoints.save({.step = 1}); }) < control_kibibytes);
        CHECK(growth(model.world(), [&] {
                checkpoints.save_async({.step = 2});
                checkpoints.wait();
              }) < control_kibibytes);
        CHECK(growth(model.world(), [&] { checkpoints.load(checkpoints.latest()->path); }) < control_kibibytes);
        CHECK(differing(model, 1) == 0);
        check_as_planned(model);
      });
      std::filesystem::remove_all(directory);
    }
  }
}

TEST_CASE("the_measure_sees_a_copy_of_the_model") {
  REQUIRE_PROBE();
  with_model(large_job(1, Strategy::fsdp), [&](FullyShard& model) {
    const std::size_t seen = growth(model.world(), [] {
      const std::vector<float> copy(5'000'000, 1.0f);
      CHECK(copy.back() == 1.0f);
    });
    CHECK(seen > control_kibibytes);
  });
}

}  // namespace
