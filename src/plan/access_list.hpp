// Accesses to one buffer, kept so that finding those which share a byte with a range does not walk through all: a
// buffer of many small places, such as the table of norms, would cost the square of its units.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "plan/ranges.hpp"

namespace tessera::plan {

// Bytes on two ranks that stand for all: places that are linear in the rank overlap on the first or on the last if they
// overlap at all.
struct Place {
  Interval first;
  Interval last;
};

inline bool overlap(const Place& a, const Place& b) { return overlap(a.first, b.first) || overlap(a.last, b.last); }
inline bool contains(const Place& outer, const Place& inner) {
  return contains(outer.first, inner.first) && contains(outer.last, inner.last);
}

// Entry: has a Place `place`. Invariant: sorted by size and by the distance between the two ranks, then by begin, all
// descending, so that in a group of equal size and distance begins are a binary search on either rank. Equal places
// stay in the order of insertion. A chain's backward pass appends at the end.
template <typename Entry>
class AccessList {
 public:
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  std::size_t size() const { return entries_.size(); }

  void insert(const Entry& entry) {
    const auto place = std::upper_bound(entries_.begin(), entries_.end(), entry,
                                        [](const Entry& a, const Entry& b) { return key(a.place) > key(b.place); });
    entries_.insert(place, entry);
  }

  // body(entry) for each that shares a byte with `place`.
  template <typename Body>
  void for_each_overlapping(const Place& place, const Body& body) const {
    for_each_group([&](Span group, std::uint64_t size, std::uint64_t shift) {
      const Span first = between(group, place.first, size, 0);
      for (auto at = first.begin; at != first.end; ++at) body(entries_[at]);
      if (shift == 0 && place.last.begin == place.first.begin) return;  // one rank's places
      const Span last = between(group, place.last, size, shift);
      for (auto at = last.begin; at != last.end; ++at) {
        if (at < first.begin || at >= first.end) body(entries_[at]);
      }
    });
  }

  template <typename Condition>
  void erase_if(const Condition& condition) {
    std::erase_if(entries_, condition);
  }

  // Those that `place` contains, empty ones always, and for which `condition` holds.
  template <typename Condition>
  void erase_contained(const Place& place, const Condition& condition) {
    const auto goes = [&](const Entry& entry) { return contains(place, entry.place) && condition(entry); };
    for (std::size_t begin = 0; begin < entries_.size();) {
      const Span group = group_at(begin);
      const Place& example = entries_[begin].place;
      const std::uint64_t size = example.first.end - example.first.begin;
      const Span found = size == 0 ? group : between(group, place.first, size, 0);
      const auto from = entries_.begin() + static_cast<std::ptrdiff_t>(found.begin);
      const auto to = entries_.begin() + static_cast<std::ptrdiff_t>(found.end);
      const auto kept = std::remove_if(from, to, goes);
      const auto removed = static_cast<std::size_t>(to - kept);
      entries_.erase(kept, to);
      begin = group.end - removed;
    }
  }

 private:
  struct Span {
    std::size_t begin;
    std::size_t end;
  };
  static auto key(const Place& place) {
    return std::tuple(place.first.end - place.first.begin, place.last.begin - place.first.begin, place.first.begin);
  }

  Span group_at(std::size_t begin) const {
    const auto [size, shift, unused] = key(entries_[begin].place);
    const auto in_group = [size = size, shift = shift](const Entry& entry) {
      const auto [other_size, other_shift, other_begin] = key(entry.place);
      return other_size == size && other_shift == shift;
    };
    const auto from = entries_.begin() + static_cast<std::ptrdiff_t>(begin);
    return {begin, static_cast<std::size_t>(std::partition_point(from, entries_.end(), in_group) - entries_.begin())};
  }
  template <typename Body>
  void for_each_group(const Body& body) const {
    for (std::size_t begin = 0; begin < entries_.size();) {
      const Span group = group_at(begin);
      const auto [size, shift, unused] = key(entries_[begin].place);
      body(group, size, shift);
      begin = group.end;
    }
  }

  // Returns those of a group that overlap `bytes` when moved by `shift`: [x, x + size) with x < bytes.end, bytes.begin
  // < x + size.
  Span between(Span group, Interval bytes, std::uint64_t size, std::uint64_t shift) const {
    const auto at = [&](std::size_t index) { return entries_.begin() + static_cast<std::ptrdiff_t>(index); };
    const auto begins = [&](const Entry& entry) { return entry.place.first.begin + shift; };
    const auto from = std::partition_point(at(group.begin), at(group.end),
                                           [&](const Entry& entry) { return begins(entry) >= bytes.end; });
    const auto to = std::partition_point(from, at(group.end),
                                         [&](const Entry& entry) { return begins(entry) + size > bytes.begin; });
    return {static_cast<std::size_t>(from - entries_.begin()), static_cast<std::size_t>(to - entries_.begin())};
  }

  std::vector<Entry> entries_;
};

}  // namespace tessera::plan
