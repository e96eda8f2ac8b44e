// The distinct ranges of bytes that a plan's operations name, numbered. Ranges without bytes are left out: nothing can
// conflict with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/access_list.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Some items for each of many keys, in one piece of memory.
template <typename Item>
class Grouped {
 public:
  // `entries`: pairs of key and item. Items of a key keep their order.
  Grouped(std::size_t keys, const std::vector<std::pair<std::uint32_t, Item>>& entries)
      : begins_(keys + 1, 0), items_(entries.size()) {
    for (const auto& [key, item] : entries) ++begins_[key + 1];
    for (std::size_t key = 0; key < keys; ++key) begins_[key + 1] += begins_[key];
    std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
    for (const auto& [key, item] : entries) items_[next[key]++] = item;
  }
  std::span<const Item> operator[](std::size_t key) const {
    return std::span(items_).subspan(begins_[key], begins_[key + 1] - begins_[key]);
  }

 private:
  std::vector<std::size_t> begins_;
  std::vector<Item> items_;
};

// A PlaceUse is what an operation does with a place.
struct PlaceUse {
  std::uint32_t place;
  bool write;
};

// Operations are numbered through all segments.
class Places {
 public:
  explicit Places(const Plan& plan);
  std::size_t buffer(std::uint32_t place) const { return ranges_[place].buffer; }
  const Place& bytes(std::uint32_t place) const { return bytes_[place]; }
  std::span<const PlaceUse> of(std::size_t operation) const { return uses_[operation]; }

 private:
  std::vector<Range> ranges_;
  Grouped<PlaceUse> uses_;
  std::vector<Place> bytes_;  // on the first rank and on the last
};

}  // namespace tessera::plan
