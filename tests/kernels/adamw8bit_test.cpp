// The update with 8-bit moments against its formula in scalar code, and the maps against the paper's construction.
#include "tessera/kernels/adamw8bit.hpp"

#include <algorithm>
#include <set>

#include "cases.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/plan/state_spec.hpp"

using namespace tessera;
using namespace tessera::test;
using kernels::moment_block;
using kernels::StepScalars;

namespace {

// The number of a code, searched for among all 256 by distances in double precision; the smaller one of two that are
// equally far.
std::uint8_t nearest_by_search(std::span<const float, 256> map, float x) {
  std::size_t best = 0;
  for (std::size_t code = 1; code < 256; ++code) {
    const double now = std::fabs(double(map[code]) - double(x)), before = std::fabs(double(map[best]) - double(x));
    if (now < before || (now == before && map[code] < map[best])) best = code;
  }
  return static_cast<std::uint8_t>(best);
}

// A tensor as the runtime keeps it.
struct Tensor {
  explicit Tensor(std::size_t count, std::uint32_t seed = 1, std::size_t shift = 0)
      : master(numbers(count, seed), shift),
        gradient(numbers(count, seed + 1), shift),
        codes{std::vector<std::uint8_t>(count + 1, 77), std::vector<std::uint8_t>(count + 1, 77)},
        scales{numbers(plan::values_of(count, moment_block) + 1, seed + 2),
               numbers(plan::values_of(count, moment_block) + 1, seed + 3)} {
    std::mt19937 random(seed);
    for (auto* const each : {&codes[0], &codes[1]}) {
      for (std::size_t i = 0; i < count; ++i) (*each)[i] = static_cast<std::uint8_t>(random());
    }
    for (auto* const each : {&scales[0], &scales[1]}) {
      for (float& scale : *each) scale = std::fabs(scale);
    }
  }

  kernels::AdamW8bitSpans spans(std::size_t count) {
    return {master.data(),
            {codes[0].data(), scales[0].data()},
            {codes[1].data(), scales[1].data()},
            gradient.data(),
            count};
  }

  Buffer<float> master, gradient;
  std::vector<std::uint8_t> codes[2];  // with a guard behind the end
  std::vector<float> scales[2];
};

bool same(Tensor& a, Tensor& b) {
  bool equal = differences(a.master.values(), b.master.values()) == 0;
  for (int i = 0; i < 2; ++i) equal = equal && a.codes[i] == b.codes[i] && differences(a.scales[i], b.scales[i]) == 0;
  return equal;
}

void update_by_formula(Tensor& t, std::size_t count, const kernels::AdamWSettings& o, const StepScalars& scalars) {
  const auto first = kernels::signed_dynamic_map(), second = kernels::unsigned_dynamic_map();
  const auto correction1 = static_cast<float>(1.0 - scalars.decay_power[0]);
  const auto correction2 = static_cast<float>(1.0 - scalars.decay_power[1]);
  for (std::size_t begin = 0; begin < count; begin += moment_block) {
    const std::size_t end = std::min(count, begin + moment_block), block = begin / moment_block;
    std::vector<float> m, v;
    for (std::size_t i = begin; i < end; ++i) {
      const float g = t.gradient.data()[i] * scalars.gradient_factor;
      m.push_back(std::fma(o.beta1, first[t.codes[0][i]] * t.scales[0][block], (1.0f - o.beta1) * g));
      v.push_back(std::fma(o.beta2, second[t.codes[1][i]] * t.scales[1][block], ((1.0f - o.beta2) * g) * g));
      const float m_hat = m.back() / correction1, v_hat = v.back() / correction2;
      float& master = t.master.data()[i];
      const float decayed = master * (1.0f - o.learning_rate * o.weight_decay);
      master = decayed - o.learning_rate * (m_hat / (std::sqrt(v_hat) + o.epsilon));
    }
    float m_scale = 0.0f, v_scale = 0.0f;
    for (const float each : m) m_scale = std::max(m_scale, std::fabs(each));
    for (const float each : v) v_scale = std::max(v_scale, each);
    for (std::size_t i = begin; i < end; ++i) {
      t.codes[0][i] = nearest_by_search(first, m_scale == 0.0f ? 0.0f : m[i - begin] / m_scale);
      t.codes[1][i] = nearest_by_search(second, v_scale == 0.0f ? 0.0f : v[i - begin] / v_scale);
    }
    t.scales[0][block] = m_scale;
    t.scales[1][block] = v_scale;
  }
}

constexpr std::size_t block_sizes[] = {0, 1, 2, 15, 16, 17, 127, 251, 255, 256, 257, 511, 512, 513, 1031, 4099};

}  // namespace

