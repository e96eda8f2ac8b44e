// Tensors that an optimizer sees whole: what travels to their owners and back, byte by byte; how work is shared; and
// the order of an update.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "errors.hpp"
#include "matrix.hpp"
#include "models.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::whole_test {

// One rank's memory of the device, of which bytes know what they are: of which tensor, plane and byte there.
using Memory = std::map<std::uint64_t, std::string>;

std::string name_of_byte(const Plan& plan, const WholeTensor& tensor, std::size_t plane, std::uint64_t byte) {
  return plan.units[tensor.unit].parameters[tensor.parameter].name + fmt::format(" plane {} byte {}", plane, byte);
}

// The directions of a group that a rank holds.
Memory shares_of(const Plan& plan, const WholeGroup& group, std::size_t rank, std::size_t planes) {
  Memory memory;
  for (const WholeTensor& tensor : group.tensors) {
    const UnitBuffers& buffers = plan.unit_buffers[tensor.unit];
    const std::size_t element = size_of(plan.units[tensor.unit].whole_type).count();
    for (const ShardPiece& piece : plan.layouts[tensor.unit].pieces(rank, plan.sharding(tensor.unit).optimizer)) {
      if (piece.parameter != tensor.parameter) continue;
      for (std::size_t plane = 0; plane < std::min(planes, buffers.directions.size()); ++plane) {
        const std::uint64_t begin = plan.buffers[buffers.directions[plane].buffer].offset.count();
        for (std::uint64_t byte = 0; byte < piece.count * element; ++byte) {
          memory[begin + piece.shard_offset * element + byte] =
              name_of_byte(plan, tensor, plane, piece.parameter_offset * element + byte);
        }
      }
    }
  }
  return memory;
}

std::size_t rank_of(const Plan& plan, const WholeGroup& group, int place) {
  return plan.mesh.rank_at(plan.mesh.place_at(group.axes, static_cast<std::size_t>(place)));
}

void move(std::vector<Memory>& ranks, const Plan& plan, const WholeGroup& group,
          const std::vector<Transfer>& transfers) {
  const std::vector<Memory> before = ranks;
  for (const Transfer& each : transfers) {
    const Memory& from = before[rank_of(plan, group, each.from)];
    for (std::uint64_t byte = 0; byte < each.size.count(); ++byte) {
      const auto known = from.find(each.source.count() + byte);
      REQUIRE(known != from.end());
      ranks[rank_of(plan, group, each.to)][each.target.count() + byte] = known->second;
    }
  }
}

void check_travel(const Plan& plan, const WholeGroup& group) {
  std::vector<Memory> ranks;
  for (std::size_t rank = 0; rank < plan.mesh.size(); ++rank) ranks.push_back(shares_of(plan, group, rank, 8));
  move(ranks, plan, group, transfers_to_owners(plan, group));
  const std::uint64_t whole = plan.buffers[plan.unit_buffers[group.units.front()][Role::whole].buffer].offset.count();
  for (const WholeTensor& tensor : group.tensors) {
    const std::uint64_t bytes =
        size_of(plan.units[tensor.unit].whole_type).count() * plan.layouts[tensor.unit].elements(tensor.parameter);
    const Memory& owner = ranks[rank_of(plan, group, static_cast<int>(tensor.owner))];
    for (std::size_t plane = 0; plane < plan.units[tensor.unit].whole_planes; ++plane) {
      const std::uint64_t begin = whole + (tensor.offset + whole_plane(plan, tensor) * plane).count();
      bool all = true;
      for (std::uint64_t byte = 0; all && byte < bytes; ++byte) {
        const auto known = owner.find(begin + byte);
        all = known != owner.end() && known->second == name_of_byte(plan, tensor, plane, byte);
      }
      CHECK(all);
    }
  }
  // Ranks forget what they brought, so that what is there afterwards has come back.
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [place, name] : shares_of(plan, group, rank, 8)) ranks[rank].erase(place);
  }
  move(ranks, plan, group, transfers_from_owners(plan, group));
  for (std::size_t place = 0; place < plan.mesh.size(group.axes); ++place) {
    const std::size_t rank = rank_of(plan, group, static_cast<int>(place));
    bool all = true;
    for (const auto& [byte, name] : shares_of(plan, group, rank, 1)) {
      all = all && ranks[rank].contains(byte) && ranks[rank].at(byte) == name;
    }
    CHECK(all);
  }
}

