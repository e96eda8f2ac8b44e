// Parts of sequences on several ranks: what the exchange moves, and a block whose ranks have some positions each.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "reference.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/nn/context.hpp"
#include "tessera/nn/transformer_block.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace context_test {

FullyShardOptions on_mesh(std::size_t parts, std::size_t slices = 1, std::size_t data = 1) {
  return {.mesh = plan::MeshShape{{Axis::shard, data}, {Axis::context, parts}, {Axis::tensor, slices}},
          .diagnostics = {.poison = true, .queue_compute = true}};
}

template <typename T>
struct Exchanged final : Module {
  Exchanged(const ContextParts& parts, std::size_t columns, std::size_t blocks) : exchange(parts, columns, blocks) {}
  void visit(ModuleVisitor& visitor) override { exchange.visit(visitor, "rows"); }
  void forward(Window& window, MatrixView<const T> x, MatrixView<T> y, std::size_t length) {
    exchange.to_heads(window, x, y, length);
  }
  void backward(Window& window, MatrixView<T> y, std::size_t length) {
    exchange.to_positions(window, y, {y.data, y.rows / 3, y.columns * 3}, length);
  }
  ContextExchange<T> exchange;
};

TEST_CASE_TEMPLATE("ranks_exchange_all_heads_of_their_positions_for_their_heads_of_all", T, float, double, bf16) {
  constexpr std::size_t parts = 3, length = 2, blocks = 2, columns = 2 * blocks * parts;
  const auto value = [](std::size_t sequence, std::size_t position, std::size_t column) {
    return static_cast<T>(static_cast<float>((sequence * 91 + position * 17 + column * 5) % 251));
  };
  for (const std::size_t sequences : {std::size_t{4}, std::size_t{1}, std::size_t{0}}) {
    launch({.ranks = static_cast<int>(parts)}, [&](World& world) {
      const auto place = static_cast<std::size_t>(world.rank());
      Exchanged<T> layer({.count = parts, .place = place, .rows = 4 * length}, columns, blocks);
      FullyShard model(world, on_mesh(parts));
      model.add(layer, "layer");
      model.finalize(Sgd{.learning_rate = 1});
      const std::size_t rows = sequences * length;
      std::vector<T> x, y(rows * columns), expected;
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t c = 0; c < columns; ++c) x.push_back(value(row / length, place * length + row % length, c));
      }
      for (std::size_t row = 0; row < rows * parts; ++row) {
        for (std::size_t c = 0; c < columns / parts; ++c) {
          const std::size_t heads = columns / parts / blocks, block = c / heads * (columns / blocks);
          expected.push_back(value(row / length / parts, row % (length * parts), block + place * heads + c % heads));
        }
      }
      const MatrixView<T> of_heads{y.data(), rows * parts, columns / parts};
      model.forward(layer, MatrixView<const T>{x.data(), rows, columns}, of_heads, length);
      model.stream().synchronize();
      CHECK(widened(y) == widened(expected));
      model.backward(layer, of_heads, length);
      model.stream().synchronize();
      CHECK(widened(y) == widened(x));
    });
  }
}

TEST_CASE("a_mesh_has_as_many_ranks_along_context_as_sequences_have_parts") {
  const auto run = [](World& world) {
    Exchanged<float> layer({.count = 3, .rows = 2}, 3, 1);
    FullyShard model(world, on_mesh(1));
    model.add(layer, "layer");
    model.finalize(Sgd{.learning_rate = 1});
    std::vector<float> x(6), y(6);
    model.forward(layer, MatrixView<const float>{x.data(), 2, 3}, MatrixView<float>{y.data(), 6, 1}, std::size_t{1});
  };
  CHECK_THROWS_WITH_AS(launch({.ranks = 1}, run), doctest::Contains("in 3 parts, and 1 ranks exchange them"),
                       UsageError);
}

// Which part of sequences, and which of a part's rows, a rank has.
struct Place {
  std::size_t parts = 1, part = 0, slices = 1, slice = 0;
};

constexpr std::size_t sequences = 3, length = 6, heads = 6, dim = 12;
using Values = std::vector<float>;

SequenceBatch batch_on(const Place& at) {
  return {.length = length / at.parts,
          .rows = sequences * length / at.parts,
          .parts = {.count = at.parts, .place = at.part},
          .dropout = {.probability = 0.25f, .key = {.seed = 3, .step = 1, .first_row = 40}}};
}

// Rows of whole sequences that a rank has, in its order.
std::vector<std::size_t> rows_on(const Place& at) {
  const std::size_t each = length / at.parts, all = sequences * each;
  const Slices slices{.count = at.slices, .place = at.slice, .rows = all};
  std::vector<std::size_t> rows;
  for (std::size_t row = slices.rows_of(all).first; rows.size() < slices.rows_of(all).count; ++row)
    rows.push_back(row / each * length + at.part * each + row % each);
  return rows;
}

template <typename T>
struct Found {
  std::vector<T> y = std::vector<T>(sequences * length * dim), dx = y;
  std::vector<Values> weights;
};

template <typename T>
void keep_rows(const std::vector<T>& from, const std::vector<std::size_t>& rows, std::vector<T>& to) {
  for (std::size_t i = 0; i < rows.size(); ++i) std::copy_n(&from[i * dim], dim, &to[rows[i] * dim]);
}