TEST_CASE("the dynamic maps are the published ones") {
  const auto first = kernels::signed_dynamic_map(), second = kernels::unsigned_dynamic_map();
  // Computed by hand: decade 0 has one part of [0.1, 1] with signs, whose middle is 0.55, and two without, 0.325 and
  // 0.775.
  CHECK(first[0] == 0.0f);
  CHECK(first[1] == static_cast<float>(0.55e-6));
  CHECK(first[2] == static_cast<float>(0.325e-5));
  CHECK(first[3] == static_cast<float>(0.775e-5));
  CHECK(first[127] == static_cast<float>(1.0 - 0.9 / 128));  // the last of 64 parts of [0.1, 1]
  CHECK(first[128] == 1.0f);
  CHECK(second[0] == 0.0f);
  CHECK(second[1] == static_cast<float>(0.325e-6));
  CHECK(second[2] == static_cast<float>(0.775e-6));
  CHECK(second[254] == static_cast<float>(1.0 - 0.9 / 256));
  CHECK(second[255] == 1.0f);
  // Signs are symmetric but for 1; codes count as numbers do.
  for (std::size_t code = 1; code < 128; ++code) CHECK(first[256 - code] == -first[code]);
  for (std::size_t code = 1; code < 256; ++code) CHECK(second[code] > second[code - 1]);
  for (int code = -126; code <= 128; ++code) CHECK(first[std::size_t(code) % 256] > first[std::size_t(code - 1) % 256]);
  CHECK(std::set<float>(first.begin(), first.end()).size() == 256);
}

TEST_CASE("a number's code is that of the nearest number, and of the smaller one of two") {
  std::vector<float> probes = {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, -2.0f, 1e-30f, -1e-30f};
  for (const auto& map : {kernels::signed_dynamic_map(), kernels::unsigned_dynamic_map()}) {
    std::vector<float> ascending(map.begin(), map.end());
    std::sort(ascending.begin(), ascending.end());
    for (std::size_t i = 0; i < 256; ++i) {
      probes.push_back(ascending[i]);
      if (i == 0) continue;
      const auto middle = static_cast<float>((double(ascending[i - 1]) + double(ascending[i])) / 2);
      for (const float x : {std::nextafter(middle, -2.0f), middle, std::nextafter(middle, 2.0f)}) probes.push_back(x);
    }
  }
  for (const float x : numbers(4000, 9)) probes.push_back(x / 256.0f);
  for (const float x : probes) {
    CAPTURE(x);
    CHECK(kernels::signed_code(x) == nearest_by_search(kernels::signed_dynamic_map(), x));
    CHECK(kernels::unsigned_code(x) == nearest_by_search(kernels::unsigned_dynamic_map(), x));
  }
  for (std::size_t code = 0; code < 256; ++code) {
    CHECK(kernels::signed_code(kernels::signed_dynamic_map()[code]) == code);
    CHECK(kernels::unsigned_code(kernels::unsigned_dynamic_map()[code]) == code);
  }
}

TEST_CASE("adamw8bit has the bits of its formula for every instruction set, and writes nothing behind the end") {
  Stream stream = host_stream();
  const StepScalars scalars = scalars_at_step_3();
  with_each_instruction_set([&] {
    for (const std::size_t count : block_sizes) {
      for (const std::size_t shift : {0u, 1u, 3u}) {
        CAPTURE(count);
        Tensor t(count, 1, shift), expected(count, 1, shift);
        update_by_formula(expected, count, adamw_settings, scalars);
        kernels::adamw8bit(stream, t.spans(count), adamw_settings, &scalars);
        CHECK(same(t, expected));
        CHECK((t.master.guards_intact() && t.codes[0].back() == 77 && t.codes[1].back() == 77));
      }
    }
  });
}

TEST_CASE("moments of zero bytes are zero, and stay so where gradients are") {
  Stream stream = host_stream();
  const StepScalars scalars = scalars_at_step_3();
  constexpr std::size_t count = 2 * moment_block;
  Tensor t(count);
  for (int i = 0; i < 2; ++i) {
    std::fill(t.codes[i].begin(), t.codes[i].end(), std::uint8_t{0});
    std::fill(t.scales[i].begin(), t.scales[i].end(), 0.0f);
  }
  std::fill_n(t.gradient.data(), moment_block + 100, 0.0f);
  kernels::AdamWSettings settings = adamw_settings;
  settings.weight_decay = 0.0f;
  const std::vector<float> before = t.master.values();
  for (int step = 0; step < 3; ++step) kernels::adamw8bit(stream, t.spans(count), settings, &scalars);
  for (std::size_t i = 0; i < moment_block + 100; ++i) {
    CHECK((t.codes[0][i] == 0 && t.codes[1][i] == 0 && t.master.data()[i] == before[i]));
  }
  CHECK((t.scales[0][0] == 0.0f && t.scales[1][0] == 0.0f && t.scales[0][1] > 0.0f && t.scales[1][1] > 0.0f));
}

