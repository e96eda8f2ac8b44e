// Batch normalisation against the formula in double precision and against central differences.
#include "tessera/vision/batch_norm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "instruction_sets.hpp"
#include "reference.hpp"
#include "standalone.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/threads.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;

namespace batch_norm_test {

struct Extent {
  std::size_t rows;
  std::size_t channels;
};
const std::vector<Extent> extents = {{1, 1}, {2, 3}, {7, 16}, {130, 5}, {67, 33}, {300, 80}, {0, 4}, {5, 0}};

template <typename T>
struct Norm {
  explicit Norm(const Extent& of)
      : extent(of),
        x(random_elements<T>(of.rows * of.channels, 1)),
        weight(random_elements<T>(of.channels, 2)),
        bias(random_elements<T>(of.channels, 3)),
        dy(random_elements<T>(of.rows * of.channels, 4)),
        y(unset<T>(x.size())),
        dx(unset<T>(x.size())),
        dweight(unset<T>(of.channels)),
        dbias(unset<T>(of.channels)),
        mean(of.channels),
        inverse(of.channels),
        running_mean(of.channels, 0.5f),
        running_variance(of.channels, 2.0f),
        scratch(batch_norm_scratch<T>(of.rows, of.channels), -1e30f) {}

  BatchNormForward<T> operands() {
    return {.x = matrix(std::as_const(x), extent.rows, extent.channels),
            .weight = weight.data(),
            .bias = bias.data(),
            .y = matrix(y, extent.rows, extent.channels),
            .mean = mean.data(),
            .inverse = inverse.data(),
            .running_mean = running_mean.data(),
            .running_variance = running_variance.data(),
            .scratch = scratch.data()};
  }
  void forward() { batch_norm_forward<T>(stream, operands()); }
  void backward(bool accumulate = false) { backward_with({}, nullptr, accumulate); }
  void backward_with(const Contributions& sums, const double* own, bool accumulate = false) {
    batch_norm_backward<T>(stream, {.x = matrix(std::as_const(x), extent.rows, extent.channels),
                                    .weight = weight.data(),
                                    .mean = mean.data(),
                                    .inverse = inverse.data(),
                                    .dy = matrix(std::as_const(dy), extent.rows, extent.channels),
                                    .dx = matrix(dx, extent.rows, extent.channels),
                                    .dweight = dweight.data(),
                                    .dbias = dbias.data(),
                                    .accumulate = accumulate,
                                    .sums = sums,
                                    .own_sums = own,
                                    .scratch = scratch.data()});
  }

  Extent extent;
  std::vector<T> x, weight, bias, dy, y, dx, dweight, dbias;
  std::vector<Arithmetic<T>> mean, inverse;
  std::vector<float> running_mean, running_variance, scratch;
  Stream stream = immediate_stream();
};

struct Moments {
  std::vector<double> mean, variance;
};
Moments moments_of(const std::vector<double>& x, const Extent& extent) {
  Moments m{std::vector<double>(extent.channels, 0.0), std::vector<double>(extent.channels, 0.0)};
  const auto rows = static_cast<double>(std::max<std::size_t>(1, extent.rows));
  for (std::size_t i = 0; i < x.size(); ++i) m.mean[i % extent.channels] += x[i] / rows;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = x[i] - m.mean[i % extent.channels];
    m.variance[i % extent.channels] += difference * difference / rows;
  }
  return m;
}

template <typename T>
std::vector<double> normalised(const Norm<T>& norm, const Moments& m) {
  const auto weight = widened(norm.weight), bias = widened(norm.bias);
  std::vector<double> y = widened(norm.x);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t c = i % norm.extent.channels;
    y[i] = (y[i] - m.mean[c]) / std::sqrt(m.variance[c] + 1e-5) * weight[c] + bias[c];
  }
  return y;
}

