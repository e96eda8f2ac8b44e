// oneDNN's product, where this build has oneDNN.
#pragma once

#include <functional>
#include <optional>

#include "products/contestants.hpp"

namespace bench {

// None: not in this build, or not of this type on this processor.
std::optional<std::function<void()>> onednn_product(const PlainProduct& product, int threads);

}  // namespace bench
