// Plans of units whose states and masters stand in the host's memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "checks.hpp"
#include "errors.hpp"
#include "matrix.hpp"
#include "models.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::offload_test {

constexpr Offload states_alone{.optimizer = MemorySpace::host};
constexpr Offload masters_alone{.masters = MemorySpace::host};
constexpr Offload both{.optimizer = MemorySpace::host, .masters = MemorySpace::host};
constexpr Offload updated_there{
    .optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host};
constexpr Offload ahead{.optimizer = MemorySpace::host,
                        .masters = MemorySpace::host,
                        .update = MemorySpace::host,
                        .ahead = Ahead::revocable};
constexpr Offload for_good{
    .optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host, .ahead = Ahead::final};
constexpr Offload on_disk{.optimizer = MemorySpace::disk, .masters = MemorySpace::disk};
constexpr Offload on_either{.optimizer = MemorySpace::disk, .masters = MemorySpace::host};

void check_plan(const Model& model, const PlanOptions& options) {
  CAPTURE(model.name);
  CAPTURE(describe(options));
  CAPTURE(static_cast<int>(options.offload.masters));
  check_sound(verify(compile(model, options)));
}

TEST_CASE("plans_of_every_strategy_are_sound_with_states_and_masters_elsewhere") {
  for (const Model& model :
       {chain_model(1), chain_model(3), tied_model(), experts_model(), offloading_masters_model()}) {
    for (const Strategy strategy : all_strategies) {
      for (const auto& [ranks, replicas] : {std::pair<std::size_t, std::size_t>{1, 1}, {3, 1}, {4, 2}}) {
        for (const Offload& offload :
             {states_alone, masters_alone, both, updated_there, ahead, for_good, on_disk, on_either}) {
          check_plan(model, {.strategy = strategy,
                             .precision = bf16_mixed,
                             .ranks = ranks,
                             .replicas = replicas,
                             .micro_batches = 2,
                             .offload = offload});
        }
      }
    }
  }
}

TEST_CASE("plans_of_fp32_parameters_and_of_several_programs_are_sound_with_states_in_the_hosts_memory") {
  for (const Model& model : {offloading_model(), chain_of_programs(5, 2), chain_of_programs(4, 3)}) {
    for (const Strategy strategy : all_strategies) {
      check_plan(model, {.strategy = strategy, .ranks = 4, .replicas = 2, .offload = states_alone});
    }
  }
}

TEST_CASE("plans_with_outer_steps_are_sound_with_masters_in_the_hosts_memory") {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp, Strategy::hsdp}) {
    for (const Offload& offload : {both, updated_there, ahead}) {
      check_plan(chain_model(3), {.strategy = strategy,
                                  .precision = bf16_mixed,
                                  .ranks = 4,
                                  .replicas = 2,
                                  .outer_every = 2,
                                  .offload = offload});
    }
  }
}

// Parameters may travel on in codes, several programs have scalars each, and gradients are of the slot's type where
// nothing is added to them.
TEST_CASE("plans_of_updates_on_the_host_are_sound_whatever_travels") {
  const Precision codes{DType::bf16, DType::bf16, DType::int8, DType::int8};
  for (const Model& model : {chain_of_programs(5, 2), chain_model(3)}) {
    for (const Strategy strategy : all_strategies) {
      for (const Precision& precision : {bf16_mixed, codes}) {
        for (const std::size_t ranks : {1u, 4u}) {
          for (const Offload& offload : {updated_there, ahead})
            check_plan(model, {.strategy = strategy, .precision = precision, .ranks = ranks, .offload = offload});
        }
      }
    }
  }
}

// 2 bytes of the gradient go and 2 of the parameters come, and the device has no slots.
TEST_CASE("what_the_host_updates_brings_gradients_and_takes_parameters_and_nothing_else") {
  const Plan plan = compile(chain_model(4), {.precision = bf16_mixed, .offload = updated_there});
  std::size_t elements = 0;
  for (const UnitLayout& layout : plan.layouts) elements += layout.elements({}, Part::trained);
  Bytes evicted, fetched;
  for (const SegmentKind kind : {SegmentKind::only, SegmentKind::update}) {
    for (const Operation& operation : plan.segments[*plan.find(kind)].operations) {
      if (operation.kind != OperationKind::transfer) continue;
      (operation.stream == StreamId::fetch ? fetched : evicted) += operation.source().range.size;
    }
  }
  CHECK(fetched == Bytes(2) * elements);
  CHECK(evicted == Bytes(2) * elements + scalars_size);
  for (const Buffer& buffer : plan.buffers) CHECK(!buffer.name.starts_with("master."));
  const MemoryReport there = memory(plan);
  const MemoryReport here = memory(compile(chain_model(4), {.precision = bf16_mixed, .offload = both}));
  CHECK(there.device() < here.device());
}

