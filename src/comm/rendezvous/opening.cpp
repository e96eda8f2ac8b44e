// Groups of ranks as they travel, and what makes a partition of them.
#include "comm/rendezvous/opening.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "tessera/base/error.hpp"

namespace tessera::comm {

void append_opening(std::string& out, const Opening& opening) {
  FieldWriter writer(out);
  writer.text(opening.name);
  writer.number(static_cast<std::uint32_t>(opening.ranks.size()));
  for (const int rank : opening.ranks) writer.number(static_cast<std::uint32_t>(rank));
}

Opening read_opening(FieldReader& reader, const Speaker& speaker) {
  const auto ranks = static_cast<std::uint32_t>(speaker.ranks);
  Opening opening{.name = std::string(reader.text()), .ranks = {}};
  const auto count = reader.number<std::uint32_t>();
  if (count > ranks) throw DataError(fmt::format("a group has {} ranks, and the job has {}", count, ranks));
  std::vector<bool> there(ranks);
  for (std::uint32_t place = 0; place < count; ++place) {
    const auto rank = reader.number<std::uint32_t>();
    if (rank >= ranks) throw DataError(fmt::format("a group has rank {} of a job of {}", rank, ranks));
    if (there[rank]) throw DataError(fmt::format("a group has rank {} twice", rank));
    there[rank] = true;
    opening.ranks.push_back(static_cast<int>(rank));
  }
  if (count > 0 && !there[static_cast<std::size_t>(speaker.rank)]) {
    throw DataError(fmt::format("the group of rank {} is without it", speaker.rank));
  }
  return opening;
}

std::vector<std::vector<int>> partition_of(const std::vector<Opening>& openings) {
  const std::size_t size = openings.front().ranks.size();
  if (std::any_of(openings.begin(), openings.end(), [&](const Opening& each) { return each.ranks.size() != size; })) {
    throw DataError("the ranks' groups differ in size");
  }
  if (size == 0) return {{}};
  std::vector<std::vector<int>> groups;
  std::vector<bool> placed(openings.size());
  for (std::size_t lowest = 0; lowest < openings.size(); ++lowest) {
    if (placed[lowest]) continue;
    const std::vector<int>& group = groups.emplace_back(openings[lowest].ranks);
    for (const int rank : group) {
      const auto member = static_cast<std::size_t>(rank);
      if (openings[member].ranks != group) {
        throw DataError(fmt::format("rank {} is in the group of rank {}, and says another one", rank, lowest));
      }
      placed[member] = true;
    }
  }
  return groups;
}

}  // namespace tessera::comm
