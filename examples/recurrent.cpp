// A recurrent net: one unit in a window of its own at each time step, forward and backward in time. The program is
// recorded from the pass that trains. Each backward window writes a gradient of its own; the runtime adds them up.
#include <bit>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t width = 8, times = 5;

// h' = tanh(W h + u x), at every time step the same W and u.
struct Cell : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight), visitor("input", input); }

  void forward(Window& window, std::size_t t, float x) {
    window.stream().submit([this, t, x, w = window.parameter(weight), u = window.parameter(input)] {
      for (std::size_t i = 0; i < width; ++i) {
        float sum = u[i] * x;
        for (std::size_t j = 0; j < width; ++j) sum += w[i * width + j] * h[t][j];
        h[t + 1][i] = std::tanh(sum);
      }
    });
  }
  // dh becomes the gradient of the state before.
  void backward(Window& window, std::size_t t, float x, Values& dh) {
    window.stream().submit(
        [this, t, x, &dh, w = window.parameter(weight), dw = window.gradient(weight), du = window.gradient(input)] {
          Values before(width, 0.0f);
          for (std::size_t i = 0; i < width; ++i) {
            const float d = dh[i] * (1 - h[t + 1][i] * h[t + 1][i]);
            du[i] = d * x;
            for (std::size_t j = 0; j < width; ++j) dw[i * width + j] = d * h[t][j], before[j] += d * w[i * width + j];
          }
          dh = before;
        });
  }

  tessera::Parameter weight{{width, width}, tessera::Initial::fan_in(width)};
  tessera::Parameter input{{width}, tessera::Initial::normal(0, 0.5f)};
  std::vector<Values> h = std::vector<Values>(times + 1, Values(width, 0.0f));  // h[0] stays zero
};

// y = v · h
struct Head : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(Window& window, const Values& h) {
    window.stream().submit([this, &h, v = window.parameter(weight)] {
      y = 0;
      for (std::size_t i = 0; i < width; ++i) y += v[i] * h[i];
    });
  }
  void backward(Window& window, const Values& h, float dy, Values& dh) {
    window.stream().submit([&h, dy, &dh, v = window.parameter(weight), dv = window.gradient(weight)] {
      for (std::size_t i = 0; i < width; ++i) dv[i] = dy * h[i], dh[i] = dy * v[i];
    });
  }
  tessera::Parameter weight{{width}, tessera::Initial::fan_in(width)};
  float y = 0;
};

void train(tessera::World& world, tessera::Strategy strategy) {
  Cell cell;
  Head head;
  tessera::FullyShard model(world, {.strategy = strategy});
  model.add(cell, "cell");
  model.add(head, "head");
  Values dh(width);
  float error = 0;
  const auto pass = [&](int sample) {
    const auto x = [&](std::size_t t) { return std::sin(float(sample * 5 + int(t)) * 1.3f); };
    for (std::size_t t = 0; t < times; ++t) model.forward(cell, t, x(t));
    model.forward(head, cell.h[times]);
    model.synchronize();
    error = head.y - 0.8f * x(times - 2);  // what it saw before the last
    model.backward(head, cell.h[times], error, dh);
    for (std::size_t t = times; t-- > 0;) model.backward(cell, t, x(t), dh);
  };
  model.add_program({.pass = [&] { pass(0); }});  // finalize() runs it once to see which windows it opens
  model.finalize(tessera::AdamW{.learning_rate = 0.01f});
  float first = 0, last = 0;
  for (int step = 0; step < 300; ++step) {
    pass(step * world.size() + world.rank());
    model.update();
    const float loss = world.average(error * error / 2, "loss");
    (step < 20 ? first : last) += step < 20 || step >= 280 ? loss / 20 : 0;
  }
  std::uint64_t weights = 0;
  for (const tessera::Parameter* p : {&cell.weight, &cell.input, &head.weight})
    for (const float value : model.whole(*p)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  loss %.4f, then %.4f\n", to_string(strategy).data(),
                static_cast<unsigned long long>(weights), first, last);
}

int main(int argc, char** argv) {
  const char* about = "One unit, used at each step of a sequence; the same weights under every strategy.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy);
  });
}