std::uint64_t most_work(const Plan& plan, const WholeGroup& group) {
  std::map<std::size_t, std::uint64_t> work;
  for (const WholeTensor& each : group.tensors) {
    work[each.owner] += plan.units[each.unit].parameters[each.parameter].whole->cost;
  }
  std::uint64_t most = 0;
  for (const auto& [owner, of] : work) most = std::max(most, of);
  return most;
}

Model large_matrices(std::size_t units) {
  Model model{"large matrices", {}, Program::chain(units)};
  for (std::size_t u = 0; u < units; ++u) {
    UnitSpec unit = unit_of(fmt::format("u{}", u), {3'000'017, 1'000'003, 1'000'003, 4'000'037, 769});
    for (std::size_t p = 0; p < 4; ++p) {
      unit.parameters[p].whole = WholeSpec{.workspace = Bytes(1000), .cost = unit.parameters[p].shape[0]};
    }
    unit.whole_type = DType::bf16;
    model.units.push_back(std::move(unit));
  }
  return model;
}

TEST_CASE("whole_tensors_come_to_their_owners_and_back") {
  for (const Strategy strategy : all_strategies) {
    for (const std::size_t ranks : {1u, 2u, 3u, 6u, 7u}) {
      const std::size_t replicas = ranks % 2 == 0 ? 2 : 1;
      for (const Precision& precision : {fp32_precision, bf16_mixed, in_bf16_throughout}) {
        const Plan plan = compile(whole_model(),
                                  {.strategy = strategy, .precision = precision, .ranks = ranks, .replicas = replicas});
        CHECK(verify(plan).ok());
        REQUIRE(plan.whole_groups.size() == 3);
        CHECK(plan.whole_groups[0].units == std::vector<std::size_t>{0, 2});
        for (const WholeGroup& group : plan.whole_groups) check_travel(plan, group);
      }
    }
  }
}

TEST_CASE("ranks_that_train_by_themselves_have_owners_of_their_own") {
  const Plan plan = compile(whole_model(), {.strategy = Strategy::hsdp, .ranks = 6, .replicas = 3, .outer_every = 2});
  CHECK(verify(plan).ok());
  for (const WholeGroup& group : plan.whole_groups) {
    CHECK(group.axes == AxisSet(Axis::shard));
    check_travel(plan, group);
  }
}

// Ranks of an expert share its tensors among themselves; each program has groups of its own.
TEST_CASE("experts_and_programs_have_whole_tensors_too") {
  Model experts = experts_model();
  for (UnitSpec& unit : experts.units) {
    for (ParameterSpec& parameter : unit.parameters) parameter.whole = WholeSpec{.cost = 1};
  }
  for (const Strategy strategy : {Strategy::ddp, Strategy::hsdp, Strategy::fsdp}) {
    const Plan plan = compile(experts, {.strategy = strategy, .ranks = 6, .replicas = 2});
    CHECK(verify(plan).ok());
    std::set<unsigned> axes;
    for (const WholeGroup& group : plan.whole_groups) {
      axes.insert(plan.mesh.group(group.axes).bits());
      check_travel(plan, group);
    }
    CHECK(axes.size() == 2);
  }
  // Units that alternate are groups of many all the same, beside states that are brought one unit ahead.
  for (UnitSpec& unit : experts.units) unit.states_in = MemorySpace::host;
  for (std::size_t unit = 0; unit < experts.units.size(); ++unit) {
    experts.units[unit].apart = unit % 2 == 1 ? AxisSet(Axis::replicate) : AxisSet();
    experts.units[unit].prefix = experts.units[unit].name + ".";
  }
  const Plan alternating = compile(experts, {.strategy = Strategy::fsdp, .ranks = 6, .replicas = 2});
  CHECK(verify(alternating).ok());
  REQUIRE(alternating.whole_groups.size() == 2);
  CHECK(alternating.whole_groups[0].units == std::vector<std::size_t>{0, 2, 4});
  CHECK(alternating.whole_groups[1].units == std::vector<std::size_t>{1, 3});
  for (const WholeGroup& group : alternating.whole_groups) check_travel(alternating, group);
  Model several = chain_of_programs(5, 2);
  for (UnitSpec& unit : several.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      if (element_count(parameter.shape) > 0) parameter.whole = WholeSpec{.workspace = Bytes(96), .cost = 3};
    }
  }
  const Plan plan = compile(several, {.precision = bf16_mixed, .ranks = 3});
  CHECK(verify(plan).ok());
  REQUIRE(plan.whole_groups.size() == 2);
  for (std::size_t program = 0; program < 2; ++program) {
    CHECK(plan.whole_groups[program].program == program);
    check_travel(plan, plan.whole_groups[program]);
  }
}

