// Checks the input, then: layout, buffers, operations, waits.
#include "tessera/plan/compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <string_view>

#include "plan/passes.hpp"
#include "tessera/base/error.hpp"

namespace tessera::plan {

namespace {

void check_prefix(const UnitSpec& unit, const std::string& tensor) {
  if (unit.apart.empty() || tensor.starts_with(unit.prefix)) return;
  throw UsageError(fmt::format("unit {} is apart along {}, and the name \"{}\" does not begin with its prefix \"{}\"",
                               unit.name, to_string(unit.apart), tensor, unit.prefix));
}

void check_names(const std::vector<UnitSpec>& units, const MeshShape& mesh) {
  std::set<std::string_view> unit_names;
  std::set<std::string> tensor_names;
  const auto take = [&](const std::string& name, const char* text) {
    if (!tensor_names.insert(name).second) throw UsageError(fmt::format(fmt::runtime(text), name));
  };
  const auto check = [&](const UnitSpec& unit, const std::string& tensor, const char* text) {
    check_prefix(unit, tensor);
    for (std::size_t variant = 0; variant < mesh.size(unit.apart); ++variant)
      take(name_of_variant(unit, tensor, variant), text);
  };
  for (const UnitSpec& unit : units) {
    if (!unit_names.insert(unit.name).second) {
      throw UsageError(fmt::format("two units have the name \"{}\": give each its own", unit.name));
    }
    for (const ParameterSpec& parameter : unit.parameters) {
      const char* const text = "two parameters have the name \"{}\": give each its own";
      parameter.slice ? take(parameter.name, text) : check(unit, parameter.name, text);
    }
    for (const BufferSpec& buffer : unit.buffers) {
      check(unit, buffer.name, "two tensors have the name \"{}\": give each its own");
    }
    for (const CollectiveSpec& each : unit.collectives) {
      check(unit, each.name, "a collective has the name \"{}\", as another or a tensor has: give each its own");
    }
  }
}

// pieces() knows a unit's other values by these.
constexpr std::string_view names_of_ours[] = {"master", "gradient", "anchor", "outer momentum", ""};

constexpr std::size_t most_of_block = std::size_t{1} << 16;

void check_state(const StateSpec& state) {
  if (state.type != DType::fp32 && state.type != DType::u8) {
    throw UsageError(fmt::format("the state \"{}\" of an optimizer is of {}: states are fp32 or u8", state.name,
                                 to_string(state.type)));
  }
  if (std::has_single_bit(state.block) && state.block <= most_of_block) return;
  throw UsageError(
      fmt::format("the state \"{}\" of an optimizer has blocks of {} elements: choose a power of two, {} at most",
                  state.name, state.block, most_of_block));
}

void check_states(const std::vector<StateSpec>& states) {
  std::set<std::string_view> names;
  for (const StateSpec& state : states) {
    const std::string& name = state.name;
    check_state(state);
    if (std::find(std::begin(names_of_ours), std::end(names_of_ours), name) != std::end(names_of_ours)) {
      throw UsageError(
          fmt::format("a state of an optimizer has the name \"{}\", by which nobody could ask for it: give "
                      "it another in Optimizer::states()",
                      name));
    }
    if (!names.insert(name).second) {
      throw UsageError(fmt::format("two states of an optimizer have the name \"{}\": give each its own", name));
    }
  }
}

void check_states(const CompileInput& input) {
  check_states(input.optimizer_states);
  for (const Program& program : input.programs) {
    if (program.optimizer_states) check_states(*program.optimizer_states);
  }
  for (const UnitSpec& unit : input.units) {
    if (unit.optimizer_states) check_states(*unit.optimizer_states);
  }
}

// Far above any machine, and low enough that no product of sizes overflows.
constexpr std::size_t most_ranks = std::size_t{1} << 20;
constexpr std::size_t most_micro_batches = std::size_t{1} << 20;
constexpr std::size_t most_elements = std::size_t{1} << 48;
constexpr std::size_t most_collected = std::size_t{1} << 28;  // elements, of a rank

void check_collective(const CollectiveSpec& collective, const MeshShape& mesh) {
  const std::size_t parts =
      collective.kind == CollectiveKind::all_to_all ? mesh.size(collective.axes.value_or(AxisSet::all())) : 1;
  if (collective.elements == 0 || collective.elements > most_collected / parts) {
    throw UsageError(fmt::format("{} \"{}\" is of {} elements: choose 1 to {}", to_string(collective.kind),
                                 collective.name, collective.elements, most_collected / parts));
  }
  if (collective.type == DType::u8 || collective.type == DType::int8) {
    throw UsageError(fmt::format("{} \"{}\" is of {}, and windows compute with fp32, bf16 and fp16: say one of these",
                                 to_string(collective.kind), collective.name, to_string(*collective.type)));
  }
  if (!sums(collective.kind) || collective.type) return;
  throw UsageError(fmt::format("{} \"{}\" is of fp64, and sums are formed in fp32: say another type, or gather it",
                               to_string(collective.kind), collective.name));
}

void check_precisions(const CompileInput& input) {
  const auto check_masters = [&](const Precision& types, const std::string& of) {
    if (types.masters == DType::fp32) return;
    if (types.masters != DType::bf16 || types.parameter != DType::bf16) {
      throw UsageError(
          fmt::format("masters of {} are {}, and its parameters {}: masters are fp32, or bf16 where parameters are", of,
                      to_string(types.masters), to_string(types.parameter)));
    }
    if (types.encodes()) {
      throw UsageError(
          fmt::format("masters of {} are bf16, and its parameters are to travel in {}: windows read such masters "
                      "themselves: leave one of the two out",
                      of, to_string(types.gathered())));
    }
    if (input.options.outer_every == 0) return;
    throw UsageError(
        fmt::format("masters of {} are bf16, which does not go with outer steps: those form means of masters in fp32: "
                    "leave masters fp32, or set outer.every to 0",
                    of));
  };
  const auto computes = [](DType type) { return type != DType::u8 && type != DType::int8; };
  const auto check = [&](const Precision& types, const std::string& of) {
    check_masters(types, of);
    for (const DType type : {types.parameter, types.gradient}) {
      if (computes(type)) continue;
      throw UsageError(fmt::format("{} is to compute with {}: choose fp32, bf16 or fp16", of, to_string(type)));
    }
    if (types.wire == DType::u8 || types.gather == DType::u8)
      throw UsageError(
          fmt::format("values of {} are to travel in u8, which states of optimizers are of: choose int8", of));
    if (types.wire == DType::int8 && input.options.collective_staging == CollectiveStaging::results)
      throw UsageError(
          fmt::format("gradients of {} are to travel in int8, which NCCL's own sums cannot add: choose "
                      "SumChoice::ranked (--sums ranked), or another wire",
                      of));
    if (!types.encodes() || bytes_of(types.gathered(), 256) < bytes_of(types.parameter, 256)) return;
    throw UsageError(fmt::format(
        "parameters of {} are to travel in {}, and are {}, which is no larger: leave the type out, or choose int8", of,
        to_string(types.gathered()), to_string(types.parameter)));
  };
  check(input.options.precision, "the model");
  for (const UnitSpec& unit : input.units) {
    if (unit.precision) check(*unit.precision, fmt::format("unit {}", unit.name));
  }
}

void check_micro_batches(const CompileInput& input) {
  const auto check = [](std::size_t count, const std::string& of) {
    if (count > 0 && count <= most_micro_batches) return;
    throw UsageError(fmt::format("micro_batches{} is {}: choose 1 to {}", of, count, most_micro_batches));
  };
  check(input.options.micro_batches, "");
  for (const Program& program : input.programs) {
    if (program.micro_batches) check(*program.micro_batches, fmt::format(" of program \"{}\"", program.name));
  }
}

// Granules promise the same bits on any number of ranks: refuses what does not have them.
void check_granules(const CompileInput& input) {
  const PlanOptions& options = input.options;
  if (options.granules == 0) return;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("granules is {}: {}", options.granules, why));
  };
  const MeshShape mesh = mesh_of(options);
  if (options.granules > most_micro_batches) refuse(fmt::format("choose 1 to {}", most_micro_batches));
  if (options.micro_batches != 1)
    refuse(
        fmt::format("micro_batches is {}, and follows from granules and ranks: leave it at 1", options.micro_batches));
  if (options.accumulation == AccumulationMode::local)
    refuse("mode local adds up on each rank first, in an order that depends on ranks: choose automatic or reduced");
  if (options.collective_staging == CollectiveStaging::results)
    refuse("NCCL forms sums in an order of its own: choose SumChoice::ranked (--sums ranked)");
  if (options.outer_every > 0) refuse("replicas that train by themselves differ by their number: set outer.every to 0");
  if (options.role) refuse("ranks have other roles along pipeline, and granules are of ranks that do the same work");
  if (mesh.size(same_samples) > 1)
    refuse(fmt::format("ranks of the mesh {} work on the same samples along {}: have one rank along it", mesh.text(),
                       to_string(same_samples)));
  for (const Program& program : input.programs) {
    const std::size_t granules = program.micro_batches.value_or(options.granules);
    if (mesh.size() > granules)
      refuse(fmt::format("a step{} has {} granules, too few for {} ranks: choose as many or more",
                         program.micro_batches ? fmt::format(" of program \"{}\"", program.name) : "", granules,
                         mesh.size()));
  }
  for (const UnitSpec& unit : input.units) {
    if (!unit.apart.empty())
      refuse(fmt::format("unit {} has other values along {}, and so depends on the number of ranks", unit.name,
                         to_string(unit.apart)));
    for (const CollectiveSpec& each : unit.collectives) {
      if (each.of_granules && each.kind == CollectiveKind::all_gather && !each.axes) continue;
      refuse(
          fmt::format("unit {} brings {} together over ranks inside its window, so that it depends on their number: "
                      "let it work on each granule by itself",
                      unit.name, each.name));
    }
  }
}

