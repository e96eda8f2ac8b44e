// The main() of a benchmark.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/strategy.hpp"
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

inline void add_strategy(tessera::trainer::CommandLine& line, tessera::Strategy& target,
                         std::span<const tessera::Strategy> all) {
  std::vector<std::pair<std::string, tessera::Strategy>> values;
  for (const tessera::Strategy strategy : all) values.emplace_back(to_string(strategy), strategy);
  line.choice("--strategy", target, values, "what each rank keeps whole");
}

}  // namespace bench
