// The nearest matrix whose singular values are 1, roughly: five Newton-Schulz steps in bf16 with Keller Jordan's
// polynomial, whose fixed band of singular values is about 0.7 to 1.2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/bytes.hpp"
#include "tessera/base/half.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/nn/view.hpp"

namespace tessera::nn {

// Replaces x by it. A Frobenius norm below `least_norm` counts as that. `workspace`: of newton_schulz_workspace(), on
// the stream's device. Enqueues, and neither synchronises nor allocates.
void orthogonalise(Stream& stream, MatrixView<bf16> x, float least_norm, std::byte* workspace);

Bytes newton_schulz_workspace(std::size_t rows, std::size_t columns, DeviceKind device);
std::uint64_t newton_schulz_flops(std::size_t rows, std::size_t columns);  // of the products

}  // namespace tessera::nn
