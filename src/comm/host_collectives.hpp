// The World's blocking conveniences: small collectives over a communicator and a stream of their own, so that they
// never queue behind the training's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/world_backend.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/stream.hpp"

namespace tessera {

class World::HostCollectives {
 public:
  // Collective: makes the communicator "control".
  explicit HostCollectives(World::Backend& backend);

  void barrier(std::string_view label);
  float average(float value, std::string_view label);
  double sum(double value, std::string_view label);
  std::vector<std::byte> gather(std::span<const std::byte> mine, std::string_view label);
  void require_equal(std::uint64_t value, std::string_view what);

 private:
  template <typename Value>
  std::vector<Value> gather_values(Value mine, std::string_view label);

  std::unique_ptr<Communicator> communicator_;
  Stream stream_;
};

}  // namespace tessera