TEST_CASE("an_update_on_the_host_of_what_is_not_all_there_is_refused") {
  const auto failure = [](const Offload& offload) {
    return refusal(chain_model(2), {.precision = bf16_mixed, .offload = offload});
  };
  CHECK(contains(failure({.optimizer = MemorySpace::host, .update = MemorySpace::host}),
                 "no unit has both its masters and its optimizer's states in the host's memory"));
  CHECK(contains(failure({.update = MemorySpace::disk}), "offload.update is disk"));
  CHECK(contains(failure({.ahead = Ahead::revocable}), "offload.update is device"));
}

// Only the last reduction of the step is waited for: while the first layers go backward the last ones are updated.
TEST_CASE("an_update_ahead_stands_behind_its_units_own_reduction_and_is_settled_behind_the_norm") {
  const Plan plan = compile(chain_model(4), {.precision = bf16_mixed, .ranks = 2, .offload = ahead});
  const std::vector<Operation>& pass = plan.segments[*plan.find(SegmentKind::only)].operations;
  const auto backward = [](const Operation& operation) {
    return operation.kind == OperationKind::window && operation.window == WindowKind::backward;
  };
  std::size_t updated = 0, updated_before_the_last_window = 0;
  std::size_t windows = static_cast<std::size_t>(std::count_if(pass.begin(), pass.end(), backward));
  for (const Operation& operation : pass) {
    if (backward(operation)) --windows;
    if (operation.kind != OperationKind::optimize) continue;
    ++updated;
    if (windows > 0) ++updated_before_the_last_window;
    for (const Wait& wait : operation.waits) CHECK(plan.at(plan.events[wait.event]).kind == OperationKind::transfer);
  }
  CHECK(updated == 4);
  CHECK(updated_before_the_last_window >= 2);
  std::size_t settled = 0;
  bool norm = false;
  for (const Operation& operation : plan.segments[*plan.find(SegmentKind::update)].operations) {
    if (operation.kind == OperationKind::begin_update) norm = true;
    CHECK(operation.kind != OperationKind::optimize);
    if (operation.kind == OperationKind::settle && norm) ++settled;
  }
  CHECK(settled == 4);
}

TEST_CASE("an_update_ahead_keeps_masters_and_states_twice") {
  const auto on_host = [](const Offload& offload) {
    Bytes sum;
    for (const Buffer& buffer : compile(chain_model(4), {.precision = bf16_mixed, .offload = offload}).buffers) {
      if (buffer.space == MemorySpace::host) sum += buffer.size;
    }
    return sum;
  };
  CHECK(on_host(ahead) - on_host(updated_there) == on_host(both) + scalars_size);
  CHECK(on_host(for_good) - on_host(updated_there) == scalars_size);
}

MemoryReport memory_with(const Offload& offload, Strategy strategy = Strategy::zero2) {
  return memory(
      compile(chain_model(5), {.strategy = strategy, .precision = bf16_mixed, .ranks = 2, .offload = offload}));
}

TEST_CASE("what_moves_leaves_the_device_and_comes_to_the_host") {
  const MemoryReport none = memory_with({});
  const auto size = [](const MemoryReport& report, Category category) {
    return report.categories[static_cast<std::size_t>(category)].size;
  };
  CHECK(none.host == Bytes(0));
  const MemoryReport states = memory_with(states_alone);
  CHECK(size(states, Category::optimizer) == Bytes(0));
  CHECK(size(states, Category::offloaded) == size(none, Category::optimizer));
  CHECK(size(states, Category::parameters) == size(none, Category::parameters));
  const MemoryReport all = memory_with(both);
  CHECK(size(all, Category::offloaded) > size(states, Category::offloaded));
  CHECK(size(all, Category::parameters) < size(none, Category::parameters));
  CHECK(all.host == size(all, Category::offloaded));
  CHECK(all.device() == all.peak - all.host);
}

TEST_CASE("what_stands_on_disk_takes_no_memory_but_slots_and_staging") {
  const auto compiled = [](const Offload& offload, bool staging) {
    return memory(compile(chain_model(5), {.strategy = Strategy::zero2,
                                           .precision = bf16_mixed,
                                           .ranks = 2,
                                           .offload = offload,
                                           .disk_staging = staging}));
  };
  const MemoryReport host = compiled(both, false), disk = compiled(on_disk, false), staged = compiled(on_disk, true);
  const auto on_pages = [](Bytes size) { return size.count() % region_alignment.count() == 0; };
  CHECK(host.disk == Bytes(0));
  CHECK(disk.host == Bytes(0));
  CHECK(disk.disk >= host.host);  // each buffer begins on a page
  CHECK(on_pages(disk.disk));
  CHECK(disk.device() == disk.peak - disk.disk);
  CHECK(staged.host == disk_staging * 2);
  CHECK(staged.device() == disk.device());
  CHECK(staged.disk == disk.disk);
  CHECK(compiled(both, true).host == host.host);
}