TEST_CASE("what_a_rank_sends_is_told_by_formula") {
  for (const Strategy strategy : all_strategies) {
    const Plan plan = compile(large_matrices(8), {.strategy = strategy, .ranks = 4, .replicas = 2});
    for (const WholeGroup& group : plan.whole_groups) {
      const auto sent = [&](const std::vector<Transfer>& transfers) {
        std::uint64_t bytes = 0;
        for (const Transfer& each : transfers) bytes += each.from == each.to ? 0 : each.size.count();
        return double(bytes) / 4;
      };
      CHECK(double(bytes_to_owners(plan, group).count()) ==
            doctest::Approx(sent(transfers_to_owners(plan, group))).epsilon(0.25));
      CHECK(double(bytes_from_owners(plan, group).count()) ==
            doctest::Approx(sent(transfers_from_owners(plan, group))).epsilon(0.25));
    }
  }
}

TEST_CASE("owners_share_the_work_and_groups_take_turns") {
  const Plan plan = compile(large_matrices(24), {.ranks = 4});
  CHECK(verify(plan).ok());
  REQUIRE(plan.whole_groups.size() > 2);
  for (const WholeGroup& group : plan.whole_groups) {
    std::uint64_t all = 0;
    for (const WholeTensor& each : group.tensors) {
      all += plan.units[each.unit].parameters[each.parameter].whole->cost;
    }
    // The greedy choice is at most 4/3 of the best one, and nearer where tensors are many.
    if (group.tensors.size() >= 16) CHECK(4 * most_work(plan, group) <= all * 5 / 4);
  }
  // The tensors of a group travel while the one before is worked on.
  const Segment& update = plan.segments[*plan.find(SegmentKind::update)];
  std::vector<std::string> order;
  for (const Operation& operation : update.operations) {
    if (operation.whole_group == no_group) continue;
    order.push_back(fmt::format("{} {}",
                                operation.kind == OperationKind::transform ? "work on"
                                : operation.goes_to_owners()               ? "bring"
                                                                           : "take back",
                                operation.whole_group));
  }
  REQUIRE(order.size() >= 6);
  CHECK(std::vector<std::string>(order.begin(), order.begin() + 5) ==
        std::vector<std::string>{"bring 0", "bring 1", "work on 0", "take back 0", "bring 2"});
}

