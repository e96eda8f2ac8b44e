// Shapes for planning are those that train_gpt and the papers have.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "models/gpt.hpp"
#include "models/model.hpp"
#include "models/vision.hpp"
#include "tessera/plan/slice.hpp"

namespace {

using namespace models;
using tessera::plan::ParameterSpec;
using tessera::plan::UnitSpec;

// Slices are of the tensors that one rank has, under their names, and activations are shared.
TEST_CASE("slices_of_a_gpt_are_of_one_model") {
  const GptShape shape{.layers = 2, .dim = 24, .heads = 6, .seq = 8, .vocabulary = 259, .batch = 3};
  GptShape sliced = shape;
  sliced.slices = 3;
  const auto tensors = [](const GptShape& of) {
    std::map<std::string, tessera::Shape> result;
    for (const UnitSpec& unit : gpt(of).units) {
      for (const ParameterSpec& each : unit.parameters) {
        result.emplace(each.name, tessera::plan::whole_shape(each.shape, each.slice));
      }
    }
    return result;
  };
  CHECK(tensors(sliced) == tensors(shape));
  CHECK(count_parameters(gpt(sliced).units).all() == count_parameters(gpt(shape).units).all());
  CHECK(gpt_activations(sliced, {}, 3).count() * 2 < gpt_activations(shape, {}, 3).count());
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
