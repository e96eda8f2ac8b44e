// Inputs of the plan tests: units of odd sizes, and programs of several forms over them.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../windows.hpp"
#include "errors.hpp"
#include "tessera/plan/compile.hpp"

namespace tessera::plan {

using tests::program;
using tests::windows;

inline constexpr Precision in_bf16_throughout{
    .parameter = DType::bf16, .gradient = DType::bf16, .wire = DType::bf16, .masters = DType::bf16};

// A unit with one parameter for each of `sizes`.
inline UnitSpec unit_of(const std::string& name, const std::vector<std::size_t>& sizes) {
  UnitSpec unit{name, {}};
  for (std::size_t p = 0; p < sizes.size(); ++p) {
    unit.parameters.push_back({fmt::format("{}.p{}", name, p), {sizes[p]}, false});
  }
  return unit;
}

// Units of different, odd sizes; some smaller than the alignment.
inline std::vector<UnitSpec> odd_units(std::size_t count) {
  const std::vector<std::vector<std::size_t>> sizes = {{997, 13}, {1}, {129, 127, 0}, {128}, {4099}, {257, 2, 3}};
  std::vector<UnitSpec> units;
  for (std::size_t unit = 0; unit < count; ++unit) {
    units.push_back(unit_of(fmt::format("u{}", unit), sizes[unit % sizes.size()]));
  }
  return units;
}

struct Model {
  std::string name;
  std::vector<UnitSpec> units;
  Program program;
  std::vector<Program> further = {};  // of a model of several programs
};

inline Model chain_model(std::size_t units) {
  return {fmt::format("chain of {}", units), odd_units(units), Program::chain(units)};
}

// Unit 0 is the embedding and the head: two forward and two backward windows.
inline Model tied_model() { return {"tied", odd_units(3), program("f0 f1 f2 f0 b0 b2 b1 b0", "e0 e1 e2 e0")}; }

// Activation checkpointing: stretches of two units run forward again inside the backward pass.
inline Model recompute_model() {
  using enum WindowKind;
  return {"recompute", odd_units(4), program("f0 f1 f2 f3 r2 r3 b3 b2 r0 r1 b1 b0", "e0 e1 e2 e3")};
}

inline Model no_evaluation_model() {
  Model model{"no evaluation", odd_units(3), Program::chain(3)};
  model.program.evaluation.clear();
  return model;
}

// A unit without any element between two that have some.
inline Model empty_unit_model() {
  return {"empty unit", {unit_of("a", {5}), unit_of("b", {}), unit_of("c", {131})}, Program::chain(3)};
}

// Units may differ in these: types of their own, when they are gathered and how long they stay, frozen parameters
// beside trained ones, nothing but frozen ones (with and without a backward window), untrained state, and a wire in
// another type than the gradient.
inline Model varied_model() {
  std::vector<UnitSpec> units = odd_units(5);
  units[0].parameters.push_back({.name = "u0.frozen", .shape = {301}, .frozen = true});
  units[0].precision = fp32_precision;
  units[0].buffers = {{"u0.mean", {7}}, {"u0.count", {}}};
  for (const std::size_t unit : {std::size_t{1}, std::size_t{2}}) {
    for (ParameterSpec& parameter : units[unit].parameters) parameter.frozen = true;
  }
  units[2].buffers = {{"u2.table", {129}}};
  units[3].precision = Precision{DType::bf16, DType::bf16, DType::fp32};
  units[3].parameters.insert(units[3].parameters.begin(), {.name = "u3.frozen", .shape = {3, 5}, .frozen = true});
  units[4].precision = Precision{DType::fp16, DType::fp32, DType::fp16};
  units[0].reshard_after_forward = false;
  units[3].reshard_after_forward = Axis::shard;
  units[3].prefetch = 0;
  units[4].prefetch = 3;
  return {"varied", std::move(units), program("f0 f1 f2 f3 f4 b4 b3 b2 b0", "e0 e1 e2 e3 e4")};
}

// A generator (units 0 and 1) and a discriminator (2 and 3, which sees two batches a step), with optimizers of their
// own, and so many micro-batches of the discriminator: each has steps in which the other's units only pass something
// on.
inline Model adversarial_model() {
  const Program discriminator{.micro_batch = windows("f0 f1 f2 f3 f2 f3 b3 b2 b3 b2"),
                              .evaluation = windows("e2 e3"),
                              .name = "discriminator",
                              .trains = std::nullopt,
                              .optimizer_states = std::vector<StateSpec>{"momentum"},
                              .micro_batches = 3};
  const Program generator{.micro_batch = windows("f0 f1 f2 f3 b3 b2 b1 b0"),
                          .evaluation = windows("e0 e1"),
                          .name = "generator",
                          .trains = std::vector<std::size_t>{0, 1},
                          .optimizer_states = std::nullopt};
  return {"adversarial", odd_units(4), discriminator, {generator}};
}

// Windows inside windows: an outer unit around two inner ones, one of which has one of its own inside; a tied unit
// inside and outside; and what only resumes beside it.
inline Model nested_model() {
  return {"nested", odd_units(5),
          program("f4 f0 f1 f2 f1+ f0+ f4 f0+ f3 b3 b0 r4 b4 b0+ b1 r2 b1+ b2 b1+ b0+ b4", "e4 e0 e1 e2 e1+ e0+ e3")};
}

// Units that recompute by their setting, in each other and one behind the other; the program says nothing of it.
inline Model recomputing_model() {
  using enum WindowKind;
  Model model{"recomputing", odd_units(4), program("f0 f1 f2 f1+ f3 b3 b1 b2 b1+ b0", "e0 e1 e2 e1+ e3")};
  for (const std::size_t unit : {0u, 1u, 2u}) model.units[unit].recompute = true;
  return model;
}

// The same units leave values to their backward windows, of odd sizes, two of which take turns.
inline Model saving(Model model) {
  model.name += ", saving";
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) model.units[unit].saved = Bytes(100 + 77 * unit);
  return model;
}