TEST_CASE("adamw8bit has the same bits on any number of threads") {
  constexpr std::size_t count = 100'003;
  const StepScalars scalars = scalars_at_step_3();
  const auto run = [&] {
    Stream stream(Device::cpu(), {.name = "compute"});
    Tensor t(count);
    kernels::adamw8bit(stream, t.spans(count), adamw_settings, &scalars);
    stream.synchronize();
    return t;
  };
  Tensor expected = run();
  for (const int threads : {2, 3, 5}) {
    parallel::set_threads(threads);
    CAPTURE(threads);
    Tensor t = run();
    CHECK(same(t, expected));
  }
  parallel::set_threads(1);
}

TEST_CASE_TEMPLATE("adamw8bit rounds masters as a cast does, and widens gradients", T, bf16, fp16) {
  Stream stream = host_stream();
  const StepScalars scalars = scalars_at_step_3();
  with_each_instruction_set([&] {
    for (const std::size_t count : block_sizes) {
      Tensor narrow(count), wide(count);
      Buffer<T> gradient(rounded<T>(narrow.gradient.values()), 1), halves(count, 1);
      kernels::cast(stream, {wide.gradient.data(), DType::fp32}, {gradient.data(), dtype_of<T>}, count);
      kernels::AdamW8bitSpans spans = narrow.spans(count);
      spans.gradient = {gradient.data(), dtype_of<T>};
      spans.rounded = {halves.data(), dtype_of<T>};
      kernels::adamw8bit(stream, spans, adamw_settings, &scalars);
      kernels::adamw8bit(stream, wide.spans(count), adamw_settings, &scalars);
      CHECK(differences(narrow.master.values(), wide.master.values()) == 0);
      CHECK((narrow.codes[0] == wide.codes[0] && narrow.codes[1] == wide.codes[1]));
      CHECK(differences(halves.values(), rounded<T>(narrow.master.values())) == 0);
      CHECK(halves.guards_intact());
    }
  });
}

TEST_CASE("runs with settings of their own are updated as tensors of their own are, and the rest stays") {
  Stream stream = host_stream();
  const StepScalars scalars = scalars_at_step_3();
  kernels::AdamWSettings other = adamw_settings;
  other.beta1 = 0.8f;
  other.own_decays = true;
  const kernels::AdamWRun runs[] = {{256, 300, adamw_settings}, {1024, 256, other}, {1280, 1, adamw_settings}};
  constexpr std::size_t count = 1400;
  Tensor t(count), expected(count);
  kernels::adamw8bit(stream, t.spans(count), runs, 2.0f, &scalars);
  for (const kernels::AdamWRun& run : runs) {
    kernels::AdamWSettings settings = run.settings;
    settings.learning_rate *= 2.0f;
    kernels::AdamW8bitSpans spans = expected.spans(run.count);
    spans.master += run.first;
    spans.gradient = expected.gradient.data() + run.first;
    for (auto* const each : {&spans.first, &spans.second}) {
      *each = {each->codes + run.first, each->scales + run.first / moment_block};
    }
    kernels::adamw8bit(stream, spans, settings, &scalars);
  }
  CHECK(same(t, expected));
  const kernels::AdamWRun inside{128, 256, adamw_settings};
  CHECK_THROWS_AS(kernels::adamw8bit(stream, t.spans(count), {&inside, 1}, 1.0f, &scalars), UsageError);
}

TEST_CASE("a skipped step leaves 8-bit moments and masters as they are") {
  Stream stream = host_stream();
  StepScalars scalars = scalars_at_step_3();
  scalars.skip = 1;
  Tensor t(1031), before(1031);
  kernels::adamw8bit(stream, t.spans(1031), adamw_settings, &scalars);
  CHECK(same(t, before));
}

TEST_CASE("kernels refuse u8, which they do not compute with") {
  Stream stream = host_stream();
  float value = 0.0f;
  CHECK_THROWS_AS(kernels::cast(stream, {&value, DType::fp32}, {&value, DType::u8}, 1), UsageError);
}
