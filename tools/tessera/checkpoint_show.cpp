// `tessera checkpoint show`: a checkpoint's state and tensors.
#include <fmt/format.h>

#include <filesystem>

#include "checkpoint_command.hpp"
#include "options.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "text.hpp"

namespace tools {

using tessera::CheckpointReader;
using tessera::CheckpointState;
using tessera::CheckpointTensor;
using tessera::TensorKind;

namespace {

tessera::Bytes bytes_of(const std::vector<CheckpointTensor>& tensors) {
  tessera::Bytes total;
  for (const CheckpointTensor& tensor : tensors) total += tensor.size;
  return total;
}

// A run has these counts, and each of its replicas and programs.
template <typename Counts>
std::string text_of_counts(const Counts& counts) {
  return fmt::format("{}, {} skipped; loss scale {:g}, {} since it changed",
                     counted(counts.updates, "update", "updates"), grouped(counts.skipped_updates), counts.loss_scale,
                     counted(static_cast<std::uint64_t>(counts.good_steps), "update", "updates"));
}

std::string text_of(const CheckpointState& state) {
  std::string text = fmt::format("step {}: {}\n", state.step, text_of_counts(state));
  for (std::size_t replica = 0; replica < state.replicas.size(); ++replica) {
    text += fmt::format("replica {}, which trains apart: {}\n", replica, text_of_counts(state.replicas[replica]));
  }
  for (const tessera::ProgramCounts& program : state.programs) {
    text += fmt::format("program {}: {}\n", printable(program.program), text_of_counts(program));
  }
  if (state.sampler) {
    text += fmt::format("samples: {} of {} in epoch {}, seed {}\n", grouped(state.sampler->position),
                        grouped(state.sampler->samples), state.sampler->epoch, state.sampler->seed);
  }
  for (const auto& [name, value] : state.values) text += fmt::format("{}: {}\n", printable(name), printable(value));
  return text;
}

std::string text_of(const CheckpointReader& reader, TensorKind kind) {
  const std::vector<CheckpointTensor>& tensors = reader.tensors(kind);
  if (tensors.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (const CheckpointTensor& tensor : tensors) {
    rows.push_back(
        {printable(tensor.name), tessera::to_string(tensor.shape), tensor.dtype, grouped(tensor.size.count())});
  }
  return fmt::format("\n{}: {}, {}\n{}", to_string(kind), counted(tensors.size(), "tensor", "tensors"),
                     decimal_size(static_cast<double>(bytes_of(tensors).count())), table(rows));
}

std::string text_of(const CheckpointReader& reader) {
  std::string text = fmt::format("{}: {} in {}\n{}", reader.folder().string(),
                                 decimal_size(static_cast<double>(total_bytes(reader.manifest()).count())),
                                 counted(reader.manifest().files.size(), "file", "files"), text_of(reader.state()));
  for (const TensorKind kind : tessera::tensor_kinds) text += text_of(reader, kind);
  if (!reader.aliases().empty()) text += "\naliases\n";
  for (const auto& [alias, stored] : reader.aliases())
    text += fmt::format("{} is {}\n", printable(alias), printable(stored));
  return text;
}

Json json_of(const std::map<std::string, std::string>& texts) {
  Json object = Json::object();
  for (const auto& [name, text] : texts) object[name] = text;
  return object;
}

template <typename Counts>
Json with_counts(Json object, const Counts& counts) {
  object["updates"] = counts.updates;
  object["skipped_updates"] = counts.skipped_updates;
  object["loss_scale"] = counts.loss_scale;
  object["good_steps"] = counts.good_steps;
  object["decay_power"] = {counts.decay_power[0], counts.decay_power[1]};
  return object;
}

Json json_of(const CheckpointState& state) {
  Json object = with_counts({{"step", state.step}}, state);
  object["values"] = json_of(state.values);
  for (const tessera::StepCounts& replica : state.replicas) object["replicas"].push_back(with_counts({}, replica));
  for (const tessera::ProgramCounts& program : state.programs)
    object["programs"].push_back(with_counts({{"name", program.program}}, program));
  if (state.sampler) {
    object["sampler"] = {{"samples", state.sampler->samples},
                         {"seed", state.sampler->seed},
                         {"epoch", state.sampler->epoch},
                         {"position", state.sampler->position}};
  }
  return object;
}

Json json_of(const CheckpointReader& reader) {
  Json files = Json::array();
  for (const auto& file : reader.manifest().files) files.push_back({{"name", file.name}, {"bytes", file.size.count()}});
  Json object = {{"checkpoint", reader.folder().string()}, {"state", json_of(reader.state())}, {"files", files}};
  for (const TensorKind kind : tessera::tensor_kinds) {
    Json tensors = Json::array();
    for (const CheckpointTensor& tensor : reader.tensors(kind)) {
      tensors.push_back({{"name", tensor.name},
                         {"shape", tensor.shape},
                         {"dtype", tensor.dtype},
                         {"bytes", tensor.size.count()},
                         {"file", reader.manifest().files[tensor.file].name}});
    }
    object[std::string(to_string(kind))] = std::move(tensors);
  }
  object["aliases"] = json_of(reader.aliases());
  return object;
}

}  // namespace

bool run_checkpoint_show(std::vector<std::string> arguments) {
  std::filesystem::path path;
  bool json = false;
  CommandLine options("A checkpoint's state, tensors, shapes, dtypes and bytes.",
                      "Example: tessera checkpoint show runs/step-00000100", "tessera checkpoint show");
  options.place("CHECKPOINT", path, "The checkpoint, or a folder of them for the latest");
  options.flag("--json", json, "Prints JSON");
  if (!options.parse(std::move(arguments))) return true;
  const CheckpointReader reader(tessera::find_checkpoint(path));
  fmt::print("{}", json ? object_text(json_of(reader)) : text_of(reader));
  return true;
}

}  // namespace tools
