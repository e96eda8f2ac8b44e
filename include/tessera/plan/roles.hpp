// Roles of ranks: one job may have a plan for each, the stages of a pipeline. A role's ranks stand in a mesh of its
// own, of the same axes as those that it has messages with, and each rank sends to the one at its coordinates and
// receives from it (MessageSpec).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tessera/plan/plan.hpp"
#include "tessera/plan/verify.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

struct RankRole {
  std::string name;
  Plan plan;
};

// Proves all plans, run together: what verify() proves of one, that every message meets its counterpart of the same
// name, type and size, and that nothing waits in a circle over all roles. Roles have the same segments. Throws
// UsageError for no roles, for two of one name, and for a message to or from a role that there is not or that has
// another mesh.
Verification verify(std::span<const RankRole> roles);

// Hashes the table of roles: every rank compares it with the others, whichever its own role is.
std::uint64_t hash(std::span<const RankRole> roles);

}  // namespace tessera::plan

#pragma GCC visibility pop