void check_sizes(const CompileInput& input) {
  const PlanOptions& options = input.options;
  if (options.ranks == 0) throw UsageError("a plan needs at least one rank");
  const std::size_t roles = options.mesh ? options.mesh->size(Axis::pipeline) : 1;
  if (options.role && (!options.mesh || *options.role >= roles)) {
    throw UsageError(fmt::format("role {} of a mesh of {} roles: they are the places along its axis pipeline",
                                 *options.role, roles));
  }
  if (options.replicas == 0 || options.ranks % options.replicas != 0) {
    throw UsageError(fmt::format("replicas is {}, which does not divide the {} ranks: choose a divisor",
                                 options.replicas, options.ranks));
  }
  std::size_t ranks = 1;
  mesh_of(options).inwards_out([&](Axis axis) {
    const std::size_t size = mesh_of(options).size(axis);
    ranks = size > most_ranks / ranks ? most_ranks + 1 : ranks * size;
    if (ranks > most_ranks)
      throw UsageError(fmt::format("{} ranks: a plan is for at most {}",
                                   options.mesh ? mesh_of(options).text() : std::to_string(options.ranks), most_ranks));
  });
  check_precisions(input);
  check_micro_batches(input);
  check_granules(input);
  std::size_t elements = 0;
  const auto add = [&](const char* what, const std::string& name, const Shape& shape) {
    const std::size_t count = element_count(shape);
    if (count > most_elements - elements) {
      throw UsageError(fmt::format("{} \"{}\" of shape {} brings the model above {} elements", what, name,
                                   tessera::to_string(shape), most_elements));
    }
    elements += count;
  };
  for (const UnitSpec& unit : input.units) {
    for (const ParameterSpec& parameter : unit.parameters) add("parameter", parameter.name, parameter.shape);
    for (const BufferSpec& buffer : unit.buffers) add("buffer", buffer.name, buffer.shape);
    for (const CollectiveSpec& each : unit.collectives) check_collective(each, mesh_of(input.options));
  }
  if (input.options.activations.count() > 4 * most_elements) {
    throw UsageError(
        fmt::format("activations of {} are more than any machine has", tessera::to_string(input.options.activations)));
  }
}

