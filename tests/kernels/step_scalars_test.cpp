// The scalars of a step: norm, clipping, skipping, running powers.
#include "tessera/kernels/step_scalars.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "cases.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/norm.hpp"

using namespace tessera;
using namespace tessera::test;
using kernels::StepScalars;

TEST_CASE("partials are combined unit by unit, and within a unit rank by rank") {
  Stream stream = host_stream();
  // Large and small alternate, so that another order gives other bits.
  const std::vector<double> partials = {1e16, 1.0, 1.0, -1e16, 1.0, 1.0};  // [rank][unit], 2 ranks, 3 units
  StepScalars scalars;
  kernels::begin_update(stream, &scalars, {partials.data(), 3, 2}, {});
  CHECK(scalars.gradient_norm == 2.0);  // rank by rank it would be the root of 2
}

TEST_CASE("in any order partials have one sum, of their values alone") {
  Stream stream = host_stream();
  std::mt19937 random(7);
  std::vector<double> squares;
  std::uniform_real_distribution<double> mantissas(1.0, 2.0);
  for (int i = 0; i < 60; ++i) squares.push_back(std::ldexp(mantissas(random), i % 40 - 200));
  squares[17] = 0.0;
  const auto norm = [&](bool any_order) {
    StepScalars scalars;
    kernels::begin_update(stream, &scalars, {.values = squares.data(), .units = 20, .ranks = 3, .any_order = any_order},
                          {});
    return scalars.gradient_norm;
  };
  long double sum = 0;
  for (const double square : squares) sum += square;
  const double before = norm(true);
  CHECK(std::fabs(before / std::sqrt(static_cast<double>(sum)) - 1.0) < 0x1p-50);
  std::set<double> plain;
  for (int turn = 0; turn < 50; ++turn) {
    std::shuffle(squares.begin(), squares.end(), random);
    CHECK(norm(true) == before);
    plain.insert(norm(false));
  }
  CHECK(plain.size() > 1);
  for (const double worst : {HUGE_VAL, std::nan("")}) {
    squares[random() % squares.size()] = worst;
    CHECK(!std::isfinite(norm(true)));
  }
}

TEST_CASE("gradients are clipped only when the norm is above the limit") {
  Stream stream = host_stream();
  const double partials[] = {9.0, 16.0};
  for (auto [clip, factor] : {std::pair(0.0f, 1.0f), {5.0f, 1.0f}, {6.0f, 1.0f}, {1.0f, 0.2f}, {4.0f, 0.8f}}) {
    StepScalars scalars;
    kernels::begin_update(stream, &scalars, {partials, 1, 2}, {.clip_norm = clip});
    CHECK(scalars.gradient_norm == 5.0);
    CHECK(scalars.gradient_factor == factor);
    CHECK(scalars.skip == 0);
  }
}

TEST_CASE("a step multiplies the running powers; a skipped one counts as skipped and leaves them") {
  Stream stream = host_stream();
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  StepScalars scalars;
  double power[2] = {1.0, 1.0};
  std::int64_t steps = 0, skipped = 0;
  for (double squared : {1.0, infinity, 4.0, nan, 9.0, 0.0}) {
    kernels::begin_update(stream, &scalars, {&squared, 1, 1}, {.clip_norm = 1.0f, .decay = {0.9, 0.999}});
    const bool finite = std::isfinite(squared);
    for (std::size_t i = 0; i < 2 && finite; ++i) power[i] *= i == 0 ? 0.9 : 0.999;
    ++(finite ? steps : skipped);
    CHECK(scalars.skip == (finite ? 0 : 1));
    CHECK(scalars.step == steps);
    CHECK(scalars.skipped_steps == skipped);
    CHECK(scalars.decay_power[0] == power[0]);
    CHECK(scalars.decay_power[1] == power[1]);
    CHECK(std::isfinite(scalars.gradient_norm) == finite);
  }
  CHECK(scalars.loss_scale == 1.0f);
}

