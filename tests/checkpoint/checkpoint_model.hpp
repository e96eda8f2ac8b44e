// A model whose every element is known, for tests of checkpoints: odd sizes, an empty parameter, several blocks, a
// frozen parameter and untrained state.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/hash.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace checkpoint_model {

using namespace tessera;

class Layer final : public Module {
 public:
  Layer(Shape weight, std::size_t bias)
      : weight_(std::move(weight), Initial::zeros()), bias_({bias}, Initial::zeros()) {}
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", weight_);
    visitor("nothing", nothing_);
    visitor("fixed", fixed_);
    visitor("bias", bias_);
    visitor("mean", mean_);
  }
  Parameter& bias() { return bias_; }

 private:
  Parameter weight_;
  Parameter nothing_{{0, 5}, Initial::ones()};
  Parameter fixed_{{31}, Initial::zeros(), {.frozen = true}};
  Parameter bias_;
  Buffer mean_{{7, 3}};
};

struct Job {
  int ranks = 1;
  std::size_t replicas = 1;
  Strategy strategy = Strategy::fsdp;
  Precision precision = fp32_precision;
  Checkpointing checkpointing = Checkpointing::blocking;
  std::size_t rows = 1031;  // of the large weight
  std::size_t layers = 3;
  OuterOptions outer = {};
  bool experts = false;  // each replica has the second layer of its own
  // Dynamic, whatever the precision: so there is a scale to carry on.
  std::optional<kernels::LossScaling> loss_scaling = kernels::dynamic_loss_scaling;
  bool sgd = false;  // with momentum; else AdamW
  Offload offload = {};
  std::chrono::milliseconds timeout{60'000};
};

// Values of one tensor's elements, that no other element of the checkpoint has, most likely.
class Values {
 public:
  Values(const std::string& tensor, std::uint64_t salt) : hash_(fnv1a(tensor, fnv1a_basis ^ salt)) {}
  float operator[](std::size_t element) const {
    const std::uint64_t mixed = (hash_ ^ element) * 0x9E3779B97F4A7C15ull;
    return static_cast<float>(static_cast<std::int32_t>(mixed >> 32)) * 0x1p-31f;
  }

 private:
  std::uint64_t hash_;
};

using Visit = std::function<void(const std::string& tensor, std::size_t first, std::span<float> values)>;

// Returns the tensor's name in files: a unit that each replica has of its own has the replica's number in it.
inline std::string name_in_files(FullyShard& model, const Unit& unit, const std::string& tensor) {
  const std::size_t rank = static_cast<std::size_t>(model.world().rank());
  return plan::name_of_variant(unit.spec(), tensor, model.plan().variant_of(unit.index(), rank));
}

// Visits the pieces of one of a unit's states, under names that begin with `prefix`.
inline void for_each_piece(FullyShard& model, const Unit& unit, const std::string& state, const std::string& prefix,
                           const Visit& visit) {
  for (const ParameterPiece& piece : model.pieces(unit, state)) {
    const bool is_frozen = unit.spec().parameters[unit.index_of(*piece.parameter)].frozen;
    visit((is_frozen ? "" : prefix) + name_in_files(model, unit, piece.parameter->name()), piece.first, piece.values);
  }
}

// All that this rank holds: masters, states as "m/name", untrained state; with outer steps what replicas have in common
// under these names, and what each has for itself as the checkpoint names it.
inline void for_each_share(FullyShard& model, const Visit& visit) {
  const plan::Plan& plan = model.plan();
  const bool apart = plan.diverges();
  const std::size_t replica =
      plan.mesh.index_of(Axis::replicate, plan.mesh.place_of(static_cast<std::size_t>(model.world().rank())));
  const std::string mine = apart ? "replica." + std::to_string(replica) + "/" : "";
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    const Unit& unit = model.unit(u);
    for_each_piece(model, unit, "master", apart ? mine + "master/" : "", visit);
    const std::vector<plan::StateSpec> none;
    for (const plan::StateSpec& state : plan.trains(u) ? plan.unit_states(u) : none) {
      for_each_piece(model, unit, state.name, mine + state.name + "/", visit);
    }
    if (apart) for_each_piece(model, unit, "anchor", "", visit);
    if (apart) for_each_piece(model, unit, "outer momentum", "outer_momentum/", visit);
    for (const Buffer* buffer : unit.buffers()) {
      visit(name_in_files(model, unit, buffer->name()), 0, model.buffer(*buffer));
    }
  }
}

inline void fill(FullyShard& model, std::uint64_t salt) {
  for_each_share(model, [&](const std::string& tensor, std::size_t first, std::span<float> values) {
    const Values expected(tensor, salt);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = expected[first + i];
  });
  model.shards_changed();
}

// Adds to `count` the elements that are not what fill() made them.
inline Visit counting_differences(std::uint64_t salt, std::size_t& count) {
  return [salt, &count](const std::string& tensor, std::size_t first, std::span<float> values) {
    const Values expected(tensor, salt);
    for (std::size_t i = 0; i < values.size(); ++i) count += values[i] != expected[first + i];
  };
}

inline std::size_t differing(FullyShard& model, std::uint64_t salt) {
  std::size_t count = 0;
  for_each_share(model, counting_differences(salt, count));
  return count;
}

// Returns the step's scalars that updates carry from step to step.
inline auto carried(const kernels::StepScalars& scalars) {
  return std::tuple(scalars.step, scalars.skipped_steps, scalars.loss_scale, scalars.good_steps, scalars.decay_power[0],
                    scalars.decay_power[1]);
}

inline void with_model(const Job& job, const std::function<void(FullyShard&)>& body) {
  launch({.ranks = job.ranks, .timeout = job.timeout}, [&](World& world) {
    std::vector<std::unique_ptr<Layer>> layers;
    layers.push_back(std::make_unique<Layer>(Shape{13, 17}, 29));
    layers.push_back(std::make_unique<Layer>(Shape{job.rows, 1301}, 1301));
    while (layers.size() < job.layers) layers.push_back(std::make_unique<Layer>(Shape{}, 1));
    FullyShard model(world, {.strategy = job.strategy,
                             .replicas = job.replicas,
                             .outer = job.outer,
                             .precision = job.precision,
                             .loss_scaling = job.loss_scaling,
                             .offload = job.offload,
                             .disk = std::filesystem::temp_directory_path(),
                             .checkpointing = job.checkpointing});
    for (auto& layer : layers) {
      model.add(*layer, UnitOptions{.apart = job.experts && layer == layers[1] ? AxisSet(Axis::replicate) : AxisSet()});
    }
    if (job.sgd) {
      model.finalize(Sgd{.momentum = 0.9f});
    } else {
      model.finalize(AdamW{});
    }
    body(model);
  });
}

}  // namespace checkpoint_model
