// Roles of ranks: one job may have a plan for each, the stages of a pipeline. Roles stand in the order of the axis
// pipeline of the job's mesh; the ranks of each stand in what is left of it, and each rank sends to the one at its
// coordinates in the next role or the one before, and receives from it (CollectiveKind::send). Messages travel on
// streams of their own: a window waits for what it receives, and goes on once what it sends stands in one of the
// message's buffers. Where all of them are still on their way, the next window that sends waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/plan/plan.hpp"
#include "tessera/plan/verify.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

struct RankRole {
  std::string name;
  Plan plan;
};

// Proves all plans, run together: what verify() proves of one, that every message meets its counterpart of the same
// last name, type and size, and that nothing waits in a circle over all roles, with the buffers that there are. Roles
// have the same segments. Throws UsageError for no roles, for two of one name, for meshes that differ, and for a
// message of which the neighbour has no other side.
Verification verify(std::span<const RankRole> roles);

// The role on the other side of a message of one of so many roles.
std::size_t neighbour(std::size_t role, std::size_t roles, const Operation& message);
std::string_view last_name(const CollectiveSpec& collective);  // "x" of "stage.mlp.x"

// Hashes the table of roles: every rank compares it with the others, whichever its own role is.
std::uint64_t hash(std::span<const RankRole> roles);

}  // namespace tessera::plan

#pragma GCC visibility pop