// Masters that windows gather leave what they are cast to: in 16 bits it is half as large.
TEST_CASE("gathered_parameters_stay_on_the_device_in_their_own_type_where_masters_leave_it") {
  const Plan plan =
      compile(chain_model(3), {.strategy = Strategy::fsdp, .precision = bf16_mixed, .ranks = 2, .offload = both});
  for (const UnitBuffers& unit : plan.unit_buffers) {
    CHECK(unit[Role::kept].type == DType::bf16);
    CHECK(plan.buffers[unit[Role::kept].buffer].space == MemorySpace::device);
    CHECK(plan.buffers[unit[Role::master].buffer].space == MemorySpace::host);
    CHECK(plan.buffers[unit[Role::kept].buffer].size * 2 == plan.buffers[unit[Role::master].buffer].size);
  }
}

TEST_CASE("the_first_units_move_and_a_units_own_option_goes_first") {
  Model model = chain_model(5);
  model.units[1].states_in = MemorySpace::device;
  model.units[4].masters_in = MemorySpace::host;
  Offload offload = both;
  offload.units = 3;
  const Plan plan = compile(model, {.precision = bf16_mixed, .ranks = 2, .offload = offload});
  const auto spaces = [&](const auto& of) {
    std::string text;
    for (const UnitSpec& unit : plan.units) text += of(unit) == MemorySpace::host ? 'h' : 'd';
    return text;
  };
  CHECK(spaces([](const UnitSpec& unit) { return *unit.states_in; }) == "hdhdd");
  CHECK(spaces([](const UnitSpec& unit) { return *unit.masters_in; }) == "hhhdh");
  CHECK(verify(plan).ok());
}

TEST_CASE("more_units_than_there_are_are_refused") {
  const auto failure = [](std::size_t units) {
    Offload offload = both;
    offload.units = units;
    return refusal(chain_model(3), {.precision = bf16_mixed, .offload = offload});
  };
  CHECK(failure(3).empty());
  CHECK(contains(failure(4), "offload.units is 4, and the model has 3: say how many of these move"));
}

TEST_CASE("masters_that_windows_read_themselves_are_refused_with_what_to_do") {
  const auto failure = [](Model model, const PlanOptions& options) { return refusal(model, options); };
  const std::string text = failure(chain_model(2), {.ranks = 2, .offload = masters_alone});
  CHECK(contains(text, "offload.masters is host"));
  CHECK(contains(text, "bf16_mixed"));
  CHECK(contains(failure(chain_model(2), {.ranks = 2, .offload = {.masters = MemorySpace::disk}}),
                 "offload.masters is disk"));
  Model one = chain_model(2);
  one.units[1].precision = fp32_precision;
  CHECK(failure(one, {.precision = bf16_mixed, .offload = both}).empty());  // it stays
  one.units[1].masters_in = MemorySpace::host;
  CHECK(contains(failure(one, {.precision = bf16_mixed}), "unit u1 is to keep its masters in the host's memory"));
  one.units[1].masters_in = MemorySpace::disk;
  CHECK(contains(failure(one, {.precision = bf16_mixed}), "unit u1 is to keep its masters on disk"));
}

// The fetches and updates of a step in the order of their launch, from the first backward window on.
std::vector<std::string> order_of(const Plan& plan) {
  std::vector<std::string> order;
  for (const SegmentKind kind : {SegmentKind::only, SegmentKind::update}) {
    for (const Operation& operation : plan.segments[*plan.find(kind)].operations) {
      const bool fetches = operation.kind == OperationKind::transfer && operation.stream == StreamId::fetch;
      const bool goes_back = operation.kind == OperationKind::window && operation.window == WindowKind::backward;
      if (goes_back) order.push_back("backward " + plan.units[operation.unit].name);
      if (fetches) order.push_back("fetch " + plan.units[operation.unit].name);
      if (operation.kind == OperationKind::optimize) order.push_back("update " + plan.units[operation.unit].name);
    }
  }
  return order;
}

// A third one ahead would want a third slot.
TEST_CASE("the_first_two_units_are_fetched_beside_the_backward_pass_and_each_other_one_when_a_slot_is_free") {
  const Plan plan = compile(chain_model(4), {.precision = bf16_mixed, .ranks = 2, .offload = both});
  CHECK(order_of(plan) == std::vector<std::string>{"fetch u0", "fetch u1", "backward u3", "backward u2", "backward u1",
                                                   "backward u0", "update u0", "fetch u2", "update u1", "fetch u3",
                                                   "update u2", "update u3"});
}

TEST_CASE("what_is_on_the_device_is_updated_while_others_are_fetched") {
  Offload first_three = both;
  first_three.units = 3;
  const Plan plan = compile(chain_model(5), {.precision = bf16_mixed, .ranks = 2, .offload = first_three});
  const std::vector<std::string> order = order_of(plan);
  CHECK(std::vector<std::string>(order.end() - 6, order.end()) ==
        std::vector<std::string>{"update u0", "fetch u2", "update u1", "update u3", "update u4", "update u2"});
}

}  // namespace tessera::plan::offload_test
