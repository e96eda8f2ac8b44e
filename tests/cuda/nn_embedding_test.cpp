// Embeddings on CUDA devices against the CPU: look-ups, and gradients as sums in the order of the rows.
#include <algorithm>
#include <utility>

#include "nn_device.hpp"
#include "tessera/nn/embedding.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_embedding_test {

struct Form {
  std::size_t sequences;
  std::size_t sequence;
  std::size_t first_position;
  std::size_t vocabulary;
  std::size_t dim;
  std::size_t all = 0;  // ids of the table of which this is a slice; 0: of none
  std::size_t rows() const { return sequences * sequence; }
  std::size_t context() const { return first_position + sequence + 1; }
};
const std::vector<Form> forms = {{0, 3, 0, 4, 5},   {1, 1, 0, 1, 1},    {3, 5, 2, 7, 33},
                                 {2, 150, 0, 3, 9}, {4, 2, 0, 1500, 2}, {2, 1100, 0, 700, 1}};

template <typename T>
struct Case {
  explicit Case(const Form& of)
      : form(of),
        table(random_elements<T>(of.vocabulary * of.dim, 1)),
        positions(random_elements<T>(of.context() * of.dim, 2)),
        dy(random_elements<T>(of.rows() * of.dim, 3)),
        y(of.rows() * of.dim),
        dtable(table.size(), T(0.5f)),
        dpositions(positions.size(), T(0.25f)) {
    for (std::size_t row = 0; row < form.rows(); ++row) {
      ids.push_back(static_cast<std::int32_t>(row * row % form.vocabulary));
    }
  }

  Form form;
  std::vector<T> table, positions, dy, y, dtable, dpositions;
  std::vector<std::int32_t> ids;
};

template <typename T>
void run(DeviceKind kind, Case<T>& c, bool with_positions, bool accumulate) {
  Stream stream = stream_on(kind);
  const Form& f = c.form;
  DeviceBuffer<std::int32_t> scratch(kind, embedding_scratch(f.rows(), f.vocabulary, kind)), ids(kind, c.ids);
  DeviceMatrix<T> table(kind, c.table, f.vocabulary, f.dim), positions(kind, c.positions, f.context(), f.dim);
  DeviceMatrix<T> dy(kind, c.dy, f.rows(), f.dim), y(kind, c.y, f.rows(), f.dim);
  DeviceMatrix<T> dtable(kind, c.dtable, f.vocabulary, f.dim), dpositions(kind, c.dpositions, f.context(), f.dim);
  EmbeddingForward<T> forward{.table = table.view(),
                              .positions = {},
                              .ids = ids.data(),
                              .sequence = f.sequence,
                              .first_position = f.first_position,
                              .y = y.view(),
                              .all_ids = f.all};
  EmbeddingBackward<T> backward{.ids = ids.data(),
                                .sequence = f.sequence,
                                .first_position = f.first_position,
                                .dy = dy.view(),
                                .dtable = dtable.view(),
                                .dpositions = {},
                                .accumulate = accumulate,
                                .scratch = scratch.data(),
                                .all_ids = f.all};
  if (with_positions) {
    forward.positions = positions.view();
    backward.dpositions = dpositions.view();
  }
  embedding_forward(stream, forward);
  embedding_backward(stream, backward);
  stream.synchronize();
  CHECK(scratch.guards_intact());
  c.y = y.values(), c.dtable = dtable.values(), c.dpositions = dpositions.values();
}

TEST_CASE_TEMPLATE("cuda: embeddings and their gradients have the CPU's bits", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    for (const bool with_positions : {false, true}) {
      for (const bool accumulate : {false, true}) {
        CAPTURE(form.vocabulary);
        CAPTURE(with_positions);
        CAPTURE(accumulate);
        Case<T> expected(form), computed(form);
        run(DeviceKind::cpu, expected, with_positions, accumulate);
        run(DeviceKind::cuda, computed, with_positions, accumulate);
        check_same(computed.y, expected.y);
        check_same(computed.dtable, expected.dtable);
        check_same(computed.dpositions, expected.dpositions);
      }
    }
  }
}

TEST_CASE("cuda: rows of several digits and tiles are summed in their order") {
  Case<float> expected({4, 4096, 0, 66000, 1}), computed({4, 4096, 0, 66000, 1});
  for (Case<float>* c : {&expected, &computed}) {
    for (std::size_t row = 0; row < c->ids.size(); ++row) {
      c->ids[row] = row % 3 == 0 ? 65999 : static_cast<std::int32_t>(row * 2654435761u % 66000u);
    }
  }
  run(DeviceKind::cpu, expected, false, false);
  run(DeviceKind::cuda, computed, false, false);
  check_same(computed.dtable, expected.dtable);
}

TEST_CASE("cuda: the row of an id out of range becomes NaN, and no gradient goes astray") {
  for (const auto& [id, all] : {std::pair(-1, 0), {7, 0}, {-1, 9}, {9, 9}}) {
    const Form form{3, 5, 0, 7, 4, static_cast<std::size_t>(all)};
    Case<float> expected(form), computed(form);
    computed.ids[6] = id;
    expected.ids[6] = 0;
    for (std::size_t i = 0; i < 4; ++i) expected.dy[6 * 4 + i] = 0.0f;
    run(DeviceKind::cpu, expected, false, false);
    run(DeviceKind::cuda, computed, false, false);
    for (std::size_t i = 0; i < computed.y.size(); ++i) CHECK(std::isnan(computed.y[i]) == (i / 4 == 6));
    check_same(computed.dtable, expected.dtable);
  }
  Case<float> of_another({3, 5, 0, 7, 4, 9});
  of_another.ids[6] = 8;
  run(DeviceKind::cuda, of_another, false, false);
  CHECK(std::all_of(&of_another.y[6 * 4], &of_another.y[7 * 4], [](float value) { return value == 0.0f; }));
}

}  // namespace nn_embedding_test
