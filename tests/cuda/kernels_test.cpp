// Kernels of CUDA devices against those of the CPU: the same bits.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <tuple>

#include "device_data.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/adamw8bit.hpp"
#include "tessera/kernels/muon.hpp"
#include "tessera/kernels/norm.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/kernels/reduce.hpp"
#include "tessera/kernels/rounding.hpp"
#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/state_spec.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

bool is_on_cuda(const Stream& stream) { return stream.device().kind() == DeviceKind::cuda; }

// How NaNs are compared: of two that meet in one operation, either payload may survive.
enum class Nans { are_alike, have_their_bits };

template <typename T>
void check_same(Nans nans, DeviceBuffer<T>& computed, const std::vector<T>& expected) {
  const std::vector<T> values = computed.values();
  std::size_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const bool both_nan = std::isnan(static_cast<float>(values[i])) && std::isnan(static_cast<float>(expected[i]));
    if (both_nan && nans == Nans::are_alike) continue;
    different += std::memcmp(&values[i], &expected[i], sizeof(T)) != 0;
  }
  CHECK(different == 0);
  CHECK(computed.guards_intact());
}

// Calls operation(stream, a pointer to each of the vectors' values) on both devices, and wants the same bits in all
// that stands there then. Returns the CPU's.
template <typename Operation, typename... T>
std::tuple<std::vector<T>...> check_both(Nans nans, std::size_t shift, const Operation& operation,
                                         std::vector<T>... values) {
  [&](DeviceBuffer<T>&&... on_device) {
    Stream host = host_stream(), stream = cuda_stream();
    operation(host, values.data()...);
    operation(stream, on_device.data()...);
    stream.synchronize();
    (check_same(nans, on_device, values), ...);
  }(DeviceBuffer<T>(values, shift)...);
  return {std::move(values)...};
}

// The scalars of a step, in memory of both devices.
class ScalarsOnBoth {
 public:
  explicit ScalarsOnBoth(const kernels::StepScalars& values = scalars_at_step_3())
      : host_(values), arena_(Device::cuda(0), Bytes(sizeof values)) {
    Stream stream = cuda_stream();
    kernels::set_scalars(stream, on_device(), values);
    stream.synchronize();
  }
  kernels::StepScalars* of(const Stream& stream) { return is_on_cuda(stream) ? on_device() : &host_; }
  kernels::StepScalars computed() {
    kernels::StepScalars result;
    Stream stream = cuda_stream();
    kernels::copy(stream, &result, on_device(), Bytes(sizeof result));
    stream.synchronize();
    return result;
  }
  // Checks that both are the same, and returns them.
  kernels::StepScalars checked() {
    const kernels::StepScalars result = computed();
    CHECK(std::memcmp(&result, &host_, sizeof result) == 0);
    return result;
  }

 private:
  kernels::StepScalars* on_device() { return reinterpret_cast<kernels::StepScalars*>(arena_.data()); }

  kernels::StepScalars host_;
  Arena arena_;
};

std::vector<float> positive(std::vector<float> values) {
  for (float& value : values) value = std::fabs(value);
  return values;
}

// update(stream, masters, two states, gradients, more)
template <typename Update, typename... T>
auto check_update(std::size_t count, std::size_t shift, const Update& update, std::vector<T>... more) {
  return check_both(Nans::are_alike, shift, update, numbers(count, 1), numbers(count, 2), positive(numbers(count, 3)),
                    numbers_and_patterns(count, 4), std::move(more)...);
}

template <typename To, typename From>
void check_cast() {
  with_each_shape([&](std::size_t count, std::size_t shift) {
    check_both(
        Nans::have_their_bits, shift,
        [&](Stream& on, const From* from, To* to) {
          kernels::cast(on, {to, dtype_of<To>}, {from, dtype_of<From>}, count);
        },
        rounded<From>(numbers_and_patterns(count, 11)), std::vector<To>(count));
  });
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: cast has the CPU's bits for every pair of types", From, float, bf16, fp16) {
  check_cast<float, From>();
  check_cast<bf16, From>();
  check_cast<fp16, From>();
}

