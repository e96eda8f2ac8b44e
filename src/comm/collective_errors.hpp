// The texts of failed collectives, the same for every backend, and how ranks stand in them: listed ("rank 2", "ranks 0,
// 3", "ranks 0-5, 7"), or grouped by what each of them said.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/signature.hpp"

namespace tessera::comm {

// `ranks` in ascending order, at least one.
std::string rank_list(std::span<const int> ranks);

// `ranks 0, 2 <describe(a)>; rank 1 <describe(b)>`: ranks of equal values together, in the order of their lowest rank.
// ranks: whose values these are, ascending; default: everybody's.
template <typename Value, typename Describe>
std::string ranks_by_value(const std::vector<Value>& values, Describe&& describe, std::span<const int> ranks = {}) {
  std::string text;
  for (std::size_t one = 0; one < values.size(); ++one) {
    if (std::find(values.begin(), values.end(), values[one]) - values.begin() < static_cast<std::ptrdiff_t>(one)) {
      continue;  // its rank stands in the text already
    }
    std::vector<int> same;
    for (std::size_t other = one; other < values.size(); ++other) {
      if (values[other] == values[one]) same.push_back(ranks.empty() ? static_cast<int>(other) : ranks[other]);
    }
    text += (text.empty() ? "" : "; ") + rank_list(same) + " " + describe(values[one]);
  }
  return text;
}

// Who waits in which collective, and for whom. Ranks in ascending order.
struct Standstill {
  std::string_view communicator;
  Signature signature;
  std::span<const int> waiting;
  std::span<const int> missing;
};

// `all-gather "blocks.3" (communicator gather, #17)`. A communicator that is still being made has no sequence numbers,
// and its name is the label.
std::string place_text(std::string_view communicator, const Signature& signature);

// `ranks 1, 2 waited up to 1 s in all-gather "blocks.3" (communicator gather, #17) for ranks 0, 3, …`
std::string timeout_text(const Standstill& standstill, std::chrono::milliseconds timeout);

// All ranks came, and their devices did not end it: `all-gather "blocks.3" (communicator gather, #17) did not end
// within 1 s though ranks 0-3 came to it…`
std::string stuck_text(const Standstill& standstill, std::chrono::milliseconds timeout);

// `rank 1 has left the job while rank 0 waited in barrier "end" (communicator control, #2)…`
std::string left_text(const Standstill& standstill);

// `the process of rank 1 has ended while rank 0 waited in barrier "end" (communicator control, #2)`
std::string ended_text(const Standstill& standstill);

// `ranks 0, 1 waited up to 2 s for rank 2, which has not left the job and does nothing…`
std::string never_left_text(std::span<const int> waiting, std::span<const int> staying,
                            std::chrono::milliseconds timeout);

// `the ranks disagree in communicator gather: ranks 0, 2 called #17 …; rank 1 called #17 …`; one signature per rank.
// ranks: as ranks_by_value().
std::string disagreement_text(std::string_view communicator, const std::vector<Signature>& signatures,
                              std::span<const int> ranks = {});

// Throws CommunicationError where values that ranks have given are not all equal: `the plan must be equal: ranks 0, 2
// said 42; rank 1 said 17`. ranks: as ranks_by_value().
void require_equal(const std::vector<std::uint64_t>& values, std::string_view what, std::span<const int> ranks = {});

}  // namespace tessera::comm
