// The conformance suite on ranks that are processes: every process runs every property, each in a job of its own. And
// what only they have: arenas that peers read directly, beside memory that goes through staging areas.
#include "process_conformance.hpp"

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
#include "comm/processes/process_job.hpp"
#include "comm/processes/process_launch.hpp"
#include "conformance.hpp"
#include "process_properties.hpp"

namespace {

using namespace tessera;

struct Property {
  std::string_view name;
  void (*run)(World&);
  int least_ranks;
  std::chrono::milliseconds timeout;
};

#define TESSERA_MPI_PROPERTY(name, least_ranks, timeout) \
  {#name, conformance::name, least_ranks, conformance::timeout_of(timeout)},
const Property properties[] = {TESSERA_CONFORMANCE_PROPERTIES(TESSERA_MPI_PROPERTY)
                                   TESSERA_MPI_PROPERTIES(TESSERA_MPI_PROPERTY)};
const Property large_properties[] = {TESSERA_LARGE_MPI_PROPERTIES(TESSERA_MPI_PROPERTY)};

// Whether the property held on this rank. A world that the property itself made fail is no violation.
bool holds(comm::Introduction& introduction, const Property& property) {
  comm::ProcessJob job(introduction, property.timeout);
  comm::RankLog log(std::nullopt, 0);
  bool held = true;
  try {
    World world(comm::make_process_backend(job, 1, log));
    property.run(world);
  } catch (...) {
    const std::string text = comm::text_of(std::current_exception());
    fmt::print(stderr, "{}: rank {}: {}\n", property.name, introduction.rank(), text);
    job.abort(text, nullptr);
    held = false;
  }
  job.leave();
  return held;
}

}  // namespace

// LeakSanitizer has this, where the build has that. At the end of the process MPI's libraries are gone, and with them
// the names by which their leaks are known (tests/sanitizers/lsan-mpi.supp).
extern "C" [[gnu::weak]] int __lsan_do_recoverable_leak_check();

int tessera::run_properties(comm::Introduction& introduction, std::span<char* const> arguments) {
  const bool large = arguments.size() > 1 && std::string_view(arguments[1]) == "--large";
  const std::string_view wanted = arguments.size() > 1 && !large ? arguments[1] : "";
  int run = 0;
  int violated = 0;
  for (const Property& property : large ? std::span<const Property>(large_properties) : properties) {
    if (introduction.size() < property.least_ranks || property.name.find(wanted) == std::string_view::npos) continue;
    ++run;
    violated += holds(introduction, property) ? 0 : 1;
  }
  if (introduction.rank() == 0) fmt::print("{} properties with {} processes\n", run, introduction.size());
  const bool leaks = __lsan_do_recoverable_leak_check != nullptr && __lsan_do_recoverable_leak_check() != 0;
  return violated == 0 && run > 0 && !leaks ? 0 : 1;
}
