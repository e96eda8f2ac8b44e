// `tessera plan --fit SIZE`: which settings fit into a rank's memory, and which of them moves the fewest bytes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json/json.hpp"
#include "report.hpp"

namespace tools {

struct FitQuestion {
  const Subject& subject;
  Setting setting;
  Freedom freedom;
  tessera::Bytes limit;                      // of a rank's device
  std::optional<tessera::Bytes> host_limit;  // of what moves to the host's memory
  bool disk = false;                         // what moves may go there: where the host's limit, if any, is too small
};

// One setting, with the largest batch that fits, or with the smallest when none does.
struct FitCandidate {
  Setting setting;
  tessera::plan::MemoryReport memory;
  tessera::Bytes moved;             // per rank and step
  tessera::Bytes moved_in_replica;  // of that (accounting.hpp)
  tessera::Bytes transferred = {};  // between the device's memory and the host's or the disk, both ways
  std::size_t offloaded_units = 0;  // of the setting's offload
  // Settings are ranked by this: the bytes that a rank sends and transfers per sequence that it trains on; per
  // micro-batch where activations are not counted.
  double moved_per_sample = 0;
};

struct Fit {
  // The fewest bytes first. Among equals in the order of the search: without recomputation, then by strategy, prefetch
  // 1, 2, 0, resharding and not; then hsdp and hfsdp where replicas are searched, the fewest first; then meshes with
  // slices or stages, of each strategy the best.
  std::vector<FitCandidate> fitting;
  std::vector<FitCandidate> too_large;  // in the order of the search
  bool offloads = false;                // nothing fits with everything on the device
  // Meshes that cannot be planned with what is given, and why.
  std::vector<std::pair<std::string, std::string>> impossible = {};
};
Fit find_fit(const FitQuestion& question, const std::vector<tessera::plan::StateSpec>& optimizer_states);

// Why it does not fit: the term that is too large.
std::string reason(const FitQuestion& question, const FitCandidate& candidate);

// "fsdp, prefetch 1, batch 8", "hsdp, 2 replicas, prefetch 1": what was searched.
std::string setting_text(const Subject& subject, const Setting& setting);

std::string text_of(const FitQuestion& question, const Fit& fit);
Json json_of(const FitQuestion& question, const Fit& fit);

}  // namespace tools
