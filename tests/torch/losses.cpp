// The losses of a sharded network of the tests, one per line, for Python to compare with its own; or what is read from
// Python's weights, written again.
//
//   torch_losses NETWORK RANKS MICRO_BATCHES CLIP_NORM WEIGHTS.safetensors    (the weights that training begins with)
//   torch_losses NETWORK FROM.safetensors TO.safetensors                     (by two ranks)
#include <cstdio>
#include <cstdlib>
#include <string>

#include "networks.hpp"

namespace {

networks::Kind kind_of(const std::string& name) {
  for (const networks::Kind& kind : networks::all_kinds()) {
    if (kind.name == name) return kind;
  }
  throw std::runtime_error("there is no network " + name);
}

void dump_original(const networks::Kind& kind, const std::string& path) {
  tessera::launch({.ranks = 1}, [&](tessera::World& world) {
    tessera::torch::FullyShard model(world, networks::original(kind),
                                     {.units = tessera::torch::children_of(kind.units)});
    model.finalize(tessera::AdamW{});
    tessera::dump_weights(model.sharded(), path);
  });
}

void read_and_write(const networks::Kind& kind, const std::string& from, const std::string& to) {
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    tessera::torch::FullyShard model(world, networks::original(kind),
                                     {.units = tessera::torch::children_of(kind.units)});
    model.finalize(tessera::AdamW{});
    tessera::load_weights(model.sharded(), from);
    tessera::dump_weights(model.sharded(), to);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4) {
    read_and_write(kind_of(argv[1]), argv[2], argv[3]);
    return 0;
  }
  if (argc != 6) return 2;
  const networks::Run run{.kind = kind_of(argv[1]),
                          .ranks = std::atoi(argv[2]),
                          .steps = 30,
                          .clip_norm = std::strtof(argv[4], nullptr),
                          .options = {.micro_batches = static_cast<std::size_t>(std::atoi(argv[3]))}};
  dump_original(run.kind, argv[5]);
  for (const float loss : networks::train(run).losses) std::printf("%.9g\n", static_cast<double>(loss));
  return 0;
}
