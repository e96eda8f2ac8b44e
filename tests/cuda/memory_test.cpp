// Memory of the device: planned bytes are those that the driver gives away, and a training takes no more of it once
// every segment has run.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "echo.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;

namespace {

// The driver hands out memory in pieces of this size.
constexpr std::uint64_t granularity = std::uint64_t{2} << 20;

std::uint64_t taken() {
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return total - free;
}

using Echo = test::Echo<float>;

// NCCL itself takes memory that no plan knows; the tests' takes none.
bool has_own_memory() { return std::getenv("TESSERA_EMULATED_DEVICES") == nullptr; }

// Tries to bring in work of the host, and goes on without it.
class Joining final : public Echo {
 public:
  using Echo::Echo;
  void forward(Window& window) {
    Stream side(Device::cpu(), {.name = "side"});
    CHECK_THROWS_WITH_AS(window.join(side), doctest::Contains("stream side is on cpu"), UsageError);
  }
};

struct Trained {
  Trained(World& world, Strategy strategy, const Offload& offload)
      : model(world, {.strategy = strategy,
                      .offload = offload,
                      .disk = std::filesystem::temp_directory_path(),
                      .checkpointing = Checkpointing::blocking}) {
    for (const std::size_t elements : {1'000'003u, 2'000'001u, 7u}) {
      units.push_back(std::make_unique<Echo>(Initial::fan_in(3), elements));
      model.add(*units.back());
    }
    model.finalize(AdamW{});
  }

  void step() {
    for (auto& unit : units) model.forward(*unit);
    for (std::size_t i = units.size(); i-- > 0;) model.backward(*units[i]);
    model.update();
    model.synchronize();
  }

  std::vector<std::unique_ptr<Echo>> units;
  FullyShard model;
};

// The driver loads a kernel's code with its first launch, into memory that is in nobody's plan.
void load_kernels(World& world, Strategy strategy, const Offload& offload) {
  Trained trained(world, strategy, offload);
  trained.step();
}

void check_memory(BackendChoice backend, std::initializer_list<Strategy> strategies, const Offload& offload = {}) {
  for (const Strategy strategy : strategies) {
    launch({.device = DeviceChoice::cuda, .backend = backend}, [&](World& world) {
      load_kernels(world, strategy, offload);
      const std::uint64_t before = taken();
      Trained trained(world, strategy, offload);
      const plan::MemoryReport planned = plan::memory(trained.model.plan());
      const std::uint64_t arena = planned.device().count();
      const std::uint64_t found = taken() - before;
      CAPTURE(to_string(strategy));
      CHECK(planned.host > Bytes(0));
      CHECK(found >= arena);
      const bool by_nccl = backend == BackendChoice::nccl;
      CHECK((planned.categories[static_cast<std::size_t>(plan::Category::collectives)].size > Bytes(0)) == by_nccl);
      if (!by_nccl || !has_own_memory()) {
        const std::uint64_t beyond_arena = found - arena;
        CHECK(beyond_arena <= 4 * granularity);  // the arena's last piece, and what streams take
        if (has_own_memory()) MESSAGE(to_string(strategy) << ": " << beyond_arena << " bytes beyond the arena");
      }
      trained.step();
      const std::uint64_t after_one = taken();
      for (int i = 0; i < 2; ++i) trained.step();
      CHECK(taken() == after_one);
    });
  }
}

}  // namespace

TEST_CASE("cuda: the arena takes what the plan says, and training takes nothing more") {
  check_memory(BackendChoice::automatic, {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp});
}

TEST_CASE("cuda: the arena takes what the plan says where states stand in the host's memory") {
  check_memory(BackendChoice::automatic, {Strategy::ddp, Strategy::fsdp}, {.optimizer = MemorySpace::host});
}

TEST_CASE("cuda: the arena takes what the plan says where states stand on disk") {
  check_memory(BackendChoice::automatic, {Strategy::fsdp}, {.optimizer = MemorySpace::disk});
}

TEST_CASE("cuda: over NCCL the plan has the staging of its collectives, too") {
  try {
    check_memory(BackendChoice::nccl, {Strategy::ddp, Strategy::fsdp});
  } catch (const UnavailableError& error) {
    MESSAGE("skipped: " << std::string(error.what()));
  }
}

TEST_CASE(
    "cuda: a model computes on a stream of the program's own, to which the program enqueues when the model is gone") {
  cudaStream_t own = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&own, cudaStreamNonBlocking, 0) == cudaSuccess);
  launch({.device = DeviceChoice::cuda}, [&](World& world) {
    Echo unit(Initial::fan_in(3));
    FullyShard model(world, {.cuda_stream = own});
    model.add(unit);
    model.finalize(AdamW{});
    CHECK(native_stream(model.stream()) == own);
    model.forward(unit);
    model.backward(unit);
    model.update();
  });
  cudaEvent_t freed = nullptr;  // such as torch's allocator records for a tensor that the model was called with
  REQUIRE(cudaEventCreateWithFlags(&freed, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventRecord(freed, own) == cudaSuccess);
  CHECK(cudaStreamSynchronize(own) == cudaSuccess);
  CHECK(cudaEventDestroy(freed) == cudaSuccess);
  CHECK(cudaStreamDestroy(own) == cudaSuccess);
}

TEST_CASE("cuda: a window that has refused to join a stream of another device goes on and closes") {
  launch({.device = DeviceChoice::cuda}, [](World& world) {
    Joining unit(Initial::fan_in(3));
    FullyShard model(world, {});
    model.add(unit);
    model.finalize(AdamW{});
    for (int step = 0; step < 2; ++step) {
      model.forward(unit);
      model.backward(unit);
      model.update();
    }
    model.synchronize();
  });
}
