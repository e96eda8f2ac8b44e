// A run of three and more ranks is written as a range, so that the error of a large world stays one line.
#include "comm/rank_list.hpp"

#include <fmt/format.h>

namespace tessera::comm {
namespace {

std::size_t end_of_run(std::span<const int> ranks, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
  return end;
}

}  // namespace

std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t next = 0; next < ranks.size();) {
    const std::size_t end = end_of_run(ranks, next);
    const bool range = end - next >= 3;
    if (next > 0) text += ", ";
    text += range ? fmt::format("{}-{}", ranks[next], ranks[end - 1]) : fmt::to_string(ranks[next]);
    next = range ? end : next + 1;
  }
  return text;
}

}  // namespace tessera::comm
