// Figures of a run, checked: what was measured is what was planned, category by category.
#pragma once

#include <doctest/doctest.h>

#include <span>
#include <string>

#include "probe/memory_report.hpp"

namespace measured {

inline std::string category_name(std::size_t index) {
  return std::string(to_string(static_cast<tessera::plan::Category>(index)));
}

// Checks every rank; and the arena is its categories and nothing else.
inline void check_as_planned(std::span<const tessera::probe::RankMemory> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    CAPTURE(rank);
    tessera::Bytes sum;
    for (std::size_t index = 0; index < tessera::plan::category_count; ++index) {
      const tessera::probe::Figure& category = ranks[rank].categories[index];
      CAPTURE(category_name(index));
      CHECK(category.measured.count() == category.planned.count());
      sum += category.measured;
    }
    CHECK(ranks[rank].peak.measured.count() == ranks[rank].peak.planned.count());
    CHECK(ranks[rank].peak.measured == sum);
    CHECK(ranks[rank].live <= ranks[rank].peak.planned);
    CHECK(ranks[rank].live > tessera::Bytes(0));
  }
}

}  // namespace measured
