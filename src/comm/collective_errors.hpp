// The texts of failed collectives, the same for every backend.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/signature.hpp"

namespace tessera::comm {

// Who waits in which collective, and for whom. Ranks in ascending order.
struct Standstill {
  std::string_view communicator;
  Signature signature;
  std::span<const int> waiting;
  std::span<const int> missing;
};

// `ranks 1, 2 waited up to 1 s in all-gather "blocks.3" (communicator gather, #17) for ranks 0, 3, …`
std::string timeout_text(const Standstill& standstill, std::chrono::milliseconds timeout);

// All ranks came, and their devices did not end it: `all-gather "blocks.3" (communicator gather, #17) did not end
// within 1 s though ranks 0-3 came to it…`
std::string stuck_text(const Standstill& standstill, std::chrono::milliseconds timeout);

// `rank 1 has left the job while rank 0 waited in barrier "end" (communicator control, #2)…`
std::string left_text(const Standstill& standstill);

// `the process of rank 1 has ended while rank 0 waited in barrier "end" (communicator control, #2)`
std::string ended_text(const Standstill& standstill);

// `the ranks disagree in communicator gather: ranks 0, 2 called #17 …; rank 1 called #17 …`; one signature per rank.
std::string disagreement_text(std::string_view communicator, const std::vector<Signature>& signatures);

}  // namespace tessera::comm
