// Optimizer updates against their formulas, written out in scalar code.
#include "tessera/kernels/optimizer.hpp"

#include "cases.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/elementwise.hpp"

using namespace tessera;
using namespace tessera::test;
using kernels::StepScalars;

namespace {

struct Moments {
  std::vector<float> master, first, second;
};

// Shards as after some steps: the second moment is not negative.
struct Shards {
  Shards(std::size_t count, std::size_t shift, bool patterns = false)
      : master(numbers(count, 1), shift),
        first(numbers(count, 2), shift),
        second(absolute(numbers(count, 3)), shift),
        gradient(patterns ? numbers_and_patterns(count, 4) : numbers(count, 4), shift) {}

  static std::vector<float> absolute(std::vector<float> values) {
    for (float& value : values) value = std::fabs(value);
    return values;
  }
  Moments values() { return {master.values(), first.values(), second.values()}; }
  void check(const Moments& expected) {
    CHECK(differences(master.values(), expected.master) == 0);
    CHECK(differences(first.values(), expected.first) == 0);
    CHECK(differences(second.values(), expected.second) == 0);
    CHECK((master.guards_intact() && first.guards_intact() && second.guards_intact()));
  }

  Buffer<float> master, first, second, gradient;
};

Moments adamw_by_formula(Shards& s, const kernels::AdamWSettings& o, const StepScalars& scalars) {
  Moments to = s.values();
  const auto correction1 = static_cast<float>(1.0 - scalars.decay_power[0]);
  const auto correction2 = static_cast<float>(1.0 - scalars.decay_power[1]);
  for (std::size_t i = 0; i < to.master.size(); ++i) {
    const float scaled = s.gradient.data()[i] * scalars.gradient_factor;
    const float g = o.coupled ? std::fma(o.weight_decay, to.master[i], scaled) : scaled;
    const float m = std::fma(o.beta1, to.first[i], (1.0f - o.beta1) * g);
    const float v = std::fma(o.beta2, to.second[i], ((1.0f - o.beta2) * g) * g);
    const float m_hat = m / correction1;
    const float v_hat = v / correction2;
    const float decayed = o.coupled ? to.master[i] : to.master[i] * (1.0f - o.learning_rate * o.weight_decay);
    to.master[i] = decayed - o.learning_rate * (m_hat / (std::sqrt(v_hat) + o.epsilon));
    to.first[i] = m;
    to.second[i] = v;
  }
  return to;
}

Moments sgd_by_formula(Shards& s, const kernels::SgdSettings& o, const StepScalars& scalars) {
  Moments to = s.values();
  for (std::size_t i = 0; i < to.master.size(); ++i) {
    const float g = std::fma(o.weight_decay, to.master[i], s.gradient.data()[i] * scalars.gradient_factor);
    const float kept = scalars.step - o.begun == 1 ? 1.0f : 1.0f - o.dampening;
    const float velocity = std::fma(o.momentum, to.first[i], kept * g);
    const float d = o.nesterov ? std::fma(o.momentum, velocity, g) : velocity;
    to.master[i] = std::fma(-o.learning_rate, d, to.master[i]);
    if (o.momentum != 0.0f) to.first[i] = velocity;
  }
  return to;
}

// Kinds that root_scaled() has, in the order of their states: first is the squares, second what else there is.
constexpr kernels::RootScaledSettings rmsprop = {
    .learning_rate = 0.01f, .decay = 0.9f, .epsilon = 1e-3f, .weight_decay = 0.1f};
constexpr kernels::RootScaledSettings rmsprop_with_momentum = {
    .learning_rate = 0.01f, .decay = 0.9f, .epsilon = 1e-3f, .weight_decay = 0.1f, .momentum = 0.8f};
constexpr kernels::RootScaledSettings adagrad = {.learning_rate = 0.01f,
                                                 .decay = 1.0f,
                                                 .epsilon = 1e-10f,
                                                 .weight_decay = 0.1f,
                                                 .initial = 0.5f,
                                                 .rate_decay = 0.25f,
                                                 .begun = 1};
struct RootScaledKind {
  kernels::RootScaledSettings settings;
  bool centered;
};
constexpr RootScaledKind root_scaled_kinds[] = {
    {rmsprop, false}, {rmsprop, true}, {rmsprop_with_momentum, false}, {adagrad, false}};

// The second array of Shards is never negative.
kernels::RootScaledSpans spans_of(Shards& s, const RootScaledKind& kind, kernels::Source gradient, std::size_t count,
                                  kernels::Target rounded = {nullptr, DType::bf16}) {
  return {.master = s.master.data(),
          .squares = s.second.data(),
          .mean = kind.centered ? s.first.data() : nullptr,
          .velocity = kind.settings.momentum != 0.0f ? s.first.data() : nullptr,
          .gradient = gradient,
          .count = count,
          .rounded = rounded};
}

Moments root_scaled_by_formula(Shards& s, const RootScaledKind& kind, const StepScalars& scalars) {
  const kernels::RootScaledSettings& o = kind.settings;
  Moments to = s.values();
  const float rest = o.decay == 1.0f ? 1.0f : 1.0f - o.decay;
  const float rate = o.learning_rate / (1.0f + static_cast<float>(scalars.step - o.begun - 1) * o.rate_decay);
  for (std::size_t i = 0; i < to.master.size(); ++i) {
    const float g = std::fma(o.weight_decay, to.master[i], s.gradient.data()[i] * scalars.gradient_factor);
    to.second[i] = std::fma(rest * g, g, o.decay * to.second[i]);
    float under = to.second[i] + o.initial;
    if (kind.centered) {
      to.first[i] = std::fma(rest, g - to.first[i], to.first[i]);
      under = to.second[i] - to.first[i] * to.first[i];
    }
    float d = g / (std::sqrt(under) + o.epsilon);
    if (o.momentum != 0.0f) d = to.first[i] = std::fma(o.momentum, to.first[i], d);
    to.master[i] = std::fma(-rate, d, to.master[i]);
  }
  return to;
}

kernels::AdamWSpans adamw_spans(Shards& s, std::size_t count) {
  return {s.master.data(), s.first.data(), s.second.data(), s.gradient.data(), count};
}

}  // namespace