std::vector<std::size_t> norm_columns(const Plan& plan) {
  std::vector<std::size_t> next(plan.programs.size(), 0);
  std::vector<std::size_t> result;
  for (const std::size_t trainer : plan.trainers) result.push_back(trainer == no_program ? no_unit : next[trainer]++);
  return result;
}

std::vector<std::size_t> backward_windows(const Plan& plan) {
  std::vector<std::size_t> result(plan.units.size(), 0);
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    for (const WindowUse& use : plan.programs[program].micro_batch) {
      if (use.kind == WindowKind::backward && !use.resumes && plan.trains(use.unit, program)) ++result[use.unit];
    }
  }
  return result;
}

void check_outer_steps(const CompileInput& input, const std::vector<std::size_t>& trainers) {
  const PlanOptions& options = input.options;
  if (options.outer_every == 0) {
    if (options.outer_fragments == 1) return;
    throw UsageError(fmt::format("outer steps in {} fragments, but outer steps every 0 steps, which are none: set both",
                                 options.outer_fragments));
  }
  for (const UnitSpec& unit : input.units) {
    if (unit.optimizer_states)
      throw UsageError(fmt::format(
          "unit {} has an optimizer of its own, which does not go with outer steps: they are of one for all units",
          unit.name));
    if (unit.apart.empty()) continue;
    throw UsageError(
        fmt::format("unit {} has other values along {}, which does not go with outer steps: they bring the values of "
                    "all units together",
                    unit.name, to_string(unit.apart)));
  }
  if (mesh_of(options).size(outer_axes) == 1) {
    throw UsageError(
        fmt::format("outer steps every {} steps need several replicas, and replicas is 1", options.outer_every));
  }
  const Sharding sharding = sharding_of(options);
  if (sharding.parameters == sharding.gradients && !sharding.parameters.contains(outer_axes) &&
      sharding.optimizer.contains(outer_axes) && !sharding.parameters.empty()) {
    throw UsageError(
        fmt::format("outer steps every {} steps let replicas differ, and hfsdp divides the optimizer's states among "
                    "them: use hsdp",
                    options.outer_every));
  }
  if (input.programs.size() > 1) {
    throw UsageError(fmt::format("outer steps every {} steps count the steps of one program, and the model has {}",
                                 options.outer_every, input.programs.size()));
  }
  std::size_t units = 0;
  for (std::size_t unit = 0; unit < input.units.size(); ++unit) {
    const std::vector<ParameterSpec>& parameters = input.units[unit].parameters;
    units += trainers[unit] == 0 && std::any_of(parameters.begin(), parameters.end(), [](const ParameterSpec& each) {
               return !each.frozen && element_count(each.shape) > 0;
             });
  }
  if (options.outer_fragments >= 1 && options.outer_fragments <= std::min(options.outer_every, units)) return;
  throw UsageError(
      fmt::format("outer steps in {} fragments every {} steps of {} units that train: choose 1 to {} fragments",
                  options.outer_fragments, options.outer_every, units, std::min(options.outer_every, units)));
}