TEST_CASE_TEMPLATE("batch_norm_normalises_each_channel_and_moves_the_running_moments", T, TESSERA_ALL_ELEMENTS) {
  for (const Extent& extent : extents) {
    CAPTURE(extent.rows);
    CAPTURE(extent.channels);
    Norm<T> norm(extent);
    norm.forward();
    const Moments m = moments_of(widened(norm.x), extent);
    // A single row has no variance: its differences are exactly 0, and its inverse 316.
    check_elements(norm.y, normalised(norm, m), 10 * tolerance<T>());
    for (std::size_t c = 0; c < extent.channels; ++c) {
      if (extent.rows == 0) {
        CHECK(norm.running_mean[c] == 0.5f);
        continue;
      }
      const auto rows = static_cast<double>(extent.rows);
      const double unbiased = m.variance[c] * rows / std::max(1.0, rows - 1.0);
      CHECK(static_cast<double>(norm.running_mean[c]) == doctest::Approx(0.9 * 0.5 + 0.1 * m.mean[c]).epsilon(1e-5));
      CHECK(static_cast<double>(norm.running_variance[c]) == doctest::Approx(0.9 * 2.0 + 0.1 * unbiased).epsilon(1e-5));
    }
  }
}

TEST_CASE_TEMPLATE("batch_norm_in_evaluation_takes_the_running_moments_and_leaves_them", T, TESSERA_ALL_ELEMENTS) {
  Norm<T> norm({5, 19});
  auto operands = norm.operands();
  operands.evaluate = true;
  operands.y = matrix(norm.x, 5, 19);  // in place
  const std::vector<double> expected = normalised(norm, {std::vector<double>(19, 0.5), std::vector<double>(19, 2.0)});
  batch_norm_forward<T>(norm.stream, operands);
  check_elements(norm.x, expected);
  CHECK(norm.running_mean == std::vector<float>(19, 0.5f));
  CHECK(norm.running_variance == std::vector<float>(19, 2.0f));
  operands.running_mean = nullptr;
  CHECK_THROWS_AS(batch_norm_forward<T>(norm.stream, operands), UsageError);
}

TEST_CASE("batch_norm_gradients_in_double_are_the_central_differences") {
  for (const Extent& extent : extents) {
    CAPTURE(extent.rows);
    CAPTURE(extent.channels);
    if (extent.rows == 1) continue;  // below
    Norm<double> norm(extent);
    const auto loss = [&] {
      norm.forward();
      return dot(norm.y, norm.dy);
    };
    const std::vector<double> x = numeric_gradient(norm.x, loss), weight = numeric_gradient(norm.weight, loss),
                              bias = numeric_gradient(norm.bias, loss);
    norm.forward();
    norm.backward();
    check_elements(norm.dx, x, 1e-5);
    check_elements(norm.dweight, weight, 1e-6);
    check_elements(norm.dbias, bias, 1e-6);
    norm.backward(true);
    check_elements(
        norm.dbias,
        [&] {
          std::vector<double> twice = bias;
          for (double& each : twice) each *= 2.0;
          return twice;
        }(),
        1e-6);
  }
}

TEST_CASE("batch_norm_of_one_row_gives_its_bias_and_no_gradient") {
  Norm<float> norm({1, 7});
  norm.forward();
  CHECK(norm.y == norm.bias);
  norm.backward();
  CHECK(norm.dx == std::vector<float>(7, 0.0f));
}

TEST_CASE_TEMPLATE("batch_norm_gradients_of_every_element_type_are_those_of_double_rounded", T, float, bf16, fp16) {
  for (const Extent& extent : extents) {
    if (extent.rows == 1 || extent.channels == 0) continue;
    Norm<T> norm(extent);
    Norm<double> exact(extent);
    exact.x = widened(norm.x), exact.weight = widened(norm.weight), exact.dy = widened(norm.dy);
    norm.forward(), exact.forward();
    norm.backward(), exact.backward();
    // Two rows may be near each other, and their inverse deviation large.
    const double magnitude = 1.0 + *std::max_element(exact.inverse.begin(), exact.inverse.end());
    check_stored(norm.dx, exact.dx, magnitude);
    check_stored(norm.dweight, exact.dweight, 20.0);
    check_stored(norm.dbias, exact.dbias, 20.0);
  }
}

