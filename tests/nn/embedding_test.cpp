// Embeddings: rows of tables, gradients summed in row order, and ids that are none.
#include "tessera/nn/embedding.hpp"

#include <string>

#include "instruction_sets.hpp"
#include "tessera/base/error.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace embedding_test {

struct Size {
  std::size_t sequences;
  std::size_t sequence;
  std::size_t first_position;
  std::size_t dim;
  std::size_t vocabulary = 11;
  std::size_t context = 7;
};
const std::vector<Size> sizes = {{0, 3, 0, 4}, {1, 1, 0, 1}, {1, 1, 6, 3}, {3, 5, 2, 7}, {5, 7, 0, 70}, {2, 6, 1, 129}};

template <typename T>
struct EmbeddingCase {
  explicit EmbeddingCase(const Size& of)
      : size(of),
        rows(of.sequences * of.sequence),
        table(random_elements<T>(of.vocabulary * of.dim, 1)),
        positions(random_elements<T>(of.context * of.dim, 2)),
        dy(random_elements<T>(rows * of.dim, 3)) {
    for (std::size_t row = 0; row < rows; ++row)
      ids.push_back(static_cast<std::int32_t>(row % 3 == 0 ? 7 : row * 17 % size.vocabulary));
  }

  EmbeddingForward<T> forward_operands() {
    return {.table = matrix(std::as_const(table), size.vocabulary, size.dim),
            .positions = matrix(std::as_const(positions), size.context, size.dim),
            .ids = ids.data(),
            .sequence = size.sequence,
            .first_position = size.first_position,
            .y = matrix(y, rows, size.dim)};
  }
  EmbeddingBackward<T> backward_operands() {
    return {.ids = ids.data(),
            .sequence = size.sequence,
            .first_position = size.first_position,
            .dy = matrix(std::as_const(dy), rows, size.dim),
            .dtable = matrix(dtable, size.vocabulary, size.dim),
            .dpositions = matrix(dpositions, size.context, size.dim),
            .scratch = scratch.data()};
  }

  // Adds each row of dy to what `target` says: the definition of both gradients.
  template <typename Target>
  std::vector<double> scattered(std::size_t table_rows, Target target) const {
    std::vector<double> result(table_rows * size.dim, 0.0);
    const std::vector<double> wide = widened(dy);
    for (std::size_t i = 0; i < wide.size(); ++i) result[target(i / size.dim) * size.dim + i % size.dim] += wide[i];
    return result;
  }
  std::vector<double> expected_dtable() const {
    return scattered(size.vocabulary, [&](std::size_t row) { return static_cast<std::size_t>(ids[row]); });
  }
  std::vector<double> expected_dpositions() const {
    return scattered(size.context, [&](std::size_t row) { return size.first_position + row % size.sequence; });
  }

  Size size;
  std::size_t rows;
  std::vector<T> table, positions, dy;
  std::vector<std::int32_t> ids;
  std::vector<T> y = unset<T>(dy.size()), dtable = unset<T>(table.size()), dpositions = unset<T>(positions.size());
  std::vector<std::int32_t> scratch = std::vector<std::int32_t>(embedding_scratch(rows, size.vocabulary), -1);
};

TEST_CASE_TEMPLATE("embedding_adds_the_rows_of_both_tables", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const Size& size : sizes) {
    EmbeddingCase<T> c(size);
    embedding_forward<T>(stream, c.forward_operands());
    std::vector<double> expected;
    const std::vector<double> table = widened(c.table);
    const std::vector<double> positions = widened(c.positions);
    for (std::size_t row = 0; row < c.rows; ++row) {
      const std::size_t position = size.first_position + row % size.sequence;
      for (std::size_t i = 0; i < size.dim; ++i) {
        expected.push_back(table[static_cast<std::size_t>(c.ids[row]) * size.dim + i] +
                           positions[position * size.dim + i]);
      }
    }
    check_elements(c.y, expected);
    EmbeddingForward<T> without = c.forward_operands();
    without.positions = {};
    embedding_forward<T>(stream, without);
    for (std::size_t row = 0; row < c.rows; ++row) {
      const std::size_t token = static_cast<std::size_t>(c.ids[row]) * size.dim;
      CHECK(bytes_of(std::vector<T>(c.y.begin() + static_cast<std::ptrdiff_t>(row * size.dim),
                                    c.y.begin() + static_cast<std::ptrdiff_t>((row + 1) * size.dim))) ==
            bytes_of(std::vector<T>(c.table.begin() + static_cast<std::ptrdiff_t>(token),
                                    c.table.begin() + static_cast<std::ptrdiff_t>(token + size.dim))));
    }
  }
  stream.synchronize();
}

