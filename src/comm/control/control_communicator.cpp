// Each round is an exchange with the collective's signature, so ranks that disagree learn it in the first.
#include "comm/control/control_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <string_view>

#include "comm/job_failure.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

// Divides by every element's size.
constexpr std::size_t round_bytes = Control::most_blob;

std::string_view text_of(const std::byte* data, std::size_t bytes) {
  return {reinterpret_cast<const char*>(data), bytes};
}

// Gives `use` every member's bytes from `begin` on, a round at a time; one round at least, because ranks meet in it.
template <typename Use>
void in_rounds(const ControlGroup& group, const Signature& signature, std::span<const std::byte> mine, const Use& use) {
  for (std::size_t begin = 0; begin == 0 || begin < mine.size(); begin += round_bytes) {
    const std::size_t size = std::min(round_bytes, mine.size() - begin);
    use(begin, group.control.exchange(group.channel, signature, text_of(mine.data() + begin, size)));
  }
}

std::vector<const void*> pointers(const std::vector<std::string>& blobs, std::size_t offset) {
  std::vector<const void*> all;
  for (const std::string& blob : blobs) all.push_back(blob.data() + offset);
  return all;
}

void gather(const ControlGroup& group, const Signature& signature, const AllGather& operation) {
  const std::size_t shard = operation.shard.count();
  const auto me = static_cast<std::size_t>(group.place);
  const std::span<const std::byte> mine(shard == 0 ? nullptr : operation.data + me * shard, shard);
  in_rounds(group, signature, mine, [&](std::size_t begin, const std::vector<std::string>& blobs) {
    for (std::size_t place = 0; place < blobs.size(); ++place) {
      if (place == me || blobs[place].empty()) continue;
      std::memcpy(operation.data + place * shard + begin, blobs[place].data(), blobs[place].size());
    }
  });
}

// Of what every rank sends in a round, this rank sums what lies in its own part.
void scatter(const ControlGroup& group, const Signature& signature, const ReduceScatter& operation) {
  const std::size_t element = size_of(operation.wire).count();
  const std::size_t shard = operation.shard_elements * element;
  const std::size_t own_begin = static_cast<std::size_t>(group.place) * shard;
  const std::span<const std::byte> mine(operation.data, shard * static_cast<std::size_t>(group.size));
  in_rounds(group, signature, mine, [&](std::size_t begin, const std::vector<std::string>& blobs) {
    const std::size_t from = std::max(begin, own_begin);
    const std::size_t to = std::min(begin + blobs.front().size(), own_begin + shard);
    if (from >= to) return;
    kernels::ranked_sum_cpu({.contributions = pointers(blobs, from - begin),
                             .type = operation.wire,
                             .result = operation.result + (from - own_begin) / element,
                             .count = (to - from) / element,
                             .accumulate = operation.accumulate,
                             .divisor = operation.divisor});
  });
}

}  // namespace

void run_collective(const ControlGroup& group, const Signature& signature, std::span<const AllGather> segments) {
  for (const AllGather& segment : segments) gather(group, signature, segment);
}

void run_collective(const ControlGroup& group, const Signature& signature, std::span<const ReduceScatter> segments) {
  for (const ReduceScatter& segment : segments) scatter(group, signature, segment);
}

void run_collective(const ControlGroup& group, const Signature& signature, const AllReduce& operation) {
  const std::span<const std::byte> mine = std::as_bytes(std::span(operation.data, operation.elements));
  in_rounds(group, signature, mine, [&](std::size_t begin, const std::vector<std::string>& blobs) {
    if (blobs.front().empty()) return;
    kernels::ranked_sum_cpu({.contributions = pointers(blobs, 0),
                             .result = operation.data + begin / sizeof(float),
                             .count = blobs.front().size() / sizeof(float),
                             .divisor = operation.divisor});
  });
}

void run_collective(const ControlGroup& group, const Signature& signature, const Broadcast& operation) {
  const auto root = static_cast<std::size_t>(operation.root);
  const bool is_root = group.place == operation.root;
  for (std::size_t begin = 0; begin == 0 || begin < operation.size.count(); begin += round_bytes) {
    const std::size_t size = std::min<std::size_t>(round_bytes, operation.size.count() - begin);
    const std::string_view mine = is_root ? text_of(operation.data + begin, size) : std::string_view();
    const std::vector<std::string> blobs = group.control.exchange(group.channel, signature, mine);
    if (!is_root && size > 0) std::memcpy(operation.data + begin, blobs[root].data(), size);
  }
}

void run_collective(const ControlGroup& group, const Signature& signature, const Barrier&) {
  group.control.exchange(group.channel, signature, "");
}

}  // namespace tessera::comm
