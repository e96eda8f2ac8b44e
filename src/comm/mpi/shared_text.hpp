// Texts in shared memory that one process writes, once, and all read.
#pragma once

#include <string_view>

#include "comm/mpi/shared_layout.hpp"

namespace tessera::comm {

// Whether this call was the first; a longer text loses its end.
bool write_text(shared::Text& text, int rank, std::string_view characters) noexcept;

inline bool is_there(const shared::Text& text) noexcept {
  return text.state.load(std::memory_order_acquire) == shared::Text::there;
}

}  // namespace tessera::comm
