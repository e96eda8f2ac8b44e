// Resharding to a replica's share between the windows of a pass: what is gathered from whom, what it takes, and where
// it is another setting by another name.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "checks.hpp"
#include "matrix.hpp"
#include "tessera/plan/draw.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::resharding_test {

PlanOptions on_mesh(const MeshOfRanks& mesh, Strategy strategy, Resharding resharding) {
  return {.strategy = strategy,
          .ranks = mesh.replicas * mesh.ranks_of_replica,
          .replicas = mesh.replicas,
          .reshard_after_forward = resharding};
}

constexpr MeshOfRanks meshes[] = {{2, 2}, {2, 3}, {3, 2}, {7, 5}};

// Returns the gathers of the parameters of a unit that has some, in one segment.
std::vector<AxisSet> gathers_of(const Segment& segment, std::size_t unit) {
  std::vector<AxisSet> result;
  for (const Operation& operation : segment.operations) {
    if (operation.kind == OperationKind::all_gather && operation.unit == unit) result.push_back(operation.group);
  }
  return result;
}

TEST_CASE("a_unit_is_gathered_across_replicas_once_a_pass_and_then_inside_its_own") {
  std::size_t again = 0;
  for (const MeshOfRanks& mesh : meshes) {
    for (const Model& model : {chain_model(5), tied_model(), recompute_model(), nested_model()}) {
      for (const std::size_t prefetch : {0u, 1u, 3u}) {
        PlanOptions options = on_mesh(mesh, Strategy::fsdp, Axis::shard);
        options.prefetch = prefetch;
        options.micro_batches = 3;
        const Plan plan = compile(model, options);
        INFO(model.name << ", " << describe(options));
        REQUIRE(verify(plan).ok());
        for (const Segment& segment : plan.segments) {
          if (!is_micro_batch(segment.kind)) continue;
          for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
            const std::vector<AxisSet> gathers = gathers_of(segment, unit);
            if (gathers.size() == 1) {
              CHECK(gathers.front() == (Axis::replicate | Axis::shard));  // there is nothing to stay for
              continue;
            }
            REQUIRE(gathers.size() > 2);
            CHECK(gathers.front() == Axis::replicate);
            CHECK(std::count(gathers.begin(), gathers.end(), AxisSet(Axis::shard)) + 1 ==
                  static_cast<std::ptrdiff_t>(gathers.size()));
            ++again;
          }
        }
      }
    }
  }
  CHECK(again > 100);
}

TEST_CASE("what_stays_is_a_replicas_share_in_the_parameters_type") {
  for (const MeshOfRanks& mesh : meshes) {
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      PlanOptions options = on_mesh(mesh, Strategy::fsdp, Axis::shard);
      options.precision = precision;
      const Plan plan = compile(chain_model(5), options);
      options.reshard_after_forward = true;
      const Plan gathered_anew = compile(chain_model(5), options);
      std::size_t staying = 0;
      for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
        const std::size_t buffer = plan.unit_buffers[unit][Role::resharded].buffer;
        if (buffer == no_buffer) continue;
        ++staying;
        CHECK(plan.buffers[buffer].size ==
              size_of(precision.parameter) * plan.layouts[unit].elements(Axis::shard, Part::trained));
      }
      CHECK(staying == 3);  // two slots are still full at the turn from forward to backward
      CHECK(plan.buffers.size() == gathered_anew.buffers.size() + staying);
      CHECK(memory(plan).live > memory(gathered_anew).live);
    }
  }
}

// Returns the text of the plan alone, without the line of its options.
std::string text_of(const Model& model, const PlanOptions& options) {
  const std::string text = canonical_text(compile(model, options));
  return text.substr(text.find('\n'));
}

TEST_CASE("where_parameters_are_not_kept_by_all_ranks_of_several_replicas_it_is_another_setting") {
  for (const Model& model : {chain_model(5), adversarial_model()}) {
    const auto is = [&](const MeshOfRanks& mesh, Strategy strategy, Resharding other) {
      INFO(to_string(strategy) << " on " << mesh.replicas << " x " << mesh.ranks_of_replica);
      CHECK(text_of(model, on_mesh(mesh, strategy, Axis::shard)) == text_of(model, on_mesh(mesh, strategy, other)));
    };
    is({1, 4}, Strategy::fsdp, true);
    is({1, 1}, Strategy::fsdp, true);
    is({4, 1}, Strategy::fsdp, false);
    is({2, 2}, Strategy::hsdp, true);
    is({2, 2}, Strategy::hfsdp, true);
    is({2, 2}, Strategy::ddp, true);
    PlanOptions outer = on_mesh({2, 3}, Strategy::hsdp, Axis::shard);
    if (model.further.empty()) {
      outer.outer_every = 4;
      PlanOptions plain = outer;
      plain.reshard_after_forward = true;
      CHECK(text_of(model, outer) == text_of(model, plain));
    }
    CHECK(text_of(model, on_mesh({2, 2}, Strategy::fsdp, Axis::shard)) !=
          text_of(model, on_mesh({2, 2}, Strategy::fsdp, true)));
  }
}

TEST_CASE("each_unit_may_be_resharded_in_its_own_way") {
  Model model = chain_model(5);
  model.units[0].reshard_after_forward = Axis::shard;
  model.units[1].reshard_after_forward = false;
  model.units[2].reshard_after_forward = true;
  const Plan plan = compile(model, on_mesh({2, 3}, Strategy::fsdp, true));
  CHECK(verify(plan).ok());
  const Segment& step = plan.segments[*plan.find(SegmentKind::only)];
  const AxisSet replicate = Axis::replicate, shard = Axis::shard, all = replicate | shard;
  CHECK(gathers_of(step, 0) == std::vector{replicate, shard, shard});
  CHECK(gathers_of(step, 1) == std::vector{all});
  CHECK(gathers_of(step, 2) == std::vector{all, all});
}

}  // namespace tessera::plan::resharding_test
