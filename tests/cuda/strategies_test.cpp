// Training on CUDA devices, with units whose gradients are elementwise: the weights of every strategy are those of ddp
// on the CPU, bit for bit.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/adamw8bit.hpp"
#include "tessera/shard/fully_shard.hpp"

using namespace tessera;

namespace {

// The gradient is a noise that rank, step and micro-batch choose, plus the parameter itself: stale or foreign values
// would show.
template <typename T>
class NoisyUnit : public Module {
 public:
  NoisyUnit(Device device, std::size_t elements)
      : weight({elements}, Initial::fan_in(3)), noise_(device, Bytes(elements * sizeof(float) + 1)), host_(elements) {}

  void visit(ModuleVisitor& visitor) override { visitor("weight", weight); }

  void forward(Window&) {}
  void backward(Window& window, std::uint32_t seed) {
    if (!window.trains(weight)) return;
    for (std::size_t i = 0; i < host_.size(); ++i) {
      seed = seed * 1664525u + 1013904223u;
      host_[i] = static_cast<float>(seed >> 8) * 0x1p-24f - 0.5f;
    }
    Stream& stream = window.stream();
    auto* const noise = reinterpret_cast<float*>(noise_.data());
    kernels::copy(stream, noise, host_.data(), Bytes(host_.size() * sizeof(float)));
    const auto w = window.parameter<T>(weight);
    const auto dw = window.gradient<T>(weight);
    kernels::accumulate(stream, noise, {w.data(), dtype_of<T>}, w.size());
    kernels::cast(stream, {dw.data(), dtype_of<T>}, {noise, DType::fp32}, dw.size());
    stream.synchronize();  // the host writes the noise of the next window
  }

  Parameter weight;

