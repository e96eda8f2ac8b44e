// Which ranks share a host is told by the kernel's boot id, which is as old as the steady clock.
#include "shard/trace_clocks.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <span>

namespace tessera {
namespace {

constexpr int barriers = 9;
using BootId = std::array<char, 40>;

BootId boot_id() {
  BootId id{};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(id.data(), static_cast<std::streamsize>(id.size()));
  return id;
}

std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename Value>
std::vector<Value> gather_one(World& world, const Value& mine) {
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(&mine, 1)), "trace clocks");
  std::vector<Value> values(static_cast<std::size_t>(world.size()));
  std::memcpy(values.data(), all.data(), all.size());
  return values;
}

// By rank: the first rank of its host.
std::vector<std::size_t> hosts_of(const std::vector<BootId>& ids) {
  std::vector<std::size_t> hosts;
  for (const BootId& id : ids) {
    hosts.push_back(static_cast<std::size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin()));
  }
  return hosts;
}

}  // namespace

std::vector<std::int64_t> clock_offsets(const Departures& departures, const std::vector<std::size_t>& hosts) {
  std::vector<std::int64_t> offsets(hosts.size(), 0);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] == hosts[0]) continue;
    std::vector<std::int64_t> later;
    for (const std::vector<std::int64_t>& left : departures) {
      for (std::size_t other = 0; other < hosts.size(); ++other) {
        if (hosts[other] == hosts[rank]) later.push_back(left[other] - left[0]);
      }
    }
    offsets[rank] = median(std::move(later));
  }
  return offsets;
}

std::string align_clocks(World& world, std::vector<RankTimes>& ranks) {
  const std::vector<std::size_t> hosts = hosts_of(gather_one(world, boot_id()));
  if (std::count(hosts.begin(), hosts.end(), hosts[0]) == static_cast<std::ptrdiff_t>(hosts.size())) {
    return "one host, one clock";
  }
  Departures departures;
  for (int i = 0; i < barriers; ++i) {
    world.barrier("trace clocks");
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    departures.push_back(gather_one(world, std::int64_t{std::chrono::nanoseconds(now).count()}));
  }
  const std::vector<std::int64_t> offsets = clock_offsets(departures, hosts);
  for (RankTimes& rank : ranks) {
    for (std::int64_t& time : rank.nanoseconds) time -= offsets[rank.rank];
  }
  return "several hosts, aligned by the ends of barriers";
}

}  // namespace tessera
