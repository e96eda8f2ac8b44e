// Writing a text once.
#include "comm/mpi/shared_text.hpp"

#include <algorithm>
#include <cstring>

namespace tessera::comm {

bool write_text(shared::Text& text, int rank, std::string_view characters) noexcept {
  std::uint32_t expected = shared::Text::none;
  if (!text.state.compare_exchange_strong(expected, shared::Text::writing, std::memory_order_acq_rel)) return false;
  const std::size_t length = std::min(characters.size(), text.characters.size() - 1);
  std::memcpy(text.characters.data(), characters.data(), length);
  text.characters[length] = '\0';
  text.rank = rank;
  text.state.store(shared::Text::there, std::memory_order_release);
  return true;
}

}  // namespace tessera::comm
