// Adding, cutting and finding mappings.
#include "probe/mapping_table.hpp"

namespace tessera::probe {

void MappingTable::append(Mapping mapping) {
  if (mapping.begin >= mapping.end) return;
  if (count_ == mappings_.size()) {
    ++unseen_;
    return;
  }
  mappings_[count_++] = mapping;
}

void MappingTable::add(std::uintptr_t begin, std::size_t size) {
  remove(begin, size);  // MAP_FIXED replaces what was there
  append({begin, begin + size});
}

void MappingTable::remove(std::uintptr_t begin, std::size_t size) {
  const std::uintptr_t end = begin + size;
  for (std::size_t i = count_; i > 0; --i) {
    const Mapping old = mappings_[i - 1];
    if (old.end <= begin || end <= old.begin) continue;
    mappings_[i - 1] = mappings_[--count_];
    append({old.begin, begin});
    append({end, old.end});
  }
}

Mappings MappingTable::totals() const {
  Mappings result{count_, Bytes(0), unseen_};
  for (std::size_t i = 0; i < count_; ++i) result.size += Bytes(mappings_[i].end - mappings_[i].begin);
  return result;
}

Bytes MappingTable::size_at(std::uintptr_t address) const {
  for (std::size_t i = 0; i < count_; ++i) {
    if (mappings_[i].begin <= address && address < mappings_[i].end)
      return Bytes(mappings_[i].end - mappings_[i].begin);
  }
  return Bytes(0);
}

}  // namespace tessera::probe
