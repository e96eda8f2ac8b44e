// Layers on several threads: the bits of one thread, whatever their number, in sizes that are worth sharing and whose
// rows and columns no number of threads divides.
#include "tessera/nn/threads.hpp"

#include "../sanitizers/sanitizers.hpp"
#include "instruction_sets.hpp"
#include "product_sets.hpp"
#include "src/products/choice.hpp"
#include "src/products/product.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/nn/attention.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/dropout.hpp"
#include "tessera/nn/embedding.hpp"
#include "tessera/nn/gelu.hpp"
#include "tessera/nn/layer_norm.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/relu.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace threads_test {

constexpr Dropout some_dropout{.probability = 0.25f, .key = {.seed = 3, .step = 9, .layer = 2, .first_row = 5}};

TEST_CASE_TEMPLATE("elements_have_the_same_bits_on_any_number_of_threads", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  const std::size_t rows = 211, columns = 467;
  const std::vector<T> x = random_elements<T>(rows * columns, 1);
  const std::vector<T> dy = random_elements<T>(rows * columns, 2);
  check_same_bits_on_threads([&] {
    std::vector<std::vector<T>> to(7, unset<T>(x.size()));
    const auto view = [&](std::size_t at) { return matrix(to[at], rows, columns); };
    const auto vx = matrix(x, rows, columns), vdy = matrix(dy, rows, columns);
    gelu_forward<T>(stream, vx, view(0));
    gelu_backward<T>(stream, vx, vdy, view(1));
    relu_forward<T>(stream, vx, view(2));
    relu_backward<T>(stream, vx, vdy, view(3));
    dropout<T>(stream, some_dropout, vx, view(4));
    add_dropped<T>(stream, {.residual = vdy, .x = vx, .y = view(5), .dropout = some_dropout});
    add_dropped<T>(stream, {.residual = vdy, .x = vx, .y = view(6)});
    return bytes_of(to[0], to[1], to[2], to[3], to[4], to[5], to[6]);
  });
  stream.synchronize();
}

TEST_CASE_TEMPLATE("layer_norm_has_the_same_bits_on_any_number_of_threads", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  const std::size_t rows = 211, dim = 467;
  const std::vector<T> x = random_elements<T>(rows * dim, 1), dy = random_elements<T>(rows * dim, 2);
  const std::vector<T> weight = random_elements<T>(dim, 3), bias = random_elements<T>(dim, 4);
  check_same_bits_on_threads([&] {
    std::vector<T> y = unset<T>(x.size()), dx = dy, dweight = weight, dbias = bias;
    std::vector<Arithmetic<T>> mean(rows), inverse(rows);
    layer_norm_forward<T>(stream, {.x = matrix(x, rows, dim),
                                   .weight = weight.data(),
                                   .bias = bias.data(),
                                   .y = matrix(y, rows, dim),
                                   .mean = mean.data(),
                                   .inverse = inverse.data()});
    layer_norm_backward<T>(stream, {.x = matrix(x, rows, dim),
                                    .weight = weight.data(),
                                    .mean = mean.data(),
                                    .inverse = inverse.data(),
                                    .dy = matrix(std::as_const(dx), rows, dim),
                                    .residual = x.data(),
                                    .dx = matrix(dx, rows, dim),
                                    .dweight = dweight.data(),
                                    .dbias = dbias.data(),
                                    .accumulate = true});
    return bytes_of(y, mean, inverse, dx, dweight, dbias);
  });
  stream.synchronize();
}

TEST_CASE_TEMPLATE("cross_entropy_has_the_same_bits_on_any_number_of_threads", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  const std::size_t rows = 211, classes = 467;
  const std::vector<T> logits = random_elements<T>(rows * classes, 1);
  std::vector<std::int32_t> labels(rows);
  std::vector<float> weights(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    labels[row] = static_cast<std::int32_t>(row * 13 % classes);
    weights[row] = row % 5 == 0 ? 0.0f : 0.1f * static_cast<float>(row % 7);
  }
  const float scale = 3.0f;
  check_same_bits_on_threads([&] {
    std::vector<Arithmetic<T>> statistics(2 * rows), loss(1);
    std::vector<T> dlogits = unset<T>(logits.size());
    std::vector<double> correct(1);
    const CrossEntropyRows<T> operands{.logits = matrix(logits, rows, classes),
                                       .labels = labels.data(),
                                       .weights = weights.data(),
                                       .denominator = 7.0f,
                                       .statistics = statistics.data()};
    cross_entropy_forward<T>(stream, operands, loss.data());
    cross_entropy_backward<T>(stream, operands, &scale, matrix(dlogits, rows, classes));
    count_correct<T>(stream, operands, correct.data());
    return bytes_of(statistics, loss, dlogits, correct);
  });
  stream.synchronize();
}

