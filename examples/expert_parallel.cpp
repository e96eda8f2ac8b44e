// Expert parallelism: each replica of the mesh has an expert of its own; a token goes to that replica and comes back.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t tokens = 4, width = 6;  // of each rank

// y = W x for any number of tokens.
struct Linear : tessera::Module {
  explicit Linear(std::size_t count)
      : weight({width, width}, tessera::Initial::fan_in(width)), y(count * width), dx(y) {}
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
  tessera::Parameter weight;
  Values y, dx;
};

// Token t of every rank wants the expert of replica t % R. Ranks at one place of all replicas exchange theirs.
struct Tokens {
  Tokens(tessera::World& world, std::size_t experts) : replicas(experts), back(experts * experts * tokens * width) {
    const int ranks_of_replica = world.size() / int(experts);
    const tessera::Mesh mesh = world.mesh({{"replicate", int(experts)}, {"shard", ranks_of_replica}});
    replica = std::size_t(world.rank() / ranks_of_replica);
    communicator = world.make_communicator("tokens", {.group = mesh.group("replicate")});
  }
  void gather(tessera::Stream& stream, Values& all) {
    const auto bytes = std::as_writable_bytes(std::span(all));
    communicator->all_gather(stream, {.data = bytes.data(), .shard = tessera::Bytes(bytes.size() / replicas)});
  }
  // All tokens of these ranks, zero those that want another expert.
  void send(tessera::Stream& stream, const Values& mine, Values& all) {
    stream.submit([this, &mine, &all] { std::copy(mine.begin(), mine.end(), all.begin() + offset(all)); });
    gather(stream, all);
    stream.submit([this, &all] {
      for (std::size_t i = 0; i < all.size(); ++i) all[i] *= i / width % tokens % replicas == replica ? 1.0f : 0.0f;
    });
  }
  // Copies back what the experts made of this rank's tokens.
  void bring_back(tessera::Stream& stream, const Values& made, Values& mine) {
    stream.submit([this, &made] { std::copy(made.begin(), made.end(), back.begin() + offset(back)); });
    gather(stream, back);
    stream.submit([this, &mine] {
      for (std::size_t i = 0; i < mine.size(); ++i)
        mine[i] = back[(i / width % replicas * replicas + replica) * mine.size() + i];
    });
  }
  std::ptrdiff_t offset(const Values& values) const { return std::ptrdiff_t(replica * values.size() / replicas); }
  std::size_t replicas, replica = 0;
  Values back;
  std::unique_ptr<tessera::Communicator> communicator;
};

void train(tessera::World& world, tessera::Strategy strategy, std::size_t replicas) {
  Linear stage(tokens), expert(replicas * tokens);
  Tokens exchange(world, replicas);
  tessera::FullyShard model(world, {.strategy = strategy, .replicas = replicas});
  model.add(stage, "stage");
  model.add(expert, {.name = "expert", .in_replica = true});
  model.finalize(tessera::AdamW{.learning_rate = 0.03f});
  float first = 0, last = 0, loss = 0;
  Values x(tokens * width), y(x), dy(x), dh(x), sent(replicas * x.size()), dsent(sent);
  for (int step = 0; step < 200; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(float(step * world.size() + world.rank()) * 3.0f + float(i * i));
    exchange.send(model.stream(), model.forward(stage, x), sent);
    exchange.bring_back(model.stream(), model.forward(expert, sent), y);
    model.synchronize();
    loss = 0;  // every expert has a function of its own to learn
    for (std::size_t i = 0; i < x.size(); ++i)
      dy[i] = y[i] - float(i / width % replicas + 1) * x[i], loss += dy[i] * dy[i] / 2;
    exchange.send(model.stream(), dy, dsent);
    exchange.bring_back(model.stream(), model.backward(expert, sent, dsent), dh);
    model.backward(stage, x, dh);
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