TEST_CASE_TEMPLATE("embedding_gradients_are_sums_over_rows_stored_once", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const Size& size : sizes) {
    EmbeddingCase<T> c(size);
    EmbeddingBackward<T> operands = c.backward_operands();
    embedding_backward<T>(stream, operands);
    check_elements(c.dtable, c.expected_dtable());
    check_elements(c.dpositions, c.expected_dpositions());
    operands.accumulate = true;
    embedding_backward<T>(stream, operands);
    std::vector<double> twice = c.expected_dtable();
    for (double& value : twice) value *= 2.0;
    check_elements(c.dtable, twice, 2.0 * tolerance<T>());
  }
  stream.synchronize();
}

TEST_CASE("embedding_gradients_in_bf16_do_not_stall_on_frequent_ids") {
  // 1 + 1 + …: a sum in bf16 would stop at 256.
  Stream stream = immediate_stream();
  const std::size_t rows = 1000;
  const std::vector<std::int32_t> ids(rows, 1);
  const auto dy = stored<bf16>(std::vector<double>(rows, 1.0));
  auto dtable = unset<bf16>(2);
  auto dpositions = unset<bf16>(1);
  std::vector<std::int32_t> scratch(embedding_scratch(rows, 2));
  embedding_backward<bf16>(stream, {.ids = ids.data(),
                                    .dy = matrix(dy, rows, 1),
                                    .dtable = matrix(dtable, 2, 1),
                                    .dpositions = matrix(dpositions, 1, 1),
                                    .scratch = scratch.data()});
  CHECK(widened(dtable) == std::vector<double>{0.0, 1000.0});
  CHECK(widened(dpositions) == std::vector<double>{1000.0});
  stream.synchronize();
}

TEST_CASE_TEMPLATE("embedding_has_the_same_bits_in_every_instruction_set_and_on_any_number_of_threads", T,
                   TESSERA_ALL_ELEMENTS) {
  std::vector<Size> with_large = sizes;
  with_large.push_back({11, 31, 5, 331, 101, 41});
  Stream stream = immediate_stream();
  for (const Size& size : with_large) {
    EmbeddingCase<T> c(size);
    const auto bits = [&] {
      embedding_forward<T>(stream, c.forward_operands());
      EmbeddingBackward<T> operands = c.backward_operands();
      embedding_backward<T>(stream, operands);
      operands.accumulate = true;
      embedding_backward<T>(stream, operands);
      return bytes_of(c.y, c.dtable, c.dpositions);
    };
    check_same_bits(bits);
    check_same_bits_on_threads(bits);
  }
  stream.synchronize();
}

// In a slice of a larger table an id of that one's other rows is none.
TEST_CASE("an_id_out_of_range_fails_the_stream_and_names_row_and_id") {
  for (const std::size_t all : {0, 20}) {
    for (const std::int32_t id : {-1, all == 0 ? 11 : 20}) {
      EmbeddingCase<float> c({2, 3, 0, 4});
      c.ids[4] = id;
      EmbeddingForward<float> forward = c.forward_operands();
      EmbeddingBackward<float> backward = c.backward_operands();
      forward.all_ids = backward.all_ids = all;
      const std::string text = "embedding: the id of row 4 is " + std::to_string(id) + ", but the table has " +
                               std::to_string(all == 0 ? 11 : all) + " rows";
      Stream stream = immediate_stream(), back = immediate_stream();
      embedding_forward<float>(stream, forward);
      CHECK_THROWS_WITH_AS(stream.synchronize(), text.c_str(), UsageError);
      embedding_backward<float>(back, backward);
      CHECK_THROWS_WITH_AS(back.synchronize(), text.c_str(), UsageError);
      CHECK(bytes_of(c.y, c.dtable) == bytes_of(unset<float>(c.y.size()), unset<float>(c.dtable.size())));
    }
  }
}

TEST_CASE("embedding_refuses_what_does_not_fit") {
  Stream stream = immediate_stream();
  EmbeddingCase<float> c({2, 3, 0, 4});
  EmbeddingForward<float> operands = c.forward_operands();
  operands.first_position = 5;
  CHECK_THROWS_WITH_AS(embedding_forward<float>(stream, operands),
                       "embedding: positions 5 to 7 are wanted, but the table of positions has 7 rows", UsageError);
  operands.sequence = 4;
  CHECK_THROWS_WITH_AS(embedding_forward<float>(stream, operands), "embedding: 6 rows are no whole sequences of 4",
                       UsageError);
  operands = c.forward_operands();
  operands.table.columns = 3;
  CHECK_THROWS_AS(embedding_forward<float>(stream, operands), UsageError);
}

}  // namespace embedding_test
