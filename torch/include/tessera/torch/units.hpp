// Which submodules of a torch module become units: a rule that names them by their paths, as named_parameters() spells
// paths ("blocks.3"). Parameters below no named submodule form units where they are declared: those in front of the
// first unit one, those behind it the next, and so on.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera::torch {

// The paths of units, in any order; each of a submodule that exists, none twice. A unit below another one takes its
// parameters out of it. A submodule without parameters becomes no unit.
using Units = std::function<std::vector<std::string>(const ::torch::nn::Module&)>;

// Each child of the submodule at `path`; of the module itself where the path is empty.
Units children_of(std::string path);
// These.
Units named(std::vector<std::string> paths);
// All submodules for which the predicate holds.
Units where(std::function<bool(std::string_view path, const ::torch::nn::Module& submodule)> predicate);

}  // namespace tessera::torch

#pragma GCC visibility pop