TEST_CASE("cuda: accumulate and divide have the CPU's bits") {
  with_each_shape([&](std::size_t count, std::size_t shift) {
    check_both(
        Nans::are_alike, shift,
        [&](Stream& on, float* sum, const bf16* addend) {
          kernels::accumulate(on, sum, {addend, DType::bf16}, count);
          kernels::divide(on, sum, 3.0f, count);
        },
        numbers_and_patterns(count, 21), rounded<bf16>(numbers_and_patterns(count, 22)));
  });
}

TEST_CASE("cuda: fills cover their bytes and no others") {
  Stream stream = cuda_stream();
  DeviceBuffer<float> data(numbers(129, 5), 1);
  kernels::poison(stream, data.data(), Bytes(129 * sizeof(float)));
  kernels::fill_zero(stream, data.data() + 1, Bytes(127 * sizeof(float)));
  stream.synchronize();
  const std::vector<float> values = data.values();
  CHECK((std::isnan(values.front()) && std::isnan(values.back())));
  for (std::size_t i = 1; i < 128; ++i) CHECK(bits_of(values[i]) == 0);
  CHECK(data.guards_intact());
}

TEST_CASE_TEMPLATE("cuda: a fill with -0 covers its elements and no others", T, float, bf16, fp16) {
  Stream stream = cuda_stream();
  with_each_shape([&](std::size_t count, std::size_t shift) {
    DeviceBuffer<T> data(std::vector<T>(count, T(5.0f)), shift);
    kernels::fill_negative_zero(stream, {data.data(), dtype_of<T>}, count);
    stream.synchronize();
    CHECK(bit_differences(data.values(), std::vector<T>(count, T(-0.0f))) == 0);
    CHECK(data.guards_intact());
  });
}

TEST_CASE("cuda: adamw has the CPU's bits, and changes nothing in a skipped step") {
  for (const std::int32_t skip : {0, 1}) {
    kernels::StepScalars scalars = scalars_at_step_3();
    scalars.skip = skip;
    ScalarsOnBoth step(scalars);
    with_each_shape([&](std::size_t count, std::size_t shift) {
      check_update(count, shift, [&](Stream& on, float* master, float* m, float* v, const float* g) {
        kernels::adamw(on, {master, m, v, g, count}, adamw_settings, step.of(on));
      });
    });
  }
}

namespace {

// More runs than fit one launch, some of them empty, of every alignment, with gaps between them.
template <typename Settings, typename Make>
std::vector<kernels::UpdateRun<Settings>> many_runs(Make settings) {
  std::vector<kernels::UpdateRun<Settings>> runs;
  std::size_t end = 0;
  for (std::size_t i = 0; i < 70; ++i) {
    runs.push_back({end, i == 40 ? 4099 : i * i % 37, settings(i)});
    end += runs.back().count + i % 3;
  }
  return runs;
}

// At once on the device, one by one on the CPU: update(stream, spans, settings or runs and their rate, scalars).
template <typename T, typename Settings, typename Update>
void check_runs(const std::vector<kernels::UpdateRun<Settings>>& runs, const Update& update) {
  const std::size_t end = runs.back().first + runs.back().count + 1;
  ScalarsOnBoth step;
  const auto updates = [&](Stream& on, float* master, float* m, float* v, const float* g, T* to) {
    if (is_on_cuda(on)) {
      const std::span<const kernels::UpdateRun<Settings>> all(runs);
      return update(on, kernels::AdamWSpans{master, m, v, g, end, {to, dtype_of<T>}}, all, 3e-2f, step.of(on));
    }
    for (const auto& run : runs) {
      Settings settings = run.settings;
      settings.learning_rate = 3e-2f * settings.learning_rate;
      const std::size_t i = run.first;
      update(on, kernels::AdamWSpans{master + i, m + i, v + i, g + i, run.count, {to + i, dtype_of<T>}}, settings,
             step.of(on));
    }
  };
  check_update(end, 1, updates, rounded<T>(numbers(end, 6)));
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: runs with settings of their own have the CPU's bits, and the rest stays", T, bf16, fp16) {
  check_runs<T>(many_runs<kernels::AdamWSettings>([](std::size_t i) {
                  return kernels::AdamWSettings{.learning_rate = 0.1f * static_cast<float>(i % 7),
                                                .beta1 = i % 5 == 1 ? 0.7f : 0.9f,
                                                .beta2 = 0.95f,
                                                .epsilon = i % 4 == 0 ? 1e-6f : 1e-8f,
                                                .weight_decay = i % 3 == 0 ? 0.0f : 0.1f,
                                                .own_decays = i % 5 == 1,
                                                .coupled = i % 2 == 1};
                }),
                [](Stream& on, const kernels::AdamWSpans& spans, const auto&... settings) {
                  kernels::adamw(on, spans, settings...);
                });
  check_runs<T>(
      many_runs<kernels::SgdSettings>([](std::size_t i) {
        return kernels::SgdSettings{0.1f * static_cast<float>(i % 7), 0.9f, i % 3 == 0 ? 0.0f : 0.1f, i % 2 == 0};
      }),
      [](Stream& on, const kernels::AdamWSpans& s, const auto&... settings) {
        const kernels::SgdSpans spans{s.master, s.first_moment, s.gradient, s.count, s.rounded};
        kernels::sgd(on, spans, settings...);
      });
  check_runs<T>(many_runs<kernels::RootScaledSettings>([](std::size_t i) {
                  return kernels::RootScaledSettings{.learning_rate = 0.1f * static_cast<float>(i % 7),
                                                     .decay = i % 5 == 1 ? 1.0f : 0.9f,
                                                     .epsilon = 1e-3f,
                                                     .weight_decay = i % 3 == 0 ? 0.0f : 0.1f};
                }),
                [](Stream& on, const kernels::AdamWSpans& s, const auto&... settings) {
                  const kernels::RootScaledSpans spans{s.master,   s.second_moment, nullptr,  s.first_moment,
                                                       s.gradient, s.count,         s.rounded};
                  kernels::root_scaled(on, spans, settings...);
                });
}

namespace {

// Codes are kept as the bits of floats, with a byte to spare, so that they can begin off the alignment of a pack.
std::vector<float> random_codes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count / 4 + 1);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return values;
}

