// A named tensor of a module: a shape and how it starts. It owns no bytes; they belong to the runtime, which shards
// them, and are seen whole only inside a window (window.hpp).
//
// Lifetime: once its module was added to a FullyShard, a parameter keeps its address for as long as the FullyShard is
// used; one that moved or ended is a UsageError that names it. When the FullyShard is gone, the module is free for
// another one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/shape.hpp"
#include "tessera/plan/slice.hpp"
#include "tessera/shard/initial.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class Unit;

// Which unit a tensor belongs to, as both sides know it: either may end first. A copy of a tensor belongs to none.
class UnitMembership {
 public:
  UnitMembership() = default;
  UnitMembership(const UnitMembership&) noexcept {}
  UnitMembership& operator=(const UnitMembership&) noexcept { return *this; }
  ~UnitMembership();

  const Unit* unit() const;  // null: none, or one that is gone
  const std::string& name() const { return name_; }

 private:
  friend class Unit;
  struct Roll;  // shared by a unit and its tensors
  std::shared_ptr<Roll> roll_;
  std::size_t index_ = 0;  // within the unit
  std::string name_;
};

struct ParameterOptions {
  // An optional parameter may get no gradient in a backward window; it then counts as zero. Without this, that is an
  // error.
  bool optional = false;
  // A frozen parameter has no gradient and no optimizer state.
  bool frozen = false;
  // Ranks along Axis::tensor have a slice each of one tensor, of which the parameter's shape is this rank's; or the
  // same values, of which the gradient has to be the whole one on every rank, bit by bit. Initial values, files, norms
  // and whole() see that one tensor, whatever the number of slices. A unit with such a parameter is apart along that
  // axis, and this is its choice for every other of its parameters, too: else it is another tensor on each rank.
  std::optional<plan::Slice> slice = std::nullopt;
};

class Parameter {
 public:
  Parameter(Shape shape, Initial initial, ParameterOptions options = {});

  const Shape& shape() const { return shape_; }
  std::size_t elements() const { return elements_; }
  Shape whole_shape() const { return plan::whole_shape(shape_, options_.slice); }
  const Initial& initial() const { return initial_; }
  const ParameterOptions& options() const { return options_; }

  // Sets what the next plan does with it: the one of finalize(), or of FullyShard::recompile(). The same on every rank.
  void set_frozen(bool frozen) { options_.frozen = frozen; }

  // Full name, "blocks.3.weight"; empty before the module was added.
  const std::string& name() const { return membership_.name(); }
  // The unit that it belongs to, of the FullyShard that its module was added to; null while it is free.
  const Unit* unit() const { return membership_.unit(); }

 private:
  friend class Unit;
  Shape shape_;
  std::size_t elements_;
  Initial initial_;
  ParameterOptions options_;
  UnitMembership membership_;
};

}  // namespace tessera

#pragma GCC visibility pop
