// The CPU kernels for any processor.
#include "kernels/cpu/lanes_portable.hpp"
#include "kernels/cpu/table_of_lanes.hpp"

namespace tessera::kernels {

const KernelTable& portable_table() { return table_of_lanes<PortableLanes>; }

}  // namespace tessera::kernels