 private:
  Arena noise_;
  std::vector<float> host_;
};

struct Case {
  DeviceChoice device;
  int ranks;
  Precision precision = fp32_precision;
  BackendChoice backend = BackendChoice::automatic;
  FullyShardOptions sharding = {};
  MemorySpace states_in = MemorySpace::device;  // of every other unit
  bool eight_bits = false;                      // moments have 8 bits
};

using Weights = std::map<std::string, std::vector<float>>;

struct Outcome {
  Weights weights;
  std::vector<double> norms;
};

constexpr std::size_t sizes[] = {5, 0, 131, 1, 700};  // divide by nothing

template <typename T>
Outcome train_on(World& world, const Case& which) {
  std::vector<std::unique_ptr<NoisyUnit<T>>> units;
  FullyShardOptions options = which.sharding;
  options.precision = which.precision;
  FullyShard model(world, options);
  for (const std::size_t size : sizes) {
    units.push_back(std::make_unique<NoisyUnit<T>>(world.device(), size));
    const bool elsewhere = units.size() % 2 == 0;
    UnitOptions unit;
    if (elsewhere && which.states_in != MemorySpace::device) unit.states_in = which.states_in;
    model.add(*units.back(), unit);
  }
  model.finalize(which.eight_bits ? std::unique_ptr<Optimizer>(AdamW8bit{.learning_rate = 0.01f, .clip_norm = 0.7f})
                                  : std::unique_ptr<Optimizer>(AdamW{.learning_rate = 0.01f, .clip_norm = 0.7f}));
  Outcome outcome;
  const Granules granules = model.granules();
  const std::size_t micro_batches = granules.total > 0 ? granules.mine() : options.micro_batches;
  for (std::uint32_t step = 0; step < 6; ++step) {
    std::vector<double> weights;
    for (std::uint32_t micro = 0; micro < micro_batches; ++micro) {
      const auto place = static_cast<std::uint32_t>(granules.total > 0 ? granules.number(micro) : micro);
      for (auto& unit : units) model.forward(*unit);
      for (std::size_t i = units.size(); i-- > 0;) {
        const std::uint32_t seed = ((step * 8 + place) * 8 + static_cast<std::uint32_t>(i)) * 8 + 1;
        const auto rank = static_cast<std::uint32_t>(granules.total > 0 ? 0 : world.rank());
        model.backward(*units[i], seed + rank * 7919u);
      }
      if (granules.total > 0) weights.push_back(0.1 + 0.3 * place);
    }
    model.update({.granule_weights = weights});
    outcome.norms.push_back(model.last_step().gradient_norm);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (const char* state : {"master", "m", "v"}) {
      if (which.eight_bits && state != std::string_view("master")) continue;  // masters have followed them
      outcome.weights[std::to_string(i) + state] = model.whole(units[i]->weight, state);
    }
    if (options.outer.every > 0) {
      outcome.weights[std::to_string(i) + "anchor"] = model.whole(units[i]->weight, "anchor");
    }
  }
  return outcome;
}

template <typename T>
Outcome train(const Case& which, Outcome (*train_of_rank)(World&, const Case&) = train_on<T>) {
  Outcome outcome;
  launch({.ranks = which.ranks, .device = which.device, .backend = which.backend}, [&](World& world) {
    Outcome mine = train_of_rank(world, which);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

// Three units, of which the second calls the first inside its windows; one program trains these two, another the third.
// Both are recorded from their passes, on the device.
Outcome train_recorded(World& world, const Case& which) {
  struct Around : Module {
    explicit Around(Device device) : own(device, 131), inner(device, 5) {}
    void visit(ModuleVisitor& visitor) override { visitor("own", own), visitor("inner", inner); }
    void forward(Window& window) { window.forward(inner), own.forward(window); }
    void backward(Window& window, std::uint32_t seed) {
      own.backward(window, seed + 1);
      window.backward(inner, seed + 2);
    }
    NoisyUnit<float> own, inner;
  };
  Around around(world.device());
  NoisyUnit<float> head(world.device(), 700);
  FullyShard model(world, which.sharding);
  Unit& inner = model.add(around.inner, "inner");
  Unit& outer = model.add(around, "around");
  Unit& last = model.add(head, "head");
  std::uint32_t draws = static_cast<std::uint32_t>(world.rank()) * 7919u;
  const auto pass_of_body = [&] {
    model.forward(around), model.forward(head);
    model.backward(head, draws), model.backward(around, draws += 8);
  };
  const auto pass_of_head = [&] {
    model.forward(around), model.forward(head);
    model.backward(head, draws += 8);
  };
  const auto& body = model.add_program({.name = "body",
                                        .pass = pass_of_body,
                                        .evaluation_pass = [&] { model.evaluate(around), model.evaluate(head); },
                                        .trains = {{&inner, &outer}}});
  const auto& top = model.add_program({.name = "top",
                                       .pass = pass_of_head,
                                       .trains = {{&last}},
                                       .optimizer = AdamW{.learning_rate = 0.02f},
                                       .micro_batches = 2});
  model.finalize(AdamW{.learning_rate = 0.01f, .clip_norm = 0.7f});
  Outcome outcome;
  for (int step = 0; step < 6; ++step) {
    const bool of_top = step % 3 == 2;
    model.begin(of_top ? top : body);
    if (!of_top) model.evaluate(around), model.evaluate(head);
    for (int micro = 0; micro < (of_top ? 2 : 1); ++micro) of_top ? pass_of_head() : pass_of_body();
    model.update();
    outcome.norms.push_back(model.last_step().gradient_norm);
  }
  outcome.weights["inner"] = model.whole(around.inner.weight);
  outcome.weights["around"] = model.whole(around.own.weight);
  outcome.weights["head"] = model.whole(head.weight);
  return outcome;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  if (a.norms != b.norms || a.weights.size() != b.weights.size()) return false;
  for (const auto& [name, values] : a.weights) {
    const std::vector<float>& other = b.weights.at(name);
    if (values.size() != other.size()) return false;
    if (values.empty()) continue;
    if (std::memcmp(values.data(), other.data(), values.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

struct Accumulation {
  std::size_t micro_batches;
  AccumulationMode mode;
};
constexpr Accumulation accumulations[] = {
    {1, AccumulationMode::automatic}, {3, AccumulationMode::reduced}, {3, AccumulationMode::local}};
constexpr Strategy strategies[] = {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp};

// A matrix that is reduced accumulates in one way with each strategy, another one in each `turn`: three of them have
// every pair.
struct Matrix {
  Precision precision;
  std::vector<int> rank_counts;
  std::size_t turn;
  BackendChoice backend = BackendChoice::automatic;

  bool has(std::size_t strategy, std::size_t accumulation) const {
    return !tests::reduced() || (strategy + turn) % std::size(accumulations) == accumulation;
  }
};

// With NCCL: in test modes only, which ask the most of it.
template <typename T>
void check_matrix(const Matrix& matrix) {
  int compared = 0;
  for (const int ranks : matrix.rank_counts) {
    if (tests::reduced() && ranks != 3) continue;
    for (std::size_t a = 0; a < std::size(accumulations); ++a) {
      Case reference{.device = DeviceChoice::cpu, .ranks = ranks, .precision = matrix.precision};
      reference.sharding.micro_batches = accumulations[a].micro_batches;
      reference.sharding.accumulation = accumulations[a].mode;
      reference.sharding.strategy = Strategy::ddp;
      const Outcome expected = train<T>(reference);
      for (std::size_t s = 0; s < std::size(strategies); ++s) {
        if (!matrix.has(s, a)) continue;
        for (const bool tested : {false, true}) {
          if ((tests::reduced() || matrix.backend == BackendChoice::nccl) && !tested) continue;
          Case which = reference;
          which.device = DeviceChoice::cuda;
          which.backend = matrix.backend;
          which.sharding.strategy = strategies[s];
          which.sharding.prefetch = tested ? 2 : 1;
          which.sharding.diagnostics = {
              .delay_seed = tested ? std::optional<std::uint64_t>(7) : std::nullopt, .poison = tested, .touch = tested};
          CAPTURE(ranks);
          CAPTURE(to_string(strategies[s]));
          CAPTURE(reference.sharding.micro_batches);
          CAPTURE(tested);
          CHECK(same_bits(train<T>(which), expected));
          ++compared;
        }
      }
    }
  }
  MESSAGE(compared << " runs on the device compared with ddp on the CPU");
}

// Whether NCCL is there for so many ranks; says why not.
bool nccl_serves(int ranks) {
  try {
    launch({.ranks = ranks, .device = DeviceChoice::cuda, .backend = BackendChoice::nccl}, [](World&) {});
    return true;
  } catch (const UnavailableError& error) {
    MESSAGE("skipped: " << std::string(error.what()));
    return false;
  }
}

// Two replicas of two ranks, as of two hosts; over NCCL, too, whose collectives receive into staging memory. In every
// step, where sums are formed inside each replica first and then across them, and in outer steps.
void check_replicas(const OuterOptions& outer) {
  Case reference{.device = DeviceChoice::cpu, .ranks = 4};
  reference.sharding.strategy = Strategy::ddp;
  reference.sharding.replicas = 2;
  reference.sharding.outer = outer;
  const Outcome expected = train<float>(reference);
  for (const BackendChoice backend : {BackendChoice::automatic, BackendChoice::nccl}) {
    if (backend == BackendChoice::nccl && !nccl_serves(4)) return;
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::hsdp}) {
      Case which = reference;
      which.device = DeviceChoice::cuda;
      which.backend = backend;
      which.sharding.strategy = strategy;
      which.sharding.diagnostics = {.delay_seed = 7, .poison = true, .touch = true};
      CAPTURE(to_string(strategy));
      CHECK(same_bits(train<float>(which), expected));
    }
  }
}

}  // namespace

TEST_CASE("cuda: every_strategy_equals_ddp_on_the_cpu_bitwise") {
  check_matrix<float>({.precision = fp32_precision, .rank_counts = {1, 2, 3, 4}, .turn = 0});
}

// With TESSERA_EMULATED_PROTECTION the emulated device ends a program whose host code reads the device's memory.
TEST_CASE("cuda: host code keeps away from the device's memory") {
  Case which{.device = DeviceChoice::cuda, .ranks = 2};
  which.sharding.micro_batches = 2;
  Case reference = which;
  reference.device = DeviceChoice::cpu;
  CHECK(same_bits(train<float>(which), train<float>(reference)));
}

// Against one rank on the CPU. Some ranks have no granule in the last round.
template <typename T>
void check_granules(const Precision& precision) {
  Case reference{.device = DeviceChoice::cpu, .ranks = 1, .precision = precision};
  reference.sharding.granules = 7;
  const Outcome expected = train<T>(reference);
  for (const int ranks : tests::reduced() ? std::vector<int>{3} : std::vector<int>{1, 2, 3, 4}) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
      for (const BackendChoice backend : {BackendChoice::automatic, BackendChoice::nccl}) {
        if (backend == BackendChoice::nccl && !nccl_serves(ranks)) continue;
        Case which = reference;
        which.device = DeviceChoice::cuda;
        which.ranks = ranks;
        which.backend = backend;
        which.sharding.strategy = strategy;
        which.sharding.diagnostics = {.delay_seed = 5, .poison = true, .touch = true};
        CAPTURE(ranks);
        CAPTURE(to_string(strategy));
        CHECK(same_bits(train<T>(which), expected));
      }
    }
  }
}

TEST_CASE("cuda: granules_have_the_bits_of_one_rank_on_the_cpu") {
  check_granules<float>(fp32_precision);
  check_granules<bf16>(bf16_mixed);
}

TEST_CASE("cuda: states_in_the_hosts_memory_have_the_bits_of_the_devices") {
  Case reference{.device = DeviceChoice::cpu, .ranks = 3};
  Case which = reference;
  which.device = DeviceChoice::cuda;
  which.states_in = MemorySpace::host;
  which.sharding.diagnostics = {.delay_seed = 3, .poison = true, .touch = true};
  CHECK(same_bits(train<float>(which), train<float>(reference)));
}

TEST_CASE("cuda: masters_and_states_in_the_hosts_memory_or_on_disk_have_the_bits_of_the_devices") {
  for (const Strategy strategy : all_strategies) {
    Case reference{.device = DeviceChoice::cpu, .ranks = 4, .precision = bf16_mixed};
    reference.sharding.strategy = strategy;
    reference.sharding.replicas = 2;
    Case which = reference;
    which.device = DeviceChoice::cuda;
    which.sharding.offload = {.optimizer = MemorySpace::host, .masters = MemorySpace::host};
    which.sharding.diagnostics = {.delay_seed = 3, .poison = true, .touch = true};
    CAPTURE(to_string(strategy));
    const Outcome expected = train<bf16>(reference);
    CHECK(same_bits(train<bf16>(which), expected));
    which.sharding.offload.update = MemorySpace::host;
    CHECK(same_bits(train<bf16>(which), expected));
    which.sharding.offload = {.optimizer = MemorySpace::disk, .masters = MemorySpace::disk};
    which.sharding.disk = std::filesystem::temp_directory_path();
    CHECK(same_bits(train<bf16>(which), expected));
  }
}

TEST_CASE("cuda: moments_of_8_bits_have_the_bits_of_the_cpu_wherever_they_stand") {
  for (const int ranks : {1, 3}) {
    Case reference{.device = DeviceChoice::cpu, .ranks = ranks, .precision = bf16_mixed};
    reference.eight_bits = true;
    const Outcome expected = train<bf16>(reference);
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp}) {
      Case which = reference;
      which.device = DeviceChoice::cuda;
      which.sharding.strategy = strategy;
      which.states_in = strategy == Strategy::ddp && ranks > 1 ? MemorySpace::device : MemorySpace::host;
      CAPTURE(to_string(strategy));
      CHECK(same_bits(train<bf16>(which), expected));
    }
  }
}

TEST_CASE("cuda: every_strategy_equals_ddp_on_the_cpu_bitwise_in_bf16") {
  check_matrix<bf16>({.precision = bf16_mixed, .rank_counts = {1, 3}, .turn = 1});
}

TEST_CASE("cuda: bf16_masters_have_the_bits_of_the_cpu") {
  Precision precision = bf16_mixed;
  precision.masters = DType::bf16;
  check_matrix<bf16>({.precision = precision, .rank_counts = {1, 3}, .turn = 2});
}

TEST_CASE("cuda: programs_recorded_on_the_device_have_the_bits_of_the_cpu") {
  for (const int ranks : {1, 3}) {
    Case reference{.device = DeviceChoice::cpu, .ranks = ranks};
    reference.sharding.strategy = Strategy::ddp;
    reference.sharding.accumulation = AccumulationMode::reduced;
    const Outcome expected = train<float>(reference, train_recorded);
    for (const Strategy strategy : flat_strategies) {
      Case which = reference;
      which.device = DeviceChoice::cuda;
      which.sharding.strategy = strategy;
      which.sharding.diagnostics = {.delay_seed = 7, .poison = true, .touch = true};
      CAPTURE(ranks);
      CAPTURE(to_string(strategy));
      CHECK(same_bits(train<float>(which, train_recorded), expected));
    }
  }
}

TEST_CASE("cuda: sums_inside_replicas_and_then_across_them_have_the_bits_of_the_cpu") { check_replicas({}); }
TEST_CASE("cuda: outer_steps_have_the_bits_of_the_cpu") {
  check_replicas({.every = 4, .learning_rate = 0.7f, .momentum = 0.9f, .fragments = 2});
}

TEST_CASE("cuda: over_nccl_every_strategy_equals_ddp_on_the_cpu_bitwise") {
  Matrix matrix{.precision = fp32_precision, .rank_counts = {}, .turn = 2, .backend = BackendChoice::nccl};
  for (const int ranks : {1, 2, 3}) {
    if (!nccl_serves(ranks)) return;
    matrix.rank_counts = {ranks};
    check_matrix<float>(matrix);
  }
  if (tests::reduced()) return;
  matrix.precision = bf16_mixed;
  check_matrix<bf16>(matrix);
}
