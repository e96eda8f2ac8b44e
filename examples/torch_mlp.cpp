// FullyShard for torch modules: a perceptron whose layers are sharded. Try: build/examples/torch_mlp --ranks 4
#include <torch/torch.h>

#include <cstdio>
#include <memory>

#include "tessera/tessera.hpp"
#include "tessera/torch/fully_shard.hpp"
#include "tessera/torch/make_module.hpp"

namespace nn = torch::nn;

// A module as any other: nothing in it knows of Tessera.
struct Net : nn::Module {
  Net() {
    first = register_module("first", nn::Linear(2, 64));
    blocks = register_module("blocks", nn::Sequential());
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(nn::Linear(64, 64));
      blocks->push_back(nn::Tanh());
    }
    last = register_module("last", nn::Linear(64, 2));
  }
  torch::Tensor forward(const torch::Tensor& points) { return last(blocks->forward(torch::tanh(first(points)))); }

  nn::Linear first{nullptr}, last{nullptr};
  nn::Sequential blocks{nullptr};
};

int main(int argc, char** argv) {
  const char* about = "A torch::nn::Module, sharded over the ranks, learns whether points lie in a ring.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    auto net = tessera::torch::make_module<Net>(1);
    tessera::torch::FullyShard model(world, net, {.units = tessera::torch::children_of("blocks")},
                                     {.strategy = tessera::Strategy::fsdp});
    model.finalize(tessera::AdamW{.learning_rate = 0.003f});
    const torch::Device device = net->first->weight.device();  // this rank's, on which the model computes

    for (int step = 0; step <= 200; ++step) {
      // This rank's part of the step's 128 points, the same for any number of ranks that divides them.
      const auto all =
          torch::rand({128, 2}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(step))) * 3 - 1.5;
      const auto points = all.tensor_split(world.size())[static_cast<std::size_t>(world.rank())];
      const auto distance = points.norm(2, 1);
      const auto inside = torch::logical_and(distance > 0.5, distance < 1.2).to(torch::kLong);

      const auto loss = torch::cross_entropy_loss(model.forward(points.to(device)), inside.to(device));
      model.backward(loss);
      model.update();
      const float mean = world.average(loss.item<float>(), "loss");
      if (world.rank() == 0 && step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, mean);
    }
  });
}
