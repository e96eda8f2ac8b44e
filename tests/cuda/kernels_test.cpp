// Kernels of CUDA devices against those of the CPU: the same bits.
#include <array>
#include <cstring>
#include <limits>
#include <span>

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

template <typename To, typename From>
void check_cast() {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  with_each_shape([&](std::size_t count, std::size_t shift) {
    const std::vector<From> values = rounded<From>(numbers_and_patterns(count, 11));
    DeviceBuffer<From> from(values, shift);
    DeviceBuffer<To> to(count, shift);
    kernels::cast(stream, {to.data(), dtype_of<To>}, {from.data(), dtype_of<From>}, count);
    stream.synchronize();
    std::vector<To> expected(count);
    kernels::cast(host, {expected.data(), dtype_of<To>}, {values.data(), dtype_of<From>}, count);
    CHECK(bit_differences(to.values(), expected) == 0);
    CHECK(to.guards_intact());
  });
}

struct Moments {
  std::vector<float> master, first, second;
};

template <typename Update>
Moments on_host(std::size_t count, Update update) {
  Moments m = {numbers(count, 1), numbers(count, 2), numbers(count, 3)};
  for (float& value : m.second) value = std::fabs(value);
  std::vector<float> gradient = numbers_and_patterns(count, 4);
  Stream host = host_stream();
  update(host, m.master.data(), m.first.data(), m.second.data(), gradient.data());
  return m;
}

template <typename Update>
Moments on_device(std::size_t count, std::size_t shift, Update update) {
  Moments m = {numbers(count, 1), numbers(count, 2), numbers(count, 3)};
  for (float& value : m.second) value = std::fabs(value);
  DeviceBuffer<float> master(m.master, shift), first(m.first, shift), second(m.second, shift);
  DeviceBuffer<float> gradient(numbers_and_patterns(count, 4), shift);
  Stream stream = cuda_stream();
  update(stream, master.data(), first.data(), second.data(), gradient.data());
  stream.synchronize();
  CHECK((master.guards_intact() && first.guards_intact() && second.guards_intact()));
  return {master.values(), first.values(), second.values()};
}

std::size_t differences(const Moments& a, const Moments& b) {
  return test::differences(a.master, b.master) + test::differences(a.first, b.first) +
         test::differences(a.second, b.second);
}

// StepScalars in memory of the device.
class DeviceScalars {
 public:
  explicit DeviceScalars(const kernels::StepScalars& values) : arena_(Device::cuda(0), Bytes(sizeof values)) {
    Stream stream = cuda_stream();
    kernels::set_scalars(stream, get(), values);
    stream.synchronize();
  }
  kernels::StepScalars* get() { return reinterpret_cast<kernels::StepScalars*>(arena_.data()); }
  kernels::StepScalars values() {
    kernels::StepScalars result;
    Stream stream = cuda_stream();
    kernels::copy(stream, &result, get(), Bytes(sizeof result));
    stream.synchronize();
    return result;
  }

 private:
  Arena arena_;
};

bool same_bits(const kernels::StepScalars& a, const kernels::StepScalars& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: cast has the CPU's bits for every pair of types", From, float, bf16, fp16) {
  check_cast<float, From>();
  check_cast<bf16, From>();
  check_cast<fp16, From>();
}

