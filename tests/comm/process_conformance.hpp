// The conformance suite on ranks that are processes and introduce themselves over whatever has started them.
#pragma once

#include <span>

#include "comm/introduction.hpp"

namespace tessera {

// Those of whose name the second argument is a part, else all; the large ones alone for --large. Prints each violation
// with its rank. An exit code.
int run_properties(comm::Introduction& introduction, std::span<char* const> arguments);

}  // namespace tessera
