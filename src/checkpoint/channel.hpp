// The ranks' way to each other while checkpoints are written and read: a communicator and a stream of its own, so that
// a save in the background never queues behind training, and never blocks it; and how one rank's failure becomes an
// error on every rank, at a point that all ranks pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/comm/communicator.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::checkpoint {

// Every rank gives the same number of bytes; the result holds them in rank order.
using Gather = std::function<std::vector<std::byte>(std::span<const std::byte> mine)>;

// Work of unknown length calls it between its steps: after a quarter of a second it meets the other ranks, so
// that none of them waits longer than that, and a step, for one that makes progress. Throws where another rank's work
// failed.
using Pause = std::function<void()>;

// Runs on another thread what may take long and cannot call its Pause, as a flush to a slow device, and calls `pause`
// meanwhile.
void run_apart(const Pause& pause, const std::function<void()>& work);

// Runs `work` on this rank and waits until all ranks have run theirs, however long that takes those that call their
// Pause. Where it threw, this rank's exception is rethrown; where only others' threw, a DataError has the text of the
// lowest such rank. Collective; synchronises.
void run_together(const Gather& gather, const std::function<void(const Pause&)>& work);
void run_together(World& world, std::string_view label, const std::function<void(const Pause&)>& work);

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
  // Throws CommunicationError on every rank where they differ in it.
  void require_equal(std::uint64_t mine, std::string_view what);
  // Does what run_together() does.
  void together(std::string_view label, const std::function<void(const Pause&)>& work);

 private:
  std::unique_ptr<Communicator> communicator_;
  Stream stream_;
};

}  // namespace tessera::checkpoint
