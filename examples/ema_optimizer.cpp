// An optimizer of your own wraps another and keeps an average of the weights, in shards. Try: ./ema_optimizer --ranks 4
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

struct Averaged final : tessera::Optimizer {
  explicit Averaged(std::unique_ptr<tessera::Optimizer> wrapped) : inner(std::move(wrapped)), names(inner->states()) {
    if (inner->whole_tensors()) throw tessera::UsageError("Averaged wraps optimizers that go by elements");
    names.push_back("ema");
  }
  std::string_view name() const override { return "averaged"; }
  std::vector<std::string> states() const override { return names; }  // all are zero at the start
  float learning_rate() const override { return inner->learning_rate(); }
  float weight_decay() const override { return inner->weight_decay(); }
  std::vector<tessera::ParameterGroup> groups() const override { return inner->groups(); }
  tessera::kernels::StepSettings step_settings() const override { return inner->step_settings(); }

  // One contiguous run of what this rank updates: its shard, with ddp everything. Nothing but work on the stream.
  void update(tessera::Stream& stream, const tessera::OptimizerSpans& spans, const tessera::OptimizerGroup& group,
              const tessera::kernels::StepScalars* scalars) const override {
    const auto its_states = spans.states.first(spans.states.size() - 1);
    inner->update(stream, {spans.master, its_states, spans.gradient, spans.count}, group, scalars);
    stream.submit([ema = spans.states.back(), master = spans.master, count = spans.count, scalars] {
      if (scalars->skip) return;                             // the task may look, the host must not
      const float keep = scalars->step == 1 ? 0.0f : 0.99f;  // the first weights are the first average
      for (std::size_t i = 0; i < count; ++i) ema[i] = keep * ema[i] + (1.0f - keep) * master[i];
    });
  }
  std::unique_ptr<tessera::Optimizer> inner;
  std::vector<std::string> names;
};

float feature(std::size_t i, float x) { return std::tanh(2.0f * x + 0.08f * (float(i) - 150.0f)) / 8.0f; }
// y = the sum of weight[i] feature(i, x), for one sample.
struct Features : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(tessera::Window& window, float x, float& y) {
    window.stream().submit([x, &y, w = window.parameter(weight)] {
      y = 0.0f;
      for (std::size_t i = 0; i < w.size(); ++i) y += w[i] * feature(i, x);
    });
  }
  void backward(tessera::Window& window, float x, float dy) {
    window.stream().submit([x, dy, dw = window.gradient(weight)] {
      for (std::size_t i = 0; i < dw.size(); ++i) dw[i] = dy * feature(i, x);
    });
  }
  tessera::Parameter weight{{300}, tessera::Initial::zeros()};
};

// Weights and average change places, each rank its own shards; a second call changes them back.
void swap_average(tessera::FullyShard& model) {
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    const auto weights = model.pieces(model.unit(unit)), averages = model.pieces(model.unit(unit), "ema");
    for (std::size_t i = 0; i < weights.size(); ++i)
      std::swap_ranges(weights[i].values.begin(), weights[i].values.end(), averages[i].values.begin());
  }
  model.shards_changed();  // what is whole follows
}

// Learns y = sin(x) from noisy samples. Returns the errors of the weights and of the average, then all of both.
std::vector<float> train(tessera::World& world, tessera::Strategy strategy) {
  Features module;
  tessera::FullyShard model(world, {.strategy = strategy});
  model.add(module, "features");
  model.finalize(std::make_unique<Averaged>(tessera::AdamW{.learning_rate = 0.01f}));
  float y = 0.0f, noise = 0.0f;
  for (int step = 0; step < 1500; ++step) {
    const auto sample = std::uint64_t(step * world.size() + world.rank());
    tessera::Initial::normal(0.0f, 0.5f).fill({&noise, 1}, 1, "noise", sample);
    const float x = 3.0f * std::sin(float(sample));
    model.forward(module, x, y);
    model.synchronize();
    model.backward(module, x, 2.0f * (y - std::sin(x) - noise));
    model.update();
  }
  const auto error = [&] {
    float sum = 0.0f;
    for (float x = -3.0f; x <= 3.0f; x += 0.125f) {
      model.evaluate(module, x, y);
      model.synchronize();
      sum += std::pow(y - std::sin(x), 2.0f) / 49.0f;
    }
    return sum;
  };
  std::vector<float> result = {error()};
  swap_average(model);
  result.push_back(error());
  swap_average(model);
  for (const char* state : {"master", "ema"})
    for (const float value : model.whole(module.weight, state)) result.push_back(value);
  return result;
}

int main(int argc, char** argv) {
  const char* about = "An optimizer of your own keeps an average of the weights in shards; it knows y = sin(x) better.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    const std::vector<float> ddp = train(world, tessera::Strategy::ddp);
    if (world.rank() == 0) std::printf("error of the weights %.6f, of their average %.6f\n", ddp[0], ddp[1]);
    for (const auto strategy : {tessera::Strategy::zero1, tessera::Strategy::zero2, tessera::Strategy::fsdp}) {
      const char* same = train(world, strategy) == ddp ? "the same bits" : "other bits";
      if (world.rank() == 0) std::printf("%s: %s\n", std::string(to_string(strategy)).c_str(), same);
    }
  });
}
