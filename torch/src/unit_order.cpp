// Orders are short, and joined seldom: by the table of all lengths.
#include "src/unit_order.hpp"

#include <algorithm>

namespace tessera::torch {

using plan::WindowKind;

UnitOrder joined(const UnitOrder& first, const UnitOrder& second) {
  const std::size_t columns = second.size() + 1;
  // The length of the shortest order of first[i…] and second[j…], at i * columns + j.
  std::vector<std::size_t> shortest((first.size() + 1) * columns);
  for (std::size_t i = first.size() + 1; i-- > 0;) {
    for (std::size_t j = columns; j-- > 0;) {
      std::size_t& length = shortest[i * columns + j];
      if (i == first.size() || j == second.size()) {
        length = first.size() - i + second.size() - j;
      } else if (first[i] == second[j]) {
        length = 1 + shortest[(i + 1) * columns + j + 1];
      } else {
        length = 1 + std::min(shortest[(i + 1) * columns + j], shortest[i * columns + j + 1]);
      }
    }
  }
  UnitOrder result;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < first.size() && j < second.size()) {
    const bool both = first[i] == second[j];
    const bool of_first = both || shortest[(i + 1) * columns + j] <= shortest[i * columns + j + 1];
    result.push_back(of_first ? first[i] : second[j]);
    i += of_first ? 1 : 0;
    j += both || !of_first ? 1 : 0;
  }
  result.insert(result.end(), first.begin() + static_cast<std::ptrdiff_t>(i), first.end());
  result.insert(result.end(), second.begin() + static_cast<std::ptrdiff_t>(j), second.end());
  return result;
}

UnitOrder there_and_back(const UnitOrder& order) {
  if (std::equal(order.begin(), order.end(), order.rbegin())) return order;
  UnitOrder both = order;
  both.insert(both.end(), order.rbegin(), order.rend());
  return both;
}

plan::Program program_of(const UnitOrder& forwards, const UnitOrder& evaluations) {
  plan::Program program;
  for (const std::size_t unit : forwards) program.micro_batch.push_back({unit, WindowKind::forward});
  for (auto unit = forwards.rbegin(); unit != forwards.rend(); ++unit) {
    program.micro_batch.push_back({*unit, WindowKind::backward});
  }
  for (const std::size_t unit : evaluations) program.evaluation.push_back({unit, WindowKind::evaluate});
  return program;
}

}  // namespace tessera::torch