TEST_CASE("the loss scale is taken out of the norm and, with clipping, out of the factor") {
  Stream stream = host_stream();
  const double squared = 25.0 * 1024 * 1024;
  for (auto [clip, factor] : {std::pair(0.0f, 1.0f), {2.5f, 0.5f}, {6.0f, 1.0f}}) {
    StepScalars scalars;
    scalars.loss_scale = 1024.0f;
    kernels::begin_update(stream, &scalars, {&squared, 1, 1}, {.clip_norm = clip});
    CHECK(scalars.gradient_norm == 5.0);
    CHECK(scalars.gradient_factor == factor / 1024);
    CHECK(scalars.applied_loss_scale == 1024.0f);
    CHECK(scalars.loss_scale == 1024.0f);  // static: it stays
  }
}

TEST_CASE("a dynamic loss scale halves with each skipped step and doubles after an interval of good ones") {
  Stream stream = host_stream();
  const double infinity = std::numeric_limits<double>::infinity();
  const kernels::LossScaling scaling{.initial = 8, .dynamic = true, .growth_interval = 3, .smallest = 2, .largest = 16};
  StepScalars scalars;
  scalars.loss_scale = scaling.initial;
  const std::pair<double, float> steps[] = {
      {1, 8},        {1, 8},        {1, 16}, {1, 16}, {1, 16},       {1, 16}, {1, 16}, {infinity, 8},
      {infinity, 4}, {infinity, 2}, {1, 2},  {1, 2},  {infinity, 2}, {1, 2},  {1, 2},  {1, 4}};
  for (const auto& [squared, expected] : steps) {
    kernels::begin_update(stream, &scalars, {&squared, 1, 1}, {.loss_scaling = scaling});
    CHECK(scalars.loss_scale == expected);
  }
  CHECK(scalars.skipped_steps == 4);
  CHECK(scalars.step == 12);
  scalars.good_steps = 7;  // of a run with a longer interval
  const double one = 1.0;
  kernels::begin_update(stream, &scalars, {&one, 1, 1}, {.loss_scaling = scaling});
  CHECK(scalars.loss_scale == 8);
}

namespace {

// One unit's squared norm and the part of one rank.
struct Row {
  double squares;
  kernels::StepPart part;
};

StepScalars after(const std::vector<Row>& rows, double divisor, float clip = 0.0f) {
  Stream stream = host_stream();
  StepScalars scalars;
  scalars.loss_scale = 4.0f;
  kernels::begin_update(stream, &scalars,
                        {.values = &rows.front().squares, .units = 1, .ranks = rows.size(), .divisor = divisor},
                        {.clip_norm = clip, .decay = {0.5, 0.5}, .loss_scaling = {.dynamic = true}});
  return scalars;
}

using Kind = kernels::StepPart::Kind;

}  // namespace

TEST_CASE("gradients are divided by what ranks bring: micro-batches or the weights of samples") {
  // Divided by 2 ranks x 3 micro-batches before; 100 = 4 (loss scale) x 25.
  const StepScalars counted = after({{6400.0, {2.0, Kind::micro_batches}}, {3600.0, {1.0, Kind::micro_batches}}}, 6.0);
  CHECK(counted.weight == 3.0);
  CHECK(counted.gradient_norm == 50.0);
  CHECK(counted.gradient_factor == 0.5f);
  const StepScalars weighed = after({{6400.0, {0.0, Kind::nothing}}, {3600.0, {24.0, Kind::samples}}}, 6.0, 1.0f);
  CHECK(weighed.weight == 24.0);
  CHECK(weighed.gradient_norm == 6.25);
  CHECK(weighed.gradient_factor == 0.01f);  // 1 / 6.25 / 4 / 4
  CHECK(weighed.step == 1);
  const StepScalars imagined = after({{6400.0, {1.0, Kind::micro_batches}}, {3600.0, {}}}, 2.0);
  CHECK(imagined.weight == 2.0);
  CHECK(imagined.gradient_norm == 25.0);
}

