// Slots and tenancies: units in flight never share a slot, chains need prefetch + 1, and nothing whole is gathered
// again.
#include "plan/residency.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "models.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::plan::residency_test {

using Windows = std::vector<WindowUse>;
using Slots = std::vector<std::size_t>;

constexpr std::size_t prefetch_depths[] = {0, 1, 2, 5, 100};

std::size_t count_of(const std::vector<std::size_t>& slots) {
  return std::set<std::size_t>(slots.begin(), slots.end()).size();
}

// An entry for each unit says after which backward window the reduce stream takes its gradient from its slot.
using TakenAfter = std::vector<std::optional<std::size_t>>;
TakenAfter reduced_at(const std::vector<std::size_t>& windows) { return TakenAfter(windows.begin(), windows.end()); }

std::size_t gathers_of(const std::vector<Residency>& stays) {
  return static_cast<std::size_t>(
      std::count_if(stays.begin(), stays.end(), [](const Residency& r) { return r.gather; }));
}

std::vector<Gathering> all_alike(std::size_t units, std::size_t prefetch, bool keep) {
  return std::vector<Gathering>(units, {.prefetch = prefetch, .keep = keep});
}
std::vector<Residency> residency(const Windows& windows, const Slots& slots, std::size_t prefetch) {
  return residency(windows, slots, all_alike(slots.size(), prefetch, false));
}

std::vector<std::size_t> slots_of(const Model& model, std::size_t prefetch, bool keep) {
  return parameter_slots(input_of(model, {}).programs, all_alike(model.units.size(), prefetch, keep));
}

template <typename Body>
void for_each_sequence(Body body) {
  for (const Model& model : all_models()) {
    for (const std::size_t prefetch : prefetch_depths) {
      for (const bool keep : {false, true}) {
        INFO(model.name << ", prefetch " << prefetch << ", keep " << keep);
        const auto slots = slots_of(model, prefetch, keep);
        for (const Program& program : input_of(model, {}).programs) {
          body(program.micro_batch, slots, prefetch);
          body(program.evaluation, slots, prefetch);
        }
      }
    }
  }
}

TEST_CASE("a_chain_needs_one_slot_more_than_its_prefetch_depth") {
  for (std::size_t units = 1; units <= 8; ++units) {
    for (const std::size_t prefetch : prefetch_depths) {
      INFO(units << " units, prefetch " << prefetch);
      CHECK(count_of(slots_of(chain_model(units), prefetch, false)) == std::min(prefetch + 1, units));
      CHECK(count_of(slots_of(chain_model(units), prefetch, true)) == units);
    }
  }
}

TEST_CASE("units_in_flight_never_share_a_slot") {
  for_each_sequence([](const Windows& windows, const Slots& slots, std::size_t prefetch) {
    for (std::size_t k = 0; k < windows.size(); ++k) {
      std::set<std::size_t> units;
      std::set<std::size_t> held;
      for (std::size_t ahead = k; ahead < windows.size() && ahead - k <= prefetch; ++ahead) {
        units.insert(windows[ahead].unit);
        held.insert(slots[windows[ahead].unit]);
      }
      CHECK(held.size() == units.size());
    }
  });
}

TEST_CASE("a_unit_is_whole_at_each_of_its_windows_and_gathered_only_when_it_is_not") {
  for_each_sequence([](const Windows& windows, const Slots& slots, std::size_t prefetch) {
    const std::vector<Residency> stays = residency(windows, slots, prefetch);
    std::vector<std::size_t> holder(slots.size(), no_unit);
    for (std::size_t k = 0; k < windows.size(); ++k) {
      std::size_t& here = holder[slots[windows[k].unit]];
      CHECK(stays[k].gather == (here != windows[k].unit));
      if (stays[k].gather) CHECK(here == no_unit);  // the tenant before was released
      here = stays[k].release_after ? no_unit : windows[k].unit;
    }
    CHECK(std::all_of(holder.begin(), holder.end(), [](std::size_t unit) { return unit == no_unit; }));
  });
}

TEST_CASE("a_gather_is_issued_prefetch_windows_ahead_and_after_the_tenant_before") {
  for_each_sequence([](const Windows& windows, const Slots& slots, std::size_t prefetch) {
    const std::vector<Residency> stays = residency(windows, slots, prefetch);
    for (std::size_t k = 0; k < windows.size(); ++k) {
      if (!stays[k].gather) continue;
      CHECK(stays[k].gather_before == k - std::min(k, prefetch));
      for (std::size_t between = stays[k].gather_before; between < k; ++between) {
        CHECK(slots[windows[between].unit] != slots[windows[k].unit]);
      }
    }
  });
}

TEST_CASE("nothing_is_gathered_into_the_slot_of_a_unit_while_its_window_is_open_around_others") {
  std::size_t nested = 0;
  for_each_sequence([&](const Windows& windows, const Slots& slots, std::size_t prefetch) {
    const std::vector<Residency> stays = residency(windows, slots, prefetch);
    for (std::size_t k = 0; k < windows.size(); ++k) {
      if (!windows[k].resumes) continue;
      ++nested;
      CHECK_FALSE(stays[k].gather);
      for (std::size_t between = k; windows[--between].unit != windows[k].unit;) {
        CHECK(slots[windows[between].unit] != slots[windows[k].unit]);
      }
      for (std::size_t later = k; later < windows.size() && later - k <= prefetch; ++later) {
        const bool other = windows[later].unit != windows[k].unit;
        if (other) CHECK(slots[windows[later].unit] != slots[windows[k].unit]);
      }
    }
  });
  CHECK(nested > 0);
}

