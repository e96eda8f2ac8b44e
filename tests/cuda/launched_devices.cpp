// A rank with an emulated CUDA device in a process of its own, whoever has started it. The tests' NCCL lives in one
// process, so what ranks of several do here goes over their rendezvous alone; a single rank uses NCCL's calls, too.
//
// usage: launched_devices [kill|gather] --device cuda
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "tessera/comm/run.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"

namespace {

using namespace tessera;

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

void gather_over_nccl(World& world) {
  const auto communicator = world.make_communicator("gather");
  Arena arena = world.make_arena(Bytes(4096));
  Stream stream(world.device(), {.name = "gather"});
  communicator->all_gather(stream, {.data = arena.data(), .shard = Bytes(4096), .label = "blocks.3"});
  stream.synchronize();
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, [](World& world, Arguments rest) {
    require(world.backend_name() == "nccl", "the backend is nccl");
    require(world.device() == Device::cuda(world.rank() % 2), "ranks of a host have its devices in turn");
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    require(world.threads() * world.size() <= std::max(cores, world.size()), "ranks of a host share its cores");
    const double ranks = world.size();
    require(world.sum(world.rank(), "ranks") == ranks * (ranks - 1) / 2, "the sum of the ranks' numbers");
    const std::string what = rest.empty() ? "" : rest[0];
    if (world.size() == 1 || what == "gather") gather_over_nccl(world);
    if (what == "kill" && world.rank() == world.size() - 1) ::raise(SIGKILL);
    world.barrier("end");
    if (world.rank() == 0) std::printf("%d ranks with devices\n", world.size());
  });
}
