// The verifier's own test: of roles that are run together one rank may deviate.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/plan/roles.hpp"

namespace tessera::plan {

// Does what verify(roles) does, where the last rank of this role follows `deviating`.
Verification verify(std::span<const RankRole> roles, std::size_t role, const Plan& deviating);

}  // namespace tessera::plan
