// Optional units: of several experts a sample goes to one, and a rank skips the windows of those that none of its
// samples wants. Ranks may differ in what they skip. Under all four strategies. Try: ./optional_experts --ranks 3
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t experts = 4, width = 6;

// y = W x: a shared stage before the experts, and each expert. dx is the gradient of x.
struct Linear : tessera::Module {
  explicit Linear(std::size_t outputs) : weight({outputs, width}, tessera::Initial::fan_in(width)), y(outputs) {}
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight); }

  const Values& forward(Window& window, const Values& x) {
    window.stream().submit([this, &x, w = window.parameter(weight)] {
      y.assign(y.size(), 0.0f);
      for (std::size_t k = 0; k < w.size(); ++k) y[k / width] += w[k] * x[k % width];
    });
    return y;
  }
  const Values& backward(Window& window, const Values& x, const Values& dy) {
    window.stream().submit([this, &x, &dy, w = window.parameter(weight), dw = window.gradient(weight)] {
      dx.assign(width, 0.0f);
      for (std::size_t k = 0; k < w.size(); ++k) {
        dx[k % width] += dy[k / width] * w[k];
        dw[k] = dy[k / width] * x[k % width];
      }
    });
    return dx;
  }

  tessera::Parameter weight;
  Values y, dx;
};

void train(tessera::World& world, tessera::Strategy strategy) {
  using enum tessera::plan::WindowKind;
  Linear stage(width);
  std::vector<Linear> all(experts, Linear(1));  // made whole first: modules keep their address once they are added
  tessera::FullyShard model(world, {.strategy = strategy});
  model.add(stage, "stage");
  for (std::size_t e = 0; e < experts; ++e)
    model.add(all[e], {.name = "expert." + std::to_string(e), .optional = true});
  model.finalize(tessera::AdamW{.learning_rate = 0.03f});
  float first = 0, last = 0;
  Values x(width), dy(1);
  for (int step = 0; step < 400; ++step) {
    const std::size_t sample = std::size_t(step * world.size() + world.rank());
    const std::size_t mine = sample * 2654435761u / 65536 % experts;
    for (std::size_t i = 0; i < width; ++i) x[i] = std::sin(float(sample * 3 + i * i));
    const Values& h = model.forward(stage, x);
    for (std::size_t e = 0; e < experts; ++e) {
      if (e == mine) {
        model.forward(all[e], h);
      } else {
        model.skip(all[e], forward);
      }
    }
    model.synchronize();
    dy[0] = all[mine].y[0] - float(mine + 1) * x[mine];  // every expert has a function of its own to learn
    for (std::size_t e = experts; e-- > 0;) {
      if (e == mine) {
        model.backward(all[e], h, dy);
      } else {
        model.skip(all[e], backward);  // counts as a gradient of zero
      }
    }
    model.backward(stage, x, all[mine].dx);
    model.update();
    model.synchronize();  // x and dy are written again
    const float loss = world.average(dy[0] * dy[0] / 2, "loss");
    if (step < 40) first += loss / 40;
    if (step >= 360) last += loss / 40;
  }
  std::uint64_t weights = 0;
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit)
    for (const tessera::Parameter* p : model.unit(unit).parameters())
      for (const float value : model.whole(*p)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  loss %.4f, then %.4f\n", to_string(strategy).data(),
                static_cast<unsigned long long>(weights), first, last);
}

int main(int argc, char** argv) {
  const char* about = "A sample goes to one of four experts, the others' windows are skipped, under every strategy.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy);
  });
}