// Whether, of some axes, those over which something is sharded lie inside all others.
bool is_one_run(const MeshShape& mesh, AxisSet over, AxisSet axes) {
  bool ends = false, result = true;
  mesh.inwards_out([&](Axis axis) {
    if (!axes.contains(axis)) return;
    result = result && !(ends && over.contains(axis));
    ends = ends || !over.contains(axis);
  });
  return result;
}

// A rank that updates parameters keeps them and their gradients, and what it keeps is one run of shards.
void check_sharding(const PlanOptions& options) {
  const Sharding kept = sharding_of(options);
  const MeshShape mesh = mesh_of(options);
  if (!kept.optimizer.contains(kept.parameters) || !kept.optimizer.contains(kept.gradients)) {
    throw UsageError(
        fmt::format("sharding is {}: a rank updates what it keeps of the optimizer's states, so it must keep as much "
                    "of parameters and gradients, or more: shard them over no other axes",
                    tessera::to_string(options.sharding.value_or(kept))));
  }
  for (const AxisSet role : {kept.parameters, kept.gradients, kept.optimizer}) {
    if (is_one_run(mesh, role, mesh.axes())) continue;
    throw UsageError(
        fmt::format("sharding over {} of the mesh {}: what is sharded over an axis is sharded over those inside it, "
                    "too: name the axes in another order",
                    to_string(role), mesh.text()));
  }
}

