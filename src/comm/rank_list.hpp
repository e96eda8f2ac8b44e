// How ranks stand in errors: listed ("rank 2", "ranks 0, 3", "ranks 0-5, 7"), or grouped by what each of them said.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tessera::comm {

// `ranks` in ascending order, at least one.
std::string rank_list(std::span<const int> ranks);

// `ranks 0, 2 <describe(a)>; rank 1 <describe(b)>`: ranks of equal values together, in the order of their lowest rank.
template <typename Value, typename Describe>
std::string ranks_by_value(const std::vector<Value>& values, Describe&& describe) {
  std::string text;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    std::vector<int> same;
    for (std::size_t other = 0; other < values.size(); ++other) {
      if (values[other] == values[rank]) same.push_back(static_cast<int>(other));
    }
    if (static_cast<std::size_t>(same.front()) != rank) continue;  // these ranks stand in the text already
    text += (text.empty() ? "" : "; ") + rank_list(same) + " " + describe(values[rank]);
  }
  return text;
}

}  // namespace tessera::comm
