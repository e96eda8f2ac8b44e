// Limits on options keep every product here below 2^64. Linux: sysconf, and the memory controller of control groups v2.
#include "tessera/trainer/fit.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "tessera/base/error.hpp"
#include "tessera/trainer/number_text.hpp"

namespace tessera::trainer {

using tessera::Bytes;

void require_enough_samples(const RunOptions& options, const std::string& data, std::size_t samples) {
  if (samples >= (options.drop_last ? options.samples_per_step() : 1)) return;
  const bool may_be_short = samples > 0 && options.outer.every == 0;
  const std::string step = options.granules > 0
                               ? fmt::format("--batch {} × --granules {}", options.batch, options.granules)
                               : fmt::format("--batch {} × --accumulate {} × --ranks {}", options.batch,
                                             options.accumulate, options.data_ranks());
  throw OptionError(fmt::format("{} takes {} samples for a step, but {} has {} to train on{}", step,
                                grouped(options.samples_per_step()), data, grouped(samples),
                                may_be_short ? ": --drop-last no takes them in one short step" : ""));
}

tessera::FullyShardOptions fitting_options(const RunOptions& options, const ModelMemory& memory) {
  const Bytes share(host_memory().count() / options.ranks);
  const Bytes needed = memory.activations + memory.batches;
  if (needed >= share) {
    throw tessera::MemoryError(fmt::format(
        "activations and batches need {} per rank, but each of the {} ranks has {} of this machine's memory: take a "
        "smaller {}",
        to_string(needed), options.ranks, to_string(share), memory.smaller));
  }
  tessera::FullyShardOptions sharding = sharding_options(options);
  sharding.activations = memory.activations;
  sharding.memory_limit = share - memory.batches;
  return sharding;
}

tessera::Bytes host_memory() {
  const auto pages = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  const auto page = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  std::uint64_t bytes = pages * page;
  std::uint64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) bytes = std::min(bytes, limit);  // "max" is no number
  return tessera::Bytes(bytes);
}

}  // namespace tessera::trainer
