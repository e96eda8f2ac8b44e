// The conformance suite on the mpi backend: every process runs every property, each in a job of its own. And what only
// this backend has: arenas that peers read directly, beside memory that goes through staging areas.
//
// usage: mpirun -n N mpi_conformance [PART_OF_A_NAME | --large]    prints each violation with its rank, and exits with
// 1
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job_failure.hpp"
#include "comm/mpi/mpi_process.hpp"
#include "comm/mpi/process_backend.hpp"
#include "comm/mpi/process_job.hpp"
#include "conformance.hpp"
#include "mpi_properties.hpp"

namespace {

using namespace tessera;

struct Property {
  std::string_view name;
  void (*run)(World&);
  int least_ranks;
  std::chrono::milliseconds timeout;
};

#define TESSERA_MPI_PROPERTY(name, least_ranks, timeout) \
  {#name, conformance::name, least_ranks, std::chrono::milliseconds(timeout)},
const Property properties[] = {TESSERA_CONFORMANCE_PROPERTIES(TESSERA_MPI_PROPERTY)
                                   TESSERA_MPI_PROPERTIES(TESSERA_MPI_PROPERTY)};
const Property large_properties[] = {TESSERA_LARGE_MPI_PROPERTIES(TESSERA_MPI_PROPERTY)};

// Whether the property held on this rank. A world that the property itself made fail is no violation.
bool holds(comm::MpiProcess& process, const Property& property) {
  comm::ProcessJob job(process, property.timeout);
  comm::RankLog log(std::nullopt, 0);
  bool held = true;
  try {
    World world(std::make_unique<comm::ProcessBackend>(job, 1, log));
    property.run(world);
  } catch (...) {
    const std::string text = comm::text_of(std::current_exception());
    fmt::print(stderr, "{}: rank {}: {}\n", property.name, process.rank(), text);
    job.abort(text, nullptr);
    held = false;
  }
  job.leave();
  return held;
}

}  // namespace

// Of LeakSanitizer, where the build has it. At the end of the process MPI's libraries are gone, and with them the names
// by which their leaks are known (tests/sanitizers/lsan-mpi.supp).
extern "C" [[gnu::weak]] int __lsan_do_recoverable_leak_check();

int main(int argc, char** argv) {
  constexpr std::chrono::seconds minute{60};
  const bool large = argc > 1 && std::string_view(argv[1]) == "--large";
  const std::string_view wanted = argc > 1 && !large ? argv[1] : "";
  comm::MpiProcess& process = comm::MpiProcess::instance({.start = minute, .end = minute});
  int run = 0;
  int violated = 0;
  for (const Property& property : large ? std::span<const Property>(large_properties) : properties) {
    if (process.size() < property.least_ranks || property.name.find(wanted) == std::string_view::npos) continue;
    ++run;
    violated += holds(process, property) ? 0 : 1;
  }
  if (process.rank() == 0) fmt::print("{} properties with {} processes\n", run, process.size());
  const bool leaks = __lsan_do_recoverable_leak_check != nullptr && __lsan_do_recoverable_leak_check() != 0;
  return violated == 0 && run > 0 && !leaks ? 0 : 1;
}
