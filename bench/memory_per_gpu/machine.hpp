// Where a benchmark ran, and what may be taken there.
#pragma once

#include <string>

#include "tessera/base/bytes.hpp"

namespace bench {

// Half of the memory that is free for programs now, within the control group's limit.
tessera::Bytes memory_to_take();

std::string machine();  // "2 cores of Intel(R) …, 23.4 GiB, Linux 6.1"
std::string today();    // "2026-11-21 15:30 UTC"

}  // namespace bench
