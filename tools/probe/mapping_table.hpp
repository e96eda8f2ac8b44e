// The live mappings that the interposer saw: a fixed table under one lock. It allocates nothing and needs no
// construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "probe/memory_probe.hpp"

namespace tessera::probe {

class MappingTable {
 public:
  constexpr MappingTable() = default;

  void add(std::uintptr_t begin, std::size_t size);
  // Forgets [begin, begin + size): mappings inside go, others are cut.
  void remove(std::uintptr_t begin, std::size_t size);

  Mappings totals() const;
  Bytes size_at(std::uintptr_t address) const;

  // Calls function(begin, end) for each part of [begin, end) that is mapped.
  template <typename Function>
  void for_each_overlap(std::uintptr_t begin, std::uintptr_t end, Function function) const {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::uintptr_t from = begin > mappings_[i].begin ? begin : mappings_[i].begin;
      const std::uintptr_t to = end < mappings_[i].end ? end : mappings_[i].end;
      if (from < to) function(from, to);
    }
  }

 private:
  struct Mapping {
    std::uintptr_t begin;
    std::uintptr_t end;
  };
  void append(Mapping mapping);

  std::array<Mapping, 4096> mappings_ = {};  // in no order
  std::size_t count_ = 0;
  std::size_t unseen_ = 0;
};

}  // namespace tessera::probe
