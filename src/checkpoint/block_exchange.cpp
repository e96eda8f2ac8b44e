// What a rank has for others in a group of blocks is a stream of bytes: its runs, block after block, without those of
// the block that it writes itself. Every rank knows where every stream's bytes go.
#include "checkpoint/block_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

constexpr std::string_view label = "checkpoint: elements of shared blocks";

// Calls visit(block, run, begin) for each run that travels; begin: its place in its rank's stream.
template <typename Visit>
void for_each_sent(const BlockMap& map, std::span<const Block> group, std::vector<std::uint64_t>& ends, Visit visit) {
  for (const Block& block : group) {
    map.for_each_run(block, [&](const Run& run) {
      if (run.rank == block.writer) return;
      visit(block, run, ends[run.rank]);
      ends[run.rank] += run.bytes();
    });
  }
}

// The part of [begin, begin + size) that stands in [window, window + length).
struct Overlap {
  std::uint64_t begin;
  std::uint64_t end;
  bool empty() const { return begin >= end; }
};
Overlap overlap(std::uint64_t begin, std::uint64_t size, std::uint64_t window, std::uint64_t length) {
  return {std::max(begin, window), std::min(begin + size, window + length)};
}

}  // namespace

Staging::Staging(std::span<std::byte> memory, std::size_t ranks) {
  const plan::CheckpointStaging sizes = plan::checkpoint_staging(ranks);
  if (memory.size() < sizes.size().count()) throw InternalError("the staging of checkpoints is smaller than planned");
  block = memory.first(sizes.block.count());
  part = sizes.part;
  parts = memory.subspan(sizes.block.count(), (ranks * part).count());
}

void BlockExchange::run(const std::function<void(const Block&, std::span<std::byte>)>& write) {
  const std::span<const Block> all(map_.shared());
  for (std::size_t first = 0; first < all.size(); first += channel_.size()) {
    const auto group = all.subspan(first, std::min(channel_.size(), all.size() - first));
    const auto mine =
        std::find_if(group.begin(), group.end(), [&](const Block& b) { return b.writer == channel_.rank(); });
    if (mine != group.end()) keep_mine(*mine);
    const std::size_t count = rounds(group);
    for (std::size_t round = 0; round < count; ++round) exchange(group, round);
    if (mine != group.end()) write(*mine, staging_.block.first(mine->end - mine->begin));
  }
}

std::size_t BlockExchange::rounds(std::span<const Block> group) const {
  std::vector<std::uint64_t> ends(channel_.size());
  for_each_sent(map_, group, ends, [](const Block&, const Run&, std::uint64_t) {});
  const std::uint64_t longest = *std::max_element(ends.begin(), ends.end());
  return (longest + staging_.part.count() - 1) / staging_.part.count();
}

void BlockExchange::keep_mine(const Block& mine) {
  map_.for_each_run(mine, [&](const Run& run) {
    if (run.rank != channel_.rank()) return;
    const std::span<const float> values = values_.at(run.tensor->source, run.first, run.count);
    std::memcpy(staging_.block.data() + (run.begin() - mine.begin), values.data(), values.size_bytes());
  });
}

void BlockExchange::exchange(std::span<const Block> group, std::size_t round) {
  const std::uint64_t part = staging_.part.count();
  const std::uint64_t window = round * part;
  std::vector<std::uint64_t> ends(channel_.size());
  for_each_sent(map_, group, ends, [&](const Block&, const Run& run, std::uint64_t begin) {
    const Overlap now = overlap(begin, run.bytes(), window, part);
    if (run.rank != channel_.rank() || now.empty()) return;
    const auto values = std::as_bytes(values_.at(run.tensor->source, run.first, run.count));
    std::memcpy(staging_.parts.data() + run.rank * part + (now.begin - window), values.data() + (now.begin - begin),
                now.end - now.begin);
  });
  channel_.all_gather(staging_.parts, staging_.part, label);
  ends.assign(channel_.size(), 0);
  for_each_sent(map_, group, ends, [&](const Block& block, const Run& run, std::uint64_t begin) {
    const Overlap now = overlap(begin, run.bytes(), window, part);
    if (block.writer != channel_.rank() || now.empty()) return;
    std::memcpy(staging_.block.data() + (run.begin() - block.begin) + (now.begin - begin),
                staging_.parts.data() + run.rank * part + (now.begin - window), now.end - now.begin);
  });
}

}  // namespace tessera::checkpoint