// Optimizers work on them in batches.
TEST_CASE("tensors_of_one_shape_follow_each_other_at_their_owner") {
  Model model{"matrices", {}, Program::chain(5)};
  for (std::size_t u = 0; u < 5; ++u) {
    UnitSpec unit{fmt::format("u{}", u), {}};
    for (const Shape& shape : {Shape{7, 13}, Shape{13, 7}, Shape{91}, Shape{7, 13}}) {
      unit.parameters.push_back(
          {.name = fmt::format("u{}.p{}", u, unit.parameters.size()), .shape = shape, .whole = WholeSpec{.cost = 91}});
    }
    model.units.push_back(std::move(unit));
  }
  for (const std::size_t ranks : {1u, 2u, 3u}) {
    const Plan plan = compile(model, {.ranks = ranks});
    CHECK(verify(plan).ok());
    for (const WholeGroup& group : plan.whole_groups) {
      std::size_t tensors = 0;
      for (std::size_t owner = 0; owner < ranks; ++owner) {
        std::vector<Shape> runs;
        Bytes end;
        for (const WholeTensor& tensor : tensors_of_owner(group, owner)) {
          const Shape& shape = plan.units[tensor.unit].parameters[tensor.parameter].shape;
          CHECK(tensor.offset == end);
          end += whole_plane(plan, tensor) * plan.units[tensor.unit].whole_planes;
          if (runs.empty() || runs.back() != shape) runs.push_back(shape);
          ++tensors;
        }
        CHECK(std::set<Shape>(runs.begin(), runs.end()).size() == runs.size());
      }
      CHECK(tensors == group.tensors.size());
    }
  }
}

// Muon's second moment: tensors that are seen whole have none, wherever a rank's share of the unit begins.
TEST_CASE("a_state_of_other_tensors_takes_no_memory_for_those_that_are_seen_whole") {
  StateSpec second("v");
  second.elementwise = true;
  for (const Strategy strategy : all_strategies) {
    for (const std::size_t ranks : {1u, 2u, 3u, 6u}) {
      for (const MemorySpace states_in : {MemorySpace::device, MemorySpace::host}) {
        CompileInput input = input_of(large_matrices(2), {.strategy = strategy,
                                                          .ranks = ranks,
                                                          .replicas = ranks % 2 == 0 ? 2u : 1u,
                                                          .checkpointing = Checkpointing::background});
        input.optimizer_states = {"m", second};
        input.units[1].states_in = states_in;
        const Plan plan = compile(input);
        CHECK(verify(plan).ok());
        for (const UnitBuffers& buffers : plan.unit_buffers) {
          CHECK(plan.buffers[buffers.states[1].buffer].size == Bytes(4) * 896);  // 769 elements, on 128 each
          CHECK(plan.buffers[buffers.states[0].buffer].size > Bytes(4 * 9'000'000 / ranks));
        }
        Plan broken = plan;
        broken.unit_buffers[0].states[1].begin -= 128;
        CHECK_FALSE(verify(broken).ok());
      }
    }
  }
}

TEST_CASE("what_is_not_wanted_whole_changes_nothing") {
  Model model = whole_model();
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) parameter.frozen = parameter.whole.has_value();
  }
  const Plan frozen = compile(model, {.ranks = 3});
  CHECK(frozen.whole_groups.empty());
  CHECK(verify(frozen).ok());
  for (const Buffer& buffer : frozen.buffers) CHECK_FALSE(buffer.name.starts_with("direction"));
}

TEST_CASE("masters_of_the_host_and_nothing_to_bring_are_refused_with_whole_tensors") {
  Model model = chain_model(1);
  model.units[0].parameters[0].whole = WholeSpec{};
  model.units[0].masters_in = MemorySpace::host;
  CHECK(contains(refusal(model, {.precision = bf16_mixed, .ranks = 2}), "its optimizer sees tensors of it whole"));
  model.units[0].masters_in = std::nullopt;
  const PlanOptions masters{.precision = bf16_mixed, .ranks = 2, .offload = {.masters = MemorySpace::host}};
  CHECK(contains(refusal(model, masters), "move the optimizer's states alone"));
  model.units[0].whole_planes = 0;
  CHECK(contains(refusal(model, {.ranks = 2}), "0 planes of fp32"));
}

TEST_CASE("slices_of_a_tensor_are_not_seen_whole") {
  Model model = chain_model(2);
  model.units[0].apart = Axis::tensor;
  model.units[0].prefix = "u0.";
  model.units[0].parameters[0].whole = WholeSpec{};
  const std::string text = usage_error([&] {
    compile(model, {.mesh = MeshShape({{Axis::shard, 2}, {Axis::tensor, 2}})});
  });
  CHECK(text.find("u0.p0: its optimizer wants to see it whole, and ranks along tensor have slices") == 0);
}

}  // namespace tessera::plan::whole_test
