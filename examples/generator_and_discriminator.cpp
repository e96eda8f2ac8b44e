// A generative adversarial network (Goodfellow et al. 2014), two programs of one model. In the generator's steps the
// gradient goes back through the discriminator, of which nothing is reduced or updated.
#include <bit>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t batch = 32, hidden = 9;
constexpr float mean = 3.0f, spread = 0.5f;  // of the samples

// x = scale z + shift, for each z of the batch
struct Generator : tessera::Module {
  void visit(tessera::ModuleVisitor& to) override { to("scale", scale), to("shift", shift); }
  void forward(Window& window, const Values& z) {
    window.stream().submit([this, &z, a = window.parameter(scale), b = window.parameter(shift)] {
      for (std::size_t i = 0; i < batch; ++i) x[i] = a[0] * z[i] + b[0];
    });
  }
  void backward(Window& window, const Values& z, const Values& dx) {
    window.stream().submit([&z, &dx, da = window.gradient(scale), db = window.gradient(shift)] {
      da[0] = db[0] = 0;
      for (std::size_t i = 0; i < batch; ++i) da[0] += dx[i] * z[i], db[0] += dx[i];
    });
  }
  tessera::Parameter scale{{1}, tessera::Initial::ones()}, shift{{1}, tessera::Initial::zeros()};
  Values x = Values(batch);
};

// p = 1 / (1 + exp(-v · tanh(w x + b))): how likely x is a sample
struct Discriminator : tessera::Module {
  void visit(tessera::ModuleVisitor& to) override { to("weight", weight), to("bias", bias), to("output", output); }
  void forward(Window& window, const Values& x) {
    window.stream().submit(
        [this, &x, w = window.parameter(weight), b = window.parameter(bias), v = window.parameter(output)] {
          for (std::size_t i = 0; i < batch; ++i) {
            float sum = 0;
            for (std::size_t k = 0; k < hidden; ++k) sum += v[k] * (h[i * hidden + k] = std::tanh(w[k] * x[i] + b[k]));
            p[i] = 1 / (1 + std::exp(-sum));
          }
        });
  }
  // The loss is the mean over the batch of -log p where that should be 1, and of -log (1 - p) where it should be 0.
  void backward(Window& window, const Values& x, float should_be) {
    const bool learns = window.trains(weight);
    const auto gradient = [&](const auto& of) { return learns ? window.gradient(of) : std::span<float>(); };
    window.stream().submit([this, &x, should_be, learns, w = window.parameter(weight), v = window.parameter(output),
                            dw = gradient(weight), db = gradient(bias), dv = gradient(output)] {
      for (std::size_t k = 0; learns && k < hidden; ++k) dw[k] = db[k] = dv[k] = 0;
      for (std::size_t i = 0; i < batch; ++i) {
        const float d = (p[i] - should_be) / batch;
        dx[i] = 0;
        for (std::size_t k = 0; k < hidden; ++k) {
          const float t = h[i * hidden + k], inside = d * v[k] * (1 - t * t);
          dx[i] += inside * w[k];
          if (learns) dw[k] += inside * x[i], db[k] += inside, dv[k] += d * t;
        }
      }
    });
  }
  tessera::Parameter weight{{hidden}, tessera::Initial::normal(0, 1)}, bias{{hidden}, tessera::Initial::normal(0, 2)};
  tessera::Parameter output{{hidden}, tessera::Initial::normal(0, 0.3f)};
  Values h = Values(batch * hidden), p = Values(batch), dx = Values(batch);
};

void train(tessera::World& world, tessera::Strategy strategy) {
  using enum tessera::plan::WindowKind;
  Generator generator;
  Discriminator discriminator;
  tessera::FullyShard model(world, {.strategy = strategy});
  const tessera::Unit* g = &model.add(generator, "generator");
  const tessera::Unit* d = &model.add(discriminator, "discriminator");
  const auto& judge = model.add_program(
      {.name = "judge", .windows = {{g, forward}, {d, forward}, {d, backward}, {d, forward}, {d, backward}}});
  const auto& make = model.add_program({.name = "make",
                                        .windows = {{g, forward}, {d, forward}, {d, backward}, {g, backward}},
                                        .trains = {{g}},
                                        .optimizer = tessera::Sgd{.learning_rate = 0.1f}});
  model.finalize(tessera::AdamW{.learning_rate = 0.02f, .weight_decay = 0});  // of who brings none
  std::uint64_t draws = 0;
  const auto drawn = [&](float around, float deviation) {
    Values values(batch);
    const std::uint64_t first = batch * (draws++ * std::uint64_t(world.size()) + std::uint64_t(world.rank()));
    tessera::Initial::normal(around, deviation).fill(values, 5, "samples", first);
    return values;
  };
  for (int step = 0; step < 1200; ++step) {
    const bool judges = step % 3 != 2;  // two steps of the discriminator, then one of the generator
    const Values z = drawn(0, 1), samples = drawn(mean, spread);
    model.begin(judges ? judge : make);
    model.forward(generator, z), model.forward(discriminator, generator.x);
    model.backward(discriminator, generator.x, judges ? 0.0f : 1.0f);
    if (judges) {
      model.forward(discriminator, samples), model.backward(discriminator, samples, 1.0f);
    } else {
      model.backward(generator, z, discriminator.dx);
    }
    model.update();
    model.synchronize();  // the batches end here
  }
  unsigned long long weights = 0;
  for (const tessera::Parameter* p : {&generator.shift, &discriminator.weight, &discriminator.output})
    for (const float value : model.whole(*p)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  const float made = model.whole(generator.shift)[0], made_spread = std::fabs(model.whole(generator.scale)[0]);
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  makes %.2f with spread %.2f, samples are %.2f with spread %.2f\n",
                to_string(strategy).data(), weights, made, made_spread, mean, spread);
}

int main(int argc, char** argv) {
  const char* about = "A generator learns to make what a discriminator takes for samples, under every strategy.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy);
  });
}
