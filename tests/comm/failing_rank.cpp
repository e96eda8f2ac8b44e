// A job in which one rank does what ranks should not do, under way between collectives: what mpi_failure_test.py
// starts.
//
// usage: failing_rank WHAT [--timeout SECONDS]
//
// WHAT is nothing or output; of a rank among others throw, abort, exit, quick-exit, kill, stop, options or leave; of
// the last rank after the others have left kill-last, stop-last or work-last; of one that has left, too, stop-at-end.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/stream.hpp"

namespace {

using namespace tessera;

// The last rank does this in the third of its steps.
void misbehave(World& world, const std::string& what) {
  if (what == "throw") throw DataError("train.bin: empty");
  if (what == "abort") world.abort("the disk is full");
  if (what == "exit") std::exit(0);
  if (what == "quick-exit") ::_exit(3);
  if (what == "kill") ::raise(SIGKILL);
  if (what == "stop") ::raise(SIGSTOP);
  if (what == "options") world.require_equal(17, "the plan");
}

// The last rank does this when the others have left.
void stay(World& world, const std::string& what) {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto end = std::chrono::steady_clock::now() + 2 * world.timeout();
  if (what == "kill-last") ::raise(SIGKILL);
  if (what == "stop-last") ::raise(SIGSTOP);
  while (what == "work-last" && std::chrono::steady_clock::now() < end) {
  }
}

bool is_of_last(const std::string& what) { return what.size() > 5 && what.substr(what.size() - 5) == "-last"; }

void run_steps(World& world, const std::string& what) {
  const auto communicator = world.make_communicator("gather");
  const auto ranks = static_cast<std::size_t>(world.size());
  Arena arena = world.make_arena(Bytes(4096 * ranks));
  Stream stream(Device::cpu(), {.name = "gather"});
  for (int step = 0; step < 1000; ++step) {
    communicator->all_gather(stream, {.data = arena.data(), .shard = Bytes(4096), .label = "blocks.3"});
    stream.synchronize();
    if ((what == "nothing" || what == "stop-at-end") && step == 10) return;
    if (step != 2) continue;
    if (is_of_last(what)) return world.rank() == world.size() - 1 ? stay(world, what) : void();
    if (world.rank() == world.size() - 1) {
      if (what == "leave") return;
      misbehave(world, what);
    } else if (what == "options") {
      world.require_equal(42, "the plan");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool stops = false;
  const int code = run(argc, argv, [&](World& world, Arguments rest) {
    const std::string what = rest.empty() ? "nothing" : rest.front();
    if (what == "output") {
      std::printf("printed by rank %d\n", world.rank());
      world.warn("slow");
    }
    run_steps(world, what == "output" ? "nothing" : what);
    stops = what == "stop-at-end" && world.rank() == world.size() - 1;
  });
  if (stops) ::raise(SIGSTOP);
  return code;
}
