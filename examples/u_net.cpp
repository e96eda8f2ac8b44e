// A U-Net: levels inside levels, each a unit of its own. A level is whole while the one inside it computes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t rows = 8, widths[] = {24, 16, 12, 6};  // of a wave, and of what each level makes of it

// y = tanh(W x)
struct Dense : tessera::Module {
  Dense(std::size_t from, std::size_t to)
      : in(from), out(to), weight({to, from}, tessera::Initial::fan_in(from)), y(rows * to), dx(rows * from) {}
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight); }
  Values& forward(Window& window, const Values& input) {
    x = &input;
    window.stream().submit([this, &input, w = window.parameter(weight)] {
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < out; ++o) {
          float sum = 0;
          for (std::size_t i = 0; i < in; ++i) sum += w[o * in + i] * input[r * in + i];
          y[r * out + o] = std::tanh(sum);
        }
    });
    return y;
  }
  Values& backward(Window& window, const Values& dy) {
    window.stream().submit([this, &dy, w = window.parameter(weight), dw = window.gradient(weight)] {
      std::ranges::fill(dw, 0.0f), std::ranges::fill(dx, 0.0f);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < out; ++o) {
          const float t = y[r * out + o], d = dy[r * out + o] * (1 - t * t);
          for (std::size_t i = 0; i < in; ++i)
            dw[o * in + i] += d * (*x)[r * in + i], dx[r * in + i] += d * w[o * in + i];
        }
    });
    return dx;
  }
  std::size_t in, out;
  tessera::Parameter weight;
  const Values* x = nullptr;
  Values y, dx;
};

// y = up(d + inner(d)), d = down(x): what goes past the inner level keeps the detail.
struct Level : tessera::Module {
  explicit Level(std::size_t depth) : down(widths[depth], widths[depth + 1]), up(widths[depth + 1], widths[depth]) {
    if (depth + 2 < std::size(widths)) inner = std::make_unique<Level>(depth + 1);
  }
  void visit(tessera::ModuleVisitor& to) override {
    to("down", down), to("up", up);
    if (inner) to("inner", *inner);  // its tensors are its own unit's, because it is added before
  }
  Values& forward(Window& window, const Values& x) {
    Values& d = down.forward(window, x);
    if (inner) add(window, d, window.forward(*inner, d), sum);
    return up.forward(window, inner ? sum : d);
  }
  Values& backward(Window& window, const Values& dy) {
    Values& ds = up.backward(window, dy);
    Values& dsum = window.keep(Values());  // until the window's work has run
    if (inner) add(window, ds, window.backward(*inner, ds), dsum);
    return down.backward(window, inner ? dsum : ds);
  }
  static void add(Window& window, const Values& a, const Values& b, Values& into) {
    window.stream().submit([&] { std::transform(a.begin(), a.end(), b.begin(), (into = a).begin(), std::plus<>()); });
  }
  Dense down, up;
  std::unique_ptr<Level> inner;
  Values sum;
};

void train(tessera::World& world, tessera::Strategy strategy) {
  Level net(0);
  tessera::FullyShard model(world, {.strategy = strategy});
  model.add(*net.inner->inner, "bottom"), model.add(*net.inner, "middle");
  model.add(net, "top");
  Values noisy(rows * widths[0]), clean(noisy), dy(noisy);
  float error = 0, first = 0, last = 0;
  const auto pass = [&](int batch) {
    tessera::Initial::normal(0, 0.4f).fill(noisy, 1, "noise", std::uint64_t(batch) * noisy.size());
    for (std::size_t i = 0; i < noisy.size(); ++i) {
      clean[i] = 0.8f * std::sin(0.4f * float(i % widths[0]) + float(std::size_t(batch) * rows + i / widths[0]));
      noisy[i] += clean[i];
    }
    const Values& y = model.forward(net, noisy);
    model.synchronize();
    error = 0;
    for (std::size_t i = 0; i < y.size(); ++i) dy[i] = (y[i] - clean[i]) / rows, error += dy[i] * dy[i] * rows / 24;
    model.backward(net, dy);
  };
  model.add_program({.pass = [&] { pass(0); }});  // finalize() runs it once to see which windows it opens
  model.finalize(tessera::AdamW{.learning_rate = 0.01f});
  for (int step = 0; step < 400; ++step) {
    pass(step * world.size() + world.rank());
    model.update();
    (step < 20 ? first : last) += step < 20 || step >= 380 ? world.average(error, "error") / 20 : 0;
  }
  unsigned long long weights = 0;
  for (const Level* level = &net; level != nullptr; level = level->inner.get())
    for (const Dense* layer : {&level->down, &level->up})
      for (const float value : model.whole(layer->weight)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  squared error %.4f, then %.4f (the noise's: 0.16)\n", to_string(strategy).data(),
                weights, first, last);
}

int main(int argc, char** argv) {
  const char* about = "A U-Net, units inside units, takes noise off waves; the same weights under every strategy.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy);
  });
}
