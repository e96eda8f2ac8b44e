// Attention: the formula written out over whole matrices, its gradients, dropout, and the last rows alone.
#include "tessera/nn/attention.hpp"

#include <cmath>

#include "instruction_sets.hpp"
#include "tessera/base/error.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace attention_test {

const std::vector<AttentionShape> shapes = {
    {.sequences = 0, .sequence = 3, .heads = 1, .head_dim = 2},
    {.sequences = 1, .sequence = 1, .heads = 1, .head_dim = 1},
    {.sequences = 2, .sequence = 1, .heads = 3, .head_dim = 5},
    {.sequences = 3, .sequence = 5, .heads = 1, .head_dim = 7},
    {.sequences = 2, .sequence = 17, .heads = 3, .head_dim = 1},
    {.sequences = 1, .sequence = 64, .heads = 2, .head_dim = 16},
    {.sequences = 1, .sequence = 67, .heads = 1, .head_dim = 3},
    {.sequences = 2, .sequence = 131, .heads = 3, .head_dim = 13},
    {.sequences = 2, .sequence = 1, .heads = 2, .head_dim = 3, .causal = false},
    {.sequences = 3, .sequence = 17, .heads = 2, .head_dim = 5, .causal = false},
    {.sequences = 1, .sequence = 67, .heads = 1, .head_dim = 3, .causal = false},
    {.sequences = 2, .sequence = 130, .heads = 3, .head_dim = 8, .causal = false}};

constexpr Dropout some_dropout{.probability = 0.25f, .key = {.seed = 3, .step = 9, .layer = 2, .first_row = 5}};

// The formula, query by query, in double; `factors` is the mask of all rows · heads, or empty.
std::vector<double> reference(const AttentionShape& shape, const std::vector<double>& qkv,
                              const std::vector<double>& factors) {
  const std::size_t dim = shape.dim();
  std::vector<double> out(shape.rows() * dim, 0.0);
  for (std::size_t row = 0; row < shape.rows(); ++row) {
    const std::size_t first = row / shape.sequence * shape.sequence;
    const std::size_t end = shape.causal ? row + 1 : first + shape.sequence;
    for (std::size_t head = 0; head < shape.heads; ++head) {
      const auto part = [&](std::size_t of_row, std::size_t which, std::size_t i) {
        return qkv[of_row * 3 * dim + which * dim + head * shape.head_dim + i];
      };
      std::vector<double> weights;
      double sum = 0.0;
      for (std::size_t key = first; key < end; ++key) {
        double score = 0.0;
        for (std::size_t i = 0; i < shape.head_dim; ++i) score += part(row, 0, i) * part(key, 1, i);
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(shape.head_dim))));
        sum += weights.back();
      }
      for (std::size_t key = first; key < end; ++key) {
        const std::size_t mask = (row * shape.heads + head) * shape.sequence + (key - first);
        const double weight = weights[key - first] / sum * (factors.empty() ? 1.0 : factors[mask]);
        for (std::size_t i = 0; i < shape.head_dim; ++i) {
          out[row * dim + head * shape.head_dim + i] += weight * part(key, 2, i);
        }
      }
    }
  }
  return out;
}

// The mask as the function `dropout` has it: rows are global row · heads + head, columns are keys.
std::vector<double> factors_of(const AttentionShape& shape, Dropout of) {
  if (of.probability == 0.0f) return {};
  of.key.first_row *= shape.heads;
  std::vector<float> mask(shape.statistics() * shape.sequence, 1.0f);
  Stream stream = immediate_stream();
  const MatrixView<float> view = matrix(mask, shape.statistics(), shape.sequence);
  dropout<float>(stream, of, view, view);
  return widened(mask);
}

template <typename T>
struct AttentionCase {
  AttentionCase(const AttentionShape& of, const Dropout& dropout_)
      : shape(of),
        dropout(dropout_),
        qkv(random_elements<T>(of.rows() * 3 * of.dim(), 1)),
        dout(random_elements<T>(of.rows() * of.dim(), 2)) {
    for (T& element : qkv) element = static_cast<T>(Arithmetic<T>{2} * static_cast<Arithmetic<T>>(element));
  }

  AttentionForward<T> forward_operands() {
    return {.shape = shape,
            .qkv = matrix(std::as_const(qkv), shape.rows(), 3 * shape.dim()),
            .out = matrix(out, shape.rows(), shape.dim()),
            .statistics = statistics.data(),
            .dropout = dropout,
            .scratch = forward_scratch.data()};
  }
  AttentionBackward<T> backward_operands() {
    return {.shape = shape,
            .qkv = matrix(std::as_const(qkv), shape.rows(), 3 * shape.dim()),
            .statistics = statistics.data(),
            .dout = matrix(std::as_const(dout), shape.rows(), shape.dim()),
            .dqkv = matrix(dqkv, shape.rows(), 3 * shape.dim()),
            .dropout = dropout,
            .scratch = backward_scratch.data()};
  }

