// Masters in the order of units; then the optimizer's states, one after the other; then untrained state. With outer
// steps the masters are those that replicas had in common last, and the states those of each replica in turn.
#include "checkpoint/file_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/manifest.hpp"
#include "tessera/checkpoint/state.hpp"

namespace tessera::checkpoint {

namespace {

using Kind = TensorSource::Kind;
using Metadata = std::map<std::string, std::string>;

LaidTensor tensor(TensorSource source, std::string name, const Shape& shape, DType type = DType::fp32) {
  return {.source = source,
          .spec = {.name = std::move(name), .shape = shape, .dtype = type},
          .elements = element_count(shape)};
}

// One tensor of a unit, or that of each replica that has such a unit of its own: the unit's, replica after replica.
void for_each_replica(const plan::Plan& plan, std::size_t unit,
                      const std::function<void(std::optional<std::size_t> replica)>& visit) {
  if (plan.units[unit].apart.empty()) return visit(std::nullopt);
  for (std::size_t replica = 0; replica < plan.variants(unit); ++replica) visit(replica);
}

std::string stored_name_of(const plan::UnitSpec& unit, const std::string& tensor, std::optional<std::size_t> replica) {
  return replica ? plan::name_of_variant(unit, tensor, *replica) : tensor;
}

void for_each_unit(const Plans& plans, const std::function<void(std::size_t role, std::size_t unit)>& visit) {
  for (std::size_t role = 0; role < plans.size(); ++role) {
    for (std::size_t unit = 0; unit < plans[role]->units.size(); ++unit) visit(role, unit);
  }
}

std::vector<LaidTensor> masters(const Plans& plans) {
  std::vector<LaidTensor> result;
  for_each_unit(plans, [&](std::size_t role, std::size_t unit) {
    const plan::Plan& plan = *plans[role];
    const plan::UnitSpec& spec = plan.units[unit];
    for_each_replica(plan, unit, [&](std::optional<std::size_t> replica) {
      for (std::size_t p = 0; p < spec.parameters.size(); ++p) {
        const plan::ParameterSpec& parameter = spec.parameters[p];
        if (parameter.slice && replica > 0u) continue;
        const auto whose = parameter.slice ? std::nullopt : replica;
        result.push_back(tensor({.kind = Kind::master, .unit = unit, .place = p, .replica = whose, .role = role},
                                stored_name_of(spec, parameter.name, whose),
                                plan::whole_shape(parameter.shape, parameter.slice), plan.precision(unit).masters));
      }
    });
  });
  return result;
}

bool is_frozen(const Plans& plans, const LaidTensor& master) {
  return plan_of(plans, master.source).units[master.source.unit].parameters[master.source.place].frozen;
}

// Adds for each trained parameter one tensor like `source`: `prefix/parameter`.
void add_trained(std::vector<LaidTensor>& to, const Plans& plans, const std::string& prefix,
                 const TensorSource& source) {
  for (const LaidTensor& master : masters(plans)) {
    if (is_frozen(plans, master)) continue;
    TensorSource of_parameter = source;
    of_parameter.role = master.source.role;
    of_parameter.unit = master.source.unit;
    of_parameter.place = master.source.place;
    to.push_back(tensor(of_parameter, state_tensor_name(prefix, master.spec.name), master.spec.shape));
  }
}

TensorSource any_parameter(Kind kind) { return {.kind = kind, .unit = 0, .place = 0}; }

// A state with a value for each element has the parameter's shape; blocks have no shape but their number.
Shape stored_shape(const plan::StateSpec& state, const Shape& parameter) {
  if (state.block == 1) return parameter;
  return {plan::values_of(element_count(parameter), state.block)};
}

// Larger elements stand first, so that none crosses the end of one of the checkpoint's blocks, which are multiples of
// them.
void align(std::vector<LaidTensor>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const LaidTensor& a, const LaidTensor& b) { return a.size_of(1) > b.size_of(1); });
}

// Each once, in the order of roles.
std::vector<std::string> state_names(const Plans& plans, std::size_t program) {
  std::vector<std::string> names;
  for (const plan::Plan* plan : plans) {
    for (const std::string& state : plan->trained_states(program)) {
      if (std::find(names.begin(), names.end(), state) == names.end()) names.push_back(state);
    }
  }
  return names;
}