TEST_CASE("cuda: accumulate and divide have the CPU's bits") {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  with_each_shape([&](std::size_t count, std::size_t shift) {
    std::vector<float> expected = numbers_and_patterns(count, 21);
    const std::vector<bf16> addend = rounded<bf16>(numbers_and_patterns(count, 22));
    DeviceBuffer<float> sum(expected, shift);
    DeviceBuffer<bf16> from(addend, shift);
    kernels::accumulate(stream, sum.data(), {from.data(), DType::bf16}, count);
    kernels::divide(stream, sum.data(), 3.0f, count);
    stream.synchronize();
    kernels::accumulate(host, expected.data(), {addend.data(), DType::bf16}, count);
    kernels::divide(host, expected.data(), 3.0f, count);
    CHECK(test::differences(sum.values(), expected) == 0);
    CHECK(sum.guards_intact());
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
    DeviceScalars on_gpu(scalars);
    with_each_shape([&](std::size_t count, std::size_t shift) {
      const auto update = [&](const kernels::StepScalars* step) {
        return [step, count](Stream& on, float* master, float* m, float* v, const float* g) {
          kernels::adamw(on, {master, m, v, g, count}, adamw_settings, step);
        };
      };
      CHECK(differences(on_device(count, shift, update(on_gpu.get())), on_host(count, update(&scalars))) == 0);
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

// At once on the device, one by one on the CPU.
template <typename T, typename Settings, typename Update>
void check_runs(const std::vector<kernels::UpdateRun<Settings>>& runs, Update update) {
  const std::size_t end = runs.back().first + runs.back().count + 1;
  const std::size_t shift = 1;
  const std::vector<T> before = rounded<T>(numbers(end, 6));
  kernels::StepScalars scalars = scalars_at_step_3();
  DeviceScalars on_gpu(scalars);
  DeviceBuffer<T> halves(before, shift);
  const Moments computed = on_device(end, shift, [&](Stream& on, float* master, float* m, float* v, const float* g) {
    const kernels::Target to{halves.data(), dtype_of<T>};
    update.at_once(on, {master, m, v, g, end, to}, runs, 3e-2f, on_gpu.get());
  });
  std::vector<T> expected_halves = before;
  const Moments expected = on_host(end, [&](Stream& on, float* master, float* m, float* v, const float* g) {
    for (const auto& run : runs) {
      Settings settings = run.settings;
      settings.learning_rate = 3e-2f * settings.learning_rate;
      const std::size_t i = run.first;
      const kernels::Target to{expected_halves.data() + i, dtype_of<T>};
      update.one(on, {master + i, m + i, v + i, g + i, run.count, to}, settings, &scalars);
    }
  });
  CHECK(differences(computed, expected) == 0);
  CHECK(test::differences(halves.values(), expected_halves) == 0);
  CHECK(halves.guards_intact());
}

struct AdamWUpdates {
  static void at_once(Stream& on, const kernels::AdamWSpans& spans, std::span<const kernels::AdamWRun> runs, float rate,
                      const kernels::StepScalars* scalars) {
    kernels::adamw(on, spans, runs, rate, scalars);
  }
  static void one(Stream& on, const kernels::AdamWSpans& spans, const kernels::AdamWSettings& settings,
                  const kernels::StepScalars* scalars) {
    kernels::adamw(on, spans, settings, scalars);
  }
};

struct RootScaledUpdates {
  static kernels::RootScaledSpans of(const kernels::AdamWSpans& spans) {
    return {spans.master, spans.second_moment, nullptr, spans.first_moment, spans.gradient, spans.count, spans.rounded};
  }
  static void at_once(Stream& on, const kernels::AdamWSpans& spans, std::span<const kernels::RootScaledRun> runs,
                      float rate, const kernels::StepScalars* scalars) {
    kernels::root_scaled(on, of(spans), runs, rate, scalars);
  }
  static void one(Stream& on, const kernels::AdamWSpans& spans, const kernels::RootScaledSettings& settings,
                  const kernels::StepScalars* scalars) {
    kernels::root_scaled(on, of(spans), settings, scalars);
  }
};

struct SgdUpdates {
  static kernels::SgdSpans of(const kernels::AdamWSpans& spans) {
    return {spans.master, spans.first_moment, spans.gradient, spans.count, spans.rounded};
  }
  static void at_once(Stream& on, const kernels::AdamWSpans& spans, std::span<const kernels::SgdRun> runs, float rate,
                      const kernels::StepScalars* scalars) {
    kernels::sgd(on, of(spans), runs, rate, scalars);
  }
  static void one(Stream& on, const kernels::AdamWSpans& spans, const kernels::SgdSettings& settings,
                  const kernels::StepScalars* scalars) {
    kernels::sgd(on, of(spans), settings, scalars);
  }
};

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
                AdamWUpdates{});
  check_runs<T>(
      many_runs<kernels::SgdSettings>([](std::size_t i) {
        return kernels::SgdSettings{0.1f * static_cast<float>(i % 7), 0.9f, i % 3 == 0 ? 0.0f : 0.1f, i % 2 == 0};
      }),
      SgdUpdates{});
  check_runs<T>(many_runs<kernels::RootScaledSettings>([](std::size_t i) {
                  return kernels::RootScaledSettings{.learning_rate = 0.1f * static_cast<float>(i % 7),
                                                     .decay = i % 5 == 1 ? 1.0f : 0.9f,
                                                     .epsilon = 1e-3f,
                                                     .weight_decay = i % 3 == 0 ? 0.0f : 0.1f};
                }),
                RootScaledUpdates{});
}

namespace {

// All that an update with 8-bit moments reads and writes. Codes are kept as the bits of floats, with a byte to spare,
// so that they can begin off the alignment of a pack.
struct Kept8bit {
  explicit Kept8bit(std::size_t count)
      : master(numbers(count, 1)),
        gradient(numbers(count, 2)),
        codes{bits(count, 3), bits(count, 4)},
        scales{numbers(plan::values_of(count, kernels::moment_block), 5),
               numbers(plan::values_of(count, kernels::moment_block), 6)} {
    for (float& scale : scales[1]) scale = std::fabs(scale);
  }
  static std::vector<float> bits(std::size_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<float> values(count / 4 + 1);
    for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    return values;
  }

  std::vector<float> master, gradient, codes[2], scales[2];
};

std::size_t differences(const Kept8bit& a, const Kept8bit& b) {
  return bit_differences(a.master, b.master) + bit_differences(a.codes[0], b.codes[0]) +
         bit_differences(a.codes[1], b.codes[1]) + bit_differences(a.scales[0], b.scales[0]) +
         bit_differences(a.scales[1], b.scales[1]);
}

std::uint8_t* codes_at(float* floats, std::size_t shift) {
  return reinterpret_cast<std::uint8_t*>(floats) + (shift > 0 ? 1 : 0);
}

// update(stream, spans, scalars)
template <typename Update>
void check_8bit(std::size_t count, std::size_t shift, std::int32_t skip, const Update& update) {
  kernels::StepScalars scalars = scalars_at_step_3();
  scalars.skip = skip;
  Kept8bit host(count), device(count);
  DeviceScalars on_gpu(scalars);
  DeviceBuffer<float> master(device.master, shift), gradient(device.gradient, shift);
  DeviceBuffer<float> codes[] = {{device.codes[0], shift}, {device.codes[1], shift}};
  DeviceBuffer<float> scales[] = {{device.scales[0], shift}, {device.scales[1], shift}};
  Stream cpu = host_stream(), gpu = cuda_stream();
  update(cpu,
         {host.master.data(),
          {codes_at(host.codes[0].data(), shift), host.scales[0].data()},
          {codes_at(host.codes[1].data(), shift), host.scales[1].data()},
          host.gradient.data(),
          count},
         &scalars);
  update(gpu,
         {master.data(),
          {codes_at(codes[0].data(), shift), scales[0].data()},
          {codes_at(codes[1].data(), shift), scales[1].data()},
          gradient.data(),
          count},
         on_gpu.get());
  gpu.synchronize();
  device.master = master.values();
  for (int i = 0; i < 2; ++i) device.codes[i] = codes[i].values();
  for (int i = 0; i < 2; ++i) device.scales[i] = scales[i].values();
  CHECK(differences(host, device) == 0);
  CHECK((differences(host, Kept8bit(count)) == 0) == (skip != 0 || count == 0));
  CHECK((master.guards_intact() && scales[0].guards_intact() && scales[1].guards_intact()));
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
  kernels::StepScalars scalars = scalars_at_step_3();
  DeviceScalars on_gpu(scalars);
  for (const auto& settings : std::array<kernels::SgdSettings, 3>{
           {{0.1f, 0.0f, 0.01f, false}, {0.1f, 0.9f, 0.01f, false, 0.5f}, {0.1f, 0.9f, 0.01f, true}}}) {
    with_each_shape([&](std::size_t count, std::size_t shift) {
      const auto update = [&](const kernels::StepScalars* step) {
        return [&settings, step, count](Stream& on, float* master, float* velocity, float*, const float* g) {
          kernels::sgd(on, {master, settings.momentum == 0.0f ? nullptr : velocity, g, count}, settings, step);
        };
      };
      CHECK(differences(on_device(count, shift, update(on_gpu.get())), on_host(count, update(&scalars))) == 0);
    });
  }
}

TEST_CASE("cuda: root_scaled has the CPU's bits, centered or not, with momentum, and as Adagrad has it") {
  kernels::StepScalars scalars = scalars_at_step_3();
  DeviceScalars on_gpu(scalars);
  struct Kind {
    kernels::RootScaledSettings settings;
    bool centered;
  };
  const kernels::RootScaledSettings rmsprop = {
      .learning_rate = 0.01f, .decay = 0.9f, .epsilon = 1e-3f, .weight_decay = 0.1f};
  kernels::RootScaledSettings momentum = rmsprop, adagrad = rmsprop;
  momentum.momentum = 0.8f;
  adagrad.decay = 1.0f, adagrad.initial = 0.5f, adagrad.rate_decay = 0.25f, adagrad.begun = 1;
  for (const Kind& kind : {Kind{rmsprop, false}, {rmsprop, true}, {momentum, false}, {adagrad, false}}) {
    with_each_shape([&](std::size_t count, std::size_t shift) {
      const auto update = [&](const kernels::StepScalars* step) {
        return [&kind, step, count](Stream& on, float* master, float* m, float* v, const float* g) {
          float* const velocity = kind.settings.momentum == 0.0f ? nullptr : m;
          kernels::root_scaled(on, {master, v, kind.centered ? m : nullptr, velocity, g, count}, kind.settings, step);
        };
      };
      CHECK(differences(on_device(count, shift, update(on_gpu.get())), on_host(count, update(&scalars))) == 0);
    });
  }
}

TEST_CASE_TEMPLATE("cuda: masters are rounded beside their update as a cast rounds them", T, bf16, fp16) {
  constexpr kernels::AdamWSettings adam = {
      .learning_rate = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
  kernels::StepScalars scalars = scalars_at_step_3();
  DeviceScalars on_gpu(scalars);
  with_each_shape([&](std::size_t count, std::size_t shift) {
    for (const float momentum : {-1.0f, 0.0f, 0.9f}) {  // below zero: AdamW
      DeviceBuffer<T> halves(std::vector<T>(count), shift);
      const Moments updated =
          on_device(count, shift, [&](Stream& on, float* master, float* m, float* v, const float* g) {
            const kernels::Target to{halves.data(), dtype_of<T>};
            if (momentum < 0.0f) return kernels::adamw(on, {master, m, v, g, count, to}, adam, on_gpu.get());
            kernels::sgd(on, {master, momentum == 0.0f ? nullptr : m, g, count, to}, {0.1f, momentum, 0.01f, true},
                         on_gpu.get());
          });
      CHECK(test::differences(halves.values(), rounded<T>(updated.master)) == 0);
      CHECK(halves.guards_intact());
    }
  });
}

TEST_CASE_TEMPLATE("cuda: gradients of 16 bits have the bits of their values in fp32, in norms and updates", T, bf16,
                   fp16) {
  constexpr kernels::AdamWSettings adam = {
      .learning_rate = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
  kernels::StepScalars scalars = scalars_at_step_3();
  DeviceScalars on_gpu(scalars);
  Stream host = host_stream();
  with_each_shape([&](std::size_t count, std::size_t shift) {
    const std::vector<T> halves = rounded<T>(numbers_and_patterns(count, 31));
    std::vector<float> wide(count);
    kernels::cast(host, {wide.data(), DType::fp32}, {halves.data(), dtype_of<T>}, count);
    DeviceBuffer<T> gradient(halves, shift);
    const std::size_t half = count / 2;
    for (const float momentum : {-1.0f, 0.0f, 0.9f}) {  // below zero: AdamW, in two runs
      const auto update = [&](kernels::Source from, const kernels::StepScalars* step) {
        return [&, from, step](Stream& on, float* master, float* m, float* v, const float*) {
          const kernels::AdamWRun runs[] = {{0, half, adam}, {half, count - half, adam}};
          if (momentum >= 0.0f) {
            return kernels::sgd(on, {master, momentum == 0.0f ? nullptr : m, from, count},
                                {0.1f, momentum, 0.01f, true}, step);
          }
          kernels::adamw(on, {master, m, v, from, count}, runs, 1.0f, step);
          on.synchronize();
        };
      };
      CHECK(differences(on_device(count, shift, update({gradient.data(), dtype_of<T>}, on_gpu.get())),
                        on_host(count, update(wide.data(), &scalars))) == 0);
    }
    Stream stream = cuda_stream();
    DeviceBuffer<double> result(1);
    kernels::sum_of_squares(stream, {gradient.data(), dtype_of<T>}, count, result.data());
    stream.synchronize();
    double expected = -1.0;
    kernels::sum_of_squares(host, wide.data(), count, &expected);
    CHECK((std::isnan(expected) ? std::isnan(result.values()[0]) : result.values()[0] == expected));
  });
}

TEST_CASE("cuda: outer updates have the CPU's bits") {
  with_each_shape([&](std::size_t count, std::size_t shift) {
    const auto update = [count](Stream& on, float* master, float* anchor, float* momentum, const float* mean) {
      kernels::outer_update(on, {master, anchor, momentum, mean, count}, {.learning_rate = 0.7f, .momentum = 0.9f});
    };
    CHECK(differences(on_device(count, shift, update), on_host(count, update)) == 0);
  });
}

TEST_CASE("cuda: stochastic rounding has the CPU's bits") {
  kernels::StepScalars scalars = scalars_at_step_3();
  DeviceScalars on_gpu(scalars);
  Stream host = host_stream(), stream = cuda_stream();
  with_each_shape([&](std::size_t count, std::size_t shift) {
    const std::vector<float> values = numbers_and_patterns(count, 43);
    DeviceBuffer<float> from(values, shift);
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, std::uint64_t{1} << 40}) {
      DeviceBuffer<bf16> to(count, shift);
      std::vector<bf16> expected(count);
      kernels::round_stochastically(stream, {to.data(), from.data(), count, {3, 4}, first}, on_gpu.get());
      stream.synchronize();
      kernels::round_stochastically(host, {expected.data(), values.data(), count, {3, 4}, first}, &scalars);
      CHECK(bit_differences(to.values(), expected) == 0);
      CHECK(to.guards_intact());
    }
  });
}

TEST_CASE("cuda: Muon's elementwise parts have the CPU's bits") {
  kernels::StepScalars scalars = scalars_at_step_3();
  DeviceScalars on_gpu(scalars);
  Stream host = host_stream(), stream = cuda_stream();
  with_each_shape([&](std::size_t count, std::size_t shift) {
    const std::vector<bf16> x = rounded<bf16>(numbers_and_patterns(count, 41)), y = rounded<bf16>(numbers(count, 42));
    for (const bool nesterov : {false, true}) {
      DeviceBuffer<bf16> direction(x, shift);
      std::vector<bf16> expected = x;
      const auto direct = [&](bf16* to, const kernels::StepScalars* step) {
        return [=](Stream& on, float*, float* momentum, float*, const float* gradient) {
          kernels::muon_direction(on, {momentum, gradient, to, count}, {.momentum = 0.95f, .nesterov = nesterov}, step);
        };
      };
      CHECK(differences(on_device(count, shift, direct(direction.data(), on_gpu.get())),
                        on_host(count, direct(expected.data(), &scalars))) == 0);
      CHECK(test::differences(direction.values(), expected) == 0);
      CHECK(direction.guards_intact());
    }
    DeviceBuffer<bf16> first(x, shift), second(y, shift), to(count, shift);
    const auto apply = [&](const bf16* direction, const kernels::StepScalars* step) {
      return [=](Stream& on, float* master, float*, float*, const float*) {
        kernels::muon_apply(on, master, direction, count,
                            {.learning_rate = 0.02f, .scale = 1.75f, .weight_decay = 0.1f}, step);
      };
    };
    CHECK(differences(on_device(count, shift, apply(first.data(), on_gpu.get())),
                      on_host(count, apply(x.data(), &scalars))) == 0);
    std::vector<bf16> combined(count), divided = y;
    kernels::combine(stream, {to.data(), 3.4445f, first.data(), -4.775f, second.data(), count});
    kernels::combine(host, {combined.data(), 3.4445f, x.data(), -4.775f, y.data(), count});
    const double squares[] = {2.0, 3.0};
    DeviceBuffer<double> norms(std::vector<double>(squares, squares + 2));
    const std::size_t half = count / 2;  // of two matrices, one behind the other
    kernels::divide_by_norm(stream, {second.data(), half, half, 2, norms.data(), 1e-7f});
    kernels::divide_by_norm(host, {divided.data(), half, half, 2, squares, 1e-7f});
    stream.synchronize();
    CHECK(test::differences(to.values(), combined) == 0);
    CHECK(bit_differences(second.values(), divided) == 0);
    CHECK((to.guards_intact() && second.guards_intact()));
  });
}

TEST_CASE("cuda: the squared norm has the CPU's bits, beyond one round of fp64 lanes too") {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  const auto check = [&](std::size_t count, std::size_t shift) {
    const std::vector<float> values = numbers(count, 61);
    DeviceBuffer<float> data(values, shift);
    DeviceBuffer<double> result(1);
    kernels::sum_of_squares(stream, data.data(), count, result.data());
    stream.synchronize();
    double expected = -1.0;
    kernels::sum_of_squares(host, values.data(), count, &expected);
    CHECK(std::bit_cast<std::uint64_t>(result.values()[0]) == std::bit_cast<std::uint64_t>(expected));
  };
  with_each_shape(check);
  for (std::size_t blocks : {63u, 64u, 65u, 129u}) check(blocks * kernels::norm_block + 7, 1);
  if (!tests::reduced()) check((kernels::norm_lanes + 3) * kernels::norm_block + 5, 0);
}

namespace {

// Numbers of all exponents, or of those next to 2^exponent.
std::vector<float> squares_case(std::size_t count, std::uint32_t seed, int exponent) {
  std::vector<float> values = exponent == 0 ? numbers_and_patterns(count, seed) : numbers(count, seed);
  for (float& value : values) value = std::isfinite(value) ? std::ldexp(value, exponent) : 1.0f;
  return values;
}

template <typename T>
void check_exact_squares(std::size_t count, std::size_t shift, int exponent) {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  const std::vector<T> values = rounded<T>(squares_case(count, 61, exponent));
  DeviceBuffer<T> data(values, shift);
  DeviceBuffer<double> result(4);
  auto* const on_gpu = reinterpret_cast<kernels::ExactSquares*>(result.data());
  kernels::exact_squares(stream, {data.data(), dtype_of<T>}, count, on_gpu);
  stream.synchronize();
  kernels::ExactSquares expected{-1, {}};
  kernels::exact_squares(host, {values.data(), dtype_of<T>}, count, &expected);
  CHECK(std::memcmp(result.values().data(), &expected, sizeof expected) == 0);
  CHECK(result.guards_intact());
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
    kernels::exact_squares(stream, data.data(), values.size(), reinterpret_cast<kernels::ExactSquares*>(result.data()));
    stream.synchronize();
    const kernels::ExactSquares expected{top, {}};
    CHECK(std::memcmp(result.values().data(), &expected, sizeof expected) == 0);
  }
}

TEST_CASE("cuda: begin_update adds exact norms and weights of granules as the CPU does") {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  for (const auto& extents : {std::array<std::size_t, 3>{1, 1, 40}, {7, 3, 5}, {130, 5, 0}}) {
    const std::size_t units = extents[0], ranks = extents[1], rounds = extents[2];
    const std::size_t row = 4 * units + 2 + rounds;
    std::vector<double> rows(row * ranks);
    DeviceBuffer<double> values(rows);
    const auto norm_at = [&](std::size_t i) { return i / units * row + i % units * 4; };
    for (std::size_t i = 0; i < units * ranks; ++i) {
      const std::vector<float> numbers_of_unit =
          squares_case(100, static_cast<std::uint32_t>(i), static_cast<int>(i % 90) - 40);
      DeviceBuffer<float> on_gpu(numbers_of_unit);
      kernels::exact_squares(host, numbers_of_unit.data(), 100,
                             reinterpret_cast<kernels::ExactSquares*>(rows.data() + norm_at(i)));
      kernels::exact_squares(stream, on_gpu.data(), 100,
                             reinterpret_cast<kernels::ExactSquares*>(values.data() + norm_at(i)));
      stream.synchronize();
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<double> weights;
      for (float value : numbers(rounds - (rank + 1 == ranks && rounds > 0 ? 1 : 0), 9))
        weights.push_back(std::fabs(value));
      const kernels::StepPart part{2.5, kernels::StepPart::Kind::samples};
      const std::size_t place = rank * row + 4 * units;
      kernels::set_part(host, reinterpret_cast<kernels::StepPart*>(rows.data() + place), part, weights, rounds);
      kernels::set_part(stream, reinterpret_cast<kernels::StepPart*>(values.data() + place), part, weights, rounds);
    }
    kernels::StepScalars expected = scalars_at_step_3();
    DeviceScalars on_gpu(expected);
    const kernels::StepSettings settings = {.clip_norm = 1.0f, .decay = {0.9, 0.95}};
    const auto partials = [&](const double* data) {
      return kernels::NormPartials{
          .values = data, .units = units, .ranks = ranks, .divisor = 6.0, .exact = true, .rounds = rounds};
    };
    kernels::begin_update(host, &expected, partials(rows.data()), settings);
    kernels::begin_update(stream, on_gpu.get(), partials(values.data()), settings);
    stream.synchronize();
    CHECK(same_bits(on_gpu.values(), expected));
    CHECK(expected.skip == 0);
    CHECK(std::memcmp(values.values().data(), rows.data(), row * ranks * sizeof(double)) == 0);
  }
}

TEST_CASE("cuda: sums over ranks have the CPU's bits, by pointers and at equal distances") {
  using kernels::Accumulate;
  Stream stream = cuda_stream();
  for (std::size_t ranks : {1u, 2u, 3u, 7u}) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::sum, Accumulate::terms}) {
      with_each_shape([&](std::size_t count, std::size_t shift) {
        std::vector<std::vector<bf16>> parts;
        std::vector<bf16> together;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          parts.push_back(rounded<bf16>(numbers_and_patterns(count, static_cast<std::uint32_t>(70 + rank))));
          together.insert(together.end(), parts.back().begin(), parts.back().end());
        }
        std::vector<float> expected = numbers(count, 5);
        DeviceBuffer<bf16> contributions(together, shift);
        DeviceBuffer<float> by_pointers(expected, shift);
        DeviceBuffer<float> by_distance(expected, shift);
        std::vector<const void*> on_host, on_gpu;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          on_host.push_back(parts[rank].data());
          on_gpu.push_back(contributions.data() + rank * count);
        }
        kernels::RankedSum sum{.contributions = on_host,
                               .type = DType::bf16,
                               .result = expected.data(),
                               .count = count,
                               .accumulate = accumulate,
                               .divisor = 3.0f};
        kernels::ranked_sum_cpu(sum);
        sum.contributions = on_gpu;
        sum.result = by_pointers.data();
        kernels::ranked_sum_cuda(native_stream(stream), sum);
        sum.result = by_distance.data();
        kernels::ranked_sum_cuda(native_stream(stream), sum,
                                 {contributions.data(), count * size_of(DType::bf16), ranks});
        stream.synchronize();
        CHECK(test::differences(by_pointers.values(), expected) == 0);
        CHECK(test::differences(by_distance.values(), expected) == 0);
        CHECK((by_pointers.guards_intact() && by_distance.guards_intact()));
      });
    }
  }
}