  AttentionShape shape;
  Dropout dropout;
  std::vector<T> qkv, dout;
  std::vector<T> out = unset<T>(dout.size()), dqkv = unset<T>(qkv.size());
  // Scratch memory full of NaN: what a pass reads without having written it shows.
  std::vector<Arithmetic<T>> statistics = unset<Arithmetic<T>>(shape.statistics()),
                             forward_scratch = unset<Arithmetic<T>>(attention_forward_scratch<T>(shape)),
                             backward_scratch = unset<Arithmetic<T>>(attention_backward_scratch<T>(shape));
};

TEST_CASE_TEMPLATE("attention_is_the_formula_over_whole_matrices", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const AttentionShape& shape : shapes) {
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
      CAPTURE(shape.sequence);
      AttentionCase<T> c(shape, dropout);
      attention_forward<T>(stream, c.forward_operands());
      check_elements(c.out, reference(shape, widened(c.qkv), factors_of(shape, dropout)));
    }
  }
  stream.synchronize();
}

TEST_CASE("attention_gradients_are_the_central_differences") {
  Stream stream = immediate_stream();
  for (AttentionShape shape : shapes) {
    if (shape.sequence > 100) continue;  // differences of so many elements take long; see the next test
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
      CAPTURE(shape.sequence);
      AttentionCase<double> c(shape, dropout);
      attention_forward<double>(stream, c.forward_operands());
      attention_backward<double>(stream, c.backward_operands());
      const std::vector<double> gradient = c.dqkv;
      const std::vector<double> expected = numeric_gradient(c.qkv, [&] {
        attention_forward<double>(stream, c.forward_operands());
        return dot(c.out, c.dout);
      });
      check_elements(gradient, expected, 1e-7);
    }
  }
  stream.synchronize();
}

TEST_CASE_TEMPLATE("attention_gradients_are_those_of_double", T, float, bf16, fp16) {
  Stream stream = immediate_stream();
  for (const AttentionShape& shape : shapes) {
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
      CAPTURE(shape.sequence);
      AttentionCase<T> c(shape, dropout);
      AttentionCase<double> wide(shape, dropout);
      wide.qkv = widened(c.qkv);
      wide.dout = widened(c.dout);
      attention_forward<T>(stream, c.forward_operands());
      attention_backward<T>(stream, c.backward_operands());
      attention_forward<double>(stream, wide.forward_operands());
      attention_backward<double>(stream, wide.backward_operands());
      check_elements(c.dqkv, wide.dqkv);
    }
  }
  stream.synchronize();
}

TEST_CASE_TEMPLATE("the_last_rows_alone_are_those_of_the_whole", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const AttentionShape& shape : shapes) {
    AttentionCase<T> c(shape, {});
    attention_forward<T>(stream, c.forward_operands());
    for (const std::size_t queries : {std::size_t{1}, (shape.sequence + 1) / 2}) {
      std::vector<double> expected;
      const std::vector<double> whole = widened(c.out);
      for (std::size_t row = 0; row < shape.rows(); ++row) {
        if (row % shape.sequence + queries < shape.sequence) continue;
        for (std::size_t i = 0; i < shape.dim(); ++i) expected.push_back(whole[row * shape.dim() + i]);
      }
      std::vector<T> out = unset<T>(shape.sequences * queries * shape.dim());
      AttentionForward<T> operands = c.forward_operands();
      operands.out = matrix(out, shape.sequences * queries, shape.dim());
      operands.queries = queries;
      operands.statistics = nullptr;
      attention_forward<T>(stream, operands);
      check_elements(out, expected, 2.0 * tolerance<T>());
    }
  }
  stream.synchronize();
}

TEST_CASE("attention_survives_scores_that_no_exponential_does") {
  Stream stream = immediate_stream();
  AttentionCase<float> c({.sequences = 1, .sequence = 9, .heads = 1, .head_dim = 2}, {});
  for (float& element : c.qkv) element *= 100.0f;
  attention_forward<float>(stream, c.forward_operands());
  attention_backward<float>(stream, c.backward_operands());
  for (const float element : c.out) CHECK(std::abs(element) <= 200.0f);
  for (const float element : c.dqkv) CHECK(std::isfinite(element));
  stream.synchronize();
}