// The optimizers', of all replicas or of one.
void add_states(std::vector<LaidTensor>& to, const Plans& plans, const std::string& prefix,
                std::optional<std::size_t> replica) {
  TensorSource source = any_parameter(Kind::state);
  source.replica = replica;
  for (std::size_t program = 0; program < plans.front()->programs.size(); ++program) {
    for (const std::string& name : state_names(plans, program)) {
      for (const LaidTensor& master : masters(plans)) {
        const plan::Plan& plan = plan_of(plans, master.source);
        if (is_frozen(plans, master) || !plan.trains(master.source.unit, program)) continue;
        const std::vector<plan::StateSpec>& states = plan.unit_states(master.source.unit);
        const auto found = std::find_if(states.begin(), states.end(),
                                        [&](const plan::StateSpec& state) { return state.name == name; });
        if (found == states.end() || !plan.has_value(master.source.unit, master.source.place, *found)) continue;
        source.role = master.source.role;
        source.unit = master.source.unit;
        source.place = master.source.place;
        if (!replica) source.replica = master.source.replica;
        source.state = static_cast<std::size_t>(found - states.begin());
        source.block = found->block;
        to.push_back(tensor(source, state_tensor_name(prefix + name, master.spec.name),
                            stored_shape(*found, master.spec.shape), found->type));
      }
    }
  }
}

// Between outer steps each replica has masters of its own, which are states of how the common ones move.
std::vector<LaidTensor> states_of_replicas(const Plans& plans) {
  std::vector<LaidTensor> result;
  add_trained(result, plans, "outer_momentum", any_parameter(Kind::outer_momentum));
  const plan::Plan& any = *plans.front();
  for (std::size_t replica = 0; replica < any.mesh.size(any.diverging()); ++replica) {
    const std::string prefix = fmt::format("replica.{}/", replica);
    TensorSource source = any_parameter(Kind::masters_apart);
    source.replica = replica;
    add_trained(result, plans, prefix + "master", source);
    add_states(result, plans, prefix, replica);
  }
  return result;
}

// Returns the masters that replicas which train apart had in common last, and those that never change.
std::vector<LaidTensor> common_masters(const Plans& plans) {
  std::vector<LaidTensor> result = masters(plans);
  for (LaidTensor& master : result) {
    if (!is_frozen(plans, master)) master.source.kind = Kind::anchor;
  }
  return result;
}

std::vector<LaidTensor> untrained(const Plans& plans) {
  std::vector<LaidTensor> result;
  for_each_unit(plans, [&](std::size_t role, std::size_t unit) {
    const plan::UnitSpec& spec = plans[role]->units[unit];
    for_each_replica(*plans[role], unit, [&](std::optional<std::size_t> replica) {
      for (std::size_t b = 0; b < spec.buffers.size(); ++b) {
        const plan::BufferSpec& buffer = spec.buffers[b];
        result.push_back(tensor({.kind = Kind::buffer, .unit = unit, .place = b, .replica = replica, .role = role},
                                stored_name_of(spec, buffer.name, replica), buffer.shape));
      }
    });
  });
  return result;
}

// Gives the tensors their places behind the header that names them.
LaidFile lay_out_file(std::string name, std::vector<LaidTensor> tensors, const Metadata& metadata) {
  std::vector<StoredTensor> stored;
  Bytes end;
  for (const LaidTensor& tensor : tensors) {
    const Bytes size(tensor.size_of(tensor.elements));
    stored.push_back({.name = tensor.spec.name,
                      .dtype = std::string(stored_name(tensor.spec.dtype)),
                      .shape = tensor.spec.shape,
                      .offset = end,
                      .size = size});
    end += size;
  }
  const std::string header = compose_header(stored, metadata);
  const std::uint64_t length = header.size();
  LaidFile file{
      .name = std::move(name), .head = std::string(length_field, '\0') + header, .tensors = std::move(tensors)};
  std::memcpy(file.head.data(), &length, length_field);
  for (std::size_t i = 0; i < stored.size(); ++i) file.tensors[i].begin = file.head.size() + stored[i].offset.count();
  return file;
}

std::vector<std::vector<LaidTensor>> split(std::vector<LaidTensor> tensors, Bytes limit) {
  std::vector<Bytes> sizes;
  for (const LaidTensor& tensor : tensors) sizes.emplace_back(tensor.size_of(tensor.elements));
  const std::vector<std::size_t> firsts = split_tensors(sizes, limit);
  std::vector<std::vector<LaidTensor>> parts(firsts.size());
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const std::size_t last = part + 1 < firsts.size() ? firsts[part + 1] : tensors.size();
    for (std::size_t t = firsts[part]; t < last; ++t) parts[part].push_back(std::move(tensors[t]));
  }
  return parts;
}

TextFile index_of(const std::string& stem, const std::vector<LaidFile>& files) {
  TensorIndex index;
  for (const LaidFile& file : files) {
    for (const LaidTensor& tensor : file.tensors) {
      index.files[tensor.spec.name] = file.name;
      index.total_size += Bytes(tensor.size_of(tensor.elements));
    }
  }
  return {.name = tensor_index_name(stem), .text = compose(index)};
}

struct Part {
  std::string stem;  // "model"
  std::vector<LaidTensor> tensors;
  Metadata metadata;
};

