// State of a module that is not trained: running statistics, tables, counters. Whole and fp32 on every rank, in the
// arena. Every rank starts with the same values; FullyShard::synchronize_buffers() makes them rank 0's again.
// Seen and written in the unit's windows (Window::buffer) and between steps (FullyShard::buffer).
#pragma once

#include <cstddef>
#include <string>

#include "tessera/base/shape.hpp"
#include "tessera/shard/initial.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class Buffer {
 public:
  explicit Buffer(Shape shape, Initial initial = Initial::zeros());

  const Shape& shape() const { return shape_; }
  std::size_t elements() const { return elements_; }
  const Initial& initial() const { return initial_; }
  // Full name, "blocks.3.running_mean"; empty before the module was added.
  const std::string& name() const { return membership_.name(); }
  const Unit* unit() const { return membership_.unit(); }  // as Parameter::unit()

 private:
  friend class Unit;
  Shape shape_;
  std::size_t elements_;
  Initial initial_;
  UnitMembership membership_;  // its index is that within the unit's buffers
};

}  // namespace tessera

#pragma GCC visibility pop
