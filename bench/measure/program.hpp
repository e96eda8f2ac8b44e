// The main() of a benchmark.
#pragma once

#include <exception>
#include <string>

#include "command_line/streams.hpp"
#include "common/blas_kernels.hpp"
#include "common/command_line.hpp"

namespace bench {

// Parses, then calls body(). Errors are one line; the result is the exit code.
template <typename Body>
int run_bench(examples::CommandLine& line, int argc, char** argv, Body body) {
  examples::require_fast_blas(argv);
  tools::open_closed_streams();
  try {
    if (line.parse(argc, argv)) body();
    return tools::exit_code(0);
  } catch (const examples::OptionError& error) {
    tools::tell(std::string("error: ") + error.what());
    return examples::exit_bad_options;
  } catch (const std::exception& error) {
    tools::tell(std::string("error: ") + error.what());
    return 1;
  }
}

}  // namespace bench
