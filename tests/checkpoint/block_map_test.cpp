// Every byte of a checkpoint's tensor files has one writer, and every element one owner.
#include "checkpoint/block_map.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "checkpoint_model.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/compile.hpp"

using namespace checkpoint_model;

TEST_CASE("runs_cover_every_element_once_and_name_its_owner") {
  for (const int ranks : {1, 2, 3, 5, 7}) {
    with_model({.ranks = ranks}, [&](FullyShard& model) {
      if (model.world().rank() != 0) return;
      const checkpoint::CheckpointFiles files = checkpoint::lay_out(model.plans(), {});
      const checkpoint::BlockMap map(model.plans(), files);
      CHECK(map.direct().size() + map.shared().size() == map.blocks());
      std::vector<std::uint64_t> covered(files.tensors.size());
      for (const auto* blocks : {&map.direct(), &map.shared()}) {
        for (const checkpoint::Block& block : *blocks) {
          CHECK(map.writer(map.number(block)) == block.writer);
          std::uint64_t end = block.begin;
          std::vector<std::size_t> owners;
          map.for_each_run(block, [&](const checkpoint::Run& run) {
            CHECK(run.begin() >= end);
            CHECK(run.begin() + run.bytes() <= block.end);
            end = run.begin() + run.bytes();
            covered[block.file] += run.bytes();
            owners.push_back(run.rank);
          });
          const bool several = std::count(owners.begin(), owners.end(), owners.empty() ? 0 : owners[0]) !=
                               static_cast<std::ptrdiff_t>(owners.size());
          CHECK(block.shared == several);
          if (!several && !owners.empty()) CHECK(block.writer == owners[0]);
        }
      }
      for (std::size_t f = 0; f < files.tensors.size(); ++f) {
        CHECK(covered[f] == files.tensors[f].size() - files.tensors[f].head.size());
      }
    });
  }
}

TEST_CASE("each_group_of_shared_blocks_has_one_for_each_rank") {
  with_model({.ranks = 3}, [&](FullyShard& model) {
    const checkpoint::CheckpointFiles files = checkpoint::lay_out(model.plans(), {});
    const checkpoint::BlockMap map(model.plans(), files);
    CHECK(map.shared().size() >= 3);
    for (std::size_t i = 0; i < map.shared().size(); ++i) CHECK(map.shared()[i].writer == i % 3);
  });
}

TEST_CASE("a_model_whose_manifest_no_reader_would_take_is_refused_before_anything_is_written") {
  const auto planned = [](std::size_t rows) {
    plan::UnitSpec unit{.name = "unit", .parameters = {{.name = "weight", .shape = {rows, std::size_t{1} << 20}}}};
    return plan::compile(
        {.units = {unit}, .programs = {plan::Program::chain(1)}, .options = {}, .optimizer_states = {"m", "v"}});
  };
  const plan::Plan fits = planned(2'500'000), not_any_more = planned(2'800'000);
  CHECK_NOTHROW(checkpoint::lay_out({&fits}, {}));  // 31 TB
  CHECK_THROWS_WITH_AS(checkpoint::lay_out({&not_any_more}, {}),
                       doctest::Contains("no reader takes more than 100000000"), tessera::UsageError);
}