// Collectives inside windows, of every kind: several of one unit, of windows that are run again, of a unit
// with two windows, of one kind of window only, and of evaluation; among all ranks and in each replica.
inline Model collecting_model() {
  using enum WindowKind;
  std::vector<UnitSpec> units = odd_units(4);
  using enum CollectiveKind;
  units[0].collectives = {{.name = "u0.a", .elements = 7},
                          {.name = "u0.b", .kind = all_reduce, .type = DType::fp32, .elements = 3},
                          {.name = "u0.c", .kind = all_reduce, .type = DType::fp16, .elements = 300}};
  units[1].collectives = {
      {.name = "u1.a", .type = DType::bf16, .elements = 5, .axes = AxisSet::all() - Axis::replicate},
      {.name = "u1.b", .elements = 1, .backward = false, .evaluate = true}};
  units[3].collectives = {
      {.name = "u3.a", .kind = reduce_scatter, .type = DType::fp32, .elements = 64, .forward = false},
      {.name = "u3.b", .kind = reduce_scatter, .type = DType::bf16, .elements = 5, .backward = false}};
  return {"collecting", std::move(units), program("f0 f1 f2 f1 f3 b3 r1 b1 b2 b1 r0 b0", "e0 e1 e2 e3")};
}

// Units that each replica has of its own, with state and a collective, among others of all.
inline Model experts_model() {
  std::vector<UnitSpec> units = odd_units(5);
  for (const std::size_t expert : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
    units[expert].apart = Axis::replicate;
    units[expert].prefix = units[expert].name + ".";
  }
  units[2].buffers = {{"u2.state", {5}}};
  units[3].buffers = {{"u3.state", {3}}};
  units[4].collectives = {{.name = "u4.a", .elements = 3}};
  return {"experts", std::move(units), Program::chain(5)};
}

// Units whose optimizers' states stand in the host's memory, beside others whose do not, one of them frozen in part,
// and two with states in types of their own.
inline Model offloading_model() {
  std::vector<UnitSpec> units = odd_units(5);
  for (const std::size_t unit : {0u, 1u, 3u, 4u}) units[unit].states_in = MemorySpace::host;
  units[3].parameters[0].frozen = true;
  for (const std::size_t unit : {1u, 3u}) units[unit].precision = in_bf16_throughout;
  for (const std::size_t unit : {1u, 2u}) {
    units[unit].optimizer_states = {StateSpec("codes", DType::u8), StateSpec("scales", DType::fp32, 256)};
  }
  return {"offloading", std::move(units), Program::chain(5)};
}

// The same of masters, of parameters of 16 bits: beside states, alone, and of units that are frozen in part or whole.
inline Model offloading_masters_model() {
  Model model = offloading_model();
  model.name = "offloading masters";
  model.units[0].states_in = MemorySpace::device;
  for (const std::size_t unit : {0u, 1u, 3u, 4u}) {
    model.units[unit].masters_in = MemorySpace::host;
    model.units[unit].precision = std::nullopt;
  }
  for (ParameterSpec& parameter : model.units[1].parameters) parameter.frozen = true;
  model.units[4].apart = Axis::replicate;
  model.units[4].prefix = "u4.";
  return model;
}

// States with types and blocks of their own beside others, on the device.
inline Model block_states_model() {
  std::vector<UnitSpec> units = odd_units(3);
  units[1].optimizer_states = {StateSpec("codes", DType::u8), StateSpec("scales", DType::fp32, 256)};
  return {"block states", std::move(units), Program::chain(3)};
}