namespace {

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

std::vector<std::uint8_t> codes_on_host(const void* values, DType type, std::size_t count) {
  std::vector<std::uint8_t> coded(bytes_of(DType::int8, count).count());
  Stream host = host_stream();
  kernels::cast(host, {coded.data(), DType::int8}, {values, type}, count);
  return coded;
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: codes of 8 bits are the CPU's, and are read as there", T, float, bf16, fp16) {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  for (const std::size_t blocks : {0u, 1u, 3u, 8u, 70u}) {
    const std::size_t count = blocks * block_of(DType::int8);
    const std::vector<T> values = rounded<T>(blocks_of_numbers(blocks, 3));
    const std::vector<std::uint8_t> expected = codes_on_host(values.data(), dtype_of<T>, count);
    std::vector<T> back(count);
    kernels::cast(host, {back.data(), dtype_of<T>}, {expected.data(), DType::int8}, count);
    for (const std::size_t shift : {0u, 1u}) {
      DeviceBuffer<T> from(values, shift), to(count, shift);
      DeviceBuffer<float> coded(expected.size() / sizeof(float));
      kernels::cast(stream, {coded.data(), DType::int8}, {from.data(), dtype_of<T>}, count);
      kernels::cast(stream, {to.data(), dtype_of<T>}, {coded.data(), DType::int8}, count);
      stream.synchronize();
      const std::vector<float> words = coded.values();
      CHECK((expected.empty() || std::memcmp(words.data(), expected.data(), expected.size()) == 0));
      CHECK(test::differences(to.values(), back) == 0);
      CHECK((to.guards_intact() && coded.guards_intact()));
    }
  }
}