TEST_CASE("later_keys_do_not_matter") {
  Stream stream = immediate_stream();
  const AttentionShape shape{.sequences = 1, .sequence = 70, .heads = 3, .head_dim = 4};
  AttentionCase<float> c(shape, {});
  attention_forward<float>(stream, c.forward_operands());
  const std::vector<float> before(c.out.begin(), c.out.begin() + 66 * 12);
  for (std::size_t i = 66 * 36; i < c.qkv.size(); ++i) c.qkv[i] += 1.0f;
  attention_forward<float>(stream, c.forward_operands());
  CHECK(before == std::vector<float>(c.out.begin(), c.out.begin() + 66 * 12));
  stream.synchronize();
}

TEST_CASE("how_sequences_are_divided_among_ranks_does_not_change_what_is_dropped") {
  Stream stream = immediate_stream();
  AttentionCase<float> whole({.sequences = 6, .sequence = 11, .heads = 3, .head_dim = 4}, some_dropout);
  attention_forward<float>(stream, whole.forward_operands());
  AttentionCase<float> part({.sequences = 2, .sequence = 11, .heads = 3, .head_dim = 4}, some_dropout);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto from = whole.qkv.begin() + static_cast<std::ptrdiff_t>(rank * part.qkv.size());
    part.qkv.assign(from, from + static_cast<std::ptrdiff_t>(part.qkv.size()));
    part.dropout.key.first_row = some_dropout.key.first_row + rank * 22;
    attention_forward<float>(stream, part.forward_operands());
    const auto out = whole.out.begin() + static_cast<std::ptrdiff_t>(rank * part.out.size());
    CHECK(part.out == std::vector<float>(out, out + static_cast<std::ptrdiff_t>(part.out.size())));
  }
  stream.synchronize();
}

// One head is never cut where there are several.
TEST_CASE_TEMPLATE("attention_has_the_same_bits_in_every_instruction_set_and_on_any_number_of_threads", T,
                   TESSERA_ALL_ELEMENTS) {
  std::vector<AttentionShape> with_large = shapes;
  with_large.push_back({.sequences = 3, .sequence = 131, .heads = 5, .head_dim = 24});
  Stream stream = immediate_stream();
  for (const AttentionShape& shape : with_large) {
    for (const Dropout& dropout : {Dropout{}, some_dropout}) {
      AttentionCase<T> c(shape, dropout);
      const auto bits = [&] {
        attention_forward<T>(stream, c.forward_operands());
        attention_backward<T>(stream, c.backward_operands());
        return bytes_of(c.out, c.statistics, c.dqkv);
      };
      check_same_bits(bits);
      check_same_bits_on_threads(bits);
    }
  }
  stream.synchronize();
}

TEST_CASE("attention_keeps_one_number_per_row_and_head_and_its_scratch_does_not_grow_with_them") {
  const AttentionShape small{.sequences = 1, .sequence = 512, .heads = 1, .head_dim = 64};
  AttentionShape large = small;
  large.sequences = 8;
  large.heads = 12;
  CHECK(large.statistics() == 8 * 12 * 512);
  CHECK(attention_backward_scratch<float>(large) == attention_backward_scratch<float>(small));
  CHECK(attention_forward_scratch<float>(small) == 64 * 512 + 512 + 2 * 64);
  CHECK(attention_backward_scratch<float>(small) == 2 * 64 * 512 + 512);
  CHECK(attention_forward_scratch<bf16>(small) == 64 * 512 + 512 + 2 * 64 + 2 * 512 * 64 + 2 * 64 * 64);
}

TEST_CASE("attention_refuses_shapes_that_do_not_fit") {
  Stream stream = immediate_stream();
  AttentionCase<float> c({.sequences = 2, .sequence = 3, .heads = 1, .head_dim = 4}, {});
  AttentionForward<float> operands = c.forward_operands();
  operands.queries = 4;
  CHECK_THROWS_WITH_AS(attention_forward<float>(stream, operands),
                       "attention: the last 4 rows of sequences of 3 are wanted", UsageError);
  operands = c.forward_operands();
  operands.qkv.columns = 4;
  CHECK_THROWS_WITH_AS(attention_forward<float>(stream, operands), "attention: qkv must be [6, 12], but is [6, 4]",
                       UsageError);
  operands.shape.head_dim = 0;
  CHECK_THROWS_AS(attention_forward<float>(stream, operands), UsageError);
  AttentionBackward<float> backward = c.backward_operands();
  backward.dout.rows = 5;
  CHECK_THROWS_AS(attention_backward<float>(stream, backward), UsageError);
}

}  // namespace attention_test