TEST_CASE("adamw has the bits of its formula, on numbers and on NaN, infinity and subnormal gradients") {
  Stream stream = host_stream();
  for (const auto& [patterns, coupled] : {std::pair(false, false), {true, false}, {true, true}}) {
    kernels::AdamWSettings settings = adamw_settings;
    settings.coupled = coupled;
    with_each_case([&, patterns = patterns](std::size_t count, std::size_t shift) {
      Shards s(count, shift, patterns);
      const StepScalars scalars = scalars_at_step_3();
      const Moments expected = adamw_by_formula(s, settings, scalars);
      kernels::adamw(stream, adamw_spans(s, count), settings, &scalars);
      s.check(expected);
    });
  }
}

TEST_CASE(
    "sgd has the bits of its formula, with nesterov, with dampening, whose first step has none, and without momentum, "
    "which needs no velocity") {
  Stream stream = host_stream();
  for (const kernels::SgdSettings& settings : {kernels::SgdSettings{0.1f, 0.9f, 1e-2f, false},
                                               {0.1f, 0.9f, 1e-2f, true},
                                               {0.1f, 0.9f, 1e-2f, false, 0.5f},
                                               {0.1f, 0.9f, 1e-2f, false, 0.5f, 2},
                                               {0.1f, 0.0f, 0.0f, false}}) {
    with_each_case([&](std::size_t count, std::size_t shift) {
      Shards s(count, shift);
      const StepScalars scalars = scalars_at_step_3();
      const Moments expected = sgd_by_formula(s, settings, scalars);
      float* const velocity = settings.momentum == 0.0f ? nullptr : s.first.data();
      kernels::sgd(stream, {s.master.data(), velocity, s.gradient.data(), count}, settings, &scalars);
      s.check(expected);
    });
  }
}

TEST_CASE("root_scaled has the bits of its formula, centered or not, with momentum, and as Adagrad has it") {
  Stream stream = host_stream();
  const StepScalars scalars = scalars_at_step_3();
  for (const RootScaledKind& kind : root_scaled_kinds) {
    with_each_case([&](std::size_t count, std::size_t shift) {
      Shards s(count, shift, true);
      const Moments expected = root_scaled_by_formula(s, kind, scalars);
      kernels::root_scaled(stream, spans_of(s, kind, s.gradient.data(), count), kind.settings, &scalars);
      s.check(expected);
    });
  }
}

TEST_CASE("momentum without a velocity buffer is an error") {
  Stream stream = host_stream();
  const StepScalars scalars;
  const kernels::SgdSettings settings = {
      .learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 0.0f, .nesterov = false};
  CHECK_THROWS_AS(kernels::sgd(stream, {nullptr, nullptr, nullptr, 1}, settings, &scalars), UsageError);
  CHECK_THROWS_AS(
      kernels::root_scaled(stream, {nullptr, nullptr, nullptr, nullptr, nullptr, 1}, rmsprop_with_momentum, &scalars),
      UsageError);
}