// update(stream, spans, scalars)
template <typename Update>
void check_8bit(std::size_t count, std::size_t shift, std::int32_t skip, const Update& update) {
  kernels::StepScalars scalars = scalars_at_step_3();
  scalars.skip = skip;
  ScalarsOnBoth step(scalars);
  const auto codes_at = [&](float* floats) { return reinterpret_cast<std::uint8_t*>(floats) + (shift > 0 ? 1 : 0); };
  const std::size_t blocks = plan::values_of(count, kernels::moment_block);
  const auto updated = check_both(
      Nans::have_their_bits, shift,
      [&](Stream& on, float* master, const float* gradient, float* m, float* v, float* m_scales, float* v_scales) {
        update(on, kernels::AdamW8bitSpans{master, {codes_at(m), m_scales}, {codes_at(v), v_scales}, gradient, count},
               step.of(on));
      },
      numbers(count, 1), numbers(count, 2), random_codes(count, 3), random_codes(count, 4), numbers(blocks, 5),
      positive(numbers(blocks, 6)));
  CHECK((bit_differences(std::get<0>(updated), numbers(count, 1)) == 0) == (skip != 0 || count == 0));
}

}  // namespace

TEST_CASE("cuda: adamw8bit has the CPU's bits, and changes nothing in a skipped step") {
  const auto update = [&](Stream& on, const kernels::AdamW8bitSpans& spans, const kernels::StepScalars* scalars) {
    kernels::adamw8bit(on, spans, adamw_settings, scalars);
  };
  for (const std::size_t count : {0u, 1u, 7u, 255u, 256u, 257u, 1031u, 5000u}) {
    for (const std::size_t shift : {0u, 1u, 3u}) {
      CAPTURE(count);
      CAPTURE(shift);
      check_8bit(count, shift, 0, update);
    }
    check_8bit(count, 0, 1, update);
  }
}

