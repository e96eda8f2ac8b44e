// Copies are one stretch, piece after piece.
#include "shard/host_pieces.hpp"

#include <utility>

#include "tessera/kernels/elementwise.hpp"

namespace tessera {

HostPieces::HostPieces(Stream& stream, std::vector<ParameterPiece> of_device)
    : stream_(stream), of_device_(std::move(of_device)), pieces_(of_device_) {
  if (stream.device().kind() == DeviceKind::cpu) return;
  std::size_t elements = 0;
  for (const ParameterPiece& piece : of_device_) elements += piece.values.size();
  copy_.resize(elements);
  float* next = copy_.data();
  for (ParameterPiece& piece : pieces_) {
    kernels::copy(stream, next, piece.values.data(), Bytes(piece.values.size_bytes()));
    piece.values = {next, piece.values.size()};
    next += piece.values.size();
  }
  stream.synchronize();
}

void HostPieces::put_back() {
  if (copy_.empty()) return;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    kernels::copy(stream_, of_device_[i].values.data(), pieces_[i].values.data(),
                  Bytes(pieces_[i].values.size_bytes()));
  }
  stream_.synchronize();
}

}  // namespace tessera
