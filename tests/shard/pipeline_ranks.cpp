// The stages of a pipeline on ranks of any kind: rank 0 prints the bits of all weights, unless a rank does something
// else instead of its third pass.
//
// usage: pipeline_ranks STAGES SLICES [throw|sleep|kill|stop RANK]
#include <signal.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include "pipeline.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"

namespace {

using namespace tessera;

void misbehave(const World& world, const std::string& what) {
  if (what == "throw") throw DataError("train.bin: empty");
  if (what == "sleep") std::this_thread::sleep_for(3 * world.timeout());
  if (what == "kill") ::raise(SIGKILL);
  if (what == "stop") ::raise(SIGSTOP);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, [](World& world, Arguments rest) {
    const std::size_t stages = std::stoul(rest[0]);
    pipeline::Cut cut{.shape = {stages, 4}, .layers = stages, .slices = std::stoul(rest[1])};
    if (rest.size() > 2 && std::stoi(rest[3]) == world.rank()) {
      cut.at_pass = [&, passes = 0]() mutable {
        if (++passes == 3) misbehave(world, rest[2]);
      };
    }
    for (const float weight : pipeline::Job(world, cut).train().weights) {
      if (world.rank() == 0) std::printf("%08x\n", std::bit_cast<std::uint32_t>(weight));
    }
  });
}
