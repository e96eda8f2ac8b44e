// A job of which one rank is killed right after its K-th store to the memory that the ranks of a host share, from the
// body's beginning to the rank's end: what processes_test.py starts for every K. With 0 it lives, and says how many
// stores there were.
//
// usage: killed_at_store K RANK [throw] [--timeout SECONDS]        exit code 77 where the processor is of another kind
//
// Pages are made read-only. A store to one is a signal, whose handler lets that instruction alone run on it.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/processes/shared_memory.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/stream.hpp"

namespace {

using namespace tessera;

#ifdef __x86_64__

constexpr std::uintptr_t page = 4096;
constexpr greg_t trap_flag = 0x100;

struct Region {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};
std::array<Region, 16> regions;
std::atomic<std::size_t> known = 0;
std::atomic<long> stores = 0;
long last_store = 0;
thread_local std::uintptr_t open_page = 0;
thread_local bool ends = false;

bool is_watched(std::uintptr_t address) {
  for (std::size_t i = 0; i < known; ++i) {
    if (address >= regions[i].begin && address < regions[i].end) return true;
  }
  return false;
}

void protect(std::uintptr_t begin, std::size_t size, int how) { ::mprotect(reinterpret_cast<void*>(begin), size, how); }

void on_store(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (!is_watched(address)) {
    ::signal(signal, SIG_DFL);
    return;
  }
  open_page = address / page * page;
  ends = ++stores == last_store;
  protect(open_page, 2 * page, PROT_READ | PROT_WRITE);  // a store may reach over the page's end
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= trap_flag;
}

void after_store(int, siginfo_t*, void* context) {
  if (ends) ::kill(::getpid(), SIGKILL);
  protect(open_page, page, PROT_READ);
  if (is_watched(open_page + page)) protect(open_page + page, page, PROT_READ);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~trap_flag;
}

// The job's state, and of each communicator what stands before the descriptions of calls.
void watch(int ranks) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    const bool is_group =
        line.find("tessera-creation") != std::string::npos || line.find("tessera-communicator") != std::string::npos;
    if (!is_group && line.find("tessera-job") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2 || is_watched(begin)) continue;
    if (is_group) end = begin + comm::shared::GroupLayout(ranks).data();
    regions.at(known) = {begin, end};
    ++known;
    protect(begin, end - begin, PROT_READ);
  }
}

void begin_to_watch(long k) {
  last_store = k;
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = on_store;
  ::sigaction(SIGSEGV, &action, nullptr);
  action.sa_sigaction = after_store;
  ::sigaction(SIGTRAP, &action, nullptr);
}

#else

constexpr std::atomic<long> stores = 0;
void watch(int) {}
void begin_to_watch(long) { std::_Exit(77); }

#endif

}  // namespace

int main(int argc, char** argv) {
  bool says = false;
  const int code = run(argc, argv, [&](World& world, Arguments rest) {
    const bool mine = world.rank() == std::stoi(rest[1]);
    const bool throws = mine && rest.size() > 2;
    const long k = std::stol(rest.front());
    says = mine && k == 0;
    if (mine) begin_to_watch(k);
    if (mine) watch(world.size());
    const auto communicator = world.make_communicator("gather");
    if (mine) watch(world.size());
    Arena arena = world.make_arena(Bytes(static_cast<std::size_t>(4096 * world.size())));
    Stream stream(Device::cpu(), {.name = "gather"});
    for (int step = 0; step < 2; ++step) {
      // The rank that is killed comes last, and so ends the phases, and then first.
      if (mine == (step == 0)) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (throws && step == 1) throw std::runtime_error("train.bin: empty");
      communicator->all_gather(stream, {.data = arena.data(), .shard = Bytes(4096), .label = "blocks.3"});
      stream.synchronize();
    }
  });
  if (says) std::printf("stores: %ld\n", stores.load());
  return code;
}