// A rank keeps one run of shards between windows, too.
void check_resharding(const CompileInput& input) {
  const AxisSet parameters = sharding_of(input.options).parameters;
  const MeshShape mesh = mesh_of(input.options);
  for (const UnitSpec& unit : input.units) {
    const AxisSet held = unit.reshard_after_forward.value_or(input.options.reshard_after_forward).held;
    if (is_one_run(mesh, held, mesh.group(parameters - unit.apart))) continue;
    throw UsageError(
        fmt::format("unit {} is to be kept sharded over {} between forward and backward, and axes inside that in "
                    "the mesh {} are gathered: name the axes in another order",
                    unit.name, to_string(held), mesh.text()));
  }
}

constexpr std::size_t most_buffers = 4096;  // of a message

// A message is passed once, by ranks that have a role.
void check_message(const CompileInput& input, const UnitSpec& unit, WindowKind window) {
  for (const std::size_t index : collectives_in(unit, window)) {
    const CollectiveSpec& each = unit.collectives[index];
    if (!is_message(each.kind)) continue;
    const std::string what = fmt::format("unit {}: {} of {}", unit.name, to_string(each.kind), each.name);
    if (!input.options.role)
      throw UsageError(what + " is between roles of ranks, and this model has none: finalize_roles() gives them");
    if (each.axes && *each.axes != AxisSet(Axis::pipeline))
      throw UsageError(fmt::format("{} is over {}: messages go along pipeline", what, to_string(*each.axes)));
    if (window == WindowKind::recompute || unit.recompute)
      throw UsageError(what + " would come again where the window is computed again: give it a unit of its own");
    const bool has_others = std::any_of(unit.collectives.begin(), unit.collectives.end(),
                                        [](const CollectiveSpec& other) { return !is_message(other.kind); });
    if (has_others) throw UsageError(what + " stands beside other collectives: give it a unit of its own");
    if (each.overlaps) throw UsageError(what + " overlaps: messages travel beside windows in any case, leave it out");
    if (each.buffers == 0 || each.buffers > most_buffers)
      throw UsageError(fmt::format("{} has {} buffers: choose 1 to {}", what, each.buffers, most_buffers));
  }
}

// Where a window does its collectives and where others open inside it would have to be known to both.
void check_collectives(const CompileInput& input) {
  for (const Program& program : input.programs) {
    for (const auto* windows : {&program.micro_batch, &program.evaluation}) {
      for (const WindowUse& use : *windows) {
        if (use.unit >= input.units.size()) continue;
        const UnitSpec& unit = input.units[use.unit];
        check_message(input, unit, use.kind);
        if (use.kind == WindowKind::backward_input && unit.recompute)
          throw UsageError(
              fmt::format("unit {} recomputes, and its backward pass is in two windows: recompute by hand", unit.name));
        if (!use.resumes) continue;
        const std::vector<std::size_t> indices = collectives_in(unit, use.kind);
        if (indices.empty()) continue;
        throw UsageError(
            fmt::format("unit {}: windows of other units open inside its {} window, which has the collective {}: make "
                        "the layer that has it a unit of its own",
                        unit.name, to_string(use.kind), unit.collectives[indices.front()].name));
      }
    }
  }
}