namespace {

// Rows of two units' exact norms, a part, and the weights of so many granules.
class ExactRows {
 public:
  ExactRows(std::size_t ranks, std::size_t rounds) : ranks_(ranks), rounds_(rounds), values_(ranks * row()) {}

  void set_norm(std::size_t rank, std::size_t unit, const kernels::ExactSquares& norm) {
    std::memcpy(&values_[rank * row() + 4 * unit], &norm, sizeof norm);
  }
  void set_part(std::size_t rank, const kernels::StepPart& part, std::span<const double> weights) {
    Stream stream = host_stream();
    auto* const place = reinterpret_cast<kernels::StepPart*>(&values_[rank * row() + 8]);
    kernels::set_part(stream, place, part, weights, rounds_);
  }
  std::size_t row() const { return 8 + 2 + rounds_; }
  std::vector<double>& values() { return values_; }

  StepScalars decide(double divisor) const {
    Stream stream = host_stream();
    StepScalars scalars;
    kernels::begin_update(
        stream, &scalars,
        {.values = values_.data(), .units = 2, .ranks = ranks_, .divisor = divisor, .exact = true, .rounds = rounds_},
        {});
    return scalars;
  }

 private:
  std::size_t ranks_;
  std::size_t rounds_;
  std::vector<double> values_;
};

kernels::ExactSquares exact_squares_of(std::span<const float> values) {
  Stream stream = host_stream();
  kernels::ExactSquares result{};
  kernels::exact_squares(stream, values.data(), values.size(), &result);
  return result;
}

// Large and small ones, so that another order gives other bits.
double weight_of(std::size_t granule) { return std::ldexp(1.0, granule % 3 == 0 ? 53 : 0) + 0.1 * double(granule); }

}  // namespace

TEST_CASE("exact norms add up to the same bits, however numbers are dealt to ranks and units") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const std::size_t ranks = 1 + seed % 12;
    const std::vector<float> values = numbers(1000, seed);
    const kernels::ExactSquares whole = exact_squares_of(values);
    const double expected = std::sqrt(kernels::value_of(whole));
    ExactRows rows(ranks, 0);
    for (std::size_t cut = 0; cut < 2 * ranks; ++cut) {
      const std::size_t begin = values.size() * cut / (2 * ranks), end = values.size() * (cut + 1) / (2 * ranks);
      rows.set_norm(cut % ranks, cut / ranks, exact_squares_of(std::span(values).subspan(begin, end - begin)));
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) rows.set_part(rank, {1.0, Kind::micro_batches}, {});
    CHECK(std::bit_cast<std::uint64_t>(rows.decide(double(ranks)).gradient_norm) ==
          std::bit_cast<std::uint64_t>(expected));
  }
}

TEST_CASE("an exact norm that is not finite skips the step, and one that nobody wrote is zero") {
  ExactRows rows(2, 0);
  for (const std::size_t rank : {0u, 1u}) rows.set_part(rank, {1.0, Kind::micro_batches}, {});
  CHECK(rows.decide(2.0).gradient_norm == 0.0);
  CHECK(rows.decide(2.0).skip == 0);
  rows.set_norm(0, 1, {kernels::ExactSquares::infinite, {}});
  CHECK(std::isinf(rows.decide(2.0).gradient_norm));
  CHECK(rows.decide(2.0).skip == 1);
  rows.set_norm(1, 0, {kernels::ExactSquares::nan, {}});
  CHECK(std::isnan(rows.decide(2.0).gradient_norm));
  CHECK(rows.decide(2.0).skip == 1);
}

TEST_CASE("weights of granules add up in their order on any number of ranks") {
  constexpr std::size_t granules = 40;
  double expected = 0.0;
  for (std::size_t granule = 0; granule < granules; ++granule) expected += weight_of(granule);
  for (std::size_t ranks = 1; ranks <= granules; ++ranks) {
    const std::size_t rounds = (granules + ranks - 1) / ranks;
    ExactRows rows(ranks, rounds);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<double> weights;
      for (std::size_t granule = rank; granule < granules; granule += ranks) weights.push_back(weight_of(granule));
      rows.set_part(rank, {-1.0, Kind::samples}, weights);
    }
    CHECK(rows.decide(1.0).weight == expected);
  }
}