// A step of a block, each of whose samples is on the ranks of a group.
template <typename T>
Found<T> step(std::size_t parts, std::size_t slices, Strategy strategy = Strategy::fsdp) {
  const auto x = random_elements<T>(sequences * length * dim, 5), dy = random_elements<T>(x.size(), 6);
  Found<T> found;
  launch({.ranks = static_cast<int>(parts * slices)}, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const Place at{.parts = parts, .part = rank / slices, .slices = slices, .slice = rank % slices};
    const std::size_t most = sequences * length / parts;
    TransformerBlock<T> block({.dim = dim,
                               .heads = heads,
                               .slices = {.count = slices, .place = at.slice, .rows = most},
                               .parts = {.count = parts, .place = at.part, .rows = most}},
                              0);
    FullyShardOptions options = on_mesh(parts, slices);
    options.strategy = strategy;
    options.precision = std::is_same_v<T, bf16> ? bf16_mixed : fp32_precision;
    FullyShard model(world, options);
    model.add(block, "block");
    model.finalize(Sgd{.learning_rate = 1});
    const std::vector<std::size_t> rows = rows_on(at);
    std::vector<T> own_x(rows.size() * dim), own_y(own_x.size()), gradient(own_x.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(&x[rows[i] * dim], dim, &own_x[i * dim]);
      // The mean over ranks is the sum over positions.
      for (std::size_t c = 0; c < dim; ++c)
        gradient[i * dim + c] = static_cast<T>(static_cast<float>(dy[rows[i] * dim + c]) * static_cast<float>(parts));
    }
    Arena memory(world.device(), Bytes(std::size_t{1} << 20));
    ActivationStack stack({memory.data(), memory.size().count()});
    const auto saved = model.forward(block, stack, MatrixView<const T>{own_x.data(), rows.size(), dim},
                                     MatrixView<T>{own_y.data(), rows.size(), dim}, batch_on(at));
    model.backward(block, stack, saved, MatrixView<T>{gradient.data(), rows.size(), dim});
    model.update();
    model.synchronize();
    keep_rows(own_y, rows, found.y), keep_rows(gradient, rows, found.dx);
    for (const Parameter* each : model.unit(0).parameters()) {
      const Values whole = model.whole(*each);
      if (rank == 0) found.weights.push_back(whole);
    }
  });
  return found;
}

template <typename T>
double difference(const std::vector<T>& a, const std::vector<T>& b, float scale = 1) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(static_cast<float>(a[i])) / static_cast<double>(scale);
    most = std::max(most, std::abs(x - static_cast<double>(static_cast<float>(b[i]))));
  }
  return most;
}

TEST_CASE_TEMPLATE("a_block_with_parts_of_sequences_is_that_of_one_rank", T, float, bf16) {
  const double bound = std::is_same_v<T, float> ? 2e-5 : 0.15;
  const Found<T> alone = step<T>(1, 1);
  struct Case {
    std::size_t parts, slices;
  };
  for (const Case& each : {Case{2, 1}, Case{3, 1}, Case{2, 3}, Case{3, 2}}) {
    const Found<T> found = step<T>(each.parts, each.slices);
    CAPTURE(each.parts);
    CAPTURE(each.slices);
    CHECK(difference(found.y, alone.y) < bound);
    CHECK(difference(found.dx, alone.dx, static_cast<float>(each.parts)) < bound);
    REQUIRE(found.weights.size() == alone.weights.size());
    for (std::size_t w = 0; w < alone.weights.size(); ++w)
      CHECK(difference(found.weights[w], alone.weights[w]) < bound);
    CHECK(step<T>(each.parts, each.slices, Strategy::ddp).weights == found.weights);
  }
}

TEST_CASE("parts_that_do_not_fit_are_refused") {
  const auto block = [](std::size_t parts, std::size_t slices) {
    return TransformerBlock<float>(
        {.dim = 12, .heads = 6, .slices = {.count = slices, .rows = 4}, .parts = {.count = parts, .rows = 4}}, 0);
  };
  CHECK_THROWS_WITH_AS(block(4, 1), "attention: 4 ranks along context do not divide the 6 heads that each has",
                       UsageError);
  CHECK_THROWS_WITH_AS(block(3, 3), "attention: 3 ranks along context do not divide the 2 heads that each has",
                       UsageError);
  CHECK_NOTHROW(block(3, 2));
  const auto too_many_rows = [] {
    launch({.ranks = 3}, [](World& world) {
      Exchanged<float> layer({.count = 3, .place = static_cast<std::size_t>(world.rank()), .rows = 2}, 6, 1);
      FullyShard model(world, on_mesh(3));
      model.add(layer, "layer");
      model.finalize(Sgd{.learning_rate = 1});
      Values x(18);
      model.forward(layer, MatrixView<const float>{x.data(), 3, 6}, MatrixView<float>{x.data(), 9, 2}, std::size_t{1});
    });
  };
  CHECK_THROWS_WITH_AS(too_many_rows(), doctest::Contains("a pass of 3 rows, and the largest was said to have 2"),
                       UsageError);
}

}  // namespace context_test