TEST_CASE("cuda: runs of adamw8bit with settings of their own have the CPU's bits, and the rest stays") {
  std::vector<kernels::AdamWRun> runs;
  std::size_t end = 0;
  for (std::size_t i = 0; i < 70; ++i) {
    runs.push_back({end,
                    i == 40 ? 4099 : i * i % 531,
                    {.learning_rate = 0.1f * static_cast<float>(i % 7),
                     .beta1 = i % 5 == 1 ? 0.7f : 0.9f,
                     .beta2 = 0.95f,
                     .epsilon = i % 4 == 0 ? 1e-6f : 1e-8f,
                     .weight_decay = i % 3 == 0 ? 0.0f : 0.1f,
                     .own_decays = i % 5 == 1}});
    end = (end + runs.back().count + 255 + 256 * (i % 3)) / 256 * 256;
  }
  for (const std::size_t shift : {0u, 1u}) {
    check_8bit(end, shift, 0,
               [&](Stream& on, const kernels::AdamW8bitSpans& spans, const kernels::StepScalars* scalars) {
                 kernels::adamw8bit(on, spans, runs, 3e-2f, scalars);
               });
  }
}

TEST_CASE("cuda: sgd has the CPU's bits with and without momentum, Nesterov's too") {
  ScalarsOnBoth step;
  for (const auto& settings : std::array<kernels::SgdSettings, 3>{
           {{0.1f, 0.0f, 0.01f, false}, {0.1f, 0.9f, 0.01f, false, 0.5f}, {0.1f, 0.9f, 0.01f, true}}}) {
    with_each_shape([&](std::size_t count, std::size_t shift) {
      check_update(count, shift, [&](Stream& on, float* master, float* velocity, float*, const float* g) {
        kernels::sgd(on, {master, settings.momentum == 0.0f ? nullptr : velocity, g, count}, settings, step.of(on));
      });
    });
  }
}

TEST_CASE("cuda: root_scaled has the CPU's bits, centered or not, with momentum, and as Adagrad has it") {
  ScalarsOnBoth step;
  const kernels::RootScaledSettings rmsprop = {
      .learning_rate = 0.01f, .decay = 0.9f, .epsilon = 1e-3f, .weight_decay = 0.1f};
  kernels::RootScaledSettings momentum = rmsprop, adagrad = rmsprop;
  momentum.momentum = 0.8f;
  adagrad.decay = 1.0f, adagrad.initial = 0.5f, adagrad.rate_decay = 0.25f, adagrad.begun = 1;
  for (const auto& [settings, centered] :
       {std::pair(rmsprop, false), {rmsprop, true}, {momentum, false}, {adagrad, false}}) {
    with_each_shape([&, &settings = settings, centered = centered](std::size_t count, std::size_t shift) {
      check_update(count, shift, [&](Stream& on, float* master, float* m, float* v, const float* g) {
        float* const velocity = settings.momentum == 0.0f ? nullptr : m;
        kernels::root_scaled(on, {master, v, centered ? m : nullptr, velocity, g, count}, settings, step.of(on));
      });
    });
  }
}

TEST_CASE_TEMPLATE("cuda: masters are rounded beside their update as a cast rounds them", T, bf16, fp16) {
  ScalarsOnBoth step;
  with_each_shape([&](std::size_t count, std::size_t shift) {
    for (const float momentum : {-1.0f, 0.0f, 0.9f}) {  // below zero: AdamW
      const auto update = [&](Stream& on, float* master, float* m, float* v, const float* g, T* halves) {
        const kernels::Target to{halves, dtype_of<T>};
        if (momentum < 0.0f) return kernels::adamw(on, {master, m, v, g, count, to}, adamw_settings, step.of(on));
        kernels::sgd(on, {master, momentum == 0.0f ? nullptr : m, g, count, to}, {0.1f, momentum, 0.01f, true},
                     step.of(on));
      };
      const auto updated = check_update(count, shift, update, std::vector<T>(count));
      CHECK(differences(std::get<4>(updated), rounded<T>(std::get<0>(updated))) == 0);
    }
  });
}

