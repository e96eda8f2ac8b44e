// Shapes for planning are those that train_gpt and the papers have.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/gpt.hpp"
#include "models/gpt/model.hpp"
#include "models/gpt/units.hpp"
#include "models/model.hpp"
#include "models/vision.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/shard/parameter.hpp"

namespace {

using namespace models;
using tessera::plan::ParameterSpec;
using tessera::plan::UnitSpec;

// Collects what a module declares, with full names.
class Collector final : public tessera::ModuleVisitor {
 public:
  explicit Collector(UnitSpec& unit) : unit_(unit), prefix_(unit.name + ".") {}
  void operator()(std::string_view name, tessera::Parameter& parameter) override {
    unit_.parameters.push_back({.name = prefix_ + std::string(name), .shape = parameter.shape()});
  }
  void operator()(std::string_view, tessera::Buffer&) override { FAIL("a GPT has no untrained state"); }
  void operator()(std::string_view, tessera::Collective&) override { FAIL("a GPT exchanges nothing"); }
  void operator()(std::string_view name, tessera::Module& part) override {
    const std::string outer = prefix_;
    prefix_ += std::string(name) + ".";
    part.visit(*this);
    prefix_ = outer;
  }

 private:
  UnitSpec& unit_;
  std::string prefix_;
};

// The units of the modules that train_gpt makes.
std::vector<UnitSpec> declared_units(const models::GptShape& shape) {
  std::vector<UnitSpec> units;
  const auto add = [&](const std::string& name, tessera::Module& module) {
    Collector collector(units.emplace_back(UnitSpec{name, {}}));
    module.visit(collector);
  };
  add(models::embedding_name, *models::make_embedding<float>(shape));
  for (std::size_t i = 0; i < shape.layers; ++i) add(models::block_name(i), *models::make_block<float>(shape, i));
  add(models::final_name, *models::make_final<float>(shape));
  return units;
}

std::vector<models::GptShape> gpt_shapes() {
  std::vector<models::GptShape> shapes = {{.layers = 1, .dim = 3, .heads = 1, .seq = 5, .vocabulary = 7},
                                          {.layers = 3, .dim = 12, .heads = 3, .seq = 11, .vocabulary = 256}};
  for (const models::Preset& preset : models::presets) shapes.push_back(shape_of(preset));
  return shapes;
}

std::uint64_t plan_hash(std::vector<UnitSpec> units, tessera::plan::Program program) {
  return hash(tessera::plan::compile({std::move(units), {std::move(program)}, {.ranks = 7}, {"m", "v"}}));
}

TEST_CASE("gpt_shapes_are_those_of_train_gpt") {
  for (const models::GptShape& shape : gpt_shapes()) {
    CAPTURE(shape.dim);
    const Model model = gpt(shape);
    const std::vector<UnitSpec> declared = declared_units(shape);
    REQUIRE(model.units.size() == declared.size());
    for (std::size_t u = 0; u < declared.size(); ++u) {
      CHECK(model.units[u].name == declared[u].name);
      REQUIRE(model.units[u].parameters.size() == declared[u].parameters.size());
      for (std::size_t p = 0; p < declared[u].parameters.size(); ++p) {
        CHECK(model.units[u].parameters[p].name == declared[u].parameters[p].name);
        CHECK(model.units[u].parameters[p].shape == declared[u].parameters[p].shape);
      }
    }
    CHECK(plan_hash(model.units, model.program) == plan_hash(declared, models::Gpt<float>::program(shape)));
  }
}

TEST_CASE("published_sizes") {
  auto gpt2 = shape_of(*find_gpt("gpt2-124m"));
  gpt2.vocabulary = 50257;
  CHECK(count_parameters(gpt(gpt2).units).all() == 124'439'808);
  gpt2 = shape_of(*find_gpt("gpt2-1558m"));
  gpt2.vocabulary = 50257;
  CHECK(count_parameters(gpt(gpt2).units).all() == 1'557'611'200);
  CHECK(count_parameters(llama(*find_llama("llama-7b"), false).units).all() == 6'738'415'616);
  CHECK(count_parameters(llama(*find_llama("llama-70b"), false).units).all() == 68'976'648'192);
  CHECK(count_parameters(perceptron({64, 128, 10}).units).all() == 64 * 128 + 128 + 128 * 10 + 10);
  // The numbers are for ImageNet's 1,000 classes: He et al. 2016 and Dosovitskiy et al. 2021 as torchvision and timm
  // have them.
  const auto on_images = [](const char* name) {
    return count_parameters(vision(*find_vision(name, {.side = 224})).units).all();
  };
  CHECK(on_images("resnet18") == 11'689'512);
  CHECK(on_images("resnet50") == 25'557'032);
  CHECK(on_images("vit-s") == 22'050'664);
  CHECK(on_images("vit-b") == 86'567'656);
  CHECK(on_images("vit-l") == 304'326'632);
  CHECK(!find_vision("resnet19", {.side = 224}));
  CHECK(find_gpt("gpt2") == nullptr);
  CHECK(find_llama("llama") == nullptr);
}

TEST_CASE("checkpointing_recomputes_the_layers_alone") {
  const auto kept = llama(*find_llama("llama-7b"), false).program.micro_batch;
  const auto recomputed = llama(*find_llama("llama-7b"), true).program.micro_batch;
  CHECK(recomputed.size() == kept.size() + 32);
  for (std::size_t i = 0; i < recomputed.size(); ++i) {
    if (recomputed[i].kind != tessera::plan::WindowKind::recompute) continue;
    CHECK(recomputed[i + 1] == tessera::plan::WindowUse{recomputed[i].unit, tessera::plan::WindowKind::backward});
  }
}

TEST_CASE("activations_grow_with_the_batch_and_shrink_with_recomputation") {
  auto shape = shape_of(*find_gpt("gpt2-124m"));
  const auto one = gpt_activations(shape, tessera::bf16_mixed, 1);
  CHECK(gpt_activations(shape, tessera::bf16_mixed, 3) > 2 * one);
  CHECK(gpt_activations(shape, tessera::fp32_precision, 1) > one);
  shape.activation_checkpointing = true;
  CHECK(gpt_activations(shape, tessera::bf16_mixed, 1) < one);
}

}  // namespace
