// A unit that saves something between forward and backward for each micro-batch that is on its way.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/shard/module.hpp"

namespace models {

class UnitOfPlaces : public tessera::Module {
 public:
  // The calls that follow are of the micro-batch that has this place among those that are on their way (PartMemory).
  void take_place(std::size_t place) { place_ = place; }

 protected:
  template <typename Saved>
  Saved& here(std::vector<Saved>& saved) const {
    if (saved.size() <= place_) saved.resize(place_ + 1);
    return saved[place_];
  }

 private:
  std::size_t place_ = 0;
};

}  // namespace models