TEST_CASE_TEMPLATE("cuda: gradients of 16 bits have the bits of their values in fp32, in norms and updates", T, bf16,
                   fp16) {
  ScalarsOnBoth step;
  Stream host = host_stream();
  with_each_shape([&](std::size_t count, std::size_t shift) {
    const std::vector<T> halves = rounded<T>(numbers_and_patterns(count, 31));
    std::vector<float> wide(count);
    kernels::cast(host, {wide.data(), DType::fp32}, {halves.data(), dtype_of<T>}, count);
    const auto gradient = [&](const Stream& on, const T* narrow) {
      return is_on_cuda(on) ? kernels::Source(narrow, dtype_of<T>) : kernels::Source(wide.data());
    };
    const std::size_t half = count / 2;
    for (const float momentum : {-1.0f, 0.0f, 0.9f}) {  // below zero: AdamW, in two runs
      const auto update = [&](Stream& on, float* master, float* m, float* v, const float*, const T* narrow) {
        const kernels::Source from = gradient(on, narrow);
        const kernels::AdamWRun runs[] = {{0, half, adamw_settings}, {half, count - half, adamw_settings}};
        if (momentum >= 0.0f) {
          return kernels::sgd(on, {master, momentum == 0.0f ? nullptr : m, from, count}, {0.1f, momentum, 0.01f, true},
                              step.of(on));
        }
        kernels::adamw(on, {master, m, v, from, count}, runs, 1.0f, step.of(on));
        on.synchronize();
      };
      check_update(count, shift, update, halves);
    }
    check_both(
        Nans::are_alike, shift,
        [&](Stream& on, const T* narrow, double* result) {
          kernels::sum_of_squares(on, gradient(on, narrow), count, result);
        },
        halves, std::vector<double>(1));
  });
}

TEST_CASE("cuda: outer updates have the CPU's bits") {
  with_each_shape([&](std::size_t count, std::size_t shift) {
    check_update(count, shift, [&](Stream& on, float* master, float* anchor, float* momentum, const float* mean) {
      kernels::outer_update(on, {master, anchor, momentum, mean, count}, {.learning_rate = 0.7f, .momentum = 0.9f});
    });
  });
}

TEST_CASE("cuda: stochastic rounding has the CPU's bits") {
  ScalarsOnBoth step;
  with_each_shape([&](std::size_t count, std::size_t shift) {
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, std::uint64_t{1} << 40}) {
      check_both(
          Nans::have_their_bits, shift,
          [&](Stream& on, const float* from, bf16* to) {
            kernels::round_stochastically(on, {to, from, count, {3, 4}, first}, step.of(on));
          },
          numbers_and_patterns(count, 43), std::vector<bf16>(count));
    }
  });
}

TEST_CASE("cuda: Muon's elementwise parts have the CPU's bits") {
  ScalarsOnBoth step;
  with_each_shape([&](std::size_t count, std::size_t shift) {
    const std::vector<bf16> x = rounded<bf16>(numbers_and_patterns(count, 41)), y = rounded<bf16>(numbers(count, 42));
    for (const bool nesterov : {false, true}) {
      const auto direct = [&](Stream& on, float*, float* momentum, float*, const float* gradient, bf16* to) {
        kernels::muon_direction(on, {momentum, gradient, to, count}, {.momentum = 0.95f, .nesterov = nesterov},
                                step.of(on));
      };
      check_update(count, shift, direct, x);
    }
    const auto apply = [&](Stream& on, float* master, float*, float*, const float*, const bf16* direction) {
      kernels::muon_apply(on, master, direction, count, {.learning_rate = 0.02f, .scale = 1.75f, .weight_decay = 0.1f},
                          step.of(on));
    };
    check_update(count, shift, apply, x);
    check_both(
        Nans::are_alike, shift,
        [&](Stream& on, const bf16* first, const bf16* second, bf16* to) {
          kernels::combine(on, {to, 3.4445f, first, -4.775f, second, count});
        },
        x, y, std::vector<bf16>(count));
    const std::size_t half = count / 2;  // of two matrices, one behind the other
    check_both(
        Nans::have_their_bits, shift,
        [&](Stream& on, bf16* matrices, const double* norms) {
          kernels::divide_by_norm(on, {matrices, half, half, 2, norms, 1e-7f});
        },
        y, std::vector<double>{2.0, 3.0});
  });
}

TEST_CASE("cuda: the squared norm has the CPU's bits, beyond one round of fp64 lanes too") {
  const auto check = [&](std::size_t count, std::size_t shift) {
    check_both(
        Nans::have_their_bits, shift,
        [&](Stream& on, const float* data, double* result) { kernels::sum_of_squares(on, data, count, result); },
        numbers(count, 61), std::vector<double>(1));
  };
  with_each_shape(check);
  for (std::size_t blocks : {63u, 64u, 65u, 129u}) check(blocks * kernels::norm_block + 7, 1);
  if (!tests::reduced()) check((kernels::norm_lanes + 3) * kernels::norm_block + 5, 0);
}

