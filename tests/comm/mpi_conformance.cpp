// usage: mpirun -n N mpi_conformance [PART_OF_A_NAME | --large]
#include <chrono>
#include <optional>

#include "comm/mpi/mpi_introduction.hpp"
#include "process_conformance.hpp"

int main(int argc, char** argv) {
  constexpr std::chrono::seconds minute{60};
  auto& introduction = tessera::comm::introduce_over_mpi(std::nullopt, {.start = minute, .end = minute});
  return tessera::run_properties(introduction, {argv, static_cast<std::size_t>(argc)});
}
