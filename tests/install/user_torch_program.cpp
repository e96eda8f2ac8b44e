// A user's program with a module of libtorch: two ranks learn a line, built against the installed tree.
#include <tessera/tessera.hpp>
#include <tessera/torch/fully_shard.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdio>

int main() {
  return tessera::run({.ranks = 2}, [](tessera::World& world) {
    tessera::torch::FullyShard model(world, std::make_shared<torch::nn::LinearImpl>(1, 1),
                                     {.units = tessera::torch::named({})});
    model.finalize(tessera::AdamW{.learning_rate = 0.1f});
    const torch::Tensor x = torch::linspace(-1, 1, 8).view({8, 1});
    float last = 0.0f;
    for (int step = 0; step < 200; ++step) {
      const torch::Tensor loss = (model.forward(x) - (3 * x + 1)).square().mean();
      model.backward(loss);
      model.update();
      last = loss.item<float>();
    }
    if (world.rank() == 0) std::printf("the line %s\n", last < 1e-3f ? "is learnt" : "is not learnt");
  });
}