namespace {

kernels::ExactSquares* squares_at(double* place) { return reinterpret_cast<kernels::ExactSquares*>(place); }

// Numbers of all exponents, or of those next to 2^exponent.
std::vector<float> squares_case(std::size_t count, std::uint32_t seed, int exponent) {
  std::vector<float> values = exponent == 0 ? numbers_and_patterns(count, seed) : numbers(count, seed);
  for (float& value : values) value = std::isfinite(value) ? std::ldexp(value, exponent) : 1.0f;
  return values;
}

template <typename T>
void check_exact_squares(std::size_t count, std::size_t shift, int exponent) {
  check_both(
      Nans::have_their_bits, shift,
      [&](Stream& on, const T* data, double* result) {
        kernels::exact_squares(on, {data, dtype_of<T>}, count, squares_at(result));
      },
      rounded<T>(squares_case(count, 61, exponent)), std::vector<double>(4));
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: exact squares are the CPU's, beyond one round of blocks too", T, float, bf16, fp16) {
  with_each_shape([&](std::size_t count, std::size_t shift) {
    for (const int exponent : {0, -70, 100}) check_exact_squares<T>(count, shift, exponent);
  });
  for (const std::size_t count : {4095u, 4096u, 4097u, 70'001u}) check_exact_squares<T>(count, 1, 0);
  if (!tests::reduced()) check_exact_squares<T>(1024 * 4096 + 4099, 0, 0);
}

TEST_CASE("cuda: exact squares see what is not finite") {
  Stream stream = cuda_stream();
  std::vector<float> values = numbers(9000, 3);
  for (const auto& [value, top] : {std::pair(-HUGE_VALF, kernels::ExactSquares::infinite),
                                   {std::nanf(""), kernels::ExactSquares::nan},
                                   {HUGE_VALF, kernels::ExactSquares::nan}}) {
    values[top == kernels::ExactSquares::nan ? 17 : 8191] = value;
    values[18] = std::isnan(value) ? value : values[18];
    DeviceBuffer<float> data(values);
    DeviceBuffer<double> result(4);
    kernels::exact_squares(stream, data.data(), values.size(), squares_at(result.data()));
    stream.synchronize();
    const kernels::ExactSquares expected{top, {}};
    CHECK(std::memcmp(result.values().data(), &expected, sizeof expected) == 0);
  }
}

TEST_CASE("cuda: begin_update adds exact norms and weights of granules as the CPU does") {
  for (const auto& extents : {std::array<std::size_t, 3>{1, 1, 40}, {7, 3, 5}, {130, 5, 0}}) {
    const std::size_t units = extents[0], ranks = extents[1], rounds = extents[2];
    const std::size_t row = 4 * units + 2 + rounds;
    std::vector<float> numbers_of_units;
    for (std::size_t i = 0; i < units * ranks; ++i) {
      const std::vector<float> one = squares_case(100, static_cast<std::uint32_t>(i), static_cast<int>(i % 90) - 40);
      numbers_of_units.insert(numbers_of_units.end(), one.begin(), one.end());
    }
    ScalarsOnBoth step;
    check_both(
        Nans::have_their_bits, 0,
        [&](Stream& on, const float* data, double* rows) {
          for (std::size_t i = 0; i < units * ranks; ++i) {
            kernels::exact_squares(on, data + 100 * i, 100, squares_at(rows + i / units * row + i % units * 4));
          }
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            const bool lacks_one = rank + 1 == ranks && rounds > 0;
            const std::vector<float> some = positive(numbers(rounds - (lacks_one ? 1 : 0), 9));
            const std::vector<double> weights(some.begin(), some.end());
            kernels::set_part(on, reinterpret_cast<kernels::StepPart*>(rows + rank * row + 4 * units),
                              {2.5, kernels::StepPart::Kind::samples}, weights, rounds);
          }
          kernels::begin_update(
              on, step.of(on),
              {.values = rows, .units = units, .ranks = ranks, .divisor = 6.0, .exact = true, .rounds = rounds},
              {.clip_norm = 1.0f, .decay = {0.9, 0.95}});
        },
        numbers_of_units, std::vector<double>(row * ranks));
    CHECK(step.checked().skip == 0);
  }
}

namespace {

// Sums what ranks contribute one behind the other, by pointers and at equal distances. The results begin `offset`
// elements behind those of the buffers.
template <typename T>
void check_ranked_sum(const std::vector<T>& contributions, kernels::RankedSum sum, std::size_t ranks, std::size_t shift,
                      std::size_t offset = 0) {
  const Bytes each = bytes_of(sum.type, sum.count);
  const auto operation = [&](Stream& on, const T* first, float* by_pointers, float* by_distance) {
    std::vector<const void*> pointers;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      pointers.push_back(reinterpret_cast<const std::byte*>(first) + rank * each.count());
    }
    for (float* const result : {by_pointers + offset, by_distance + offset}) {
      sum.contributions = pointers;
      sum.result = result;
      if (!is_on_cuda(on)) {
        kernels::ranked_sum_cpu(sum);
      } else if (result == by_pointers + offset) {
        kernels::ranked_sum_cuda(native_stream(on), sum);
      } else {
        sum.contributions = {};
        kernels::ranked_sum_cuda(native_stream(on), sum, {first, each, ranks});
      }
    }
  };
  check_both(Nans::are_alike, shift, operation, contributions, numbers(sum.count + offset, 5),
             numbers(sum.count + offset, 5));
}

// Blocks of every kind: zeros, too small for a scale, not finite, ordinary.
std::vector<float> blocks_of_numbers(std::size_t blocks, std::uint32_t seed) {
  constexpr std::size_t block = block_of(DType::int8);
  std::vector<float> values = numbers(blocks * block, seed);
  for (std::size_t i = 0; i < block && blocks > 3; ++i) {
    values[i] = 0.0f;
    values[block + i] *= 0x1p-120f;
  }
  if (blocks > 3) values[2 * block + 7] = std::numeric_limits<float>::infinity();
  return values;
}

constexpr std::size_t words_of_codes(std::size_t count) { return bytes_of(DType::int8, count).count() / sizeof(float); }

}  // namespace

TEST_CASE("cuda: sums over ranks have the CPU's bits, by pointers and at equal distances") {
  using kernels::Accumulate;
  Stream host = host_stream();
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::sum, Accumulate::terms}) {
    for (const std::size_t ranks : {1u, 2u, 3u, 7u}) {
      with_each_shape([&](std::size_t count, std::size_t shift) {
        std::vector<bf16> together;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          const auto one = rounded<bf16>(numbers_and_patterns(count, static_cast<std::uint32_t>(70 + rank)));
          together.insert(together.end(), one.begin(), one.end());
        }
        check_ranked_sum(
            together,
            {.contributions = {}, .type = DType::bf16, .count = count, .accumulate = accumulate, .divisor = 3.0f},
            ranks, shift);
      });
    }
    constexpr std::size_t count = 5 * block_of(DType::int8);
    std::vector<float> codes(3 * words_of_codes(count));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      kernels::cast(host, {&codes[rank * words_of_codes(count)], DType::int8}, numbers(count, 80 + rank).data(), count);
    }
    for (const std::size_t offset : {0u, 1u}) {
      check_ranked_sum(
          codes, {.contributions = {}, .type = DType::int8, .count = count, .accumulate = accumulate, .divisor = 3.0f},
          3, 0, offset);
    }
  }
}

