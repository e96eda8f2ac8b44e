// Launches are counted on the emulated device: one kernel where several would do the same.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "attention_case.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/muon.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/shard/whole_tensors.hpp"

using namespace tessera;
using namespace tessera::test;

namespace tessera::nn::cuda {
std::size_t products_so_far();  // of the emulated device
}

namespace launches_test {

// Its gradients are its weights: copies, which are no kernels.
struct Layer : Module {
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight), visitor("bias", bias), visitor("scale", scale), visitor("table", table);
  }
  void forward(Window&) {}
  void backward(Window& window) {
    for (Parameter* each : {&weight, &bias, &scale, &table}) {
      const auto values = window.parameter(*each);
      kernels::copy(window.stream(), window.gradient(*each).data(), values.data(), Bytes(values.size_bytes()));
    }
  }
  Parameter weight{{17, 31}, Initial::fan_in(3)};
  Parameter bias{{17}, Initial::fan_in(3)};
  Parameter scale{{5}, Initial::fan_in(3)};
  Parameter table{{1300}, Initial::fan_in(3)};
};

struct Outcome {
  std::vector<std::vector<float>> weights;
  std::size_t launches = 0;  // of one step
};

template <typename Settings>
Outcome train(DeviceChoice device, const Settings& optimizer) {
  Outcome outcome;
  launch({.ranks = 1, .device = device}, [&](World& world) {
    Layer first, second;
    FullyShard model(world);
    model.add(first, "first");
    model.add(second, "second");
    model.finalize(optimizer);
    for (int step = 0; step < 4; ++step) {
      model.synchronize();
      const std::size_t before = emulated::calls().launches;
      for (Layer* each : {&first, &second}) model.forward(*each);
      for (Layer* each : {&second, &first}) model.backward(*each);
      model.update();
      model.synchronize();
      outcome.launches = emulated::calls().launches - before;
    }
    for (Layer* each : {&first, &second}) {
      for (Parameter* parameter : {&each->weight, &each->bias, &each->scale, &each->table}) {
        outcome.weights.push_back(model.whole(*parameter));
      }
    }
  });
  return outcome;
}

template <typename Settings>
void check_one_launch(Settings optimizer, const std::vector<ParameterGroup>& groups) {
  const Outcome alike = train(DeviceChoice::cuda, optimizer);
  optimizer.groups = groups;
  const Outcome grouped = train(DeviceChoice::cuda, optimizer);
  CHECK(grouped.launches > 0);
  CHECK(grouped.launches == alike.launches);
  CHECK(grouped.weights == train(DeviceChoice::cpu, optimizer).weights);
  CHECK(grouped.weights != alike.weights);
}

TEST_CASE("emulated cuda: a unit of several parameter groups is updated by one kernel, with the CPU's bits") {
  const std::vector<ParameterGroup> groups = {{.patterns = {"*.bias"}, .weight_decay = 0.0f},
                                              {.patterns = {"*.scale"}, .learning_rate_scale = 0.5f}};
  check_one_launch(Sgd{.learning_rate = 0.01f, .momentum = 0.9f, .weight_decay = 0.1f}, groups);
  std::vector<ParameterGroup> more = groups;
  more.push_back({.patterns = {"*.table"}, .beta1 = 0.7f, .epsilon = 1e-6f});
  check_one_launch(AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f, .clip_norm = 0.7f}, more);
}

TEST_CASE("emulated cuda: a loss and its gradient are formed by one kernel over the logits") {
  constexpr std::size_t rows = 3, classes = 40;
  Stream stream = cuda_stream();
  DeviceMatrix<float> logits(DeviceKind::cuda, random_elements<float>(rows * classes, 1), rows, classes);
  DeviceBuffer<std::int32_t> labels(std::vector<std::int32_t>(rows, 2));
  DeviceBuffer<float> statistics(nn::cross_entropy_at_once_statistics(rows, 0.0f, DeviceKind::cuda)), loss(1), scale(1);
  const nn::CrossEntropyRows<float> of{
      .logits = logits.constant(), .labels = labels.data(), .statistics = statistics.data()};
  const std::size_t before = emulated::calls().launches;
  nn::cross_entropy_at_once<float>(stream, of, loss.data(), scale.data(), logits.view());
  CHECK(emulated::calls().launches - before == 2);  // the sum of the rows' losses is the other
}

