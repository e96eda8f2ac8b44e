// A named tensor of a module: a shape and how it starts. It owns no bytes; they belong to the runtime, which shards
// them, and are seen whole only inside a window (window.hpp).
//
// Lifetime: once its module was added to a FullyShard, a parameter keeps its address until the FullyShard is gone.
#pragma once

#include <cstddef>
#include <string>

#include "tessera/base/shape.hpp"
#include "tessera/shard/initial.hpp"

namespace tessera {

class Unit;

struct ParameterOptions {
  // An optional parameter may get no gradient in a backward window; it then counts as zero. Without this, that is an
  // error.
  bool optional = false;
  // A frozen parameter has no gradient and no optimizer state.
  bool frozen = false;
};

class Parameter {
 public:
  Parameter(Shape shape, Initial initial, ParameterOptions options = {});

  const Shape& shape() const { return shape_; }
  std::size_t elements() const { return elements_; }
  const Initial& initial() const { return initial_; }
  const ParameterOptions& options() const { return options_; }

  // What the next plan does with it: the one of finalize(), or of FullyShard::recompile(). The same on every rank.
  void set_frozen(bool frozen) { options_.frozen = frozen; }

  // Full name, "blocks.3.weight"; empty before the module was added.
  const std::string& name() const { return name_; }

 private:
  friend class Unit;
  Shape shape_;
  std::size_t elements_;
  Initial initial_;
  ParameterOptions options_;
  std::string name_;
  const Unit* unit_ = nullptr;  // set by FullyShard::add
  std::size_t index_ = 0;       // within the unit
};

}  // namespace tessera
