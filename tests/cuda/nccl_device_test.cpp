// The conformance suite on NCCL itself: 1 to 4 ranks that are processes, over a rendezvous. Ranks share devices where
// there are fewer, if this NCCL can do that (2.30 and later).
//   test_cuda_nccl [--nccl PATH]
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "../comm/conformance.hpp"
#include "../comm/property.hpp"
#include "../comm/rendezvous_ranks.hpp"
#include "comm/nccl/nccl_backend.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

constexpr int skipped = 77;  // meson's code for a test that did not run
constexpr int most_ranks = 4;

struct Case {
  const char* name;
  void (*property)(World&);
  int least_ranks;
  std::chrono::milliseconds timeout;
};
#define TESSERA_NCCL_CASE(name, least_ranks, timeout) \
  {#name, conformance::name, least_ranks, std::chrono::milliseconds(timeout)},
const Case cases[] = {TESSERA_CONFORMANCE_PROPERTIES(TESSERA_NCCL_CASE)};

// CUDA does not survive a fork: what needs it happens in processes of its own, and this one never touches it.
template <typename Function>
pid_t in_process(const Function& function) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 1;
  try {
    code = function();
  } catch (const UnavailableError& error) {
    fmt::print("skipped: {}\n", error.what());
    code = skipped;
  } catch (const std::exception& error) {
    fmt::print("error: {}\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

int code_of(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// How many ranks can run here, or the code of a test that cannot; as a process's exit code, which is below 77.
int ranks_that_fit(const std::string& path) {
  if (cuda_device_count() == 0) throw UnavailableError(why_no_cuda());
  const auto nccl = open_nccl(path);
  fmt::print("{}, {} device(s)\n", nccl->name(), cuda_device_count());
  return nccl->shares_devices() ? most_ranks : std::min(most_ranks, cuda_device_count());
}

int run_rank(const JoinOptions& join, const Case& each, const std::string& path) {
  const auto nccl = open_nccl(path);
  const std::unique_ptr<Control> joined = join_rendezvous(join, each.timeout);
  Control& control = *joined;
  const Device device = Device::cuda(join.rank % cuda_device_count());
  conformance::device_of_this_thread() = device;
  NcclJob job(*nccl, control, device, {.staging = Bytes(1 << 20)});
  RankLog log(std::nullopt, join.rank);
  int code = 0;
  try {
    World world(std::make_unique<NcclBackend>(job, 1, log, Place{}));
    try {
      each.property(world);
    } catch (const std::exception& error) {
      fmt::print("FAILED {} with {} ranks, rank {}: {}\n", each.name, join.ranks, join.rank, error.what());
      code = 1;
      throw;
    }
  } catch (const std::exception& error) {
    control.abort(error.what(), std::current_exception());
  }
  control.leave();
  return code;
}

bool holds(const Case& each, int ranks, const std::string& path) {
  const Meeting meeting({.ranks = ranks, .timeout = each.timeout});
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(in_process([&] { return run_rank(meeting.join_options(rank), each, path); }));
  }
  bool all = true;
  for (const pid_t child : children) all = code_of(child) == 0 && all;
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc == 3 && std::string_view(argv[1]) == "--nccl" ? argv[2] : "";
  if (argc != 1 && path.empty()) return 2;
  // Several ranks on one device have to share its blocks, and cannot use what needs it whole.
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  ::setenv("NCCL_MAX_CTAS", "4", 0);
  const int fit = code_of(in_process([&] { return ranks_that_fit(path); }));
  if (fit == skipped || fit < 1 || fit > most_ranks) return fit == skipped ? skipped : 1;
  int failed = 0;
  int held = 0;
  for (int ranks = 1; ranks <= fit; ++ranks) {
    for (const Case& each : cases) {
      // Ranks that call communicators crosswise are what NCCL does not promise (nccl_conformance_test.cpp).
      if (ranks < each.least_ranks || conformance::calls_crosswise(each.property)) continue;
      (holds(each, ranks, path) ? held : failed) += 1;
    }
  }
  fmt::print("{} held, {} failed, with 1 to {} ranks{}\n", held, failed, fit,
             fit < most_ranks ? "; more need more devices, or NCCL 2.30" : "");
  return failed == 0 ? 0 : 1;
}
