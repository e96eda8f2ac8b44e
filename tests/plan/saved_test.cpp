// Values that forward windows leave to backward ones, on the device and in the host's memory.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "checks.hpp"
#include "errors.hpp"
#include "models.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::saved_test {

constexpr Offload on_host{.activations = MemorySpace::host};

TEST_CASE("plans_of_every_strategy_are_sound_with_what_windows_save_on_the_device_and_on_the_host") {
  for (const Model& model : {saving(chain_model(1)), saving(chain_model(5)), saving(recomputing_model())}) {
    for (const Strategy strategy : all_strategies) {
      for (const Offload& offload : {Offload{}, on_host}) {
        for (const std::size_t micro_batches : {1u, 3u}) {
          CAPTURE(model.name);
          check_sound(verify(
              compile(model, {.strategy = strategy, .ranks = 3, .micro_batches = micro_batches, .offload = offload})));
        }
      }
    }
  }
}

// Windows and transfers of a step in the order of their launch.
std::vector<std::string> order_of(const Plan& plan) {
  std::vector<std::string> order;
  for (const Operation& operation : plan.segments[*plan.find(SegmentKind::only)].operations) {
    const std::string unit = operation.unit == no_unit ? "" : " " + plan.units[operation.unit].name;
    if (operation.kind == OperationKind::window) order.push_back(std::string(to_string(operation.window)) + unit);
    if (operation.kind != OperationKind::transfer) continue;
    order.push_back((operation.stream == StreamId::fetch ? "comes" : "leaves") + unit);
  }
  return order;
}

TEST_CASE("only_what_another_needs_the_place_of_leaves_and_it_comes_back_one_window_ahead") {
  const Plan plan = compile(saving(chain_model(4)), {.ranks = 2, .offload = on_host});
  CHECK(order_of(plan) == std::vector<std::string>{"forward u0", "leaves u0", "forward u1", "leaves u1", "forward u2",
                                                   "forward u3", "backward u3", "comes u1", "backward u2", "comes u0",
                                                   "backward u1", "backward u0"});
}

TEST_CASE("two_slots_of_the_largest_stand_on_the_device_and_everything_in_the_hosts_memory") {
  const auto report = [](const Offload& offload) {
    return memory(compile(saving(chain_model(6)), {.ranks = 2, .offload = offload}));
  };
  const auto size = [](const MemoryReport& of, Category category) {
    return of.categories[static_cast<std::size_t>(category)].size;
  };
  Bytes all;
  for (std::size_t unit = 0; unit < 6; ++unit) all += round_up(Bytes(100 + 77 * unit), buffer_alignment);
  const auto region = [](Bytes bytes) { return round_up(bytes, region_alignment); };
  CHECK(size(report({}), Category::activations) == region(all));
  CHECK(size(report(on_host), Category::offloaded) == region(all));
  CHECK(size(report(on_host), Category::activations) == region(buffer_alignment * 2));
  Offload first_two = on_host;
  first_two.units = 2;
  const Plan plan = compile(saving(chain_model(4)), {.offload = first_two});
  CHECK(plan.unit_buffers[1][Role::saved_home].exists());
  CHECK(!plan.unit_buffers[2][Role::saved_home].exists());
  CHECK(verify(plan).ok());
}

TEST_CASE("units_that_cannot_take_turns_are_refused_with_what_to_do") {
  const auto failure = [](const Model& model, const Offload& offload = on_host) {
    return refusal(model, {.ranks = 2, .offload = offload});
  };
  CHECK(
      contains(failure(saving(tied_model())), "unit u0 saves activations in the host's memory, and has more than one"));
  CHECK(failure(saving(tied_model()), {}).empty());
  CHECK(contains(failure(chain_model(2)), "add units with UnitOptions::saved"));
  CHECK(contains(failure(saving(chain_model(2)), {.activations = MemorySpace::disk}), "activations go to the host"));
  Model nested = saving(recomputing_model());
  nested.units[0].saved = {};  // u1 and u3 then have the first slot, and u2 the second
  CHECK(failure(nested).empty());
  nested.units[3].saved = {};
  nested.units[0].saved = Bytes(8);
  nested.program = program("f1 f2 f0 f2+ f1+ f3 b3 b1 b2 b0 b2+ b1+");
  CHECK(contains(failure(nested), "their windows are open inside each other"));
}

}  // namespace tessera::plan::saved_test
