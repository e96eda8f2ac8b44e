// Whether matrix products of fp32 on CUDA devices may round their operands.
#include "src/tf32.hpp"

#include <atomic>

#include "tessera/nn/tf32.hpp"

namespace tessera::nn {

namespace {

std::atomic<bool>& permission() {
  static std::atomic<bool> allowed = false;
  return allowed;
}

}  // namespace

void allow_tf32(bool allowed) { permission() = allowed; }

bool tf32_allowed() { return permission(); }

}  // namespace tessera::nn
