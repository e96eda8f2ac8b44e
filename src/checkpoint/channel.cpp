// Collectives that the calling thread waits for.
#include "checkpoint/channel.hpp"

#include <algorithm>

#include "checkpoint/agreement.hpp"

namespace tessera::checkpoint {

Channel::Channel(World& world)
    : communicator_(world.make_communicator("checkpoint", {.host_memory = true})),
      stream_(Device::cpu(), {.name = "checkpoint", .queue_capacity = 1}) {}

void Channel::all_gather(std::span<std::byte> all, Bytes part, std::string_view label) {
  communicator_->all_gather(stream_, {.data = all.data(), .shard = part, .label = label});
  stream_.synchronize();
}

std::vector<std::byte> Channel::gather(std::span<const std::byte> mine, std::string_view label) {
  std::vector<std::byte> all(mine.size() * size());
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(mine.size() * rank()));
  all_gather(all, Bytes(mine.size()), label);
  return all;
}

void Channel::together(std::string_view label, const std::function<void()>& work) {
  run_together([&](std::span<const std::byte> mine) { return gather(mine, label); }, work);
}

}  // namespace tessera::checkpoint