TEST_CASE_TEMPLATE("batch_norm_adds_a_residual_and_rectifies_as_separate_steps_do", T, TESSERA_ALL_ELEMENTS) {
  Norm<T> norm({67, 33});
  const std::vector<T> residual = random_elements<T>(norm.x.size(), 8);
  std::vector<double> expected = normalised(norm, moments_of(widened(norm.x), norm.extent));
  auto operands = norm.operands();
  operands.residual = residual.data();
  operands.relu = true;
  batch_norm_forward<T>(norm.stream, operands);
  const std::vector<double> added = widened(residual);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = std::max(0.0, expected[i] + added[i]);
  check_elements(norm.y, expected, 10 * tolerance<T>());

  // The gradient through a relu: that of dy with zeros where y is 0.
  operands.residual = nullptr;
  batch_norm_forward<T>(norm.stream, operands);
  Norm<T> masked({67, 33});
  masked.mean = norm.mean, masked.inverse = norm.inverse;
  for (std::size_t i = 0; i < masked.dy.size(); ++i) {
    if (static_cast<Arithmetic<T>>(norm.y[i]) == 0) masked.dy[i] = T{};
  }
  masked.backward();
  batch_norm_backward<T>(norm.stream, {.x = matrix(std::as_const(norm.x), 67, 33),
                                       .weight = norm.weight.data(),
                                       .mean = norm.mean.data(),
                                       .inverse = norm.inverse.data(),
                                       .dy = matrix(std::as_const(norm.dy), 67, 33),
                                       .relu_y = norm.y.data(),
                                       .dx = matrix(norm.dx, 67, 33),
                                       .dweight = norm.dweight.data(),
                                       .dbias = norm.dbias.data(),
                                       .scratch = norm.scratch.data()});
  CHECK(bytes_of(norm.dx, norm.dweight, norm.dbias) == bytes_of(masked.dx, masked.dweight, masked.dbias));
}

// The squares of numbers far from 0 would lose what is looked for.
TEST_CASE("batch_norm_finds_a_small_deviation_far_from_zero") {
  Norm<float> norm({4096, 3});
  for (std::size_t i = 0; i < norm.x.size(); ++i) norm.x[i] = 1000.0f + 0.25f * static_cast<float>(i / 3 % 2);
  norm.forward();
  for (const float inverse : norm.inverse) {
    CHECK(static_cast<double>(inverse) == doctest::Approx(1.0 / std::sqrt(0.125 * 0.125 + 1e-5)).epsilon(1e-4));
  }
}

TEST_CASE_TEMPLATE("batch_norm_has_the_same_bits_in_every_instruction_set_and_on_any_number_of_threads", T,
                   TESSERA_ALL_ELEMENTS) {
  const auto bits = [] {
    Norm<T> norm({3001, 83});
    norm.forward();
    norm.backward();
    return bytes_of(norm.y, norm.dx, norm.dweight, norm.dbias, norm.running_mean, norm.running_variance);
  };
  check_same_bits(bits);
  check_same_bits_on_threads(bits);
}

TEST_CASE("batch_norm_module_keeps_its_moments_in_buffers_and_moves_them_once") {
  BatchNorm<float> layer(2);
  Standalone<float> memory(layer);
  CHECK(memory.names() == std::vector<std::string>{"weight", "bias"});
  CHECK(memory.buffers()[0].name == "running_mean");
  CHECK(memory.buffers()[1].name == "running_var");
  OwnStack stack(Bytes(1 << 16));
  std::vector<float> x = {1, 2, 3, 6}, y(4);
  const auto pass = [&](plan::WindowKind kind) {
    memory.is_for(kind);
    const ScratchScope scope(*stack);
    memory.forward(layer, *stack, matrix(std::as_const(x), 2, 2), matrix(y, 2, 2));
  };
  pass(plan::WindowKind::forward);
  const std::vector<float> trained = y;
  CHECK(memory.buffers()[0].values == std::vector<float>{0.2f, 0.4f});
  CHECK(memory.buffers()[1].values == std::vector<float>{1.1f, 1.7f});
  pass(plan::WindowKind::recompute);
  CHECK(y == trained);
  CHECK(memory.buffers()[0].values == std::vector<float>{0.2f, 0.4f});
  pass(plan::WindowKind::evaluate);
  CHECK(y != trained);
  CHECK(memory.buffers()[1].values == std::vector<float>{1.1f, 1.7f});
}

