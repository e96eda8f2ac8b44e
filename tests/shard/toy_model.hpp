// A small network in plain loops, in any parameter type, and a way to train it under given options: what the tests of
// the runtime compare bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../extent.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/adamw8bit.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace toy {

using namespace tessera;
using Values = std::vector<float>;

// y = tanh(W x + b) for `rows` samples. T is the parameter and gradient type; sums are in float.
template <typename T>
class Layer : public Module {
 public:
  Layer(std::size_t in, std::size_t out, std::size_t rows)
      : weight({out, in}, Initial::fan_in(in)),
        bias({out}, Initial::fan_in(in)),
        in_(in),
        out_(out),
        rows_(rows),
        y(rows * out),
        dx(rows * in) {}

  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("bias", bias);
  }

  // The host may be a micro-batch ahead of the stream: each task takes the pointers that were current when it was
  // enqueued.
  const Values& forward(Window& window, const Values& input) {
    x_ = &input;
    const bool evaluates = window.kind() == plan::WindowKind::evaluate;
    window.stream().submit([this, x = x_, saved = evaluates ? std::span<std::byte>() : window.saved(),
                            w = window.parameter<T>(weight), b = window.parameter<T>(bias)] {
      if (!saved.empty()) std::memcpy(saved.data(), x->data(), saved.size());
      for (std::size_t r = 0; r < rows_; ++r) {
        for (std::size_t o = 0; o < out_; ++o) {
          float sum = float(b[o]);
          for (std::size_t i = 0; i < in_; ++i) sum += float(w[o * in_ + i]) * (*x)[r * in_ + i];
          y[r * out_ + o] = std::tanh(sum);
        }
      }
    });
    return y;
  }

  const Values& backward(Window& window, const Values& dy) {
    const std::span<T> none;
    window.stream().submit([this, &dy, input = x_, saved = window.saved(), w = window.parameter<T>(weight),
                            dw = window.trains(weight) ? window.gradient<T>(weight) : none,
                            db = window.trains(bias) ? window.gradient<T>(bias) : none] {
      const float* const x = saved.empty() ? input->data() : reinterpret_cast<const float*>(saved.data());
      std::fill(dx.begin(), dx.end(), 0.0f);
      for (std::size_t o = 0; o < out_; ++o) {
        float bias_sum = 0.0f;
        for (std::size_t i = 0; i < in_; ++i) {
          float sum = 0.0f;
          for (std::size_t r = 0; r < rows_; ++r) {
            const float d = dy[r * out_ + o] * (1.0f - y[r * out_ + o] * y[r * out_ + o]);
            sum += d * x[r * in_ + i];
            dx[r * in_ + i] += d * float(w[o * in_ + i]);
          }
          if (!dw.empty()) dw[o * in_ + i] = T(sum);
        }
        for (std::size_t r = 0; r < rows_; ++r)
          bias_sum += dy[r * out_ + o] * (1.0f - y[r * out_ + o] * y[r * out_ + o]);
        if (!db.empty()) db[o] = T(bias_sum);
      }
    });
    return dx;
  }

  // The next backward window is of a forward one with this input, and with what stands in `y` by then.
  void look_at(const Values& input) { x_ = &input; }

  Parameter weight, bias;

 private:
  std::size_t in_, out_, rows_;
  const Values* x_ = nullptr;

 public:
  Values y, dx;
};

template <typename L>
using Layers = std::vector<std::unique_ptr<L>>;

template <typename L>
Layers<L> make_layers(std::span<const std::size_t> widths, std::size_t rows) {
  Layers<L> layers;
  for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
    layers.push_back(std::make_unique<L>(widths[l], widths[l + 1], rows));
  }
  return layers;
}

// Through all layers, one behind the other.
template <typename L>
const Values& forward(FullyShard& model, Layers<L>& layers, const Values& input) {
  const Values* x = &input;
  for (auto& layer : layers) x = &model.forward(*layer, *x);
  return *x;
}
template <typename L>
const Values& backward(FullyShard& model, Layers<L>& layers, const Values& dy) {
  const Values* dx = &dy;
  for (std::size_t l = layers.size(); l > 0; --l) dx = &model.backward(*layers[l - 1], *dx);
  return *dx;
}