// A layer cut into slices along an axis beside the two, between layers that its ranks have in common.
inline Model sliced_model() {
  std::vector<UnitSpec> units = odd_units(4);
  for (const std::size_t slice : {std::size_t{1}, std::size_t{2}}) {
    units[slice].apart = Axis::tensor;
    units[slice].prefix = units[slice].name + ".";
    units[slice].parameters.front().slice = Slice{};
  }
  units[2].buffers = {{"u2.state", {5}}};
  units[1].collectives = {
      {.name = "u1.a", .kind = CollectiveKind::all_reduce, .type = DType::fp32, .elements = 9, .axes = Axis::tensor},
      {.name = "u1.b", .type = DType::bf16, .elements = 6, .axes = Axis::tensor},
      {.name = "u1.c",
       .kind = CollectiveKind::reduce_scatter,
       .type = DType::bf16,
       .elements = 7,
       .forward = false,
       .axes = Axis::tensor,
       .overlaps = true},
      {.name = "u1.d", .type = DType::bf16, .elements = 8, .axes = Axis::tensor, .overlaps = true}};
  units[2].collectives = {
      {.name = "u2.a", .kind = CollectiveKind::all_to_all, .type = DType::bf16, .elements = 5, .axes = Axis::tensor},
      {.name = "u2.b",
       .kind = CollectiveKind::reduce_scatter,
       .type = DType::bf16,
       .elements = 8,
       .backward = false,
       .axes = Axis::tensor}};
  units[3].collectives = {{.name = "u3.a", .elements = 3, .axes = AxisSet::all() - Axis::tensor}};
  return {"sliced", std::move(units), Program::chain(4)};
}

// All of three and four axes, in several orders, some of one rank.
inline const std::vector<MeshShape>& further_meshes() {
  static const std::vector<MeshShape> meshes = {
      {{Axis::replicate, 2}, {Axis::shard, 3}, {Axis::tensor, 2}},
      {{Axis::replicate, 2}, {Axis::expert, 1}, {Axis::shard, 2}, {Axis::tensor, 1}},
      {{Axis::replicate, 3}, {Axis::tensor, 2}, {Axis::shard, 2}},
      {{Axis::replicate, 2}, {Axis::context, 2}, {Axis::shard, 1}, {Axis::tensor, 3}},
      {{Axis::tensor, 4}}};
  return meshes;
}

// The optimizer sees some tensors whole. Units differ in what it brings for each element, so that there are three
// groups, of two units, one and one, and a unit of which it sees none stands between them.
inline Model whole_model() {
  Model model = chain_model(5);
  model.name = "whole tensors";
  const auto want = [&](std::size_t unit, std::size_t parameter, std::uint64_t cost) {
    model.units[unit].parameters[parameter].whole = WholeSpec{.workspace = Bytes(cost * 3), .cost = cost};
    model.units[unit].whole_type = DType::bf16;
  };
  want(0, 0, 100);
  want(0, 1, 7);
  want(2, 0, 60);
  want(2, 1, 60);
  want(3, 0, 5);
  want(4, 0, 900);
  model.units[3].whole_type = DType::fp32;
  model.units[3].whole_planes = 2;
  model.units[4].whole_type = DType::fp16;
  return model;
}

inline std::vector<Model> all_models() {
  return {chain_model(1), chain_model(2),      chain_model(3),        chain_model(5),     chain_model(8),
          tied_model(),   recompute_model(),   no_evaluation_model(), empty_unit_model(), adversarial_model(),
          nested_model(), recomputing_model(), collecting_model(),    experts_model(),    whole_model()};
}

// Units in programs that all go through the whole chain, each of which trains some of it.
inline Model chain_of_programs(std::size_t units, std::size_t programs) {
  Model model{fmt::format("chain of {} in {} programs", units, programs), odd_units(units), {}};
  for (std::size_t index = 0; index < programs; ++index) {
    Program program = Program::chain(units);
    program.name = fmt::format("program {}", index);
    program.trains.emplace();
    for (std::size_t unit = index; unit < units; unit += programs) program.trains->push_back(unit);
    (index == 0 ? model.program : model.further.emplace_back()) = std::move(program);
  }
  return model;
}

inline CompileInput input_of(const Model& model, const PlanOptions& options) {
  std::vector<Program> programs = {model.program};
  programs.insert(programs.end(), model.further.begin(), model.further.end());
  return {model.units, std::move(programs), options, {"m", "v"}};
}

inline Plan compile(const Model& model, const PlanOptions& options) { return compile(input_of(model, options)); }

// The error that the input is refused with; empty where it is not.
inline std::string refusal(const Model& model, const PlanOptions& options = {}) {
  return usage_error([&] { compile(model, options); });
}

inline std::string describe(const PlanOptions& options) {
  const std::string cap = options.bucket_cap ? fmt::format("{}", options.bucket_cap->count()) : "default";
  return fmt::format(
      "{} {} ranks {} mesh {} outer {}/{} micro-batches {} granules {} {} prefetch {} reshard {} overlap {} bucket {}",
      to_string(options.strategy), to_string(options.precision.parameter), options.ranks, mesh_of(options).text(),
      options.outer_every, options.outer_fragments, options.micro_batches, options.granules,
      to_string(options.accumulation), options.prefetch, to_string(options.reshard_after_forward),
      options.overlap_reduction, cap);
}

}  // namespace tessera::plan