// Ranks with rows of their own, one after the other in this thread.
template <typename T>
struct Ranks {
  Ranks(const std::vector<std::size_t>& rows, std::size_t channels)
      : brought(rows.size() * batch_norm_values(channels)), whole({0, channels}) {
    for (const std::size_t each : rows) whole.extent.rows += each;
    whole = Norm<T>(whole.extent);
    for (const std::size_t each : rows) parts.emplace_back(Extent{each, channels});
    split();
  }
  void split() {
    std::size_t first = 0;
    for (Norm<T>& part : parts) {
      part.weight = whole.weight, part.bias = whole.bias;
      for (std::size_t i = 0; i < part.x.size(); ++i) {
        part.x[i] = whole.x[first + i];
        part.dy[i] = whole.dy[first + i];
      }
      first += part.x.size();
    }
  }
  Contributions all() const {
    return {.first = brought.data(),
            .values = batch_norm_values(whole.extent.channels),
            .stride = batch_norm_values(whole.extent.channels),
            .ranks_of_replica = static_cast<std::uint32_t>(parts.size())};
  }
  double* of(std::size_t rank) { return brought.data() + rank * batch_norm_values(whole.extent.channels); }

  void forward() {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const BatchNormForward<T> of_rank = parts[rank].operands();
      batch_norm_moments<T>(whole.stream, {.x = of_rank.x, .moments = of(rank), .scratch = of_rank.scratch});
    }
    for (Norm<T>& part : parts) {
      BatchNormForward<T> operands = part.operands();
      operands.moments = all();
      batch_norm_forward<T>(whole.stream, operands);
    }
  }
  void backward() {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      Norm<T>& part = parts[rank];
      batch_norm_gradient_sums<T>(whole.stream,
                                  {.x = matrix(std::as_const(part.x), part.extent.rows, part.extent.channels),
                                   .mean = part.mean.data(),
                                   .inverse = part.inverse.data(),
                                   .dy = matrix(std::as_const(part.dy), part.extent.rows, part.extent.channels),
                                   .sums = of(rank),
                                   .scratch = part.scratch.data()});
    }
    for (std::size_t rank = 0; rank < parts.size(); ++rank) parts[rank].backward_with(all(), of(rank));
  }
  template <typename Member>
  std::vector<double> joined(Member member) const {
    std::vector<double> result;
    for (const Norm<T>& part : parts) {
      const std::vector<double> values = widened(part.*member);
      result.insert(result.end(), values.begin(), values.end());
    }
    return result;
  }
  std::vector<double> summed(std::vector<T> Norm<T>::*member) const {
    std::vector<double> result(whole.extent.channels);
    for (const Norm<T>& part : parts) {
      for (std::size_t c = 0; c < result.size(); ++c) result[c] += static_cast<double>((part.*member)[c]);
    }
    return result;
  }

  std::vector<double> brought;
  std::vector<Norm<T>> parts;
  Norm<T> whole;
};

const std::vector<std::vector<std::size_t>> rows_of_ranks = {
    {5}, {4, 4}, {0, 6}, {7, 1, 0}, {0, 0}, {130, 67, 3}, {1, 2, 3, 0, 5, 8, 13}};

