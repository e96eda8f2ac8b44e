// Expert parallelism: each replica of the mesh has an expert of its own; a token goes to that replica and comes back.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Collective, tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t tokens = 4, width = 6;  // of each rank

// y = W x for any number of tokens.
struct Linear : tessera::Module {
  explicit Linear(std::size_t count) : y(count * width), dx(y) {}
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight); }
  const Values& forward(Window& window, const Values& x) {
    window.stream().submit([this, &x, w = window.parameter(weight)] {
      for (std::size_t i = 0; i < y.size(); ++i) {
        y[i] = 0;
        for (std::size_t k = 0; k < width; ++k) y[i] += w[i % width * width + k] * x[i / width * width + k];
      }
    });
    return y;
  }
  const Values& backward(Window& window, const Values& x, const Values& dy) {
    window.stream().submit([this, &x, &dy, w = window.parameter(weight), dw = window.gradient(weight)] {
      std::ranges::fill(dw, 0.0f), std::ranges::fill(dx, 0.0f);
      for (std::size_t i = 0; i < y.size(); ++i)
        for (std::size_t k = 0; k < width; ++k) {
          dw[i % width * width + k] += dy[i] * x[i / width * width + k];
          dx[i / width * width + k] += dy[i] * w[i % width * width + k];
        }
    });
    return dx;
  }
  tessera::Parameter weight{{width, width}, tessera::Initial::fan_in(width)};
  Values y, dx;
};

// Token t of every rank wants the expert of replica t % R. Ranks send each other theirs, with zeros for all others.
struct Expert : Linear {
  explicit Expert(std::size_t experts) : Linear(experts * tokens), replicas(experts) {}
  void visit(tessera::ModuleVisitor& visitor) override {
    Linear::visit(visitor);
    visitor("tokens", x_in), visitor("made", y_out), visitor("dx", dx_out), visitor("dy", dy_in);
  }
  const Values& forward(Window& window, const Values& own) {
    send(window, x_in, own, x);
    return bring_back(window, y_out, Linear::forward(window, x), mine);
  }
  const Values& backward(Window& window, const Values& own) {
    send(window, dy_in, own, dy);
    return bring_back(window, dx_out, Linear::backward(window, x, dy), dmine);
  }
  std::size_t wanted(std::size_t i) const { return i / width % replicas; }
  void send(Window& window, const Collective& each, const Values& values, Values& all) {
    window.stream().submit([this, &values, n = mine.size(), to = window.contribution<float>(each)] {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = wanted(i % n) == i / n ? values[i % n] : 0.0f;
    });
    window.stream().submit([&all, n = mine.size(), came = window.collect<float>(each)] {
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = came.of(i / n)[i % n];
    });
  }
  const Values& bring_back(Window& window, const Collective& each, const Values& made, Values& to) {
    window.stream().submit([&made, all = window.contribution<float>(each)] { std::ranges::copy(made, all.begin()); });
    window.stream().submit([this, &to, came = window.collect<float>(each)] {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = came.of(wanted(i))[i];
    });
    return to;
  }
  static tessera::CollectiveOptions options(bool forward, tessera::AxisSet axes = tessera::Axis::replicate) {
    using enum tessera::CollectiveKind;
    return {.kind = all_to_all, .type = tessera::DType::fp32, .forward = forward, .backward = !forward, .axes = axes};
  }
  std::size_t replicas;
  Values x = y, dy = y, mine = Values(tokens * width), dmine = mine;
  // Backward windows have theirs in reverse: dy comes first.
  Collective x_in{mine.size(), options(true)}, y_out{x_in}, dx_out{mine.size(), options(false)}, dy_in{dx_out};
};

void train(tessera::World& world, tessera::Strategy strategy, std::size_t replicas) {
  Linear stage(tokens);
  Expert expert(replicas);
  tessera::FullyShard model(world, {.strategy = strategy, .replicas = replicas});
  model.add(stage, "stage");
  model.add(expert, {.name = "expert", .apart = tessera::Axis::replicate});
  model.finalize(tessera::AdamW{.learning_rate = 0.03f});
  float first = 0, last = 0, loss = 0;
  Values x(tokens * width), dy(x);
  for (int step = 0; step < 200; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(float(step * world.size() + world.rank()) * 3.0f + float(i * i));
    const Values& y = model.forward(expert, model.forward(stage, x));
    model.synchronize();
    loss = 0;  // every expert has a function of its own to learn
    for (std::size_t i = 0; i < x.size(); ++i)
      dy[i] = y[i] - float(i / width % replicas + 1) * x[i], loss += dy[i] * dy[i] / 2;
    model.backward(stage, x, model.backward(expert, dy));
    model.update();
    model.synchronize();
    (step < 100 ? first : last) += world.average(loss, "loss") / 100;
  }
  std::uint64_t weights = 0;
  for (const tessera::Parameter* parameter : {&stage.weight, &expert.weight})
    for (const float value : model.whole(*parameter)) weights = weights * 31 + std::bit_cast<std::uint32_t>(value);
  if (world.rank() == 0)
    std::printf("%-6s weights %016llx  loss %.4f, then %.4f\n", to_string(strategy).data(),
                static_cast<unsigned long long>(weights), first, last);
}

int main(int argc, char** argv) {
  const char* about = "Each replica of the ranks has an expert of its own; the same weights under every strategy.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    const std::size_t replicas = world.size() % 2 == 0 ? 2 : std::size_t(world.size());
    for (const tessera::Strategy strategy : tessera::flat_strategies) train(world, strategy, replicas);
  });
}
