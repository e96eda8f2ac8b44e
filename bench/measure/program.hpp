// The main() of a benchmark.
#pragma once

#include <fmt/format.h>

#include <exception>

#include "common/blas_kernels.hpp"
#include "common/command_line.hpp"

namespace bench {

// Parses, then calls body(). Errors are one line; the result is the exit code.
template <typename Body>
int run_bench(examples::CommandLine& line, int argc, char** argv, Body body) {
  examples::require_fast_blas(argv);
  try {
    if (line.parse(argc, argv)) body();
    return 0;
  } catch (const examples::OptionError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return examples::exit_bad_options;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}

}  // namespace bench
