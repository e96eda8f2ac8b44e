// Modules of libtorch on a CUDA device: they learn what they learn on the CPU.
#include "networks.hpp"

namespace device_test {

using networks::Run;
using tessera::DeviceChoice;
using tessera::Strategy;

TEST_CASE("cuda: losses of modules are near the CPU's, and strategies agree bitwise") {
  for (const networks::Kind& kind : networks::all_kinds()) {
    CAPTURE(kind.name);
    Run run{.kind = kind};
    const networks::Result on_cpu = networks::train(run);
    run.device = DeviceChoice::cuda;
    const networks::Result on_device = networks::train(run);
    REQUIRE(on_device.losses.size() == on_cpu.losses.size());
    for (std::size_t step = 0; step < on_cpu.losses.size(); ++step) {
      CHECK(on_device.losses[step] == doctest::Approx(on_cpu.losses[step]).epsilon(1e-3));
    }
    run.options.strategy = Strategy::ddp;
    CHECK(networks::train(run) == on_device);
  }
}

// When it is freed, torch's allocator records an event on the stream that the model has computed on, and asks for it
// at a later allocation.
TEST_CASE("cuda: what a model was called with may be freed after the model") {
  const networks::Kind kind = networks::all_kinds().front();
  torch::Tensor input;
  tessera::launch({.device = DeviceChoice::cuda}, [&](tessera::World& world) {
    const auto net = kind.make();
    tessera::torch::FullyShard model(world, net, {.units = tessera::torch::children_of(kind.units)}, {});
    model.finalize(tessera::AdamW{});
    input = networks::batch_of(kind, 0, 64).input.to(net->parameters().front().device());
    model.backward(model.forward(input).sum());
    model.update();
  });
  const torch::Device device = input.device();
  input.reset();
  for (int i = 0; i < 2; ++i) CHECK(torch::ones({1 << 22}, device).sum().item<float>() == 1 << 22);
}

}  // namespace device_test