struct Run {
  FullyShardOptions options = {};
  int ranks = 1;
  int steps = 4;
  std::vector<std::size_t> widths = {5, 13, 131, 7, 3};  // divide by nothing
  float clip = 0.5f;
  int evaluate_every = 0;
  int first_rank = 0;                      // whose samples rank 0 takes, the others' following
  std::set<int> overflows = {};            // steps in which the last rank's gradient is infinite
  std::vector<Precision> precisions = {};  // of the units, in turn; none: the model's
  std::set<std::size_t> frozen = {};       // layers whose weight (even ones) or all of which (odd ones) is frozen
  std::set<std::size_t> in_replica = {};   // layers that each replica has of its own
  std::set<std::size_t> offloaded = {};    // layers whose optimizer's states stand in the host's memory
  bool saves = false;                      // layers leave their input to their backward windows
  bool rounds = true;                      // whether the optimizer writes parameters of 16 bits, too
  std::function<std::unique_ptr<Optimizer>(float clip)> optimizer = {};  // none: AdamW
  std::function<void(FullyShard&, int step)> begin = {};                 // before a step's first window
  std::function<void(FullyShard&, int step)> update = {};                // none: update()
};

struct Result {
  std::vector<std::uint32_t> losses;  // bits of the average over ranks and micro-batches, by step
  std::vector<double> norms;
  std::vector<float> loss_scales;            // after each step, the same on all ranks
  std::vector<std::int64_t> skipped;         // so far, after each step
  std::vector<double> parameter_norms = {};  // of the last step
  std::map<std::string, Values> weights;     // whole, by name
  std::size_t evaluations = 0;
};

struct MeshOfRanks {
  int replicas;
  int ranks_of_replica;
};
inline constexpr MeshOfRanks meshes[] = {{2, 2}, {3, 2}, {2, 3}, {4, 1}};

struct Mesh {
  int ranks;
  std::size_t replicas;

  // With one replica hsdp and hfsdp are fsdp.
  std::vector<Strategy> strategies() const {
    if (replicas == 1) return {std::begin(flat_strategies), std::end(flat_strategies)};
    return {std::begin(all_strategies), std::end(all_strategies)};
  }
};
inline std::vector<Mesh> flat_meshes_and_one_of_replicas() {
  if (tests::sanitized) return {{4, 2}};
  if (tests::reduced()) return {{3, 1}, {4, 2}};
  return {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {4, 2}};
}

struct Accumulation {
  std::size_t micro_batches;
  AccumulationMode mode;
};
inline std::vector<Accumulation> accumulations() {
  using enum AccumulationMode;
  return {{1, automatic}, {3, reduced}, {3, local}};
}

// Inputs and targets are a function of (step, micro-batch, rank), so that two runs on the same ranks see the same
// samples.
inline Values sample(std::size_t count, int step, std::size_t micro, int rank, int salt) {
  Values values(count);
  Initial::uniform(-1.0f, 1.0f)
      .fill(values, 77, "sample",
            (std::uint64_t(step) * 64 + micro * 16 + std::uint64_t(rank)) * 4096 + std::uint64_t(salt) * 2048);
  return values;
}

// This rank's share of a unit, one piece after the other.
inline Values share(FullyShard& model, const Unit& unit, std::string_view state = "master") {
  Values values;
  for (const ParameterPiece& piece : model.pieces(unit, state)) {
    values.insert(values.end(), piece.values.begin(), piece.values.end());
  }
  return values;
}

// Replicas that train by themselves have weights of their own, under names that begin with the replica's number; units
// that each replica has of its own have the names of files.
inline std::string weight_name(FullyShard& model, const Parameter& parameter) {
  const std::size_t variant = model.plan().variant_of(parameter.unit()->index(), std::size_t(model.world().rank()));
  const plan::UnitSpec& unit = model.plan().units[parameter.unit()->index()];
  if (!unit.apart.empty()) return plan::name_of_variant(unit, parameter.name(), variant);
  if (!model.plan().diverges()) return parameter.name();
  return std::to_string(variant) + "/" + parameter.name();
}

using Weights = std::map<std::string, Values>;  // whole, by name

// Adds this rank's pieces of every parameter to `weights`, which ranks that are threads have in common.
inline void collect_weights(FullyShard& model, Weights& weights) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    for (const ParameterPiece& piece : model.pieces(model.unit(u))) {
      Values& whole = weights[weight_name(model, *piece.parameter)];
      whole.resize(piece.parameter->elements());
      std::copy(piece.values.begin(), piece.values.end(), whole.begin() + std::ptrdiff_t(piece.first));
    }
  }
}

// One unit each, with what the run says of types and frozen parameters.
template <typename L>
void add_layers(FullyShard& model, Layers<L>& layers, const Run& run) {
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (run.frozen.contains(l)) layers[l]->weight.set_frozen(true);
    if (run.frozen.contains(l) && l % 2 == 1) layers[l]->bias.set_frozen(true);
    UnitOptions unit;
    if (run.saves) unit.saved = Bytes(sizeof(float) * 3 * run.widths[l]);
    if (run.in_replica.contains(l)) unit.apart = Axis::replicate;
    if (run.offloaded.contains(l)) unit.states_in = MemorySpace::host;
    if (!run.precisions.empty()) unit.precision = run.precisions[l % run.precisions.size()];
    model.add(*layers[l], unit);
  }
}