TEST_CASE_TEMPLATE("cuda: codes of 8 bits are the CPU's, and are read as there", T, float, bf16, fp16) {
  for (const std::size_t blocks : {0u, 1u, 3u, 8u, 70u}) {
    const std::size_t count = blocks * block_of(DType::int8);
    for (const std::size_t offset : {0u, 1u}) {
      std::vector<T> values = rounded<T>(blocks_of_numbers(blocks, 3));
      values.insert(values.begin(), offset, T(1.0f));
      const auto coded = check_both(
          Nans::have_their_bits, 0,
          [&](Stream& on, const T* from, float* codes) {
            kernels::cast(on, {codes, DType::int8}, {from + offset, dtype_of<T>}, count);
          },
          values, std::vector<float>(words_of_codes(count)));
      check_both(
          Nans::are_alike, 0,
          [&](Stream& on, const float* codes, T* to) {
            kernels::cast(on, {to + offset, dtype_of<T>}, {codes, DType::int8}, count);
          },
          std::get<1>(coded), std::vector<T>(offset + count));
    }
  }
}

TEST_CASE_TEMPLATE("cuda: contributions of -0 leave a sum as it is, -0 itself too", T, float, bf16, fp16) {
  using kernels::Accumulate;
  Stream stream = cuda_stream();
  for (const Accumulate accumulate : {Accumulate::sum, Accumulate::terms}) {
    with_each_shape([&](std::size_t count, std::size_t shift) {
      std::vector<float> before = numbers(count, 17);
      for (std::size_t i = 0; i < count; i += 3) before[i] = i % 2 == 0 ? -0.0f : 0.0f;
      DeviceBuffer<T> nothing(std::vector<T>(2 * count, T(-0.0f)), shift);
      DeviceBuffer<float> result(before, shift);
      kernels::ranked_sum_cuda(
          native_stream(stream),
          {.contributions = {}, .type = dtype_of<T>, .result = result.data(), .count = count, .accumulate = accumulate},
          {nothing.data(), count * size_of(dtype_of<T>), 2});
      stream.synchronize();
      CHECK(bit_differences(result.values(), before) == 0);
    });
  }
}

