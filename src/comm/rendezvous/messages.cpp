// Positions and places, bounded by what the job has.
#include "comm/rendezvous/messages.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::comm {

void append_position(std::string& out, const Position& position) {
  FieldWriter writer(out);
  writer.number(static_cast<std::uint32_t>(position.channel));
  writer.number(position.number);
}

Position read_position(FieldReader& reader) {
  const std::size_t channel = reader.number<std::uint32_t>();
  return {.channel = channel, .number = reader.number<std::uint64_t>()};
}

void append_opening(std::string& out, const Opening& opening) {
  FieldWriter writer(out);
  writer.text(opening.name);
  writer.number(opening.groups);
  writer.number(opening.group);
  writer.number(opening.place);
}

Opening read_opening(FieldReader& reader, int ranks) {
  Opening opening{.name = std::string(reader.text())};
  opening.groups = reader.number<std::uint32_t>();
  opening.group = reader.number<std::uint32_t>();
  opening.place = reader.number<std::uint32_t>();
  const auto all = static_cast<std::uint32_t>(ranks);
  const bool divides = opening.groups > 0 && all % opening.groups == 0;
  if (divides && opening.group < opening.groups && opening.place < all / opening.groups) return opening;
  throw DataError(fmt::format("place {} of group {} is none where {} ranks are parted into {} groups", opening.place,
                              opening.group, ranks, opening.groups));
}

std::vector<std::vector<int>> partition_of(const std::vector<Opening>& openings) {
  constexpr int nobody = -1;
  const std::size_t count = openings.front().groups;
  std::vector<std::vector<int>> groups(count, std::vector<int>(openings.size() / count, nobody));
  for (std::size_t rank = 0; rank < openings.size(); ++rank) {
    const Opening& opening = openings[rank];
    if (opening.groups != count) throw DataError("the ranks' groups differ in size");
    int& there = groups[opening.group][opening.place];
    if (there != nobody) throw DataError(fmt::format("ranks {} and {} have one place in a group", there, rank));
    there = static_cast<int>(rank);
  }
  return groups;
}

}  // namespace tessera::comm