// A model of modules that trains: each is a unit, called "layer" where it is alone, and else first, second and so on.
struct Model : FullyShard {
  template <typename... Modules>
  Model(World& world, const FullyShardOptions& options, std::unique_ptr<Optimizer> optimizer, Modules&... modules)
      : FullyShard(world, options) {
    const char* const names[] = {"first", "second", "third", "fourth"};
    std::size_t added = 0;
    (add(modules, sizeof...(Modules) == 1 ? "layer" : names[added++]), ...);
    finalize(std::move(optimizer));
  }
};

// Two layers on every rank and a batch of its own.
struct TwoLayers {
  explicit TwoLayers(World& world, const FullyShardOptions& options = {}, UnitOptions of_second = {})
      : x(sample(10, 0, 0, world.rank(), 0)), model(world, options) {
    of_second.name = "second";
    first_unit = &model.add(first, "first");
    second_unit = &model.add(second, of_second);
  }
  void forward() { model.forward(second, model.forward(first, x)); }
  void backward() { model.backward(first, model.backward(second, dy)); }
  void step() { forward(), backward(), model.update(); }

  // Tasks read these, which outlive the model, whose end waits for them.
  Values x, dy = Values(6, 0.25f);
  Layer<float> first{5, 13, 2}, second{13, 3, 2};
  FullyShard model;
  Unit* first_unit;
  Unit* second_unit;
};

// Has no states and changes nothing: for tests of what else an optimizer may do.
class IdleOptimizer : public Optimizer {
 public:
  std::string_view name() const override { return "idle"; }
  std::vector<std::string> states() const override { return {}; }
  float learning_rate() const override { return 0.5f; }
  float weight_decay() const override { return 0.0f; }
  kernels::StepSettings step_settings() const override { return {}; }
  void update(Stream&, const OptimizerSpans&, const OptimizerGroup&, const kernels::StepScalars*) const override {}
};

// AdamW that leaves the parameters of 16 bits to the runtime, as optimizers of users may.
class Unrounded final : public Optimizer {
 public:
  explicit Unrounded(const AdamW& settings) : adamw_(settings) {}
  std::string_view name() const override { return adamw_->name(); }
  std::vector<std::string> states() const override { return adamw_->states(); }
  float learning_rate() const override { return adamw_->learning_rate(); }
  float weight_decay() const override { return adamw_->weight_decay(); }
  kernels::StepSettings step_settings() const override { return adamw_->step_settings(); }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const override {
    CHECK(spans.parameters.data == nullptr);
    adamw_->update(stream, spans, group, scalars);
  }

 private:
  std::unique_ptr<Optimizer> adamw_;
};

// AdamW with moments of 8 bits and the same settings.
inline std::unique_ptr<Optimizer> in_eight_bits(float clip) {
  return AdamW8bit{.learning_rate = 0.01f, .weight_decay = 0.1f, .clip_norm = clip};
}

inline std::unique_ptr<Optimizer> optimizer_of(const Run& run) {
  if (run.optimizer) return run.optimizer(run.clip);
  const AdamW adamw{.learning_rate = 0.01f, .weight_decay = 0.1f, .clip_norm = run.clip};
  return run.rounds ? std::unique_ptr<Optimizer>(adamw) : std::make_unique<Unrounded>(adamw);
}