TEST_CASE("the_first_row_with_a_wrong_label_is_named_on_any_number_of_threads") {
  const std::size_t rows = 211, classes = 467;
  const std::vector<float> logits(rows * classes);
  std::vector<std::int32_t> labels(rows);
  for (const std::size_t row : {80, 81, 200}) labels[row] = -1;
  std::vector<float> statistics(2 * rows), loss(1);
  for (const int threads : {1, 2, 7}) {
    set_threads(threads);
    Stream stream = immediate_stream();
    cross_entropy_forward<float>(
        stream, {.logits = matrix(logits, rows, classes), .labels = labels.data(), .statistics = statistics.data()},
        loss.data());
    CHECK_THROWS_WITH_AS(stream.synchronize(), "cross entropy: the label of row 80 is -1, but there are 467 classes",
                         UsageError);
  }
  set_threads(1);
}

TEST_CASE_TEMPLATE("embedding_has_the_same_bits_on_any_number_of_threads", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  const std::size_t sequence = 31, rows = 11 * sequence, vocabulary = 101, context = 41, dim = 331;
  const std::vector<T> table = random_elements<T>(vocabulary * dim, 1),
                       positions = random_elements<T>(context * dim, 2);
  const std::vector<T> dy = random_elements<T>(rows * dim, 3);
  std::vector<std::int32_t> ids(rows), scratch(embedding_scratch(rows, vocabulary));
  for (std::size_t row = 0; row < rows; ++row) ids[row] = static_cast<std::int32_t>(row % 3 == 0 ? 7 : row * 17 % 97);
  check_same_bits_on_threads([&] {
    std::vector<T> y = unset<T>(rows * dim), dtable = table, dpositions = positions;
    embedding_forward<T>(stream, {.table = matrix(table, vocabulary, dim),
                                  .positions = matrix(positions, context, dim),
                                  .ids = ids.data(),
                                  .sequence = sequence,
                                  .first_position = 5,
                                  .y = matrix(y, rows, dim)});
    embedding_backward<T>(stream, {.ids = ids.data(),
                                   .sequence = sequence,
                                   .first_position = 5,
                                   .dy = matrix(dy, rows, dim),
                                   .dtable = matrix(dtable, vocabulary, dim),
                                   .dpositions = matrix(dpositions, context, dim),
                                   .accumulate = true,
                                   .scratch = scratch.data()});
    return bytes_of(y, dtable, dpositions);
  });
  stream.synchronize();
}

// One head is never cut where there are several.
TEST_CASE_TEMPLATE("attention_has_the_same_bits_on_any_number_of_threads", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  const AttentionShape shape{.sequences = 3, .sequence = 131, .heads = 5, .head_dim = 24};
  const std::vector<T> qkv = random_elements<T>(shape.rows() * 3 * shape.dim(), 1);
  const std::vector<T> dout = random_elements<T>(shape.rows() * shape.dim(), 2);
  for (const Dropout& dropout : {Dropout{}, some_dropout}) {
    check_same_bits_on_threads([&] {
      std::vector<T> out = unset<T>(dout.size()), dqkv = unset<T>(qkv.size());
      auto statistics = unset<Arithmetic<T>>(shape.statistics());
      auto forward_scratch = unset<Arithmetic<T>>(attention_forward_scratch<T>(shape));
      auto backward_scratch = unset<Arithmetic<T>>(attention_backward_scratch<T>(shape));
      attention_forward<T>(stream, {.shape = shape,
                                    .qkv = matrix(qkv, shape.rows(), 3 * shape.dim()),
                                    .out = matrix(out, shape.rows(), shape.dim()),
                                    .statistics = statistics.data(),
                                    .dropout = dropout,
                                    .scratch = forward_scratch.data()});
      attention_backward<T>(stream, {.shape = shape,
                                     .qkv = matrix(qkv, shape.rows(), 3 * shape.dim()),
                                     .statistics = statistics.data(),
                                     .dout = matrix(dout, shape.rows(), shape.dim()),
                                     .dqkv = matrix(dqkv, shape.rows(), 3 * shape.dim()),
                                     .dropout = dropout,
                                     .scratch = backward_scratch.data()});
      return bytes_of(out, dqkv, statistics);
    });
  }
  stream.synchronize();
}

