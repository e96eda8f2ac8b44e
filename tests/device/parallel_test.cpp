// One operation shared among threads: every part once, helpers of each thread, errors, nested operations, shares.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../sanitizers/sanitizers.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"

using namespace tessera;

namespace parallel_test {

// Restores the one thread that other tests expect.
struct Threads {
  explicit Threads(int threads) { parallel::set_threads(threads); }
  ~Threads() { parallel::set_threads(1); }
};

TEST_CASE("every_part_runs_once_and_its_writes_are_seen_by_the_caller") {
  for (const int threads : {1, 2, 3, 5, 8}) {
    const Threads guard(threads);
    for (int round = 0; round < 200; ++round) {
      for (const std::size_t parts : {0, 1, 2, 3, 7, 100}) {
        std::vector<int> runs(parts);  // not atomic: the end of the operation is what orders them
        std::vector<std::size_t> worker_of(parts);
        parallel::in_parts(parts, [&](std::size_t part, std::size_t worker) {
          ++runs[part];
          worker_of[part] = worker;
        });
        CHECK(runs == std::vector<int>(parts, 1));
        for (const std::size_t worker : worker_of) CHECK(worker < static_cast<std::size_t>(threads));
      }
    }
  }
}

TEST_CASE("no_worker_runs_two_parts_at_once") {
  const Threads guard(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> meetings = 0;
  for (int round = 0; round < 50; ++round) {
    parallel::in_parts(40, [&](std::size_t, std::size_t worker) {
      if (busy[worker].fetch_add(1) != 0) ++meetings;
      std::this_thread::yield();
      --busy[worker];
    });
  }
  CHECK(meetings == 0);
}

TEST_CASE("parts_really_run_on_several_threads_at_once") {
  const Threads guard(3);
  std::atomic<int> here = 0;
  // Each part waits for the others: on fewer threads this would never end.
  parallel::in_parts(3, [&](std::size_t, std::size_t) {
    ++here;
    while (here < 3) std::this_thread::yield();
  });
  CHECK(here == 3);
}

TEST_CASE("threads_that_share_work_at_the_same_time_have_helpers_of_their_own") {
  const Threads guard(2);
  std::vector<std::thread> ranks;
  std::vector<int> wrong(4);
  for (std::size_t rank = 0; rank < wrong.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      for (int round = 0; round < 300; ++round) {
        std::vector<std::size_t> values(17);
        parallel::in_parts(17, [&](std::size_t part, std::size_t) { values[part] = part + rank; });
        for (std::size_t part = 0; part < 17; ++part) wrong[rank] += values[part] == part + rank ? 0 : 1;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("helpers_that_sleep_come_back") {
  const Threads guard(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> here = 0;
    parallel::in_parts(3, [&](std::size_t, std::size_t) {
      ++here;
      while (here < 3) std::this_thread::yield();
    });
  }
}

TEST_CASE("the_lowest_parts_error_is_thrown_and_the_team_goes_on") {
  for (const int threads : {1, 2, 4}) {
    const Threads guard(threads);
    for (int round = 0; round < 20; ++round) {
      std::string text;
      try {
        parallel::in_parts(9, [](std::size_t part, std::size_t) {
          if (part >= 3) throw std::runtime_error("part " + std::to_string(part));
        });
      } catch (const std::runtime_error& error) {
        text = error.what();
      }
      CHECK(text == "part 3");
      std::atomic<int> runs = 0;
      parallel::in_parts(9, [&](std::size_t, std::size_t) { ++runs; });
      CHECK(runs == 9);
    }
  }
}

TEST_CASE("an_operation_in_a_part_runs_there") {
  const Threads guard(3);
  std::vector<std::set<std::thread::id>> threads_of(6);
  std::vector<std::set<std::size_t>> workers_of(6);
  parallel::in_parts(6, [&](std::size_t part, std::size_t) {
    CHECK(parallel::shares_of({.count = 100}) == 1);
    parallel::in_parts(5, [&](std::size_t, std::size_t worker) {
      threads_of[part].insert(std::this_thread::get_id());
      workers_of[part].insert(worker);
    });
  });
  for (const auto& threads : threads_of) CHECK(threads.size() == 1);
  for (const auto& workers : workers_of) CHECK(workers == std::set<std::size_t>{0});
}

TEST_CASE("shares_cover_a_count_once_within_its_units") {
  for (const int threads : {1, 2, 3, 7}) {
    const Threads guard(threads);
    for (const std::size_t count : {0, 1, 2, 63, 64, 65, 127, 1009}) {
      for (const std::size_t unit : {1, 16, 64}) {
        for (const std::size_t least : {1, 100}) {
          std::vector<int> covered(count);
          std::atomic<int> uneven = 0;
          parallel::in_shares({count, least, unit}, [&](std::size_t begin, std::size_t end, std::size_t) {
            uneven += begin % unit != 0 || begin >= end;
            for (std::size_t i = begin; i < end; ++i) ++covered[i];
          });
          CHECK(covered == std::vector<int>(count, 1));
          CHECK(uneven == 0);
        }
      }
    }
  }
  const Threads guard(4);
  CHECK(parallel::shares_of({.count = 0}) == 0);
  CHECK(parallel::shares_of({.count = 1000, .least = 300}) == 3);
  CHECK(parallel::shares_of({.count = 1000, .least = 5000}) == 1);
  CHECK(parallel::shares_of({.count = 1000, .least = 1}) == 4);
  CHECK(parallel::shares_of({.count = 100, .least = 1, .unit = 64}) == 2);
  CHECK(parallel::shares_of({.count = 1000, .turns = 6}) == 24);
  CHECK(parallel::shares_of({.count = 1000, .least = 300, .turns = 6}) == 3);
  parallel::set_threads(1);
  CHECK(parallel::shares_of({.count = 1000, .turns = 6}) == 1);
}

// A sanitizer needs more address space than any limit that would do here.
constexpr bool may_be_limited = !TESSERA_ADDRESS_SANITIZER && !TESSERA_THREAD_SANITIZER;

// Returns what a process with room for the stacks of a few threads says of an operation on 600, and whether it then
// computes on one.
int end_of_crowded_process() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<rlim_t>(::getpagesize()) + (rlim_t{64} << 20);
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
  int runs = 0;
  parallel::set_threads(600);
  try {
    parallel::in_parts(2, [&](std::size_t, std::size_t) {});
    return 3;
  } catch (const UnavailableError& error) {
    if (std::string(error.what()).find("599 threads beside the calling one") == std::string::npos) return 4;
  }
  parallel::set_threads(1);
  parallel::in_parts(2, [&](std::size_t, std::size_t) { ++runs; });
  return runs == 2 ? 0 : 5;
}

TEST_CASE("helpers_that_the_system_refuses_are_an_error_that_may_be_caught" * doctest::skip(!may_be_limited)) {
  const pid_t child = ::fork();
  if (child == 0) {
    // On a thread that has no helpers yet: those of the test's own are not in this process.
    std::thread([] { ::_exit(end_of_crowded_process()); }).join();
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("no_threads_are_refused") {
  CHECK_THROWS_WITH_AS(parallel::set_threads(0), "set_threads: threads must be at least 1, but is 0", UsageError);
  CHECK(parallel::threads() == 1);
}

}  // namespace parallel_test
