// A whole small language model on a CUDA device against the CPU: loss, every gradient, memory, the same bits again.
#include <cuda_runtime.h>

#include <map>
#include <memory>

#include "../nn/standalone.hpp"
#include "nn_device.hpp"
#include "tessera/nn/counting_model.hpp"
#include "tessera/nn/embedding.hpp"
#include "tessera/nn/transformer_block.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace {

struct Sizes {
  std::size_t sequences;
  std::size_t length;
  std::size_t heads;
  std::size_t dim;
  std::size_t vocabulary;
  std::size_t rows() const { return sequences * length; }
};
// Odd ones, and ones on which every epilogue and pack is taken.
const std::vector<Sizes> all_sizes = {{2, 5, 1, 7, 11}, {1, 1, 2, 6, 3}, {2, 17, 2, 32, 40}, {0, 4, 1, 3, 5}};

template <typename T>
struct LanguageModel final : Module {
  explicit LanguageModel(const Sizes& s)
      : embedding({.vocabulary = s.vocabulary, .context = s.length, .dim = s.dim}),
        block({.dim = s.dim, .heads = s.heads}, 0),
        last(s.dim) {}
  void visit(ModuleVisitor& visitor) override {
    visitor("embedding", embedding);
    visitor("block", block);
    visitor("last", last);
  }
  Embedding<T> embedding;
  TransformerBlock<T> block;
  LayerNorm<T> last;
};

// Where a pass finds its tokens and leaves its loss: on the device of the stream.
struct Place {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> targets;
  float* loss = nullptr;
};

template <typename T, typename Model>
void pass(Model& model, LanguageModel<T>& of, ActivationStack& stack, const Sizes& s, const Place& at) {
  const ScratchScope scope(stack);
  const SequenceBatch batch{.length = s.length,
                            .dropout = {.probability = 0.1f, .key = {.seed = 5, .step = 1, .first_row = 40}}};
  const auto x = stack.push<T>(s.rows(), s.dim), y = stack.push<T>(s.rows(), s.dim);
  const auto normal = stack.push<T>(s.rows(), s.dim), gradient = stack.push<T>(s.rows(), s.dim);
  const auto saved_ids = model.forward(of.embedding, stack, at.ids, x, batch);
  const auto saved_block = model.forward(of.block, stack, MatrixView<const T>(x), y, batch);
  const auto saved_last = model.forward(of.last, stack, MatrixView<const T>(y), normal);
  const auto saved_loss = model.forward(of.embedding, stack, MatrixView<const T>(normal),
                                        Prediction<T>{.targets = {.labels = at.targets}, .loss = at.loss});
  model.backward(of.embedding, stack, saved_loss, gradient);
  model.backward(of.last, stack, saved_last, MatrixView<const T>(gradient), gradient);
  model.backward(of.block, stack, saved_block, gradient);
  model.backward(of.embedding, stack, saved_ids, gradient);
}

// The parameters and gradients of a module on the device, with the values of a Standalone.
template <typename T>
class OnDevice final : public MemoryWindows {
 public:
  explicit OnDevice(Standalone<T>& from) {
    for (const auto& entry : from.entries()) {
      parameters_[entry.parameter] = std::make_unique<DeviceBuffer<T>>(entry.values);
      gradients_[entry.parameter] = std::make_unique<DeviceBuffer<T>>(entry.values.size());
    }
  }
  Stream& stream() override { return stream_; }
  const void* parameter(const Parameter& parameter) override { return parameters_.at(&parameter)->data(); }
  void* gradient(const Parameter& parameter) override { return gradients_.at(&parameter)->data(); }
  const float* loss_scale() override { return scale_.data(); }
  std::vector<T> gradient_of(const Parameter* parameter) { return gradients_.at(parameter)->values(); }

 private:
  std::map<const Parameter*, std::unique_ptr<DeviceBuffer<T>>> parameters_;
  std::map<const Parameter*, std::unique_ptr<DeviceBuffer<T>>> gradients_;
  DeviceBuffer<float> scale_{std::vector<float>{1.0f}};
  Stream stream_ = cuda_stream(StreamMode::queued);
};

std::vector<std::int32_t> tokens(const Sizes& s, std::size_t step) {
  std::vector<std::int32_t> result;
  for (std::size_t i = 0; i < s.rows(); ++i) result.push_back(static_cast<std::int32_t>(i * step % s.vocabulary));
  return result;
}

template <typename T>
Bytes counted(LanguageModel<T>& model, const Sizes& s, DeviceKind device) {
  ActivationStack counting(device);
  CountingModel none;
  pass<T>(none, model, counting, s, {});
  return counting.peak();
}

std::size_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}

// A dozen roundings lie behind each other, sums on both devices run in different orders, and one GELU is an epilogue's.
template <typename T>
constexpr double tolerated = 12.0 * rounding<T> + gelu_of_epilogue;

}  // namespace

TEST_CASE_TEMPLATE("cuda: a language model's loss and gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Sizes& s : all_sizes) {
    CAPTURE(s.dim);
    LanguageModel<T> model(s);
    Standalone<T> host(model);
    const std::vector<std::int32_t> ids = tokens(s, 3), targets = tokens(s, 5);
    float loss = -1.0f;
    OwnStack host_stack(counted<T>(model, s, DeviceKind::cpu) + Bytes(64));
    pass<T>(host, model, *host_stack, s, {ids, targets, &loss});

    OnDevice<T> device(host);
    DeviceBuffer<std::int32_t> device_ids(ids), device_targets(targets);
    DeviceBuffer<float> device_loss(1);
    const Bytes bytes = counted<T>(model, s, DeviceKind::cuda);
    Arena arena(Device::cuda(0), bytes);
    ActivationStack stack({arena.data(), bytes.count()}, DeviceKind::cuda);
    const Place at{{device_ids.data(), ids.size()}, {device_targets.data(), targets.size()}, device_loss.data()};
    pass<T>(device, model, stack, s, at);
    device.stream().synchronize();
    const float first_loss = device_loss.values()[0];
    check_near(std::vector<float>{first_loss}, std::vector<float>{loss}, tolerated<T>);
    std::map<std::string, std::vector<T>> first;
    for (const auto& entry : host.entries()) {
      CAPTURE(entry.name);
      first[entry.name] = device.gradient_of(entry.parameter);
      check_near(first[entry.name], entry.gradient, tolerated<T>);
    }

    const std::size_t free_before = free_bytes();
    pass<T>(device, model, stack, s, at);
    device.stream().synchronize();
    CHECK(free_bytes() == free_before);
    CHECK(stack.peak() == bytes);
    check_same(device_loss.values(), std::vector<float>{first_loss});
    for (const auto& entry : host.entries()) {
      CAPTURE(entry.name);
      check_same(device.gradient_of(entry.parameter), first[entry.name]);
    }
  }
}
