// On which hosts the ranks of a job are, as far as meshes care.
#pragma once

#include <string>
#include <vector>

#include "tessera/comm/mesh.hpp"

namespace tessera::comm {

// Empty where all ranks are on one.
struct Hosts {
  std::vector<int> of_rank;
  std::vector<std::string> names;  // by host
};

// A warning where groups of the mesh's innermost axis are on several hosts only because the launcher has interleaved
// the hosts: with ranks numbered host by host fewer would be. Else empty.
std::string needless_crossing(const Mesh& mesh, const Hosts& hosts);

}  // namespace tessera::comm
