// Memory that torch and the runtime share: how often it is copied, and views of windows by DLPack.
#include <ATen/DLConvertor.h>
#include <ATen/record_function.h>

#include <string_view>

#include "networks.hpp"
#include "tessera/shard/dlpack.hpp"

namespace sharing_test {

using networks::Perceptron;
using tessera::Strategy;
using tessera::plan::WindowKind;

// How often torch copies one tensor to another while it lives, on this thread.
class CopyCount {
 public:
  CopyCount()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}))) {
    copies_ = 0;
  }
  ~CopyCount() { at::removeCallback(handle_); }
  CopyCount(const CopyCount&) = delete;
  CopyCount& operator=(const CopyCount&) = delete;
  int copies() const { return copies_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::copy_") ++copies_;
    return nullptr;
  }
  inline static thread_local int copies_ = 0;
  at::CallbackHandle handle_;
};

// Collectives work on windows, and windows are what torch computes with: nothing is packed into messages or out of
// them. A gradient goes from where torch computed it to its window in the pass in which autograd would have kept it,
// past torch's operators.
TEST_CASE("a_step_has_torch_copy_nothing") {
  const networks::Kind kind = networks::all_kinds()[0];
  const networks::Batch batch = networks::batch_of(kind, 0, 6);
  const auto loss_of = [&](const torch::Tensor& scores) { return torch::cross_entropy_loss(scores, batch.target); };
  Perceptron plain;
  loss_of(plain.forward(batch.input)).backward();
  plain.zero_grad();
  int of_plain = 0;
  {
    const CopyCount count;
    loss_of(plain.forward(batch.input)).backward();
    of_plain = count.copies();
  }
  for (const Strategy strategy : tessera::flat_strategies) {
    CAPTURE(tessera::to_string(strategy));
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      tessera::torch::FullyShard model(world, std::make_shared<Perceptron>(),
                                       {.units = tessera::torch::children_of("blocks")}, {.strategy = strategy});
      model.finalize(tessera::AdamW{});
      for (int step = 0; step < 2; ++step) {
        const CopyCount count;
        model.backward(loss_of(model.forward(batch.input)));
        model.update();
        CHECK(count.copies() == of_plain);
      }
    });
  }
}

// Gradients whose elements do not stand one after another: one number for all, and a transposed product.
struct Strided : torch::nn::Module {
  Strided() {
    spread = register_parameter("spread", torch::arange(15.0).view({3, 5}).clone());
    turned = register_parameter("turned", torch::arange(12.0).view({4, 3}).clone());
  }
  torch::Tensor forward(const torch::Tensor& x) { return (torch::mm(x, turned.t()) * spread.sum()).square().mean(); }
  torch::Tensor spread, turned;
};

TEST_CASE("gradients_of_any_strides_reach_their_places") {
  const torch::Tensor x = torch::linspace(-1.0, 1.0, 6).view({2, 3});
  Strided plain;
  plain.forward(x).backward();
  REQUIRE(!plain.spread.grad().equal(torch::zeros({3, 5})));
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    tessera::torch::FullyShard model(world, std::make_shared<Strided>());
    model.finalize(tessera::Sgd{.learning_rate = 0.0f});
    model.backward(model.forward(x));
    model.update();
    for (const auto& [name, gradient] :
         {std::pair("spread", plain.spread.grad()), std::pair("turned", plain.turned.grad())}) {
      const std::vector<float> ours = model.sharded().whole(model.parameter(name), "gradient");
      CHECK(torch::tensor(ours).equal(gradient.flatten()));
    }
  });
}

// Where the runtime planned parameters to be; what a plan's bytes are, tests/memory measures.
bool stands_in_the_arena(tessera::FullyShard& model, const torch::Tensor& parameter) {
  const auto* first = static_cast<const std::byte*>(parameter.data_ptr());
  for (const tessera::MemoryRegion& region : model.regions()) {
    const bool holds_parameters = region.category == tessera::plan::Category::parameters ||
                                  region.category == tessera::plan::Category::parameter_slots;
    const auto begin = region.memory.data();
    const auto end = begin + region.memory.size();
    if (holds_parameters && first >= begin && first + parameter.nbytes() <= end) return true;
  }
  return false;
}

TEST_CASE("parameters_have_planned_memory_and_no_other") {
  const networks::Kind kind = networks::all_kinds()[0];
  const networks::Batch batch = networks::batch_of(kind, 0, 6);
  for (const Strategy strategy : tessera::flat_strategies) {
    CAPTURE(tessera::to_string(strategy));
    tessera::launch({.ranks = 2}, [&](tessera::World& world) {
      const auto net = std::make_shared<Perceptron>();
      tessera::torch::FullyShard model(world, net, {.units = tessera::torch::children_of("blocks")},
                                       {.strategy = strategy});
      model.finalize(tessera::AdamW{});
      tessera::FullyShard& sharded = model.sharded();
      model.pass([&](Perceptron& module) {
        module.first(batch.input);
        CHECK(stands_in_the_arena(sharded, module.first->weight));
      });
      for (const torch::Tensor& parameter : net->parameters()) CHECK(parameter.storage().nbytes() == 0);
    });
  }
}

// y = x w, with torch's arithmetic on a model of the runtime's own.
template <typename T>
void train_through_dlpack(tessera::World& world, at::ScalarType type, const tessera::Precision& precision) {
  tessera::Parameter weight({2, 3}, tessera::Initial::ones());
  tessera::FullyShard model(world, {.precision = precision});
  tessera::Unit& unit = model.add_unit("unit", std::vector<tessera::NamedParameter>{{"weight", &weight}});
  model.finalize(tessera::Sgd{.learning_rate = 0.5f});
  const torch::Tensor x = torch::full({4, 2}, 0.25f * static_cast<float>(world.rank() + 1), type);
  torch::Tensor y;
  model.within(unit, WindowKind::forward, [&](tessera::Window& window) {
    const at::Tensor view = at::fromDLPack(tessera::dlpack_parameter<T>(window, weight));
    CHECK((view.scalar_type() == type));
    CHECK((view.data_ptr() == window.parameter<T>(weight).data()));
    y = torch::matmul(x, view);
  });
  CHECK(torch::equal(y, torch::full({4, 3}, 0.5f * static_cast<float>(world.rank() + 1), type)));
  model.within(unit, WindowKind::backward, [&](tessera::Window& window) {
    const at::Tensor gradient = at::fromDLPack(tessera::dlpack_gradient<T>(window, weight));
    gradient.copy_(torch::matmul(x.t(), torch::ones({4, 3}, type)));
  });
  model.update();
  CHECK(model.whole(weight) == std::vector<float>(6, 0.25f));  // 1 - 0.5 · (1 + 2) / 2
}

TEST_CASE("torch_takes_a_windows_parameters_and_gradients_by_dlpack") {
  tessera::launch({.ranks = 2}, [](tessera::World& world) {
    train_through_dlpack<float>(world, torch::kFloat, tessera::fp32_precision);
    train_through_dlpack<tessera::bf16>(world, torch::kBFloat16, tessera::bf16_mixed);
  });
}

}  // namespace sharing_test