TEST_CASE("weights of granules are copied at the call, written where they belong, and followed by zeros") {
  ExactRows rows(2, 70);
  std::fill(rows.values().begin(), rows.values().end(), -7.0);
  std::vector<double> weights(36);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = weight_of(i);
  std::vector<double> kept = weights;
  Stream stream(Device::cpu(), {.name = "weights"});
  kernels::set_part(stream, reinterpret_cast<kernels::StepPart*>(&rows.values()[8]), {3.0, Kind::samples}, kept, 70);
  std::fill(kept.begin(), kept.end(), 0.5);
  stream.synchronize();
  CHECK(rows.values()[7] == -7.0);
  CHECK(rows.values()[8] == 3.0);
  for (std::size_t i = 0; i < 36; ++i) CHECK(rows.values()[10 + i] == weights[i]);
  for (std::size_t i = 36; i < 70; ++i) CHECK(rows.values()[10 + i] == 0.0);
  CHECK(rows.values()[80] == -7.0);
  CHECK_THROWS_WITH_AS(rows.set_part(0, {}, std::vector<double>(71)), doctest::Contains("71 weights of granules"),
                       UsageError);
}

TEST_CASE("ranks that count micro-batches, and those that skip, ignore the weights of granules") {
  ExactRows rows(2, 3);
  rows.set_part(0, {3.0, Kind::micro_batches}, {});
  rows.set_part(1, {2.0, Kind::micro_batches}, {});
  CHECK(rows.decide(6.0).weight == 5.0);
  rows.set_part(1, {0.0, Kind::nothing}, {});
  CHECK(rows.decide(6.0).weight == 3.0);
  const double weights[] = {0.25, 0.5};
  rows.set_part(0, {0.75, Kind::samples}, weights);
  CHECK(rows.decide(6.0).weight == 0.75);
  rows.set_part(1, {1.0, Kind::micro_batches}, {});
  CHECK(std::isnan(rows.decide(6.0).weight));
}

TEST_CASE("a step whose weights are too small to be divided by in fp32 is skipped") {
  const StepScalars scalars = after({{6400.0, {1e-40, Kind::samples}}, {3600.0, {0.0, Kind::nothing}}}, 6.0);
  CHECK(std::isfinite(scalars.gradient_norm));
  CHECK(scalars.skip == 1);
  CHECK(scalars.step == 0);
  CHECK(scalars.skipped_steps == 1);
}

TEST_CASE("a step without weight changes no count, and one of unlike parts has no norm") {
  for (const Kind kind : {Kind::nothing, Kind::samples, Kind::discarded}) {
    const StepScalars idle = after({{6400.0, {0.0, kind}}, {3600.0, {0.0, Kind::nothing}}}, 6.0);
    CHECK(idle.idle == (kind == Kind::nothing ? 1 : 0));
    CHECK(idle.skip == 1);
    CHECK(idle.gradient_norm == 0.0);
    CHECK(idle.step == 0);
    CHECK(idle.skipped_steps == 0);
    CHECK(idle.good_steps == 0);
    CHECK(idle.loss_scale == 4.0f);
    CHECK(idle.decay_power[0] == 1.0);
  }
  const StepScalars unlike = after({{6400.0, {1.0, Kind::samples}}, {3600.0, {1.0, Kind::micro_batches}}}, 6.0);
  CHECK(std::isnan(unlike.weight));
  const StepScalars many = after({{6400.0, {1e308, Kind::samples}}, {3600.0, {1e308, Kind::samples}}}, 6.0);
  CHECK(std::isinf(many.weight));
  for (const StepScalars& scalars : {unlike, many}) {
    CHECK(scalars.skip == 1);
    CHECK(scalars.step == 0);
    CHECK(scalars.skipped_steps == 0);
    CHECK(scalars.loss_scale == 4.0f);
  }
}