void add(CheckpointFiles& files, Part part, Bytes limit) {
  std::vector<std::vector<LaidTensor>> groups = split(std::move(part.tensors), limit);
  if (groups.size() == 1) {
    files.tensors.push_back(lay_out_file(tensor_file_name(part.stem), std::move(groups.front()), part.metadata));
    return;
  }
  std::vector<LaidFile> laid;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    laid.push_back(lay_out_file(tensor_file_name(part.stem, i, groups.size()), std::move(groups[i]), part.metadata));
  }
  files.indices.push_back(index_of(part.stem, laid));
  std::move(laid.begin(), laid.end(), std::back_inserter(files.tensors));
}

// The metadata of the model's files: what Python's readers expect of weights, the user's, and the names of tied
// parameters.
Metadata model_metadata(const std::vector<LaidTensor>& masters, const Metadata& aliases, Metadata metadata) {
  metadata["format"] = "pt";
  const auto stored = [&](const std::string& name) {
    return std::any_of(masters.begin(), masters.end(), [&](const LaidTensor& t) { return t.spec.name == name; });
  };
  for (const auto& [alias, name] : aliases) {
    if (!stored(name)) throw UsageError(fmt::format("alias {}: the model has no parameter {}", alias, name));
    if (stored(alias) || metadata.contains(alias)) {
      throw UsageError(fmt::format("alias {} of {}: the name is taken", alias, name));
    }
    metadata[alias] = name;
  }
  return metadata;
}

// Otherwise a save would find it when all is written.
void require_readable_manifest(const CheckpointFiles& files) {
  std::uint64_t blocks = block_count(state_limit), bytes = 0;
  for (const LaidFile& file : files.tensors) {
    blocks += block_count(Bytes(file.size()));
    bytes += file.size();
  }
  for (const TextFile& index : files.indices) blocks += block_count(Bytes(index.text.size()));
  const Bytes size = longest_manifest(files.tensors.size() + files.indices.size() + 1, blocks);
  if (size <= manifest_limit) return;
  throw UsageError(
      fmt::format("a checkpoint of this model would have {} bytes in {} blocks, whose checksums make a manifest of up "
                  "to {} bytes, and no "
                  "reader takes more than {}: the format ends here; dump_weights() writes weights alone",
                  bytes, blocks, size.count(), manifest_limit.count()));
}

std::vector<LaidTensor> of_model(const Plans& plans, bool apart) {
  return apart ? common_masters(plans) : masters(plans);
}

std::vector<LaidTensor> of_optimizers(const Plans& plans, bool apart) {
  if (apart) return states_of_replicas(plans);
  std::vector<LaidTensor> states;
  add_states(states, plans, "", std::nullopt);
  return states;
}

std::vector<LaidTensor> stored_once(std::vector<LaidTensor> tensors, const Plans& plans) {
  std::erase_if(tensors,
                [&](const LaidTensor& tensor) { return plan_of(plans, tensor.source).units[tensor.source.unit].tied; });
  align(tensors);
  return tensors;
}

std::string state_names(const Plans& plans) {
  std::vector<std::string> names;
  for (std::size_t program = 0; program < plans.front()->programs.size(); ++program) {
    for (std::string& state : state_names(plans, program)) {
      if (std::find(names.begin(), names.end(), state) == names.end()) names.push_back(std::move(state));
    }
  }
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

std::string state_tensor_name(const std::string& state, const std::string& parameter) {
  return state + "/" + parameter;
}

std::vector<LaidTensor> tensors_of(const Plans& plans, bool apart) {
  std::vector<LaidTensor> result = of_model(plans, apart);
  std::ranges::move(of_optimizers(plans, apart), std::back_inserter(result));
  std::ranges::move(untrained(plans), std::back_inserter(result));
  return result;
}

CheckpointFiles lay_out(const Plans& plans, const LayoutOptions& options) {
  CheckpointFiles files;
  const bool apart = plans.front()->diverges();
  std::vector<LaidTensor> weights = stored_once(of_model(plans, apart), plans);
  const Metadata metadata = model_metadata(weights, options.aliases, options.metadata);
  add(files, {.stem = "model", .tensors = std::move(weights), .metadata = metadata}, options.split);
  add(files,
      {.stem = "optimizer",
       .tensors = stored_once(of_optimizers(plans, apart), plans),
       .metadata = {{"states", state_names(plans)}}},
      options.split);
  std::vector<LaidTensor> buffers = stored_once(untrained(plans), plans);
  if (!buffers.empty()) {
    add(files, {.stem = "buffers", .tensors = std::move(buffers), .metadata = {{"format", "pt"}}}, options.split);
  }
  require_readable_manifest(files);
  return files;
}

}  // namespace tessera::checkpoint
