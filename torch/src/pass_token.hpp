// A checkpointed part has no edge to the parameters that it will use: it keeps the token of its pass in place of one,
// so that a pass whose graph is gone can be told.
#pragma once

#include <memory>

namespace tessera::torch {

// That of the pass with gradients that is open on this thread; null outside of one.
inline std::shared_ptr<const void>& pass_token() {
  thread_local std::shared_ptr<const void> token;
  return token;
}

}  // namespace tessera::torch
