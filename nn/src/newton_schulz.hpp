// The nearest matrix whose singular values are 1, roughly: five Newton-Schulz steps in bf16 with Keller Jordan's
// polynomial, whose fixed band of singular values is about 0.7 to 1.2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/bytes.hpp"
#include "tessera/base/half.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::nn {

// Matrices of one shape, each on the next multiple of 512 bytes.
struct MatrixBatch {
  bf16* data;
  std::size_t rows;
  std::size_t columns;
  std::size_t count;

  std::size_t elements() const { return rows * columns; }
  std::size_t step() const { return (elements() + 255) / 256 * 256; }
  std::size_t span() const { return (count - 1) * step() + elements(); }  // from the first element to the last
};

// Replaces each by it, with the same bits whatever their number, at most newton_schulz_batch(). A Frobenius norm below
// `least_norm` counts as that. `workspace`: of newton_schulz_workspace(), on the stream's device. Enqueues, and neither
// synchronises nor allocates.
void orthogonalise(Stream& stream, const MatrixBatch& x, float least_norm, std::byte* workspace);

// How many of a shape may be worked on at once: as many as have room in 32 MiB of a CUDA device's memory, at most 64,
// and in 4 MiB of the CPU's, at most 8, because a rank has few threads.
std::size_t newton_schulz_batch(std::size_t rows, std::size_t columns, DeviceKind device);
Bytes newton_schulz_workspace(std::size_t rows, std::size_t columns, DeviceKind device);
std::uint64_t newton_schulz_flops(std::size_t rows, std::size_t columns);  // of the products

}  // namespace tessera::nn
