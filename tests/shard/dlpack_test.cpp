// A window's parameters and gradients as DLPack has them.
#include "tessera/shard/dlpack.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "shard/dlpack_abi.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace dlpack_test {

using namespace tessera;
using plan::WindowKind;

struct Delete {
  void operator()(DLManagedTensor* tensor) const { tensor->deleter(tensor); }
};
using Owned = std::unique_ptr<DLManagedTensor, Delete>;

std::vector<std::int64_t> shape_of(const DLTensor& tensor) { return {tensor.shape, tensor.shape + tensor.ndim}; }
std::vector<std::int64_t> strides_of(const DLTensor& tensor) { return {tensor.strides, tensor.strides + tensor.ndim}; }

TEST_CASE("dlpack_views_are_laid_out_as_its_specification_says") {
  static_assert(sizeof(DLDevice) == 8 && sizeof(DLDataType) == 4);
  static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64);
  float values[24];
  const Owned view(dlpack_view(values, DType::fp32, {2, 3, 4}, Device::cpu()));
  const DLTensor& tensor = view->dl_tensor;
  CHECK(tensor.data == values);
  CHECK(tensor.device.device_type == kDLCPU);
  CHECK(tensor.device.device_id == 0);
  CHECK(shape_of(tensor) == std::vector<std::int64_t>{2, 3, 4});
  CHECK(strides_of(tensor) == std::vector<std::int64_t>{12, 4, 1});
  CHECK(tensor.byte_offset == 0);

  const Owned scalar(dlpack_view(values, DType::fp32, {}, Device::cpu()));
  CHECK(scalar->dl_tensor.ndim == 0);
}

TEST_CASE("dlpack_types_are_those_of_windows") {
  struct Case {
    DType type;
    int code;
    int bits;
  };
  for (const Case& each :
       {Case{DType::fp32, kDLFloat, 32}, Case{DType::bf16, kDLBfloat, 16}, Case{DType::fp16, kDLFloat, 16}}) {
    const Owned view(dlpack_view(nullptr, each.type, {1}, Device::cpu()));
    CHECK(int(view->dl_tensor.dtype.code) == each.code);
    CHECK(int(view->dl_tensor.dtype.bits) == each.bits);
    CHECK(int(view->dl_tensor.dtype.lanes) == 1);
  }
}

// Reads and writes a model through DLPack alone: the gradient is the input, so that the weight goes down by it.
TEST_CASE("a_model_is_trained_through_dlpack_views_without_a_copy") {
  launch({.ranks = 2}, [](World& world) {
    Parameter weight({2, 3}, Initial::ones());
    FullyShard model(world);
    Unit& unit = model.add_unit("unit", std::vector<NamedParameter>{{"weight", &weight}});
    model.finalize(Sgd{.learning_rate = 0.25f});
    std::vector<void*> addresses;
    for (int step = 0; step < 2; ++step) {
      model.within(unit, WindowKind::forward, [&](Window& window) {
        const Owned view(dlpack_parameter(window, weight));
        REQUIRE(shape_of(view->dl_tensor) == std::vector<std::int64_t>{2, 3});
        const auto* values = static_cast<const float*>(view->dl_tensor.data);
        CHECK(std::all_of(values, values + 6, [&](float value) { return value == 1.0f - 0.5f * float(step); }));
        CHECK(values == window.parameter(weight).data());
        addresses.push_back(view->dl_tensor.data);
      });
      model.within(unit, WindowKind::backward, [&](Window& window) {
        const Owned view(dlpack_gradient(window, weight));
        auto* gradient = static_cast<float*>(view->dl_tensor.data);
        std::fill_n(gradient, 6, 1.0f + 2.0f * float(world.rank()));  // on average 2
      });
      model.update();
    }
    CHECK(addresses[0] == addresses[1]);
    Window window = model.open(unit, WindowKind::forward);
    CHECK_THROWS_AS(dlpack_gradient(window, weight), UsageError);
    CHECK_THROWS_AS(dlpack_parameter<bf16>(window, weight), UsageError);
  });
}

}  // namespace dlpack_test