// A slice of a matrix is another matrix, with other directions.
void check_whole(const CompileInput& input) {
  for (const UnitSpec& unit : input.units) {
    const bool any = std::any_of(unit.parameters.begin(), unit.parameters.end(),
                                 [](const ParameterSpec& each) { return each.whole.has_value(); });
    if (any && (unit.whole_planes == 0 || unit.whole_type == DType::u8)) {
      throw UsageError(
          fmt::format("unit {}: what its optimizer brings together of whole tensors is {} planes of {}: "
                      "choose 1 or more, of fp32, bf16 or fp16 (WholeTensors)",
                      unit.name, unit.whole_planes, to_string(unit.whole_type)));
    }
    const AxisSet slices = mesh_of(input.options).group(unit.apart & same_samples);
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!parameter.whole || parameter.frozen || slices.empty()) continue;
      throw UsageError(fmt::format(
          "{}: its optimizer wants to see it whole, and ranks along {} have slices of it: "
          "leave its name out of what the optimizer sees whole, or take one that sees no tensor whole (AdamW)",
          parameter.name, to_string(slices)));
    }
  }
}

std::string slice_fault(const UnitSpec& unit, const ParameterSpec& parameter, std::size_t slices) {
  if (unit.apart != AxisSet(Axis::tensor)) {
    return fmt::format("its unit is apart along {}: slices are of a unit that is apart along {} alone",
                       to_string(unit.apart), to_string(Axis::tensor));
  }
  if (parameter.is_alike()) return {};
  const auto& [dimension, extent, blocks] = *parameter.slice;
  if (*dimension >= parameter.shape.size()) {
    return fmt::format("it is cut along dimension {}, and its shape is {}", *dimension,
                       tessera::to_string(parameter.shape));
  }
  if (blocks == 0 || extent % blocks != 0) return fmt::format("{} blocks do not divide its {} rows", blocks, extent);
  const std::size_t rows = (extent / blocks + slices - 1) / slices * blocks;
  if (rows == parameter.shape[*dimension]) return {};
  return fmt::format("it has {} of {} rows, and each of {} ranks has {}: make the layer for so many ranks",
                     parameter.shape[*dimension], extent, slices, rows);
}

void check_slices(const CompileInput& input) {
  const std::size_t slices = mesh_of(input.options).size(Axis::tensor);
  for (const UnitSpec& unit : input.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::string fault = parameter.slice ? slice_fault(unit, parameter, slices) : std::string();
      if (!fault.empty()) throw UsageError(fmt::format("{} is a slice: {}", parameter.name, fault));
    }
  }
}

// A value that several elements share would be of several slices.
void check_states_of_slices(const Plan& plan) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (const ParameterSpec& parameter : plan.units[u].parameters) {
      if (!plan.trains(u) || !parameter.slice || parameter.is_alike()) continue;
      for (const StateSpec& state : plan.unit_states(u)) {
        if (state.block == 1) continue;
        throw UsageError(
            fmt::format("{} is a slice, and its optimizer has a \"{}\" for {} elements at once, which "
                        "slices would share: choose an optimizer with a value for each",
                        parameter.name, state.name, state.block));
      }
    }
  }
}

void check_tied(const CompileInput& input) {
  for (const UnitSpec& unit : input.units) {
    if (!unit.is_of_two_roles() || input.options.role) continue;
    throw UsageError(fmt::format(
        "unit {} is tied to one of another role, and this model has none: leave UnitOptions::tied out", unit.name));
  }
}

void check_input(const CompileInput& input) {
  if (input.units.empty()) throw UsageError("the model has no units: add at least one before finalize()");
  check_tied(input);
  check_sizes(input);
  check_sharding(input.options);
  check_resharding(input);
  check_slices(input);
  check_names(input.units, mesh_of(input.options));
  check_states(input);
  check_collectives(input);
  check_whole(input);
}

AccumulationMode resolve(const PlanOptions& options, const std::vector<Program>& programs) {
  if (options.granules > 0) return AccumulationMode::reduced;
  const bool adds_up = std::any_of(programs.begin(), programs.end(), [&](const Program& program) {
    return program.micro_batches.value_or(options.micro_batches) > 1;
  });
  if (!adds_up) return AccumulationMode::reduced;
  if (options.accumulation != AccumulationMode::automatic) return options.accumulation;
  return sums_stay_whole(options) ? AccumulationMode::local : AccumulationMode::reduced;
}

Bytes resolve_bucket_cap(const PlanOptions& options) {
  constexpr Bytes shared_synchronisations{1u << 20};
  const bool parameters_whole = sharding_of(options).parameters.empty();
  return options.bucket_cap.value_or(parameters_whole ? shared_synchronisations : Bytes(0));
}