// The outer unit's slot is its own from its opening on, whatever closes inside.
TEST_CASE("a_gradient_keeps_its_slot_through_the_windows_inside_its_own") {
  const std::vector<WindowUse> passes = windows("b0 b1 b0+ b2 b0+");
  for (const bool overlap : {false, true}) {
    const auto slots = gradient_slots(std::span(&passes, 1), reduced_at({2, 0, 1}), overlap);
    CHECK(slots[0] != slots[1]);
    CHECK(slots[0] != slots[2]);
    CHECK((slots[1] == slots[2]) == !overlap);
  }
}

TEST_CASE("the_turn_around_keeps_the_last_units_of_a_chain") {
  for (std::size_t units = 1; units <= 8; ++units) {
    for (const std::size_t prefetch : prefetch_depths) {
      INFO(units << " units, prefetch " << prefetch);
      const Model model = chain_model(units);
      const auto stays = residency(model.program.micro_batch, slots_of(model, prefetch, false), prefetch);
      const std::size_t kept = std::min(prefetch + 1, units);
      for (std::size_t k = units; k < 2 * units; ++k) CHECK(stays[k].gather == (k - units >= kept));
    }
  }
}

TEST_CASE("without_reshard_every_unit_is_gathered_once") {
  for (const Model& model : all_models()) {
    for (const std::size_t prefetch : prefetch_depths) {
      INFO(model.name << ", prefetch " << prefetch);
      const auto stays = residency(model.program.micro_batch, slots_of(model, prefetch, true), prefetch);
      std::set<std::size_t> used;
      for (const WindowUse& use : model.program.micro_batch) used.insert(use.unit);
      CHECK(gathers_of(stays) == used.size());
    }
  }
}

TEST_CASE("a_prefetch_depth_beyond_the_model_gathers_everything_at_the_start_and_once") {
  const Model model = chain_model(5);
  const auto stays = residency(model.program.micro_batch, slots_of(model, 100, false), 100);
  CHECK(gathers_of(stays) == 5);
  for (std::size_t k = 0; k < 5; ++k) CHECK(stays[k].gather_before == 0);
}

// Units of a chain 0 … 4 ahead by 0, 2, 0, 1 and 3 windows; the second stays.
TEST_CASE("each_unit_may_have_a_depth_and_a_stay_of_its_own") {
  const Model model = chain_model(5);
  const std::vector<Gathering> units = {{0, false}, {2, true}, {0, false}, {1, false}, {3, false}};
  const auto slots = parameter_slots(std::span(&model.program, 1), units);
  const auto stays = residency(model.program.micro_batch, slots, units);
  const std::size_t before[] = {0, 0, 2, 2, 1};  // of the forward windows
  for (std::size_t k = 0; k < 5; ++k) {
    CHECK(stays[k].gather);
    CHECK(stays[k].gather_before == before[k]);
  }
  CHECK_FALSE(stays[8].gather);  // unit 1, backward
  CHECK(stays[9].gather);
  CHECK(stays[9].gather_before == 9);
  const std::vector<std::size_t> order = gathering_windows(stays);
  CHECK(std::vector<std::size_t>(order.begin(), order.begin() + 5) == std::vector<std::size_t>{0, 1, 4, 2, 3});
  CHECK(count_of(slots) < 5);
  for (const std::size_t unit : {0u, 2u, 3u, 4u}) CHECK(slots[unit] != slots[1]);
}

TEST_CASE("gradient_slots_are_two_when_a_reduction_overlaps_and_one_when_not") {
  const Model model = chain_model(5);
  const auto each = reduced_at({4, 3, 2, 1, 0});
  CHECK(count_of(gradient_slots(std::span(&model.program.micro_batch, 1), each, true)) == 2);
  CHECK(count_of(gradient_slots(std::span(&model.program.micro_batch, 1), each, false)) == 1);
  CHECK(count_of(gradient_slots(std::span(&model.program.micro_batch, 1), TakenAfter(5), true)) == 1);
}

// Units 4 and 3 are reduced together, then 2 and 1, then 0.
TEST_CASE("gradients_that_are_reduced_together_stand_side_by_side") {
  const Model model = chain_model(5);
  const auto pairs = reduced_at({4, 3, 3, 1, 1});
  CHECK(gradient_slots(std::span(&model.program.micro_batch, 1), pairs, false) ==
        std::vector<std::size_t>{0, 1, 0, 1, 0});
  CHECK(gradient_slots(std::span(&model.program.micro_batch, 1), pairs, true) ==
        std::vector<std::size_t>{1, 0, 2, 1, 0});
  CHECK(count_of(gradient_slots(std::span(&model.program.micro_batch, 1), reduced_at({4, 4, 4, 4, 4}), true)) == 5);
}

TEST_CASE("a_backward_window_never_writes_the_slot_that_is_being_reduced") {
  for (const Model& model : all_models()) {
    INFO(model.name);
    TakenAfter last(model.units.size());
    std::size_t position = 0;
    const std::vector<bool> closing = closes(model.program.micro_batch);
    for (std::size_t k = 0; k < closing.size(); ++k) {
      const WindowUse& use = model.program.micro_batch[k];
      if (use.kind == WindowKind::backward && closing[k]) last[use.unit] = position++;
    }
    const auto slots = gradient_slots(std::span(&model.program.micro_batch, 1), last, true);
    std::size_t before = no_unit;
    for (const WindowUse& use : model.program.micro_batch) {
      if (use.kind != WindowKind::backward) continue;
      if (before != no_unit && before != use.unit) CHECK(slots[before] != slots[use.unit]);
      before = use.unit;
    }
  }
}

}  // namespace tessera::plan::residency_test
