// Nothing is written twice: modules are made, and asked what they have.
#include "models/vision.hpp"

#include <string>

#include "tessera/nn/with_element.hpp"
#include "tessera/shard/buffer.hpp"
#include "tessera/shard/collective.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/parameter.hpp"

namespace models {

using tessera::plan::UnitSpec;

namespace {

// Writes down what a module names.
class UnitWriter final : public tessera::ModuleVisitor {
 public:
  explicit UnitWriter(UnitSpec& unit) : unit_(unit) {}

  void operator()(std::string_view name, tessera::Parameter& parameter) override {
    add_parameter(unit_, prefix_ + std::string(name), parameter.shape());
  }
  void operator()(std::string_view name, tessera::Buffer& buffer) override {
    unit_.buffers.push_back({unit_.name + "." + prefix_ + std::string(name), buffer.shape()});
  }
  void operator()(std::string_view name, tessera::Collective& collective) override {
    unit_.collectives.push_back(collective.spec());
    unit_.collectives.back().name = unit_.name + "." + prefix_ + std::string(name);
  }
  void operator()(std::string_view name, tessera::Module& part) override {
    const std::string before = prefix_;
    prefix_ += std::string(name) + ".";
    part.visit(*this);
    prefix_ = before;
  }

 private:
  UnitSpec& unit_;
  std::string prefix_;
};

// Takes the place of a FullyShard.
struct UnitList {
  std::vector<UnitSpec>& units;
  void add(tessera::Module& module, std::string_view name) {
    UnitWriter writer(units.emplace_back(UnitSpec{std::string(name), {}}));
    module.visit(writer);
  }
};

}  // namespace

std::optional<VisionShape> find_vision(std::string_view name, const VisionChoice& choice) {
  for (const VisionModelKind kind : vision_models) {
    if (to_string(kind) != name) continue;
    const VisionShape shape{.kind = kind,
                            .image = {choice.side, choice.side, choice.channels},
                            .classes = choice.classes,
                            .width = choice.width == 0 ? usual_width(kind) : choice.width};
    if (is_transformer(kind)) transformer_depth(shape);
    return shape;
  }
  return std::nullopt;
}

Model vision(const VisionShape& shape, const tessera::Precision& precision, std::size_t batch) {
  Model model;
  VisionModel<float> network(shape);
  UnitList list{model.units};
  network.add_units(list);
  if (shape.stages_save) {
    const std::vector<tessera::Bytes> saved = tessera::nn::with_element(
        precision, [&](auto element) { return VisionModel<decltype(element)>::saved_bytes(shape, batch); });
    for (std::size_t stage = 0; stage < saved.size(); ++stage) model.units[stage].saved = saved[stage];
  }
  model.program = tessera::plan::Program::chain(model.units.size());
  return model;
}

std::vector<CountedWindow> vision_work(const VisionShape& shape, const tessera::Precision& precision,
                                       std::size_t batch) {
  return tessera::nn::with_element(
      precision, [&](auto element) { return VisionModel<decltype(element)>::counted_windows(shape, batch); });
}

tessera::Bytes vision_activations(const VisionShape& shape, const tessera::Precision& precision, std::size_t batch) {
  return tessera::nn::with_element(
      precision, [&](auto element) { return VisionModel<decltype(element)>::planned_activation_bytes(shape, batch); });
}

}  // namespace models
