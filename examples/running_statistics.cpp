// A convolutional net with running statistics: a Buffer is state that is not trained. Each rank normalises by its own
// batch and keeps an average of what it saw; before an evaluation all take rank 0's. Under all four strategies.
#include <bit>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t batch = 6, length = 24, channels = 5, taps = 3;

// Signals [batch, length] → for each channel: convolution, normalisation, ReLU. The mean over the signal and the
// channels is one logit: whether the signal is a fast wave.
struct Net : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override {
    visitor("weight", weight), visitor("scale", scale), visitor("shift", shift), visitor("output", output);
    visitor("mean", mean), visitor("variance", variance);
  }
  void forward(Window& window, const Values& x) {
    const bool trains = window.kind() != tessera::plan::WindowKind::evaluate;
    window.stream().submit([this, trains, &x, w = window.parameter(weight), a = window.parameter(scale),
                            b = window.parameter(shift), v = window.parameter(output), m = window.buffer(mean),
                            n = window.buffer(variance)] {
      logits.assign(batch, 0.0f);
      for (std::size_t c = 0; c < channels; ++c) {
        const std::span<float> z = std::span(hat).subspan(c * batch * length, batch * length);
        float sum = 0, squares = 0;
        for (std::size_t s = 0; s < z.size(); ++s) {
          z[s] = 0;
          for (std::size_t k = 0; k < taps; ++k) z[s] += w[c * taps + k] * x[s / length * length + (s + k) % length];
          sum += z[s], squares += z[s] * z[s];
        }
        const float own = sum / float(z.size()), spread = squares / float(z.size()) - own * own;
        if (trains) m[c] += 0.1f * (own - m[c]), n[c] += 0.1f * (spread - n[c]);
        inverse[c] = 1 / std::sqrt((trains ? spread : n[c]) + 1e-5f);
        for (std::size_t s = 0; s < z.size(); ++s) {
          z[s] = (z[s] - (trains ? own : m[c])) * inverse[c];
          logits[s / length] += v[c] * std::fmax(a[c] * z[s] + b[c], 0.0f) / length;
        }
      }
    });
  }

  void backward(Window& window, const Values& x, const Values& d) {
    window.stream().submit([this, &x, &d, a = window.parameter(scale), b = window.parameter(shift),
                            v = window.parameter(output), dw = window.gradient(weight), da = window.gradient(scale),
                            db = window.gradient(shift), dv = window.gradient(output)] {
      for (std::size_t c = 0; c < channels; ++c) {
        const std::span<const float> z = std::span(hat).subspan(c * batch * length, batch * length);
        const auto y = [&](std::size_t s) { return std::fmax(a[c] * z[s] + b[c], 0.0f); };
        const auto dy = [&](std::size_t s) { return y(s) > 0 ? d[s / length] * v[c] / length : 0; };
        da[c] = db[c] = dv[c] = 0;
        for (std::size_t s = 0; s < z.size(); ++s) {
          da[c] += dy(s) * z[s], db[c] += dy(s), dv[c] += d[s / length] * y(s) / length;
        }
        for (std::size_t k = 0; k < taps; ++k) dw[c * taps + k] = 0;
        for (std::size_t s = 0; s < z.size(); ++s) {
          const float dz = a[c] * inverse[c] * (dy(s) - (db[c] + z[s] * da[c]) / float(z.size()));
          for (std::size_t k = 0; k < taps; ++k) dw[c * taps + k] += dz * x[s / length * length + (s + k) % length];
        }
      }
    });
  }

  tessera::Parameter weight{{channels, taps}, tessera::Initial::fan_in(taps)};
  tessera::Parameter scale{{channels}, tessera::Initial::ones()}, shift{{channels}, tessera::Initial::zeros()};
  tessera::Parameter output{{channels}, tessera::Initial::normal(0, 1)};
  tessera::Buffer mean{{channels}}, variance{{channels}, tessera::Initial::ones()};
  Values hat = Values(channels * batch * length), inverse = Values(channels), logits = Values(batch);
};

// Sample s is a fast wave where s is odd.
void draw(Values& x, unsigned seed) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float along = float(i % length) * (i / length % 2 ? 2.1f : 0.3f);
    x[i] = std::sin(0.7f * float(seed) + float(i / length) + along) + 0.3f * std::sin(float(i * 7919 + seed));
  }
}

void train(tessera::World& world, tessera::Strategy strategy) {
  Net net;
  tessera::FullyShard model(world, {.strategy = strategy});
  model.add(net, "net");
  model.finalize(tessera::AdamW{.learning_rate = 0.03f});
  Values x(batch * length), d(batch);
  for (unsigned step = 0; step < 60; ++step) {
    draw(x, step * unsigned(world.size()) + unsigned(world.rank()));
    model.forward(net, x);
    model.synchronize();
    for (std::size_t s = 0; s < batch; ++s) d[s] = (1 / (1 + std::exp(-net.logits[s])) - float(s % 2)) / batch;
    model.backward(net, x, d);
    model.update();
    model.synchronize();  // x and d are written again
  }
  const float own = model.buffer(net.mean)[0];
  model.synchronize_buffers();
  draw(x, 1000);
  model.evaluate(net, x);
  model.synchronize();
  int right = 0;
  for (std::size_t s = 0; s < batch; ++s) right += (net.logits[s] > 0) == (s % 2 == 1);
  std::uint64_t weights = 0;
  for (const tessera::Parameter* p : {&net.weight, &net.scale, &net.shift, &net.output})
    for (const float value : model.whole(*p)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  const float shared = world.average(std::fabs(model.buffer(net.mean)[0] - own), "statistics");
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  %d of %zu right; statistics of ranks differed by %.4f\n",
                to_string(strategy).data(), static_cast<unsigned long long>(weights), right, batch, shared);
}

int main(int argc, char** argv) {
  const char* about = "Running statistics: each rank keeps its own, and all take rank 0's before an evaluation.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy);
  });
}
