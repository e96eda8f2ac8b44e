// Norms of gradients, one of them whole, and a hook that adds noise to its shards. Try: ./inspect_gradients --ranks 4
#include <cmath>
#include <cstdio>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Initial;
using Values = std::vector<float>;

// y = activation(W x + b) for one sample.
struct Dense : tessera::Module {
  Dense(std::size_t in, std::size_t out, bool bends)
      : weight({out, in}, Initial::fan_in(in)), bias({out}, Initial::fan_in(in)), bend(bends), y(out), dx(in) {}

  void visit(tessera::ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("bias", bias);
  }
  const Values& forward(tessera::Window& window, const Values& input) {
    x = &input;
    window.stream().submit([this, x = x, w = window.parameter(weight), b = window.parameter(bias)] {
      for (std::size_t o = 0; o < y.size(); ++o) {
        float sum = b[o];
        for (std::size_t i = 0; i < x->size(); ++i) sum += w[o * x->size() + i] * (*x)[i];
        y[o] = bend ? std::tanh(sum) : sum;
      }
    });
    return y;
  }
  const Values& backward(tessera::Window& window, const Values& dy) {
    window.stream().submit(
        [this, x = x, &dy, w = window.parameter(weight), dw = window.gradient(weight), db = window.gradient(bias)] {
          dx.assign(dx.size(), 0.0f);
          for (std::size_t o = 0; o < y.size(); ++o) {
            db[o] = bend ? dy[o] * (1.0f - y[o] * y[o]) : dy[o];
            for (std::size_t i = 0; i < x->size(); ++i) {
              dw[o * x->size() + i] = db[o] * (*x)[i];
              dx[i] += db[o] * w[o * x->size() + i];
            }
          }
        });
    return dx;
  }

  tessera::Parameter weight, bias;
  bool bend;
  const Values* x = nullptr;
  Values y, dx;
};

// Trains under one strategy; shows the last step's gradients when asked to. Returns the output's weights.
Values train(tessera::World& world, tessera::Strategy strategy, float noise, bool show) {
  Dense hidden(1, 16, true), output(16, 1, false);
  tessera::FullyShard model(world, {.strategy = strategy});
  model.add(hidden, "hidden");
  model.add(output, "output");
  // Called once per step and unit, before norm and clipping. A function of step, name and place, not of the rank: so it
  // does not matter who holds an element.
  std::uint64_t step = 0;
  if (noise > 0.0f) {
    model.on_reduced_gradient([&](const tessera::ReducedGradient& gradient) {
      for (const tessera::ParameterPiece& piece : gradient.pieces) {
        gradient.stream.submit([piece, noise, step, scale = gradient.loss_scale] {
          Values drawn(piece.values.size());
          Initial::normal(0.0f, noise * *scale).fill(drawn, step, piece.parameter->name(), piece.first);
          for (std::size_t i = 0; i < drawn.size(); ++i) piece.values[i] += drawn[i];
        });
      }
    });
  }
  model.finalize(tessera::AdamW{.learning_rate = 0.02f, .clip_norm = 1.0f});

  for (; step < 500; ++step) {
    const Values input = {3.0f * std::sin(float(step * std::uint64_t(world.size()) + std::uint64_t(world.rank())))};
    const Values& y = model.forward(output, model.forward(hidden, input));
    model.synchronize();
    const Values dy = {2.0f * (y[0] - std::sin(input[0]))};
    model.backward(hidden, model.backward(output, dy));
    model.update();
    model.synchronize();  // `input` and `dy` go
  }
  // Collective, so every rank calls them. No rank ever holds more than the one whole parameter.
  const std::vector<tessera::GradientNorm> norms = model.gradient_norms();
  const Values gradient = model.whole(hidden.weight, "gradient");
  if (show) {
    double squares = 0.0;
    for (const tessera::GradientNorm& entry : norms) {
      squares += entry.norm * entry.norm;
      std::printf("%-13s  norm %.6f\n", entry.parameter->name().c_str(), entry.norm);
    }
    std::printf("all            norm %.6f, the step's %.6f\n", std::sqrt(squares), model.last_step().gradient_norm);
    std::printf("hidden.weight ");
    for (const float value : gradient) std::printf(" %.4f", value);
    std::printf("\n");
  }
  return model.whole(output.weight);
}

int main(int argc, char** argv) {
  const char* about = "A norm per parameter, one gradient whole, and a hook that adds noise, with equal bits in ddp.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    using tessera::Strategy;
    const bool shows = world.rank() == 0;
    const Values plain = train(world, Strategy::fsdp, 0.0f, shows), noisy = train(world, Strategy::fsdp, 0.01f, false);
    const char* ddp_too = train(world, Strategy::ddp, 0.01f, false) == noisy ? "the same" : "other";
    if (shows)
      std::printf("with noise: %s weights, and %s ones with ddp\n", noisy == plain ? "the same" : "other", ddp_too);
  });
}
