// --mesh: the ranks along named axes. The trainers and `tessera plan` share it.
#pragma once

#include <optional>

#include "tessera/plan/axes.hpp"
#include "tessera/trainer/command_line.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// Adds --mesh AXIS=N,…, whose axes are some of `axes`. `mesh` must stay.
void add_mesh_option(CommandLine& line, std::optional<tessera::plan::MeshShape>& mesh, tessera::AxisSet axes);

}  // namespace tessera::trainer

#pragma GCC visibility pop
