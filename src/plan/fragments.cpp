// A unit belongs where its middle lies among all elements, as far as no fragment stays empty.
#include "plan/fragments.hpp"

#include <algorithm>

namespace tessera::plan {

std::vector<std::vector<std::size_t>> outer_fragments(const Plan& plan) {
  if (!plan.diverges()) return {};
  const std::size_t fragments = plan.options.outer_fragments;
  std::vector<std::vector<std::size_t>> result(fragments);
  std::size_t elements = 0;
  for (const UnitLayout& layout : plan.layouts) elements += layout.padded_elements(Part::trained);
  std::size_t before = 0;
  const auto takes_part = [&](std::size_t unit) {
    return plan.trains(unit) && plan.layouts[unit].padded_elements(Part::trained) > 0;
  };
  std::size_t left = 0;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) left += takes_part(unit);
  std::size_t fragment = 0;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (!takes_part(unit)) continue;
    const std::size_t own = plan.layouts[unit].padded_elements(Part::trained);
    const double middle = static_cast<double>(before) + static_cast<double>(own) / 2;
    const auto wanted = static_cast<std::size_t>(middle * static_cast<double>(fragments) /
                                                 static_cast<double>(std::max<std::size_t>(elements, 1)));
    const std::size_t next = std::min(result[fragment].empty() ? fragment : fragment + 1, fragments - 1);
    const std::size_t needed = fragments - std::min(fragments, left);  // each later one has a unit left
    fragment = std::max({fragment, std::min(wanted, next), needed});
    result[fragment].push_back(unit);
    before += own;
    --left;
  }
  return result;
}

}  // namespace tessera::plan