TEST_CASE("an outer update has the bits of its formula, and is the mean with learning rate 1 and no momentum") {
  Stream stream = host_stream();
  for (const kernels::OuterSettings settings :
       {kernels::OuterSettings{0.7f, 0.9f}, kernels::OuterSettings{1.0f, 0.0f}}) {
    with_each_case([&](std::size_t count, std::size_t shift) {
      Shards s(count, shift);
      Moments expected = s.values();
      for (std::size_t i = 0; i < count; ++i) {
        const float mean = s.gradient.data()[i];
        const float d = s.first.data()[i] - mean;
        expected.second[i] = settings.momentum * s.second.data()[i] + d;
        const float pull = settings.learning_rate * settings.momentum;
        expected.master[i] = (mean + (1.0f - settings.learning_rate) * d) - pull * expected.second[i];
        if (settings.momentum == 0.0f) CHECK(expected.master[i] == mean);
      }
      expected.first = expected.master;
      kernels::outer_update(stream, {s.master.data(), s.first.data(), s.second.data(), s.gradient.data(), count},
                            settings);
      s.check(expected);
    });
  }
}

TEST_CASE("updates and accumulation have the same bits on any number of threads") {
  constexpr std::size_t count = 100'003;  // several shares, none of them whole
  const StepScalars scalars = scalars_at_step_3();
  const kernels::SgdSettings sgd{.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true};
  const auto run = [&] {
    Stream stream(Device::cpu(), {.name = "compute"});
    Shards adam(count, 1), descent(count, 2), outer(count, 3), sum(count, 4), scaled(count, 5);
    kernels::adamw(stream, adamw_spans(adam, count), adamw_settings, &scalars);
    kernels::sgd(stream, {descent.master.data(), descent.first.data(), descent.gradient.data(), count}, sgd, &scalars);
    kernels::root_scaled(stream, spans_of(scaled, {rmsprop_with_momentum, false}, scaled.gradient.data(), count),
                         rmsprop_with_momentum, &scalars);
    kernels::outer_update(stream,
                          {outer.master.data(), outer.first.data(), outer.second.data(), outer.gradient.data(), count},
                          {.learning_rate = 0.7f, .momentum = 0.5f});
    kernels::accumulate(stream, sum.master.data(), {sum.gradient.data(), DType::fp32}, count);
    stream.synchronize();
    std::vector<std::vector<float>> all;
    for (Shards* const s : {&adam, &descent, &outer, &sum, &scaled}) {
      for (auto* const buffer : {&s->master, &s->first, &s->second}) {
        CHECK(buffer->guards_intact());
        all.push_back(buffer->values());
      }
    }
    return all;
  };
  const auto expected = run();
  for (const int threads : {2, 3, 5}) {
    parallel::set_threads(threads);
    CAPTURE(threads);
    CHECK((run() == expected));
  }
  parallel::set_threads(1);
}