TEST_CASE("cuda: sums of codes have the CPU's bits, by pointers and at equal distances") {
  using kernels::Accumulate;
  Stream stream = cuda_stream();
  constexpr std::size_t blocks = 5, count = blocks * block_of(DType::int8);
  std::vector<std::uint8_t> together;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const std::vector<std::uint8_t> one = codes_on_host(numbers(count, 80 + rank).data(), DType::fp32, count);
    together.insert(together.end(), one.begin(), one.end());
  }
  std::vector<float> words(together.size() / sizeof(float));
  std::memcpy(words.data(), together.data(), together.size());
  const Bytes each = bytes_of(DType::int8, count);
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::sum, Accumulate::terms}) {
    for (const std::size_t shift : {0u, 1u}) {
      DeviceBuffer<float> contributions(words);
      std::vector<float> expected = numbers(count, 5);
      DeviceBuffer<float> by_pointers(expected, shift), by_distance(expected, shift);
      std::vector<const void*> on_host, on_gpu;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        on_host.push_back(together.data() + rank * each.count());
        on_gpu.push_back(reinterpret_cast<std::byte*>(contributions.data()) + rank * each.count());
      }
      kernels::ranked_sum_cpu({on_host, DType::int8, expected.data(), count, accumulate, 3.0f});
      kernels::ranked_sum_cuda(native_stream(stream),
                               {on_gpu, DType::int8, by_pointers.data(), count, accumulate, 3.0f});
      kernels::ranked_sum_cuda(native_stream(stream), {{}, DType::int8, by_distance.data(), count, accumulate, 3.0f},
                               {contributions.data(), each, 3});
      stream.synchronize();
      CHECK(bit_differences(by_pointers.values(), expected) == 0);
      CHECK(bit_differences(by_distance.values(), expected) == 0);
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
  Stream host = host_stream();
  Stream stream = cuda_stream();
  for (const auto& [units, ranks] : {std::pair<std::size_t, std::size_t>{1, 1}, {7, 3}, {130, 5}}) {
    for (const auto& [clip, any_order] : {std::pair(0.0f, false), {1.0f, false}, {1.0f, true}}) {
      for (const bool broken : {false, true}) {
        std::vector<double> partials;
        for (float value : numbers(units * ranks, 9)) partials.push_back(static_cast<double>(value * value));
        if (broken) partials.back() = HUGE_VAL;
        kernels::StepScalars expected = scalars_at_step_3();
        expected.loss_scale = 1024.0f;
        DeviceScalars on_gpu(expected);
        DeviceBuffer<double> values(partials);
        const kernels::StepSettings settings = {
            .clip_norm = clip, .decay = {0.9, 0.95}, .loss_scaling = kernels::dynamic_loss_scaling};
        kernels::NormPartials norms{.values = partials.data(), .units = units, .ranks = ranks, .any_order = any_order};
        kernels::begin_update(host, &expected, norms, settings);
        norms.values = values.data();
        kernels::begin_update(stream, on_gpu.get(), norms, settings);
        stream.synchronize();
        CHECK(same_bits(on_gpu.values(), expected));
        CHECK(on_gpu.values().skip == (broken ? 1 : 0));
      }
    }
  }
}