std::vector<Program> recomputing(const CompileInput& input) {
  std::vector<bool> units;
  for (const UnitSpec& unit : input.units) units.push_back(unit.recompute);
  std::vector<Program> programs;
  for (const Program& program : input.programs) programs.push_back(plan::recomputing(program, units));
  return programs;
}

std::string_view place_in_words(MemorySpace space) {
  return space == MemorySpace::disk ? "on disk" : "in the host's memory";
}

void check_saved(const Plan& plan) {
  if (plan.options.offload.activations == MemorySpace::device) return;
  const bool any = std::any_of(plan.units.begin(), plan.units.end(),
                               [](const UnitSpec& unit) { return unit.saved_in == MemorySpace::host; });
  if (any) return;
  throw UsageError(
      "offload.activations is host, and no unit says what its forward window leaves to its backward one: add units "
      "with UnitOptions::saved, or leave activations on the device");
}

void check_updates(const Plan& plan) {
  const MemorySpace asked = plan.options.offload.update;
  if (plan.options.offload.ahead != Ahead::no && asked == MemorySpace::device) {
    throw UsageError(
        "offload.ahead is of updates by the host's processors, and offload.update is device: ask for host, or leave "
        "ahead out");
  }
  if (plan.options.offload.ahead == Ahead::final && plan.options.role) {
    throw UsageError(
        "offload.ahead is final, and ranks have roles: what a first step weighs is known behind its norm, and nothing "
        "could be taken back: take revocable");
  }
  if (asked == MemorySpace::device) return;
  if (asked == MemorySpace::disk) throw UsageError("offload.update is disk, where nothing computes: host, or device");
  const bool any = std::any_of(plan.units.begin(), plan.units.end(),
                               [](const UnitSpec& unit) { return unit.updates_in == MemorySpace::host; });
  if (any) return;
  throw UsageError(
      "offload.update is host, and no unit has both its masters and its optimizer's states in the host's memory: "
      "offload them there too (.optimizer and .masters = host), or leave the update on the device");
}

// A unit's own option goes first. The plan's leaves masters that windows read themselves where they are.
void resolve_spaces(Plan& plan) {
  const Offload& offload = plan.options.offload;
  bool moves_masters = false, sees_whole = false;
  for (std::size_t index = 0; index < plan.units.size(); ++index) {
    UnitSpec& unit = plan.units[index];
    const bool whole =
        plan.trains(index) && std::any_of(unit.parameters.begin(), unit.parameters.end(),
                                          [](const ParameterSpec& each) { return each.whole && !each.frozen; });
    sees_whole = sees_whole || whole;
    const bool asks = unit.masters_in.value_or(MemorySpace::device) != MemorySpace::device;
    if (asks && whole) {
      throw UsageError(fmt::format(
          "unit {} is to keep its masters {}, and its optimizer sees tensors of it whole, for which they have to be "
          "there twice in an update: leave its masters on the device",
          unit.name, place_in_words(*unit.masters_in)));
    }
    const Precision& types = plan.precision(index);
    const bool can = types.parameter != types.masters && !unit.parameters.empty() && !whole;
    if (asks && !can) {
      throw UsageError(fmt::format(
          "unit {} is to keep its masters {}, and its windows read them themselves, because its parameters are {}, "
          "too: "
          "train it with parameters of 16 bits and fp32 masters (bf16_mixed), or leave its masters on the device",
          unit.name, place_in_words(*unit.masters_in), to_string(types.masters)));
    }
    const bool moves = index < offload.units;
    unit.states_in = unit.states_in.value_or(moves ? offload.optimizer : MemorySpace::device);
    unit.masters_in = unit.masters_in.value_or(moves && can ? offload.masters : MemorySpace::device);
    moves_masters = moves_masters || unit.masters_in != MemorySpace::device;
    unit.saved_in = unit.saved_in.value_or(moves ? offload.activations : MemorySpace::device);
    if (unit.saved == Bytes(0)) unit.saved_in = MemorySpace::device;
    if (unit.saved_in == MemorySpace::disk) {
      throw UsageError(fmt::format(
          "what unit {} saves is to stand on disk: activations go to the host's memory (offload.activations, saved_in)",
          unit.name));
    }
    const bool stands_there =
        unit.masters_in == MemorySpace::host &&
        (!plan.trains(index) || plan.unit_states(index).empty() || unit.states_in == MemorySpace::host);
    if (stands_there) unit.updates_in = offload.update;
  }
  if (offload.units != Offload{}.units && offload.units > plan.units.size() && !plan.options.role) {
    throw UsageError(
        fmt::format("offload.units is {}, and the model has {}: say how many of these move (Offload::units, "
                    "--offload-units), or leave it out, and all do",
                    offload.units, plan.units.size()));
  }
  check_updates(plan);
  check_saved(plan);
  if (offload.masters == MemorySpace::device || offload.units == 0 || moves_masters) return;
  if (sees_whole) {
    throw UsageError(
        fmt::format("offload.masters is {}, and the optimizer sees tensors of these units whole, for which masters "
                    "stay on the device: move the optimizer's states alone",
                    to_string(offload.masters)));
  }
  throw UsageError(fmt::format(
      "offload.masters is {}, and windows read all masters themselves, because parameters are of their "
      "type: train with parameters of 16 bits and fp32 masters (bf16_mixed), or move the optimizer's states "
      "alone",
      to_string(offload.masters)));
}

