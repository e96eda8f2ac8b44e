// Slot colouring and tenancies.
#include "plan/residency.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::plan {

namespace {

constexpr std::size_t none = no_slot;

// A stretch of a sequence of windows, ends included, during which a unit holds a slot.
struct Tenancy {
  std::size_t unit;
  std::size_t begin;
  std::size_t end;
};

// Keeps a slot's tenancies sorted and apart. A unit's own may overlap each other (prefetched again while still whole):
// they become one.
void take(std::vector<Tenancy>& slot, Tenancy tenancy) {
  const auto first = std::lower_bound(slot.begin(), slot.end(), tenancy.begin,
                                      [](const Tenancy& other, std::size_t begin) { return other.end < begin; });
  auto last = first;
  for (; last != slot.end() && last->begin <= tenancy.end; ++last) {
    tenancy.begin = std::min(tenancy.begin, last->begin);
    tenancy.end = std::max(tenancy.end, last->end);
  }
  slot.insert(slot.erase(first, last), tenancy);
}

// Greedy colouring in the order of `tenancies`: the lowest slot that no overlapping unit has. `sequences` keeps
// positions of different sequences apart.
std::vector<std::size_t> colour(const std::vector<std::vector<Tenancy>>& sequences, std::size_t units) {
  std::vector<std::vector<Tenancy>> of_unit(units);
  std::vector<std::size_t> order;
  std::vector<bool> seen(units, false);
  std::size_t shift = 0;
  for (const auto& sequence : sequences) {
    std::size_t length = 0;
    for (Tenancy tenancy : sequence) {
      length = std::max(length, tenancy.end + 1);
      tenancy.begin += shift;
      tenancy.end += shift;
      of_unit[tenancy.unit].push_back(tenancy);
      if (!seen[tenancy.unit]) order.push_back(tenancy.unit);
      seen[tenancy.unit] = true;
    }
    shift += length;
  }
  std::vector<std::size_t> result(units, none);
  std::vector<std::vector<Tenancy>> taken;  // by slot
  for (const std::size_t unit : order) {
    const auto clashes = [&](const std::vector<Tenancy>& others) {
      for (const Tenancy& mine : of_unit[unit]) {
        // `others` is sorted by begin and its tenancies do not overlap, so ends are sorted too.
        auto other = std::lower_bound(others.begin(), others.end(), mine.begin,
                                      [](const Tenancy& t, std::size_t begin) { return t.end < begin; });
        if (other != others.end() && other->begin <= mine.end) return true;
      }
      return false;
    };
    std::size_t slot = 0;
    while (slot < taken.size() && clashes(taken[slot])) ++slot;
    if (slot == taken.size()) taken.emplace_back();
    result[unit] = slot;
    for (const Tenancy& tenancy : of_unit[unit]) take(taken[slot], tenancy);
  }
  return result;
}

std::size_t first_possible(std::size_t window, std::size_t prefetch) {
  return window > prefetch ? window - prefetch : 0;
}

// Around each window a unit holds its slot from the position at which its gather may be issued, and through what is
// nested in it; one that is kept, through all of its windows.
std::vector<Tenancy> tenancies_of(const std::vector<WindowUse>& windows, const std::vector<Gathering>& units,
                                  bool may_keep) {
  std::vector<Tenancy> result;
  std::vector<std::size_t> latest(units.size(), none);  // by unit: its tenancy
  for (std::size_t k = 0; k < windows.size(); ++k) {
    const Gathering& gathering = units[windows[k].unit];
    std::size_t& mine = latest[windows[k].unit];
    const bool goes_on = windows[k].resumes || (may_keep && gathering.keep);
    if (mine != none && goes_on) {
      result[mine].end = k;
    } else {
      mine = result.size();
      result.push_back({windows[k].unit, first_possible(k, gathering.prefetch), k});
    }
  }
  return result;
}

}  // namespace

std::vector<Gathering> gathering(const Plan& plan) {
  std::vector<Gathering> result;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const bool stays = plan.held_between_windows(unit).empty() && !plan.sharding(unit).parameters.empty();
    result.push_back({.prefetch = plan.units[unit].prefetch.value_or(plan.options.prefetch), .keep = stays});
  }
  return result;
}

std::vector<std::size_t> parameter_slots(std::span<const Program> programs, const std::vector<Gathering>& units) {
  std::vector<std::vector<Tenancy>> sequences;
  for (const Program& program : programs) {
    sequences.push_back(tenancies_of(program.micro_batch, units, true));
    sequences.push_back(tenancies_of(program.evaluation, units, false));
  }
  return colour(sequences, units.size());
}

std::vector<Residency> residency(const std::vector<WindowUse>& windows, const std::vector<std::size_t>& slots,
                                 const std::vector<Gathering>& units) {
  struct Holder {
    std::size_t unit = none;
    std::size_t last_window = none;
  };
  std::vector<Residency> result(windows.size());
  std::vector<Holder> holders;
  std::vector<std::size_t> gathered(units.size(), none);  // by unit: for which window it was last
  for (std::size_t k = 0; k < windows.size(); ++k) {
    const std::size_t slot = slots[windows[k].unit];
    if (slot >= holders.size()) holders.resize(slot + 1);
    Holder& holder = holders[slot];
    if (holder.unit != windows[k].unit) {
      result[k].gather = true;
      result[k].gather_before = first_possible(k, units[windows[k].unit].prefetch);
      result[k].last_gather = true;
      const std::size_t before = std::exchange(gathered[windows[k].unit], k);
      if (before == none) {
        result[k].first_gather = true;
      } else {
        result[before].last_gather = false;
      }
      if (holder.unit != none) {
        result[holder.last_window].release_after = true;
        if (holder.last_window >= result[k].gather_before) {
          throw InternalError("a slot would be gathered into while its unit is still used");
        }
      }
      holder.unit = windows[k].unit;
    }
    holder.last_window = k;
  }
  for (const Holder& holder : holders) {
    if (holder.unit != none) result[holder.last_window].release_after = true;
  }
  return result;
}

std::vector<std::size_t> gathering_windows(const std::vector<Residency>& stays) {
  std::vector<std::size_t> result;
  for (std::size_t k = 0; k < stays.size(); ++k) {
    if (stays[k].gather) result.push_back(k);
  }
  std::sort(result.begin(), result.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(stays[a].gather_before, a) < std::pair(stays[b].gather_before, b);
  });
  return result;
}

std::vector<std::size_t> gradient_slots(std::span<const std::vector<WindowUse>> micro_batches,
                                        const std::vector<std::optional<std::size_t>>& taken_after, bool overlap) {
  std::vector<std::vector<Tenancy>> sequences;
  for (const std::vector<WindowUse>& micro_batch : micro_batches) {
    std::vector<Tenancy>& tenancies = sequences.emplace_back();
    const std::vector<bool> closing = closes(micro_batch);
    std::map<std::size_t, std::size_t> opened;  // by unit: the backward windows that had closed by then
    for (std::size_t k = 0; k < micro_batch.size(); ++k) {
      const WindowUse& use = micro_batch[k];
      if (use.kind != WindowKind::backward) continue;
      const std::size_t position = tenancies.size();
      if (!use.resumes) opened[use.unit] = position;
      if (!closing[k]) continue;
      const auto& taken = taken_after[use.unit];
      tenancies.push_back({use.unit, opened[use.unit], taken ? *taken + (overlap ? 1 : 0) : position});
    }
  }
  return colour(sequences, taken_after.size());
}

}  // namespace tessera::plan