TEST_CASE("cuda: begin_update divides by what ranks bring as the CPU does") {
  Stream host = host_stream();
  Stream stream = cuda_stream();
  using Kind = kernels::StepPart::Kind;
  constexpr std::size_t units = 130, ranks = 3, row = units + 2;
  for (const kernels::StepPart& last : {kernels::StepPart{2.5, Kind::samples}, kernels::StepPart{0.0, Kind::nothing},
                                        kernels::StepPart{1.0, Kind::micro_batches}}) {
    std::vector<double> rows;
    for (float value : numbers(row * ranks, 9)) rows.push_back(static_cast<double>(value * value));
    DeviceBuffer<double> values(rows);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const kernels::StepPart part = rank == 0 ? kernels::StepPart{0.75, Kind::samples} : last;
      kernels::set_part(host, reinterpret_cast<kernels::StepPart*>(rows.data() + rank * row + units), part);
      kernels::set_part(stream, reinterpret_cast<kernels::StepPart*>(values.data() + rank * row + units), part);
    }
    kernels::StepScalars expected = scalars_at_step_3();
    DeviceScalars on_gpu(expected);
    const kernels::StepSettings settings = {.clip_norm = 1.0f, .decay = {0.9, 0.95}};
    kernels::begin_update(host, &expected, {rows.data(), units, ranks, 6.0}, settings);
    kernels::begin_update(stream, on_gpu.get(), {values.data(), units, ranks, 6.0}, settings);
    stream.synchronize();
    const kernels::StepScalars found = on_gpu.values();
    if (last.kind == Kind::micro_batches) {  // beside weights
      CHECK((std::isnan(found.weight) && found.skip == 1));
      continue;
    }
    CHECK(same_bits(found, expected));
    CHECK(found.weight == (last.kind == Kind::samples ? 5.75 : 0.75));
  }
}
