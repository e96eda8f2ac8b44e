// How vision transformers read images: tokens in their places, and gradients by central differences.
#include "tessera/vision/patch_embedding.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "reference.hpp"
#include "standalone.hpp"
#include "tessera/base/error.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;

namespace patch_embedding_test {

constexpr PatchShape shape{.channels = 2, .image = {6, 4}, .patch = {3, 2}, .dim = 5};
constexpr std::size_t images = 3;

template <typename T>
struct Run {
  explicit Run(std::size_t count_ = images) : count(count_) {}

  ImageView<const T> in() const { return {x.data(), count, 6, 4, 2}; }
  std::vector<T> forward() {
    std::vector<T> y = unset<T>(count * shape.tokens() * shape.dim);
    stack.poison();
    const ScratchScope scope(*stack);
    saved = memory.forward(layer, *stack, in(), matrix(y, count * shape.tokens(), shape.dim));
    return y;
  }
  void backward() {
    const ScratchScope scope(*stack);
    memory.backward(layer, *stack, saved, matrix(std::as_const(dy), count * shape.tokens(), shape.dim),
                    ImageView<T>{dx.data(), count, 6, 4, 2});
  }

  std::size_t count;
  PatchEmbedding<T> layer{shape};
  Standalone<T> memory{layer};
  std::vector<T> x = random_elements<T>(count * 48, 1), dx = unset<T>(count * 48);
  std::vector<T> dy = random_elements<T>(count * 5 * 5, 2);
  OwnStack stack{Bytes(1 << 16)};
  typename PatchEmbedding<T>::Saved saved = {};
};

TEST_CASE_TEMPLATE("tokens_are_the_class_the_patches_line_by_line_and_their_places", T, TESSERA_ALL_ELEMENTS) {
  Run<T> run;
  CHECK(run.memory.names() == std::vector<std::string>{"proj.weight", "proj.bias", "cls_token", "pos_embed"});
  CHECK(run.memory.entry("pos_embed").parameter->shape() == Shape{5, 5});
  const std::vector<double> y = widened(run.forward());
  const auto x = widened(run.x), weight = widened(run.memory.entry("proj.weight").values),
             bias = widened(run.memory.entry("proj.bias").values), cls = widened(run.memory.entry("cls_token").values),
             position = widened(run.memory.entry("pos_embed").values);
  for (std::size_t n = 0; n < images; ++n) {
    for (std::size_t token = 0; token < 5; ++token) {
      for (std::size_t o = 0; o < 5; ++o) {
        double expected = position[token * 5 + o] + (token == 0 ? cls[o] : bias[o]);
        for (std::size_t i = 0; token > 0 && i < 3 * 2 * 2; ++i) {
          const std::size_t c = i % 2, dx = i / 2 % 2, dy = i / 4;
          const std::size_t py = (token - 1) / 2 * 3 + dy, px = (token - 1) % 2 * 2 + dx;
          expected += weight[((o * 2 + c) * 3 + dy) * 2 + dx] * x[((n * 6 + py) * 4 + px) * 2 + c];
        }
        // The projection is rounded before it is added to.
        CHECK(y[(n * 5 + token) * 5 + o] == doctest::Approx(expected).epsilon(3 * tolerance<T>()));
      }
    }
  }
}

TEST_CASE("patch_embedding_gradients_in_double_are_the_central_differences") {
  Run<double> run;
  const auto loss = [&] { return dot(run.forward(), run.dy); };
  const std::vector<double> dx = numeric_gradient(run.x, loss);
  std::vector<std::vector<double>> expected;
  for (auto& entry : run.memory.entries()) expected.push_back(numeric_gradient(entry.values, loss));
  run.forward();
  run.backward();
  check_elements(run.dx, dx, 1e-6);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(run.memory.entries()[i].name);
    check_elements(run.memory.entries()[i].gradient, expected[i], 1e-6);
  }
}

TEST_CASE("no_images_have_no_tokens_and_gradients_of_zero") {
  Run<float> run(0);
  CHECK(run.forward().empty());
  run.backward();
  for (const auto& entry : run.memory.entries()) {
    INFO(entry.name);
    CHECK(entry.gradient == std::vector<float>(entry.gradient.size(), 0.0f));
  }
}

TEST_CASE("class_tokens_are_taken_and_their_gradients_given_back") {
  Stream stream = immediate_stream();
  std::vector<bf16> x = random_elements<bf16>(4 * 3 * 2, 1), to(4 * 2), back = unset<bf16>(x.size());
  take_class_tokens<bf16>(stream, 3, matrix(std::as_const(x), 12, 2), matrix(to, 4, 2));
  give_class_tokens<bf16>(stream, 3, matrix(std::as_const(to), 4, 2), matrix(back, 12, 2));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool first = i / 2 % 3 == 0;
    CHECK(static_cast<float>(back[i]) == (first ? static_cast<float>(x[i]) : 0.0f));
  }
  CHECK_THROWS_AS(take_class_tokens<bf16>(stream, 5, matrix(std::as_const(x), 12, 2), matrix(to, 4, 2)), UsageError);
}

TEST_CASE("patches_that_do_not_divide_the_image_are_refused") {
  CHECK_THROWS_WITH_AS((PatchEmbedding<float>({.channels = 1, .image = 28, .patch = 16, .dim = 8})),
                       "patch embedding: patches of 16 x 16 do not divide images of 28 x 28", UsageError);
}

}  // namespace patch_embedding_test