TEST_CASE_TEMPLATE("masters are rounded beside their update as a cast rounds them", T, bf16, fp16) {
  constexpr kernels::SgdSettings rules[] = {
      {0.1f, 0.0f, 0.01f, false}, {0.1f, 0.9f, 0.01f, false}, {0.1f, 0.9f, 0.01f, true}};
  Stream stream = host_stream();
  const auto check = [&](std::size_t count, std::size_t shift) {
    StepScalars scalars = scalars_at_step_3();
    const auto check_update = [&](auto&& update) {
      Shards plain(count, shift, true), twice(count, shift, true);
      Buffer<T> halves(count, shift);
      update(plain, kernels::Target{nullptr, DType::bf16});
      update(twice, kernels::Target{halves.data(), dtype_of<T>});
      twice.check(plain.values());
      CHECK(differences(halves.values(), rounded<T>(twice.master.values())) == 0);
      CHECK(halves.guards_intact());
      const std::vector<T> before = halves.values();
      scalars.skip = 1;
      update(twice, kernels::Target{halves.data(), dtype_of<T>});
      CHECK(bit_differences(halves.values(), before) == 0);
      scalars.skip = 0;
    };
    check_update([&](Shards& s, kernels::Target to) {
      kernels::adamw(stream, {s.master.data(), s.first.data(), s.second.data(), s.gradient.data(), count, to},
                     adamw_settings, &scalars);
    });
    check_update([&](Shards& s, kernels::Target to) {
      kernels::root_scaled(stream, spans_of(s, {rmsprop, true}, s.gradient.data(), count, to), rmsprop, &scalars);
    });
    for (const kernels::SgdSettings& rule : rules) {
      check_update([&](Shards& s, kernels::Target to) {
        kernels::sgd(stream,
                     {s.master.data(), rule.momentum == 0.0f ? nullptr : s.first.data(), s.gradient.data(), count, to},
                     rule, &scalars);
      });
    }
  };
  with_each_case(check);
  parallel::set_threads(3);
  check(100'003, 1);
  parallel::set_threads(1);
}

TEST_CASE_TEMPLATE("a gradient of 16 bits updates as its values in fp32 do", T, bf16, fp16) {
  constexpr kernels::SgdSettings rules[] = {
      {0.1f, 0.0f, 0.01f, false}, {0.1f, 0.9f, 0.01f, false}, {0.1f, 0.9f, 0.01f, true}};
  Stream stream = host_stream();
  const StepScalars scalars = scalars_at_step_3();
  const auto check = [&](std::size_t count, std::size_t shift) {
    Buffer<T> halves(rounded<T>(numbers_and_patterns(count, 4)), shift);
    const auto check_update = [&](auto&& update) {
      Shards wide(count, shift), narrow(count, shift);
      kernels::cast(stream, {wide.gradient.data(), DType::fp32}, {halves.data(), dtype_of<T>}, count);
      update(wide, kernels::Source(wide.gradient.data()));
      update(narrow, kernels::Source(halves.data(), dtype_of<T>));
      narrow.check(wide.values());
    };
    const std::size_t half = count / 2;
    const kernels::AdamWRun runs[] = {{0, half, adamw_settings}, {half, count - half, adamw_settings}};
    check_update([&](Shards& s, kernels::Source gradient) {
      kernels::adamw(stream, {s.master.data(), s.first.data(), s.second.data(), gradient, count}, runs, 1.0f, &scalars);
    });
    check_update([&](Shards& s, kernels::Source gradient) {
      kernels::root_scaled(stream, spans_of(s, {rmsprop, true}, gradient, count), rmsprop, &scalars);
    });
    for (const kernels::SgdSettings& rule : rules) {
      check_update([&](Shards& s, kernels::Source gradient) {
        kernels::sgd(stream, {s.master.data(), rule.momentum == 0.0f ? nullptr : s.first.data(), gradient, count}, rule,
                     &scalars);
      });
    }
  };
  with_each_case(check);
  parallel::set_threads(3);
  check(100'003, 1);
  parallel::set_threads(1);
}

TEST_CASE("masters of an update are not rounded to fp32") {
  Stream stream = host_stream();
  const StepScalars scalars;
  float other = 0.0f;
  CHECK_THROWS_AS(
      kernels::adamw(stream, {nullptr, nullptr, nullptr, nullptr, 0, {&other, DType::fp32}}, adamw_settings, &scalars),
      UsageError);
  CHECK_THROWS_AS(
      kernels::sgd(stream, {nullptr, nullptr, nullptr, 0, {&other, DType::fp32}}, {0.1f, 0.0f, 0.0f, false}, &scalars),
      UsageError);
}

TEST_CASE("a skipped step changes nothing") {
  Stream stream = host_stream();
  StepScalars scalars = scalars_at_step_3();
  scalars.skip = 1;
  Shards s(129, 1);
  const Moments before = s.values();
  kernels::adamw(stream, adamw_spans(s, 129), adamw_settings, &scalars);
  kernels::sgd(stream, {s.master.data(), s.first.data(), s.gradient.data(), 129},
               {.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true}, &scalars);
  kernels::root_scaled(stream, spans_of(s, {rmsprop, true}, s.gradient.data(), 129), rmsprop, &scalars);
  s.check(before);
}

TEST_CASE("the update reads the step's scalars when it runs, not when it is enqueued") {
  Stream stream(Device::cpu(), {});
  StepScalars scalars = scalars_at_step_3();
  Shards queued(17, 0), expected(17, 0);
  stream.submit([&scalars] { scalars.gradient_factor = 0.5f; });
  kernels::adamw(stream, adamw_spans(queued, 17), adamw_settings, &scalars);
  stream.synchronize();
  const Moments moments = adamw_by_formula(expected, adamw_settings, scalars);
  CHECK(differences(queued.master.values(), moments.master) == 0);
}

TEST_CASE("the first adamw step moves every master by the learning rate against its gradient's sign") {
  Stream stream = host_stream();
  StepScalars scalars;
  const double norm[] = {4.0};
  kernels::begin_update(stream, &scalars, {norm, 1, 1}, {.decay = {0.9f, 0.95f}});
  std::vector<float> master(5, 1.0f), first(5), second(5);
  const std::vector<float> gradient = {0.3f, -0.3f, 2.0f, -2.0f, 1e-3f};
  kernels::AdamWSettings settings = adamw_settings;
  settings.weight_decay = 0.0f;
  kernels::adamw(stream, {master.data(), first.data(), second.data(), gradient.data(), 5}, settings, &scalars);
  for (std::size_t i = 0; i < 5; ++i) {
    const float moved = gradient[i] > 0 ? 1.0f - 3e-3f : 1.0f + 3e-3f;
    CHECK(master[i] == doctest::Approx(moved).epsilon(1e-5));
  }
}
