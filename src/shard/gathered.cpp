// Every rank sends as many bytes as the longest text has.
#include "shard/gathered.hpp"

#include <algorithm>

namespace tessera {

std::vector<std::string> gather_texts(World& world, std::string_view mine, std::string_view label) {
  const std::vector<std::size_t> lengths = gather_values(world, mine.size(), label);
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  std::string sent(mine);
  sent.resize(longest);
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(sent)), label);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(reinterpret_cast<const char*>(all.data()) + rank * longest, lengths[rank]);
  }
  return texts;
}

}  // namespace tessera