TEST_CASE("synchronised_batch_norm_is_that_of_all_ranks_rows_however_uneven") {
  for (const std::vector<std::size_t>& rows : rows_of_ranks) {
    Ranks<double> ranks(rows, 5);
    CAPTURE(rows.size());
    ranks.forward(), ranks.whole.forward();
    ranks.backward(), ranks.whole.backward();
    check_elements(ranks.joined(&Norm<double>::y), ranks.whole.y, 1e-12);
    check_elements(ranks.joined(&Norm<double>::dx), ranks.whole.dx, 1e-12);
    check_elements(ranks.summed(&Norm<double>::dweight), ranks.whole.dweight, 1e-12);
    check_elements(ranks.summed(&Norm<double>::dbias), ranks.whole.dbias, 1e-12);
    for (const Norm<double>& part : ranks.parts) {
      CHECK(part.running_mean == ranks.parts[0].running_mean);
      CHECK(part.running_variance == ranks.parts[0].running_variance);
      for (std::size_t c = 0; c < 5; ++c) {
        CHECK(part.running_mean[c] == doctest::Approx(ranks.whole.running_mean[c]).epsilon(1e-6));
        CHECK(part.running_variance[c] == doctest::Approx(ranks.whole.running_variance[c]).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("synchronised_batch_norm_gradients_in_double_are_the_central_differences") {
  for (const std::vector<std::size_t>& rows : {std::vector<std::size_t>{3, 0, 4}, {1, 2}, {6}}) {
    Ranks<double> ranks(rows, 3);
    const auto loss = [&] {
      ranks.split();
      ranks.forward();
      return dot(ranks.joined(&Norm<double>::y), ranks.whole.dy);
    };
    const std::vector<double> x = numeric_gradient(ranks.whole.x, loss),
                              weight = numeric_gradient(ranks.whole.weight, loss);
    ranks.split();
    ranks.forward();
    ranks.backward();
    check_elements(ranks.joined(&Norm<double>::dx), x, 1e-5);
    check_elements(ranks.summed(&Norm<double>::dweight), weight, 1e-6);
  }
}

TEST_CASE_TEMPLATE("synchronised_batch_norm_of_one_rank_has_the_bits_of_one_that_is_not", T, TESSERA_ALL_ELEMENTS) {
  for (const Extent& extent : extents) {
    Ranks<T> ranks({extent.rows}, extent.channels);
    ranks.forward(), ranks.whole.forward();
    ranks.backward(), ranks.whole.backward();
    CHECK(widened(ranks.parts[0].y) == widened(ranks.whole.y));
    CHECK(widened(ranks.parts[0].dx) == widened(ranks.whole.dx));
    CHECK(widened(ranks.parts[0].dweight) == widened(ranks.whole.dweight));
    CHECK(ranks.parts[0].running_variance == ranks.whole.running_variance);
  }
}

TEST_CASE("rank_that_skips_a_pass_moves_its_running_moments_as_the_others_do") {
  Ranks<float> ranks({4, 9}, 7);
  ranks.forward();
  std::vector<float> mean(7, 0.5f), variance(7, 2.0f);
  batch_norm_follow(
      ranks.whole.stream,
      {.channels = 7, .running_mean = mean.data(), .running_variance = variance.data(), .moments = ranks.all()});
  CHECK(mean == ranks.parts[0].running_mean);
  CHECK(variance == ranks.parts[1].running_variance);
}

// Granules stand in the order of places, which on two replicas of two ranks is not that of ranks' numbers.
TEST_CASE("running_moments_of_granules_move_by_one_after_the_other") {
  for (const std::uint32_t replicas : {1u, 2u}) {
    Ranks<float> granules({4, 9, 6, 0}, 7);
    std::vector<float> mean(7, 0.5f), variance(7, 2.0f);
    for (std::size_t place = 0; place < 4; ++place) {
      Norm<float>& granule = granules.parts[place];
      granule.running_mean = mean, granule.running_variance = variance;
      granule.forward();
      mean = granule.running_mean, variance = granule.running_variance;
      batch_norm_moments<float>(
          granules.whole.stream,
          {.x = granule.operands().x, .moments = granules.of(place), .scratch = granule.scratch.data()});
    }
    Contributions all = granules.all();
    all.replicas = replicas;
    all.ranks_of_replica = 4 / replicas;
    std::vector<float> followed_mean(7, 0.5f), followed_variance(7, 2.0f);
    batch_norm_follow(granules.whole.stream, {.channels = 7,
                                              .running_mean = followed_mean.data(),
                                              .running_variance = followed_variance.data(),
                                              .moments = all,
                                              .granules = true});
    CHECK(followed_mean == mean);
    CHECK(followed_variance == variance);
  }
}

TEST_CASE("batch_norm_is_synchronised_or_of_granules") {
  CHECK_THROWS_AS(BatchNorm<float>(3, {.synchronised = true, .granules = true}), UsageError);
}

}  // namespace batch_norm_test