// A block of elements that share a value is one rank's.
std::size_t alignment_of(const Plan& plan, std::size_t unit) {
  const Precision& types = plan.precision(unit);
  const std::size_t travelling = std::max(block_of(types.gathered()), block_of(types.wire));
  const std::size_t states = plan.trains(unit) ? alignment_for(plan.unit_states(unit)) : alignment_elements;
  return std::max(states, travelling);
}

}  // namespace

std::vector<Trainable> trainable_units(const std::vector<UnitSpec>& units) {
  std::vector<Trainable> result;
  for (const UnitSpec& unit : units) {
    const auto& parameters = unit.parameters;
    const bool trained = parameters.empty() || std::any_of(parameters.begin(), parameters.end(),
                                                           [](const ParameterSpec& spec) { return !spec.frozen; });
    result.push_back({.parameters = !parameters.empty(), .trained = trained, .name = unit.name});
  }
  return result;
}

Plan compile(const CompileInput& input) {
  check_input(input);
  const std::vector<Program> programs = recomputing(input);
  const std::vector<std::size_t> trained_by = trainers(programs, trainable_units(input.units));
  check_outer_steps(input, trained_by);
  Plan plan;
  plan.options = input.options;
  plan.mesh = mesh_of(input.options);
  plan.options.ranks = plan.mesh.size();
  plan.options.accumulation = resolve(input.options, programs);
  plan.options.bucket_cap = resolve_bucket_cap(input.options);
  plan.programs = programs;
  plan.units = input.units;
  plan.trainers = trained_by;
  plan.norm_columns = norm_columns(plan);
  for (std::size_t program = 0; program < programs.size(); ++program) {
    if (!plan.shares_norms() || plan.trained_units(program) <= input.options.role_units) continue;
    throw UsageError(fmt::format("role {} trains {} units, and every role has cells for {}", *input.options.role,
                                 plan.trained_units(program), input.options.role_units));
  }
  plan.backward_windows = backward_windows(plan);
  plan.optimizer_states = input.optimizer_states;
  check_states_of_slices(plan);
  resolve_spaces(plan);
  for (UnitSpec& unit : plan.units) {
    const std::size_t index = plan.layouts.size();
    plan.layouts.emplace_back(unit, plan.mesh, alignment_of(plan, index));
    for (CollectiveSpec& each : unit.collectives) {
      each.axes = is_message(each.kind) ? AxisSet(Axis::pipeline) : each.axes.value_or(AxisSet::all() - unit.apart);
    }
  }
  make_whole_groups(plan);
  make_buffers(plan);
  emit_segments(plan);
  derive_waits(plan);
  return plan;
}

}  // namespace tessera::plan