// Libraries' bits may follow how a product is cut: then only closeness is promised.
template <typename T>
bool products_are_ours() {
  const ProductSet set = active_product_set();
  if (std::is_same_v<T, bf16> && set == ProductSet::onednn) return false;
  return !std::is_same_v<T, double> && active_float_products() != nullptr;
}

template <typename T>
void check_linear_on_threads() {
  Stream stream = immediate_stream();
  struct Size {
    std::size_t batch, in, out;
  };
  // The second has a depth that is cut or not by how wide a part is; the last is one row, and large.
  for (const Size& size : std::vector<Size>{{67, 301, 499}, {40, 1100, 1000}, {1030, 97, 101}, {1, 1000, 5000}}) {
    CAPTURE(size.batch);
    const std::vector<T> x = random_elements<T>(size.batch * size.in, 1);
    const std::vector<T> weight = random_elements<T>(size.out * size.in, 2);
    const std::vector<T> bias = random_elements<T>(size.out, 3);
    const std::vector<T> dy = random_elements<T>(size.batch * size.out, 4);
    std::vector<float> scratch(linear_scratch<T>(size.batch, size.in, size.out));
    std::vector<T> y, gelu, dx, dweight, dbias;
    const auto run = [&] {
      y = gelu = unset<T>(size.batch * size.out);
      dx = unset<T>(size.batch * size.in);
      dweight = weight;
      dbias = bias;
      const auto vx = matrix(x, size.batch, size.in);
      const auto vweight = matrix(weight, size.out, size.in);
      linear_forward<T>(stream, {.x = vx,
                                 .weight = vweight,
                                 .bias = bias.data(),
                                 .y = matrix(y, size.batch, size.out),
                                 .gelu = matrix(gelu, size.batch, size.out),
                                 .scratch = scratch.data()});
      linear_backward<T>(stream, {.x = vx,
                                  .weight = vweight,
                                  .dy = matrix(dy, size.batch, size.out),
                                  .dx = matrix(dx, size.batch, size.in),
                                  .gelu_x = vx,
                                  .dweight = dweight.data(),
                                  .dbias = dbias.data(),
                                  .accumulate = true,
                                  .scratch = scratch.data()});
      return bytes_of(y, gelu, dx, dweight, dbias);
    };
    if (products_are_ours<T>()) {
      check_same_bits_on_threads(run);
      continue;
    }
    run();
    const std::vector<double> first[] = {widened(y), widened(gelu), widened(dx), widened(dweight), widened(dbias)};
    for (const int threads : {2, 3, 7}) {
      set_threads(threads);
      run();
      const std::vector<T>* const now[] = {&y, &gelu, &dx, &dweight, &dbias};
      for (std::size_t i = 0; i < 5; ++i) check_elements(*now[i], first[i], 100 * tolerance<T>());
    }
    set_threads(1);
  }
  stream.synchronize();
}

// ThreadSanitizer goes through the best set alone: sets differ in what a thread computes, not in who waits for whom.
TEST_CASE_TEMPLATE("linear_has_the_same_bits_on_any_number_of_threads", T, TESSERA_ALL_ELEMENTS) {
  for (const ProductSet set : available_product_sets()) {
    if (TESSERA_THREAD_SANITIZER && set != active_product_set()) continue;
    CAPTURE(to_string(set));
    const WithProducts now(set);
    check_linear_on_threads<T>();
  }
}

TEST_CASE("a_product_of_another_stream_thread_has_helpers_of_its_own") {
  set_threads(2);
  Stream stream(Device::cpu(), {.name = "compute"});
  const std::vector<float> x = random_floats(200 * 300, 1), weight = random_floats(400 * 300, 2);
  std::vector<float> here(200 * 400), there(200 * 400);
  Stream immediate = immediate_stream();
  linear_forward<float>(immediate,
                        {.x = matrix(x, 200, 300), .weight = matrix(weight, 400, 300), .y = matrix(here, 200, 400)});
  linear_forward<float>(stream,
                        {.x = matrix(x, 200, 300), .weight = matrix(weight, 400, 300), .y = matrix(there, 200, 400)});
  stream.synchronize();
  CHECK(here == there);
  set_threads(1);
}

}  // namespace threads_test
