// What allow_tf32() said last.
#pragma once

namespace tessera::nn {

bool tf32_allowed();

}  // namespace tessera::nn