// So many launches and products matrices take, and this becomes of them.
struct Orthogonalised {
  std::size_t launches;
  std::size_t products;
  std::vector<bf16> values;
};
Orthogonalised orthogonalise(const Shape& shape, std::size_t count, std::size_t in_a_call) {
  const std::unique_ptr<Optimizer> muon = nn::Muon{};
  const WholeTensors& steps = *muon->whole_tensors();
  const std::size_t elements = element_count(shape), step = (elements + 255) / 256 * 256;
  Stream stream = cuda_stream();
  DeviceBuffer<bf16> x(random_elements<bf16>(count * step, 3));
  const Bytes room = steps.wants("blocks.0.weight", shape, DeviceKind::cuda)->workspace;
  DeviceBuffer<float> workspace(room.count() / sizeof(float) + 128);
  const auto begin = (reinterpret_cast<std::uintptr_t>(workspace.data()) + 511) / 512 * 512;
  const std::size_t launches = emulated::calls().launches, products = nn::cuda::products_so_far();
  for (std::size_t first = 0; first < count; first += in_a_call) {
    std::vector<kernels::Target> planes;
    std::vector<WholeTensor> tensors;
    planes.reserve(in_a_call);
    for (std::size_t n = first; n < std::min(count, first + in_a_call); ++n) {
      planes.push_back({x.data() + n * step, DType::bf16});
      tensors.push_back({"blocks.0.weight", shape, {&planes.back(), 1}, reinterpret_cast<std::byte*>(begin)});
    }
    steps.transform(stream, tensors);
  }
  stream.synchronize();
  Orthogonalised result{emulated::calls().launches - launches, nn::cuda::products_so_far() - products, {}};
  const std::vector<bf16> values = x.values();
  for (std::size_t n = 0; n < count; ++n) {
    const auto of = values.begin() + std::ptrdiff_t(n * step);
    result.values.insert(result.values.end(), of, of + std::ptrdiff_t(elements));
  }
  return result;
}

TEST_CASE("emulated cuda: a batch of matrices takes the products and launches of one, and two for each norm") {
  for (const Shape& shape : {Shape{17, 31}, Shape{37, 11}}) {
    constexpr std::size_t count = 5;
    const Orthogonalised alone = orthogonalise(shape, count, 1), together = orthogonalise(shape, count, count);
    CHECK(alone.launches == count * (2 + 1 + 5 * 2));  // norms, division, and combinations
    CHECK(together.launches == count * 2 + 1 + 5 * 2);
    CHECK(alone.products == count * 5 * 3);
    CHECK(together.products == 5 * 3);
    CHECK(std::memcmp(alone.values.data(), together.values.data(), 2 * alone.values.size()) == 0);
  }
}

TEST_CASE("emulated cuda: attention asks for a block's shared memory once") {
  const auto attributes_of_a_run = [](std::size_t head_dim) {
    const std::size_t before = emulated::calls().attributes;
    const nn::AttentionShape wide{1, 5, 1, head_dim}, narrow{1, 5, 1, 64};
    compare_attentions(Comparison::with_the_cpu, wide, {}, attention_inputs<float>(wide));
    compare_attentions(Comparison::with_the_cpu, narrow, {}, attention_inputs<bf16>(narrow));
    return emulated::calls().attributes - before;
  };
  attributes_of_a_run(127);
  CHECK(attributes_of_a_run(127) == 0);
  CHECK(attributes_of_a_run(100) == 0);
  CHECK(attributes_of_a_run(128) <= 3);  // a little more than before, for each of the kernels
  CHECK(attributes_of_a_run(128) == 0);
}

}  // namespace launches_test
