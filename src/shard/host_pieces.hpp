// A rank's pieces of parameters in memory of the host: where they are on the CPU, copies of them on a CUDA device.
#pragma once

#include <span>
#include <vector>

#include "tessera/device/stream.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera {

class HostPieces {
 public:
  // Enqueues on `stream`, of the device that the pieces are on, and synchronises with it.
  HostPieces(Stream& stream, std::vector<ParameterPiece> of_device);

  std::span<const ParameterPiece> pieces() const { return pieces_; }

  // Takes the values back to where they came from, after they were changed. Synchronises.
  void put_back();

 private:
  Stream& stream_;
  std::vector<ParameterPiece> of_device_;
  std::vector<float> copy_;  // empty on the CPU
  std::vector<ParameterPiece> pieces_;
};

}  // namespace tessera