template <typename T = float>
Result train(const Run& run) {
  constexpr std::size_t rows = 3;
  Result result;
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    Layers<Layer<T>> layers = make_layers<Layer<T>>(run.widths, rows);
    FullyShard model(world, run.options);
    add_layers(model, layers, run);
    model.finalize(optimizer_of(run));

    const std::size_t micro_batches = run.options.micro_batches;
    std::vector<Values> inputs(micro_batches), targets(micro_batches), dys(micro_batches);
    for (int step = 0; step < run.steps; ++step) {
      if (run.evaluate_every > 0 && step % run.evaluate_every == 0) {
        const Values input = sample(rows * run.widths.front(), step, 0, world.rank(), 1);
        const Values* x = &input;
        for (auto& layer : layers) x = &model.evaluate(*layer, *x);
        model.synchronize();
        if (world.rank() == 0) ++result.evaluations;
      }
      if (run.begin) run.begin(model, step);
      float loss = 0.0f;
      for (std::size_t micro = 0; micro < micro_batches; ++micro) {
        const int rank = run.first_rank + world.rank();
        inputs[micro] = sample(rows * run.widths.front(), step, micro, rank, 0);
        targets[micro] = sample(rows * run.widths.back(), step, micro, rank, 1);
        dys[micro].resize(rows * run.widths.back());
        const Values* const x = &forward(model, layers, inputs[micro]);
        const bool overflow = run.overflows.contains(step) && world.rank() + 1 == world.size();
        model.stream().submit(
            [&loss, x, &target = targets[micro], &dy = dys[micro], overflow, scale = model.loss_scale()] {
              for (std::size_t i = 0; i < target.size(); ++i) {
                const float error = (*x)[i] - target[i];
                loss += error * error;
                dy[i] = 2.0f * error * *scale;
              }
              if (overflow) dy[0] = std::numeric_limits<float>::infinity();
            });
        backward(model, layers, dys[micro]);
        // The next micro-batch's samples take the same layers' buffers: the stream keeps the order.
      }
      run.update ? run.update(model, step) : model.update();
      const StepReport report = model.last_step();
      world.require_equal(std::bit_cast<std::uint32_t>(report.loss_scale), "loss scale");
      world.require_equal(std::uint64_t(report.skipped_updates), "skipped updates");
      const float mean = world.average(loss, "loss") / static_cast<float>(micro_batches);
      if (world.rank() == 0) {
        result.losses.push_back(std::bit_cast<std::uint32_t>(mean));
        result.norms.push_back(report.gradient_norm);
        result.loss_scales.push_back(report.loss_scale);
        result.skipped.push_back(report.skipped_updates);
      }
    }
    const std::vector<GradientNorm> norms = model.gradient_norms();
    if (world.rank() == 0) {
      for (const GradientNorm& entry : norms) result.parameter_norms.push_back(entry.norm);
    }
    collect_weights(model, result.weights);
  });
  return result;
}

// Returns what weights have become when every rank's net is trained, for so many steps, by the pass that is recorded of
// it. make(model): the rank's net, whose units it adds; it has pass(model, step, micro, rank).
template <typename Make>
Weights train_recorded(int ranks, const FullyShardOptions& options, int steps, const AdamW& optimizer,
                       const Make& make) {
  Weights weights;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    decltype(make(std::declval<FullyShard&>())) net;
    FullyShard model(world, options);
    net = make(model);
    model.add_program({.pass = [&] { net->pass(model, 0, 0, world.rank()); }});
    model.finalize(optimizer);
    for (int step = 0; step < steps; ++step) {
      for (std::size_t micro = 0; micro < options.micro_batches; ++micro) net->pass(model, step, micro, world.rank());
      model.update();
      model.synchronize();
    }
    collect_weights(model, weights);
  });
  return weights;
}

// The text of the first error of a job; empty where there was none.
inline std::string failure_of(int ranks, const std::function<void(World&)>& body,
                              std::chrono::seconds timeout = std::chrono::seconds(20)) {
  try {
    launch({.ranks = ranks, .timeout = timeout}, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
// Such a job fails, and its error says `part`.
inline void check_failure(const std::string& part, int ranks, const std::function<void(World&)>& body) {
  const std::string failure = failure_of(ranks, body);
  CHECK_MESSAGE(contains(failure, part), part << " is not in: " << failure);
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline bool same_bits(const Weights& a, const Weights& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
}

inline std::vector<std::uint64_t> bits(const std::vector<double>& values) {
  std::vector<std::uint64_t> result;
  for (const double value : values) result.push_back(std::bit_cast<std::uint64_t>(value));
  return result;
}

inline bool same_bits(const Result& a, const Result& b) {
  if (a.losses != b.losses || bits(a.norms) != bits(b.norms) || bits(a.parameter_norms) != bits(b.parameter_norms)) {
    return false;
  }
  return a.loss_scales == b.loss_scales && a.skipped == b.skipped && same_bits(a.weights, b.weights);
}

inline std::string describe(const Run& run) {
  const FullyShardOptions& o = run.options;
  const std::string outer = o.outer.every == 0
                                ? ""
                                : " replicas " + std::to_string(o.replicas) + " outer " +
                                      std::to_string(o.outer.every) + "/" + std::to_string(o.outer.fragments);
  return to_string(o.strategy, o.sharding) + " ranks " + std::to_string(run.ranks) + outer + " prefetch " +
         std::to_string(o.prefetch) + " reshard " + std::string(to_string(o.reshard_after_forward)) +
         " micro-batches " + std::to_string(o.micro_batches) + " " + std::string(to_string(o.accumulation));
}

}  // namespace toy
