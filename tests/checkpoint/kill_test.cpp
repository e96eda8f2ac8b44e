// SIGKILL at every system call of a save that touches files: what is the latest checkpoint afterwards is whole, and can
// be loaded.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "../extent.hpp"
#include "small_save.hpp"
#include "temporary_folder.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"

using namespace checkpoint_model;

namespace {

namespace fs = std::filesystem;

const std::set<long> calls_on_files = {
#ifdef SYS_open
    SYS_open,     SYS_mkdir,      SYS_rename,     SYS_unlink,          SYS_rmdir,    SYS_stat,      SYS_lstat,
    SYS_access,   SYS_newfstatat,
#endif
    SYS_openat,   SYS_mkdirat,    SYS_renameat,   SYS_renameat2,       SYS_unlinkat, SYS_ftruncate, SYS_write,
    SYS_pwrite64, SYS_pwritev,    SYS_fsync,      SYS_sync_file_range, SYS_close,    SYS_read,      SYS_pread64,
    SYS_preadv,   SYS_fstat,      SYS_getdents64, SYS_statx,           SYS_flock,    SYS_faccessat,
};

constexpr int no_tracing = 99;  // exit status of the child

struct Outcome {
  bool traced = true;   // false: this machine does not allow it
  bool killed = false;  // false: the program ended before it came to that call
  int status = 0;
};

bool trace_on(pid_t thread) { return ::ptrace(static_cast<__ptrace_request>(PTRACE_SYSCALL), thread, nullptr, 0) == 0; }

// The number of the system call that a stopped thread is about to make; -1 when it is not.
long entered_call(pid_t thread) {
  struct __ptrace_syscall_info info {};
  const long size = ::ptrace(static_cast<__ptrace_request>(PTRACE_GET_SYSCALL_INFO), thread, sizeof(info), &info);
  if (size <= 0 || info.op != PTRACE_SYSCALL_INFO_ENTRY) return -1;
  return static_cast<long>(info.entry.nr);
}

void run_traced(const char* program, const char* directory) {
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // it cannot look for leaks while it is traced
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(no_tracing);
  ::execl(program, program, directory, "2", "2", static_cast<char*>(nullptr));
  ::_exit(1);
}

// Runs the program and kills it before its `point`th call on files (from 1), counted from where it locks the directory.
Outcome run_and_kill(const fs::path& directory, std::size_t point) {
  const std::string path = directory.string();
  const pid_t child = ::fork();
  if (child == 0) run_traced(SAVE_PROGRAM, path.c_str());
  Outcome outcome;
  ::waitpid(child, &outcome.status, 0);
  if (!WIFSTOPPED(outcome.status)) {
    REQUIRE(WEXITSTATUS(outcome.status) == no_tracing);
    return {.traced = false};
  }
  constexpr long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL;
  if (::ptrace(PTRACE_SETOPTIONS, child, nullptr, options) != 0 || !trace_on(child)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    return {.traced = false};
  }
  std::size_t calls = 0;
  bool counting = false;
  for (;;) {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0 && errno == ECHILD) return outcome;
    if (thread < 0) continue;
    if (!WIFSTOPPED(status)) {
      if (thread == child) outcome.status = status;
      continue;
    }
    if (WSTOPSIG(status) == (SIGTRAP | 0x80) && !outcome.killed) {
      const long call = entered_call(thread);
      counting = counting || call == SYS_flock;
      if (counting && calls_on_files.contains(call) && ++calls == point) {
        outcome.killed = true;
        ::kill(child, SIGKILL);
        continue;
      }
    }
    // Signals of the tracing itself are not passed on.
    trace_on(thread);
  }
}

std::size_t stride() { return tests::reduced() ? 9 : 1; }

}  // namespace

TEST_CASE("killed_at_any_call_on_files_a_save_leaves_the_old_or_the_new_checkpoint_whole") {
  const TemporaryFolder folder;
  small_save(folder / "old", 1, 3);
  std::map<std::uint64_t, std::size_t> latest;
  std::size_t points = 0;
  for (std::size_t point = 1;; point += stride()) {
    const fs::path directory = folder / "run";
    fs::remove_all(directory);
    fs::copy(folder / "old", directory, fs::copy_options::recursive);
    const Outcome outcome = run_and_kill(directory, point);
    if (!outcome.traced) {
      MESSAGE("skipped: this machine does not let one process trace another");
      return;
    }
    INFO("killed before call ", point);
    REQUIRE((outcome.killed || (WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == 0)));
    const auto found = tessera::latest_checkpoint(directory);
    REQUIRE(found);
    CHECK(tessera::verify_checkpoint(found->path).empty());
    const std::uint64_t step = whole_latest(directory);
    CHECK(step == found->step);
    CHECK(tessera::unfinished_checkpoints(directory).empty());
    small_save(directory, 3, 2);  // training goes on from there
    CHECK(whole_latest(directory) == 3);
    if (!outcome.killed) {
      CHECK(step == 2);
      break;
    }
    ++latest[step];
    ++points;
  }
  MESSAGE("killed at ", points, " points: ", latest[1], " left the old checkpoint, ", latest[2], " the new one");
  CHECK(latest[1] > 0);
  CHECK(latest[2] > 0);
  CHECK(points * stride() > 100);
}
