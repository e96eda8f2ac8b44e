// The main() of a benchmark.
#pragma once

#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/start.hpp"

namespace bench {

// Parses, then calls body(). Errors are one line; the result is the exit code.
template <typename Body>
int run_bench(tessera::trainer::CommandLine& line, int argc, char** argv, Body body) {
  tessera::trainer::require_fast_blas(argv);
  return tessera::trainer::run_program([&] {
    if (line.parse(argc, argv)) body();
    return 0;
  });
}

}  // namespace bench
