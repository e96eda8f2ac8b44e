// launch(): ranks, their errors, and which of several errors is the first cause.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../error_text.hpp"
#include "../sanitizers/sanitizers.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/stream.hpp"

using namespace tessera;
using std::chrono::milliseconds;

#if TESSERA_ADDRESS_SANITIZER
// A forked child has only the thread that forked it: what the others own looks lost there to LeakSanitizer, which asks
// this.
static bool forked = false;
extern "C" int __lsan_is_turned_off() { return forked ? 1 : 0; }
static void note_fork() { forked = true; }
#else
static void note_fork() {}
#endif

namespace {

// The text of what launch() throws, which must be an Expected.
template <typename Expected>
std::string failure_of(const LaunchOptions& options, const std::function<void(World&)>& body) {
  return tests::error_text<Expected>([&] { launch(options, body); }, "launch() succeeded");
}

template <typename Thrown>
void check_family_member_is_kept() {
  const auto body = [](World& world) {
    if (world.rank() == 2) throw Thrown("the cause");
    world.barrier("end");
  };
  CHECK(failure_of<Thrown>({.ranks = 3}, body) == "rank 2: the cause");
}

// A process that runs a function and ends with 0 after it; what it writes to stderr comes through a pipe.
class Process {
 public:
  explicit Process(const std::function<void()>& function) {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    id_ = ::fork();
    if (id_ == 0) {
      ::dup2(pipe[1], STDERR_FILENO);
      function();
      ::_exit(0);
    }
    ::close(pipe[1]);
    errors_ = pipe[0];
  }
  ~Process() {
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    ::close(errors_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { ::kill(id_, signal); }
  // Returns what it has written next, at most so much; nothing when it has ended.
  std::string read(std::size_t most) const {
    std::string text(most, ' ');
    const ssize_t count = ::read(errors_, text.data(), most);
    return text.substr(0, count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  // All that it writes until it ends, and its code.
  std::pair<int, std::string> end() const {
    std::string text;
    for (std::string part = read(4096); !part.empty(); part = read(4096)) text += part;
    int status = 0;
    ::waitpid(id_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text};
  }

 private:
  pid_t id_ = -1;
  int errors_ = -1;
};

}  // namespace

TEST_CASE("every_rank_runs_once_and_rank_0_on_the_calling_thread") {
  for (const int ranks : {1, 2, 3, 7, 16}) {
    std::mutex mutex;
    std::multiset<int> seen;
    std::thread::id thread_of_rank_0;
    launch({.ranks = ranks, .threads = 3}, [&](World& world) {
      const std::lock_guard lock(mutex);
      seen.insert(world.rank());
      if (world.rank() == 0) thread_of_rank_0 = std::this_thread::get_id();
      CHECK(world.size() == ranks);
      CHECK(world.threads() == 3);
      CHECK(world.timeout() == milliseconds(60'000));
      CHECK(world.backend_name() == "local");
      CHECK(world.device() == Device::cpu());
      CHECK_FALSE(world.aborted());
    });
    CHECK(seen.size() == static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) CHECK(seen.count(rank) == 1);
    CHECK(thread_of_rank_0 == std::this_thread::get_id());
  }
}

TEST_CASE("threads_default_to_cores_per_rank_and_at_least_one") {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  launch({.ranks = 1}, [&](World& world) { CHECK(world.threads() == cores); });
  launch({.ranks = cores + 1}, [&](World& world) { CHECK(world.threads() == 1); });
}

TEST_CASE("first_cause_keeps_its_type_and_names_its_rank") {
  check_family_member_is_kept<Error>();
  check_family_member_is_kept<UsageError>();
  check_family_member_is_kept<DataError>();
  check_family_member_is_kept<MemoryError>();
  check_family_member_is_kept<CommunicationError>();
  check_family_member_is_kept<AbortedError>();
  check_family_member_is_kept<UnavailableError>();
  check_family_member_is_kept<InternalError>();
}

TEST_CASE("foreign_exceptions_become_errors") {
  const auto standard = [](World& world) {
    if (world.rank() == 1) throw std::out_of_range("the cause");
    world.barrier("end");
  };
  CHECK(failure_of<Error>({.ranks = 2}, standard) == "rank 1: the cause");
  const auto by_name = [](World& world) {
    if (world.rank() == 1) throw std::out_of_range("rank 1, in its window: the cause");
    world.barrier("end");
  };
  CHECK(failure_of<Error>({.ranks = 2}, by_name) == "rank 1, in its window: the cause");
  const auto by_anothers = [](World& world) {
    if (world.rank() == 1) throw std::out_of_range("rank 10 is not there");
    world.barrier("end");
  };
  CHECK(failure_of<Error>({.ranks = 2}, by_anothers) == "rank 1: rank 10 is not there");
  const auto unknown = [](World& world) {
    if (world.rank() == 1) throw 7;
    world.barrier("end");
  };
  CHECK(failure_of<Error>({.ranks = 2}, unknown) == "rank 1: unknown exception");
}

TEST_CASE("single_rank_throws_the_exception_itself") {
  CHECK(failure_of<std::out_of_range>({}, [](World&) { throw std::out_of_range("the cause"); }) == "the cause");
  CHECK(failure_of<DataError>({}, [](World&) { throw DataError("the cause"); }) == "the cause");
}

TEST_CASE("other_ranks_get_an_aborted_error_with_the_first_cause") {
  std::atomic<int> told = 0;
  const auto body = [&](World& world) {
    if (world.rank() == 1) throw DataError("train.bin: empty");
    try {
      world.barrier("end");
    } catch (const AbortedError& error) {
      CHECK(std::string(error.what()) == "rank 1 failed first: train.bin: empty");
      ++told;
      throw;
    }
  };
  CHECK(failure_of<DataError>({.ranks = 5}, body) == "rank 1: train.bin: empty");
  CHECK(told == 4);
}

TEST_CASE("swallowing_the_aborted_error_does_not_make_launch_succeed") {
  const auto body = [](World& world) {
    try {
      if (world.rank() == 0) world.abort("disk full");
      world.barrier("end");
    } catch (const AbortedError&) {
    }
  };
  CHECK(failure_of<AbortedError>({.ranks = 3}, body) == "rank 0: disk full");
}

TEST_CASE("abort_ends_waits_while_the_aborting_rank_goes_on") {
  std::atomic<int> told = 0;
  const auto body = [&](World& world) {
    if (world.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(20));  // the others are likely to wait by now
      world.abort("disk full");
      const auto start = std::chrono::steady_clock::now();
      while (told < 4 && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) std::this_thread::yield();
      CHECK(told == 4);
      return;
    }
    CHECK_THROWS_WITH_AS(world.barrier("end"), "rank 0 failed first: disk full", AbortedError);
    ++told;
  };
  CHECK(failure_of<AbortedError>({.ranks = 5}, body) == "rank 0: disk full");
}

TEST_CASE("abort_without_any_collective_makes_launch_fail") {
  CHECK(failure_of<AbortedError>({.ranks = 2}, [](World& world) {
          if (world.rank() == 1) world.abort("disk full");
        }) == "rank 1: disk full");
}

TEST_CASE("what_the_aborting_rank_throws_is_the_first_cause") {
  const auto body = [](World& world) {
    if (world.rank() == 1) {
      world.abort("a stream failed");
      throw DataError("train.bin: empty");
    }
    world.barrier("end");
  };
  CHECK(failure_of<DataError>({.ranks = 2}, body) == "rank 1: train.bin: empty");
}

TEST_CASE("failed_collective_that_nobody_synchronises_makes_launch_fail") {
  const std::string text = failure_of<CommunicationError>({.ranks = 3}, [](World& world) {
    const auto communicator = world.make_communicator("gather");
    Stream stream(Device::cpu(), {.name = "gather"});
    communicator->barrier(stream, world.rank() == 0 ? "here" : "there");
  });
  CHECK(text.find("ranks 1, 2 called #1 barrier \"there\"") != std::string::npos);
}

TEST_CASE("exception_while_a_collective_is_queued_reaches_all_ranks") {
  const auto start = std::chrono::steady_clock::now();
  const auto body = [](World& world) {
    const auto communicator = world.make_communicator("gather");
    Stream stream(Device::cpu(), {.name = "gather"});
    communicator->barrier(stream, "all come here");
    if (world.rank() == 1) throw UsageError("window out of order");
    communicator->barrier(stream, "rank 1 never comes here");
    stream.synchronize();
  };
  CHECK(failure_of<UsageError>({.ranks = 4}, body) == "rank 1: window out of order");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("one_communicator_on_two_streams_at_once_is_an_error") {
  const std::string text = failure_of<UsageError>({.ranks = 2}, [](World& world) {
    const auto communicator = world.make_communicator("gather");
    if (world.rank() == 1) {
      while (!world.aborted()) std::this_thread::yield();
      return;
    }
    Stream first(Device::cpu(), {.name = "first"});
    Stream second(Device::cpu(), {.name = "second"});
    communicator->barrier(first, "a");
    communicator->barrier(second, "b");
  });
  CHECK(text.find("rank 0 drives communicator gather from two streams at once") != std::string::npos);
}

TEST_CASE("world_may_be_moved") {
  launch({.ranks = 3}, [](World& world) {
    World moved = std::move(world);
    CHECK(moved.sum(1.0, "ranks") == 3.0);
    world = std::move(moved);
    CHECK(world.sum(1.0, "ranks") == 3.0);
  });
}

TEST_CASE("a_mean_is_exact_over_what_ranks_bring_also_where_some_bring_nothing") {
  for (const int ranks : {1, 2, 3, 7}) {
    launch({.ranks = ranks}, [&](World& world) {
      // Rank 0 brings 3 samples, rank 2 brings 8, and nobody else any.
      const double sums[] = {15.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0};
      const double weights[] = {3.0, 0.0, 8.0, 0.0, 0.0, 0.0, 0.0};
      CHECK(world.mean(sums[world.rank()], weights[world.rank()], "loss") == (ranks > 2 ? 35.0 / 11.0 : 5.0));
      CHECK_THROWS_WITH_AS(world.mean(0.0, 0.0, "loss"),
                           "loss: there is no mean, because the weight of every rank is 0", UsageError);
      for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
        CHECK_THROWS_WITH_AS(world.mean(1.0, weight, "loss"), doctest::Contains("a weight is finite and at least 0"),
                             UsageError);
      }
    });
  }
}

TEST_CASE("worlds_are_independent") {
  launch({.ranks = 2}, [](World& outer) {
    CHECK(failure_of<DataError>({.ranks = 3}, [](World& inner) {
            if (inner.rank() == 1) throw DataError("inner");
            inner.barrier("end");
          }) == "rank 1: inner");
    CHECK_FALSE(outer.aborted());
    CHECK(outer.sum(1.0, "ranks") == 2.0);
  });
}

TEST_CASE("many_ranks_meet") {
  launch({.ranks = 67}, [](World& world) { CHECK(world.sum(world.rank(), "ranks") == 67.0 * 66.0 / 2.0); });
}

TEST_CASE("launch_options_outside_their_limits_are_errors") {
  const auto never = [](World&) { FAIL("the body must not run"); };
  CHECK_THROWS_AS(launch({.ranks = 0}, never), UsageError);
  CHECK_THROWS_AS(launch({.ranks = -1}, never), UsageError);
  CHECK_THROWS_AS(launch({.ranks = 1025}, never), UsageError);
  CHECK_THROWS_AS(launch({.timeout = milliseconds(0)}, never), UsageError);
  CHECK_THROWS_AS(launch({.timeout = milliseconds::max()}, never), UsageError);
  CHECK_THROWS_AS(launch({.threads = 0}, never), UsageError);
}

TEST_CASE("exit_in_a_rank_that_is_a_thread_is_a_failure_that_names_it") {
  for (const int rank : {0, 1, 2}) {
    const Process process([&] {
      run({.ranks = 3}, [&](World& world) {
        world.barrier("begin");
        if (world.rank() == rank) std::exit(0);
        world.barrier("end");
      });
    });
    const auto [code, errors] = process.end();
    CHECK(code == 1);
    CHECK(errors == "error: rank " + std::to_string(rank) + ": the process called exit() in the middle of the job\n");
  }
}

TEST_CASE("exit_in_a_child_that_a_rank_has_forked_ends_the_child_alone") {
  const Process process([] {
    ::_exit(run({.ranks = 2}, [](World& world) {
      world.barrier("begin");
      if (world.rank() == 1) {
        const pid_t child = ::fork();
        if (child == 0) {
          note_fork();
          std::exit(3);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3) throw Error("the child did not end as it said");
      }
      world.barrier("end");
    }));
  });
  const auto [code, errors] = process.end();
  CHECK(code == 0);
  CHECK(errors == "");
}

TEST_CASE("exit_in_a_rank_is_exit_code_1_also_where_nobody_can_be_told") {
  const Process process([] {
    ::dup2(::open("/dev/full", O_WRONLY), STDERR_FILENO);
    run({.ranks = 2}, [](World& world) {
      world.barrier("begin");
      if (world.rank() == 1) std::exit(0);
      world.barrier("end");
    });
  });
  CHECK(process.end().first == 1);
}

TEST_CASE("exit_after_the_job_is_nobodys_failure") {
  const Process process([] {
    run({.ranks = 2}, [](World& world) { world.barrier("end"); });
    std::exit(3);
  });
  const auto [code, errors] = process.end();
  CHECK(code == 3);
  CHECK(errors == "");
}

TEST_CASE("job_that_was_stopped_for_longer_than_its_deadline_goes_on") {
  const Process process([] {
    const int code = run({.ranks = 2, .timeout = milliseconds(1'000)}, [](World& world) {
      world.barrier("begin");
      if (world.rank() == 1) {
        REQUIRE(::write(STDERR_FILENO, "begins", 6) == 6);
        for (int i = 0; i < 30; ++i) std::this_thread::sleep_for(milliseconds(10));
      }
      world.barrier("end");
    });
    ::_exit(code);
  });
  CHECK(process.read(6) == "begins");
  process.send(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1'600));
  process.send(SIGCONT);
  const auto [code, errors] = process.end();
  CHECK(code == 0);
  CHECK(errors == "");
}
