// run(): the launch options of a command line, exit codes, and one line on stderr.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "comm/rank_run.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/start.hpp"
#include "tessera/device/cuda.hpp"

using namespace tessera;

namespace {

struct Outcome {
  int exit_code = 0;
  std::string errors;  // what was written to stderr
};

// Runs `function` with stderr going to a file.
template <typename Function>
Outcome outcome_of(Function&& function) {
  std::fflush(stderr);
  std::FILE* const file = std::tmpfile();
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  Outcome outcome;
  outcome.exit_code = function();
  std::fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::rewind(file);
  char buffer[4096];
  outcome.errors.assign(buffer, std::fread(buffer, 1, sizeof(buffer), file));
  std::fclose(file);
  return outcome;
}

// A body saw this of one command line.
struct Seen {
  Outcome outcome;
  int ranks = 0;
  int threads = 0;
  std::chrono::milliseconds timeout{0};
  std::vector<std::string> rest;
};

struct CommandLine {
  explicit CommandLine(std::vector<std::string> arguments) : text(std::move(arguments)) {
    text.insert(text.begin(), "program");
    for (std::string& argument : text) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
  }
  int argc() const { return static_cast<int>(text.size()); }
  char** argv() { return pointers.data(); }

  std::vector<std::string> text;
  std::vector<char*> pointers;
};

Seen run_with(std::vector<std::string> arguments) {
  CommandLine line(std::move(arguments));
  Seen seen;
  seen.outcome = outcome_of([&] {
    return run(line.argc(), line.argv(), [&](World& world, Arguments rest) {
      if (world.rank() != 0) return;
      seen.ranks = world.size();
      seen.threads = world.threads();
      seen.timeout = world.timeout();
      seen.rest.assign(rest.begin(), rest.end());
    });
  });
  return seen;
}

bool is_one_line(const std::string& text) {
  return !text.empty() && std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n';
}

}  // namespace

TEST_CASE("run_takes_its_options_and_hands_on_the_rest_in_order") {
  const Seen seen = run_with({"--lr", "0.1", "--ranks", "3", "input", "--threads=2", "--timeout", "2.5", "--ranksx"});
  CHECK(seen.outcome.exit_code == 0);
  CHECK(seen.outcome.errors.empty());
  CHECK(seen.ranks == 3);
  CHECK(seen.threads == 2);
  CHECK(seen.timeout == std::chrono::milliseconds(2500));
  CHECK(seen.rest == std::vector<std::string>{"--lr", "0.1", "input", "--ranksx"});
}

TEST_CASE("run_without_options_has_one_rank") {
  const Seen seen = run_with({});
  CHECK(seen.outcome.exit_code == 0);
  CHECK(seen.ranks == 1);
  CHECK(seen.rest.empty());
}

TEST_CASE("bad_launch_options_are_one_line_and_exit_code_2") {
  const std::vector<std::vector<std::string>> bad = {{"--ranks"},
                                                     {"--ranks", ""},
                                                     {"--ranks="},
                                                     {"--ranks", "0"},
                                                     {"--ranks", "-1"},
                                                     {"--ranks", "1025"},
                                                     {"--ranks", "four"},
                                                     {"--ranks", "4x"},
                                                     {"--ranks", "2.0"},
                                                     {"--ranks", " 2"},
                                                     {"--threads", "0"},
                                                     {"--threads", "999999999999"},
                                                     {"--timeout", "0"},
                                                     {"--timeout", "nan"},
                                                     {"--timeout", "inf"},
                                                     {"--timeout", "1e9"},
                                                     {"--timeout", "x"},
                                                     {"--timeout", "0.0001"},
                                                     {"--log-dir", ""},
                                                     {"--device", "gpu"},
                                                     {"--device", ""},
                                                     {"--backend", "mpi"},
                                                     {"--backend", ""},
                                                     {"--backend", "nccl"},
                                                     {"--sums", "quick"},
                                                     {"--sums", "fast"},
                                                     {"--ranks", "2", "--ranks", "2"},
                                                     {"--ranks=2", "--ranks", "2"}};
  for (const std::vector<std::string>& arguments : bad) {
    const Seen seen = run_with(arguments);
    CAPTURE(arguments.back());
    CHECK(seen.outcome.exit_code == 2);
    CHECK(seen.ranks == 0);
    CHECK(is_one_line(seen.outcome.errors));
    CHECK(seen.outcome.errors.rfind("error: " + arguments[0].substr(0, arguments[0].find('=')), 0) == 0);
  }
}

