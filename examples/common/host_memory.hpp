// How much memory this job may take, so that a model that is too large is refused instead of killed.
#pragma once

#include "tessera/base/bytes.hpp"

namespace examples {

// The machine's memory, or the control group's limit where that is lower.
tessera::Bytes host_memory();

}  // namespace examples
