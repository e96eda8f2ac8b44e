// The scalars of a step: norm, clipping, skipping, running powers.
#include "tessera/kernels/step_scalars.hpp"

#include <limits>

#include "cases.hpp"

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
