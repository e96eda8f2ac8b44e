// Steps on a device whose copies take their time: what the host works on has come.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include "tessera/comm/run.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;

namespace slow_copies_test {

struct SlowCopies {
  explicit SlowCopies(std::chrono::microseconds each) { emulated::delay_copies(each); }
  ~SlowCopies() { emulated::delay_copies({}); }
};

// Its gradient is the parameter itself.
class Echo : public Module {
 public:
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window&) {}
  void backward(Window& window) {
    const auto from = window.parameter<bf16>(weight);
    kernels::copy(window.stream(), window.gradient<bf16>(weight).data(), from.data(), Bytes(from.size_bytes()));
  }
  Parameter weight{{1000}, Initial::normal(0.0f, 1.0f)};
};

std::vector<float> trained(std::chrono::microseconds copies_take) {
  const SlowCopies slow(copies_take);
  std::vector<float> weights;
  launch({.ranks = 1, .device = DeviceChoice::cuda}, [&](World& world) {
    Echo echo;
    FullyShard model(
        world,
        {.precision = bf16_mixed,
         .offload = {.optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host}});
    model.add(echo, "echo");
    model.finalize(AdamW{.learning_rate = 0.1f});
    for (int step = 0; step < 4; ++step) {
      model.forward(echo);
      model.backward(echo);
      model.update();
    }
    weights = model.whole(echo.weight);
  });
  return weights;
}

TEST_CASE(
    "emulated cuda: an update in the hosts_memory begins when its gradients have come, however long they travel") {
  CHECK(trained(std::chrono::milliseconds(3)) == trained({}));
}

}  // namespace slow_copies_test