TEST_CASE("cuda: a sum by more pointers than a kernel takes is refused") {
  std::vector<const void*> many(65, nullptr);
  CHECK_THROWS_WITH_AS(kernels::ranked_sum_cuda(nullptr, {.contributions = many}), doctest::Contains("65 ranks"),
                       UsageError);
}

TEST_CASE("cuda: begin_update decides as the CPU does, over many partial sums") {
  for (const auto& [units, ranks] : {std::pair<std::size_t, std::size_t>{1, 1}, {7, 3}, {130, 5}}) {
    for (const auto& [clip, any_order] : {std::pair(0.0f, false), {1.0f, false}, {1.0f, true}}) {
      for (const bool broken : {false, true}) {
        std::vector<double> partials;
        for (float value : numbers(units * ranks, 9)) partials.push_back(static_cast<double>(value * value));
        if (broken) partials.back() = HUGE_VAL;
        kernels::StepScalars scalars = scalars_at_step_3();
        scalars.loss_scale = 1024.0f;
        ScalarsOnBoth step(scalars);
        const kernels::StepSettings settings = {
            .clip_norm = clip, .decay = {0.9, 0.95}, .loss_scaling = kernels::dynamic_loss_scaling};
        kernels::NormPartials norms{.values = nullptr, .units = units, .ranks = ranks, .any_order = any_order};
        check_both(
            Nans::have_their_bits, 0,
            [&](Stream& on, const double* values) {
              norms.values = values;
              kernels::begin_update(on, step.of(on), norms, settings);
            },
            partials);
        CHECK(step.checked().skip == (broken ? 1 : 0));
      }
    }
  }
}

TEST_CASE("cuda: begin_update divides by what ranks bring as the CPU does") {
  using Kind = kernels::StepPart::Kind;
  constexpr std::size_t units = 130, ranks = 3, row = units + 2;
  for (const kernels::StepPart& last : {kernels::StepPart{2.5, Kind::samples}, kernels::StepPart{0.0, Kind::nothing},
                                        kernels::StepPart{1.0, Kind::micro_batches}}) {
    std::vector<double> rows;
    for (float value : numbers(row * ranks, 9)) rows.push_back(static_cast<double>(value * value));
    ScalarsOnBoth step;
    const auto update = [&](Stream& on, double* values) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const kernels::StepPart part = rank == 0 ? kernels::StepPart{0.75, Kind::samples} : last;
        kernels::set_part(on, reinterpret_cast<kernels::StepPart*>(values + rank * row + units), part);
      }
      kernels::begin_update(on, step.of(on), {values, units, ranks, 6.0}, {.clip_norm = 1.0f, .decay = {0.9, 0.95}});
    };
    check_both(Nans::have_their_bits, 0, update, rows);
    if (last.kind == Kind::micro_batches) {  // beside weights
      CHECK((std::isnan(step.computed().weight) && step.computed().skip == 1));
      continue;
    }
    CHECK(step.checked().weight == (last.kind == Kind::samples ? 5.75 : 0.75));
  }
}
