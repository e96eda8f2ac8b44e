// The ranks' way to each other while checkpoints are written and read: a communicator and a stream of its own, so that
// a save in the background never queues behind training, and never blocks it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::checkpoint {

// All functions are collective and block the calling thread; one thread at a time.
class Channel {
 public:
  explicit Channel(World& world);  // collective

  std::size_t rank() const { return static_cast<std::size_t>(communicator_->rank()); }
  std::size_t size() const { return static_cast<std::size_t>(communicator_->size()); }

  // In place: rank r's part stands at all.data() + r * part.
  void all_gather(std::span<std::byte> all, Bytes part, std::string_view label);
  // Every rank gives the same number of bytes; the result holds them in rank order.
  std::vector<std::byte> gather(std::span<const std::byte> mine, std::string_view label);
  // As run_together() in agreement.hpp.
  void together(std::string_view label, const std::function<void()>& work);

 private:
  std::unique_ptr<Communicator> communicator_;
  Stream stream_;
};

}  // namespace tessera::checkpoint
