// A transformer's layers: gradients of whole blocks, all element types, recomputation, and counted memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../data/allocation_counter.hpp"
#include "product_sets.hpp"
#include "reference.hpp"
#include "standalone.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/counting_model.hpp"
#include "tessera/nn/embedding.hpp"
#include "tessera/nn/transformer_block.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace transformer_test {

using Doubles = std::vector<double>;

constexpr double gradient_tolerance = 2e-7;  // of finite differences

struct Sizes {
  std::size_t sequences;
  std::size_t length;
  std::size_t heads;
  std::size_t dim;
  std::size_t rows() const { return sequences * length; }
};
const std::vector<Sizes> all_sizes = {{1, 1, 1, 1}, {2, 3, 3, 6}, {1, 5, 1, 7}, {3, 7, 2, 10}, {0, 4, 1, 3}};

SequenceBatch batch_of(const Sizes& sizes, float probability) {
  return {.length = sizes.length,
          .dropout = {.probability = probability, .key = {.seed = 11, .step = 5, .first_row = 70}}};
}

enum class Keep { everything, only_y, everything_twice };

// Forward and backward of one block. What is kept in between is everything or y alone; or everything, and between two
// passes back what the parameters' gradients are formed from.
template <typename Model, typename T>
void block_pass(Model& model, TransformerBlock<T>& block, ActivationStack& stack, MatrixView<const T> x,
                const SequenceBatch& batch, MatrixView<T> y, MatrixView<T> gradient, Keep keep) {
  const ScratchScope pass(stack);
  typename TransformerBlock<T>::Saved saved;
  if (keep == Keep::only_y) {
    {
      const ScratchScope insides(stack);
      model.forward(block, stack, x, y, batch);
    }
    stack.push<T>(x.rows, 50 * x.columns);  // what other layers do with that memory meanwhile
  }
  saved = model.forward(block, stack, x, y, batch);
  if (keep != Keep::everything_twice) return model.backward(block, stack, saved, gradient);
  const auto between = model.backward_input(block, stack, saved, gradient);
  stack.push<T>(x.rows, 50 * x.columns);
  model.open(block, plan::WindowKind::backward).run([&](Window& window) {
    block.backward_parameters(window, stack, saved, between);
  });
}

template <typename T>
struct BlockRun {
  explicit BlockRun(const Sizes& sizes_, float probability = 0.0f, std::size_t index = 1)
      : sizes(sizes_),
        block({.dim = sizes.dim, .heads = sizes.heads, .layers = 3}, index),
        model(block),
        batch(batch_of(sizes, probability)),
        x(random_elements<T>(sizes.rows() * sizes.dim, 1)),
        dy(random_elements<T>(sizes.rows() * sizes.dim, 2)),
        y(x.size()),
        dx(x.size()),
        stack(std::max(planned(Keep::only_y), planned(Keep::everything_twice))) {}

  // The inputs of another run, which T must hold exactly.
  template <typename U>
  void take(BlockRun<U>& from) {
    x = stored<T>(widened(from.x)), dy = stored<T>(widened(from.dy));
    for (std::size_t i = 0; i < model.entries().size(); ++i) {
      model.entries()[i].values = stored<T>(widened(from.model.entries()[i].values));
    }
  }

  Bytes planned(Keep keep) {
    ActivationStack counting;
    CountingModel none;
    const MatrixView<T> like{nullptr, sizes.rows(), sizes.dim};
    block_pass<CountingModel, T>(none, block, counting, like, batch, like, like, keep);
    return counting.peak();
  }

  void run(Keep keep = Keep::everything) {
    dx = dy;
    block_pass<Standalone<T>, T>(model, block, *stack, matrix(std::as_const(x), sizes.rows(), sizes.dim), batch,
                                 matrix(y, sizes.rows(), sizes.dim), matrix(dx, sizes.rows(), sizes.dim), keep);
  }

  double value() {
    const ScratchScope scope(*stack);
    model.forward(block, *stack, matrix(std::as_const(x), sizes.rows(), sizes.dim), matrix(y, sizes.rows(), sizes.dim),
                  batch);
    return dot(widened(y), widened(dy));
  }

  Sizes sizes;
  TransformerBlock<T> block;
  Standalone<T> model;
  SequenceBatch batch;
  std::vector<T> x, dy, y, dx;
  OwnStack stack;
};

// Bits of everything that a run leaves.
template <typename T>
std::string bits_of(BlockRun<T>& run) {
  std::string result;
  const auto append = [&](const std::vector<T>& values) {
    result.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  };
  append(run.y), append(run.dx);
  for (const auto& entry : run.model.entries()) append(entry.gradient);
  return result;
}

// A dozen roundings lie between x and y, and as many behind; each error is at most that of a number as large as the
// largest here.
template <typename T>
void check_near(const std::vector<T>& computed, const Doubles& expected) {
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  const Doubles values = widened(computed);
  REQUIRE(values.size() == expected.size());
  const double tolerated = (12.0 * rounding<T> + 1e-5) * largest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CAPTURE(values[i]);
    CAPTURE(expected[i]);
    CHECK(std::abs(values[i] - expected[i]) <= tolerated);
  }
}

