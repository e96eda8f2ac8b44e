// Values are gathered from all ranks, and every rank computes the same result from them in rank order.
#include "comm/host_collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "comm/rank_list.hpp"
#include "tessera/base/error.hpp"

namespace tessera {
namespace {

// Starts from the first value, not from zero: one rank's sum is its own value to the bit, also -0.
template <typename Value>
Value sum_in_rank_order(const std::vector<Value>& values) {
  return std::accumulate(values.begin() + 1, values.end(), values.front());
}

}  // namespace

World::HostCollectives::HostCollectives(World::Backend& backend)
    : communicator_(backend.make_host_communicator("control")),
      stream_(backend.host_device(), {.name = "control", .queue_capacity = 1}) {}

void World::HostCollectives::barrier(std::string_view label) {
  communicator_->barrier(stream_, label);
  stream_.synchronize();
}

float World::HostCollectives::average(float value, std::string_view label) {
  return sum_in_rank_order(gather_values(value, label)) / static_cast<float>(communicator_->size());
}

double World::HostCollectives::sum(double value, std::string_view label) {
  return sum_in_rank_order(gather_values(value, label));
}

std::vector<std::byte> World::HostCollectives::gather(std::span<const std::byte> mine, std::string_view label) {
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(communicator_->size()));
  const auto offset = static_cast<std::ptrdiff_t>(mine.size()) * communicator_->rank();
  std::copy(mine.begin(), mine.end(), all.begin() + offset);
  communicator_->all_gather(stream_, {.data = all.data(), .shard = Bytes(mine.size()), .label = label});
  stream_.synchronize();
  return all;
}

void World::HostCollectives::require_equal(std::uint64_t value, std::string_view what) {
  const std::vector<std::uint64_t> values = gather_values(value, what);
  const bool equal = std::all_of(values.begin(), values.end(), [&](std::uint64_t other) { return other == value; });
  if (equal) return;
  const auto in_words = [](std::uint64_t each) { return fmt::format("said {}", each); };
  throw CommunicationError(fmt::format("{} must be equal: {}", what, comm::ranks_by_value(values, in_words)));
}

template <typename Value>
std::vector<Value> World::HostCollectives::gather_values(Value mine, std::string_view label) {
  const std::vector<std::byte> bytes = gather(std::as_bytes(std::span(&mine, 1)), label);
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace tessera