TEST_CASE("each_rank_has_its_log_and_warnings_carry_its_number") {
  const auto directory = std::filesystem::temp_directory_path() / ("tessera-logs-" + std::to_string(getpid()));
  CommandLine line({"--ranks=2", "--log-dir", (directory / "of" / "ranks").string()});
  const Outcome outcome = outcome_of([&] {
    return run(line.argc(), line.argv(), [](World& world) {
      world.barrier("begin");
      if (world.rank() == 1) world.warn("the disk is slow");
      world.barrier("end");
      if (world.rank() == 0) throw DataError("train.bin: empty");
    });
  });
  CHECK(outcome.errors == "warning: rank 1: the disk is slow\nerror: rank 0: train.bin: empty\n");
  const auto log_of = [&](int rank) {
    std::ifstream file(directory / "of" / "ranks" / ("rank-" + std::to_string(rank) + ".log"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(log_of(0).find("rank 0 of 2 begins") != std::string::npos);
  CHECK(log_of(0).find("error: train.bin: empty") != std::string::npos);
  CHECK(log_of(1).find("warning: the disk is slow") != std::string::npos);
  CHECK(log_of(1).find("ended") != std::string::npos);
  std::filesystem::remove_all(directory);
}

TEST_CASE("log_directory_that_cannot_be_written_is_named") {
  CommandLine line({"--log-dir", "/proc/nowhere"});
  const Outcome outcome =
      outcome_of([&] { return run(line.argc(), line.argv(), [](World&) { FAIL("the body must not run"); }); });
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.errors.rfind("error: /proc/nowhere/rank-0.log: cannot be written", 0) == 0);
}

TEST_CASE("run_without_arguments_for_the_body_rejects_what_is_left") {
  CommandLine line({"--ranks", "2", "--fast"});
  const Outcome outcome =
      outcome_of([&] { return run(line.argc(), line.argv(), [](World&) { FAIL("the body must not run"); }); });
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.errors == "error: unknown argument \"--fast\"; --help lists the options\n");
}

TEST_CASE("exception_in_a_rank_is_one_line_and_exit_code_1") {
  const Outcome outcome = outcome_of([] {
    return run({.ranks = 3}, [](World& world) {
      if (world.rank() == 1) throw DataError("train.bin: empty");
      world.barrier("end");
    });
  });
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.errors == "error: rank 1: train.bin: empty\n");
}

TEST_CASE("run_with_bad_options_in_code_is_exit_code_2") {
  const Outcome outcome = outcome_of([] { return run({.ranks = 0}, [](World&) { FAIL("the body must not run"); }); });
  CHECK(outcome.exit_code == 2);
  CHECK(is_one_line(outcome.errors));
}

TEST_CASE("variables_of_a_launcher_that_make_no_sense_are_one_line_that_names_them") {
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
                                 "SLURM_STEP_NUM_TASKS"}) {
    for (const std::string value : {"", "0x1", "-1", "1e3", "99999999999", " 1", "\xff\n"}) {
      CAPTURE(name);
      CAPTURE(value);
      ::setenv(name, value.c_str(), 1);
      const Outcome outcome = outcome_of([] { return run({}, [](World&) { FAIL("the body must not run"); }); });
      CHECK(is_first_process());
      ::unsetenv(name);
      CHECK(outcome.exit_code == 2);
      CHECK(outcome.errors.rfind(std::string("error: the environment's ") + name + " is \"", 0) == 0);
      CHECK(is_one_line(outcome.errors));
    }
  }
}

namespace {

// While it lives, this process is one of two that torchrun has started.
class OneOfTwo {
 public:
  explicit OneOfTwo(const std::string& rank)
      : variables_{{"RANK", rank}, {"LOCAL_RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}} {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~OneOfTwo() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }
  OneOfTwo(const OneOfTwo&) = delete;
  OneOfTwo& operator=(const OneOfTwo&) = delete;

 private:
  const std::map<std::string, std::string> variables_;
};

}  // namespace

TEST_CASE("devices_that_a_process_does_not_find_are_said_by_it_and_options_by_the_first_one") {
  if (cuda_device_count() > 0) return;
  const auto errors_of = [](const std::string& rank, const LaunchOptions& options) {
    const OneOfTwo process(rank);
    const Outcome outcome = outcome_of([&] { return run(options, [](World&) { FAIL("the body must not run"); }); });
    CHECK(outcome.exit_code == 2);
    return outcome.errors;
  };
  for (const std::string rank : {"0", "1"}) {
    const std::string errors = errors_of(rank, {.device = DeviceChoice::cuda});
    CHECK(is_one_line(errors));
    CHECK(errors.rfind("error: rank " + rank + ": --device cuda: ", 0) == 0);
  }
  CHECK(errors_of("0", {.ranks = 2}).rfind("error: --ranks 2: torchrun has started this program as rank 0", 0) == 0);
  CHECK(errors_of("1", {.ranks = 2}) == "");
}

TEST_CASE("a_job_begins_also_where_standard_error_is_full") {
  comm::RankLog log(std::nullopt, 0);
  const LaunchOptions options;
  const comm::Body body = [](World&) {};
  const comm::Launched launched{.body = body, .report = {}};
  const Start start{.launcher = Launcher::torchrun, .by = "torchrun", .rank = 0, .ranks = 2};
  const int saved = dup(STDERR_FILENO);
  const int full = open("/dev/full", O_WRONLY);
  REQUIRE(full >= 0);
  dup2(full, STDERR_FILENO);
  bool thrown = false;
  try {
    comm::say_start({.start = start, .options = options, .launched = launched, .log = log}, "2 ranks");
  } catch (...) {
    thrown = true;
  }
  dup2(saved, STDERR_FILENO);
  close(full);
  close(saved);
  CHECK_FALSE(thrown);
}