struct Spread {
  double mean = 0.0;
  double deviation = 0.0;
};
Spread initial_spread(const Parameter& parameter) {
  std::vector<float> values(parameter.elements());
  parameter.initial().fill(values, 3, "name", 0);
  Spread result;
  for (const float value : values) result.mean += static_cast<double>(value) / static_cast<double>(values.size());
  for (const float value : values) {
    const double difference = static_cast<double>(value) - result.mean;
    result.deviation += difference * difference / static_cast<double>(values.size());
  }
  result.deviation = std::sqrt(result.deviation);
  return result;
}

TEST_CASE("a_block_has_the_names_shapes_and_initial_values_of_gpt2") {
  TransformerBlock<float> block({.dim = 64, .heads = 4, .layers = 8}, 0);
  Standalone<float> model(block);
  const std::vector<std::string> names = {
      "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
      "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
  CHECK(model.names() == names);
  CHECK(model.entry("attn.c_attn.weight").parameter->shape() == Shape{192, 64});
  CHECK(model.entry("mlp.c_fc.weight").parameter->shape() == Shape{256, 64});
  CHECK(model.entry("mlp.c_proj.weight").parameter->shape() == Shape{64, 256});
  for (const std::string& name : names) {
    CAPTURE(name);
    const Spread spread = initial_spread(*model.entry(name).parameter);
    const bool weight = name.ends_with("weight");
    const double deviation = !weight || name.starts_with("ln") ? 0.0 : name.find("c_proj") < 99 ? 0.005 : 0.02;
    CHECK(spread.mean == doctest::Approx(weight && name.starts_with("ln") ? 1.0 : 0.0).epsilon(1e-3));
    CHECK(std::abs(spread.deviation - deviation) <= 0.05 * deviation);
  }
}

TEST_CASE("gradients_of_a_block_in_double_are_the_central_differences") {
  for (const Sizes& sizes : std::vector<Sizes>{{2, 3, 3, 6}, {1, 5, 1, 3}}) {
    for (const float probability : {0.0f, 0.25f}) {
      BlockRun<double> run(sizes, probability);
      run.run();
      const Doubles dx = run.dx;
      check_elements(dx, numeric_gradient(run.x, [&] { return run.value(); }), gradient_tolerance);
      for (auto& entry : run.model.entries()) {
        CAPTURE(entry.name);
        const Doubles computed = entry.gradient;
        check_elements(computed, numeric_gradient(entry.values, [&] { return run.value(); }), gradient_tolerance);
      }
    }
  }
}

TEST_CASE_TEMPLATE("blocks_of_every_element_type_are_near_that_of_double", T, float, bf16, fp16) {
  for (const Sizes& sizes : all_sizes) {
    for (const float probability : {0.0f, 0.25f}) {
      BlockRun<T> run(sizes, probability);
      BlockRun<double> exact(sizes, probability);
      exact.take(run);
      run.run(), exact.run();
      check_near(run.y, exact.y);
      check_near(run.dx, exact.dx);
      for (auto& entry : run.model.entries()) {
        CAPTURE(entry.name);
        check_near(entry.gradient, exact.model.entry(entry.name).gradient);
      }
    }
  }
}

TEST_CASE_TEMPLATE("a_recomputed_block_gives_the_same_bits_with_dropout_too", T, float, bf16, fp16) {
  for (const Sizes& sizes : all_sizes) {
    BlockRun<T> run(sizes, 0.25f);
    run.run();
    const std::string expected = bits_of(run);
    run.stack.poison();
    run.run(Keep::only_y);
    CHECK(bits_of(run) == expected);
    BlockRun<T> other(sizes, 0.25f);
    other.batch.dropout.key.step = 6;
    other.run();
    if (sizes.rows() > 1) CHECK(bits_of(other) != expected);  // other masks
  }
}

TEST_CASE_TEMPLATE("a_block_that_goes_back_in_two_passes_gives_the_same_bits", T, float, bf16, fp16) {
  for (const Sizes& sizes : all_sizes) {
    for (const float probability : {0.0f, 0.3f}) {
      BlockRun<T> whole(sizes, probability), in_two(sizes, probability);
      whole.run();
      in_two.run(Keep::everything_twice);
      CHECK(bits_of(in_two) == bits_of(whole));
    }
  }
}

TEST_CASE_TEMPLATE("a_counted_pass_has_the_peak_of_the_real_one_which_allocates_nothing", T, double, float, bf16,
                   fp16) {
  const WithProducts own = without_onednn();
  for (const Sizes& sizes : all_sizes) {
    for (const Keep keep : {Keep::everything, Keep::only_y, Keep::everything_twice}) {
      BlockRun<T> run(sizes, 0.25f);
      OwnStack exact(run.planned(keep));
      const auto pass = [&] {
        block_pass<Standalone<T>, T>(
            run.model, run.block, *exact, matrix(std::as_const(run.x), sizes.rows(), sizes.dim), run.batch,
            matrix(run.y, sizes.rows(), sizes.dim), matrix(run.dx, sizes.rows(), sizes.dim), keep);
      };
      pass();
      CHECK((*exact).peak() == run.planned(keep));
      CHECK((*exact).used() == Bytes(0));
      // In one window: opening others is not the layer's.
      run.model.open(run.block, plan::WindowKind::forward).run([&](Window& window) {
        const std::size_t before = allocations_so_far();
        const ScratchScope scope(*exact);
        const auto saved = run.block.forward(window, *exact, matrix(std::as_const(run.x), sizes.rows(), sizes.dim),
                                             matrix(run.y, sizes.rows(), sizes.dim), run.batch);
        run.block.backward(window, *exact, saved, matrix(run.dx, sizes.rows(), sizes.dim));
        CHECK(allocations_so_far() == before);
      });
    }
  }
}

TEST_CASE("every_place_of_every_block_drops_differently") {
  const Sizes sizes{2, 3, 3, 6};
  // An outcome is what each place that drops leaves, given the same before it: attention's output, h and y.
  const auto outcomes = [&](std::size_t index) {
    BlockRun<float> run(sizes, 0.25f, index);
    const ScratchScope scope(*run.stack);
    const auto saved =
        run.model.forward(run.block, *run.stack, matrix(std::as_const(run.x), 6, 6), matrix(run.y, 6, 6), run.batch);
    const float* const out = saved.attn.proj.x.data;
    const float* const h = saved.ln_2.x.data;
    return std::vector<std::vector<float>>{{out, out + 36}, {h, h + 36}, run.y};
  };
  const auto first = outcomes(0);
  CHECK(outcomes(0) == first);
  const auto second = outcomes(1);
  for (std::size_t place = 0; place < 3; ++place) CHECK(second[place] != first[place]);
}

TEST_CASE("gradients_of_tied_embeddings_in_double_are_the_central_differences") {
  const EmbeddingShape shape{.vocabulary = 7, .context = 5, .dim = 3};
  Embedding<double> embedding(shape);
  Standalone<double> model(embedding);
  CHECK(model.names() == std::vector<std::string>{"wte.weight", "wpe.weight"});
  const std::vector<std::int32_t> ids = {6, 0, 3, 3, 1, 6};
  const SequenceBatch batch{.length = 3, .dropout = {.probability = 0.25f, .key = {.seed = 2}}};
  OwnStack memory(Bytes(1 << 16));
  Doubles x(6 * 3), logits(6 * 7), dx(6 * 3);
  const Doubles dlogits = widened(random_floats(6 * 7, 3));
  // x = embedding(ids); logits = x tableᵀ
  const auto value = [&] {
    model.forward(embedding, *memory, ids, matrix(x, 6, 3), batch);
    model.forward(embedding, *memory, matrix(std::as_const(x), 6, 3), matrix(logits, 6, 7));
    return dot(logits, dlogits);
  };
  value();
  const Embedding<double>::SavedLogits saved_logits{matrix(std::as_const(x), 6, 3)};
  const Embedding<double>::Saved saved{ids.data(), batch};
  model.backward(embedding, *memory, saved_logits, matrix(dlogits, 6, 7), matrix(dx, 6, 3));
  Doubles dtable = model.entry("wte.weight").gradient;
  model.backward(embedding, *memory, saved, matrix(dx, 6, 3));
  // Two windows: the runtime adds them up.
  for (std::size_t i = 0; i < dtable.size(); ++i) dtable[i] += model.entry("wte.weight").gradient[i];
  const Doubles dpositions = model.entry("wpe.weight").gradient;
  check_elements(dtable, numeric_gradient(model.entry("wte.weight").values, value), gradient_tolerance);
  check_elements(dpositions, numeric_gradient(model.entry("wpe.weight").values, value), gradient_tolerance);
}

TEST_CASE("misuse_of_a_transformers_layers_is_named") {
  CHECK_THROWS_WITH_AS(TransformerBlock<float>({.dim = 6, .heads = 4}, 0),
                       "attention: heads must divide dim, but 4 does not divide 6", UsageError);
  ActivationStack counting;
  TransformerBlock<float> block({.dim = 6, .heads = 3}, 0);
  const MatrixView<float> x{nullptr, 5, 6};
  CountingModel model_that_counts;
  CHECK_THROWS_WITH_AS(model_that_counts.forward(block, counting, x, x, SequenceBatch{.length = 3}),
                       "attention: 5 rows are no whole number of sequences of 3", UsageError);
  Embedding<float> embedding({.vocabulary = 3, .context = 4, .dim = 2});
  Standalone<float> model(embedding);
  const std::vector<std::int32_t> ids(3);
  std::vector<float> y(4);
  CHECK_THROWS_WITH_AS(model.forward(embedding, counting, ids, matrix(y, 2, 2), SequenceBatch{}),
                       "embedding: 3 ids, but y has 2 rows", UsageError);
}

}  // namespace transformer_test
