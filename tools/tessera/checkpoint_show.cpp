// `tessera checkpoint show`: a checkpoint's state and tensors.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "checkpoint_command.hpp"
#include "options.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "text.hpp"

namespace tools {

using nlohmann::ordered_json;
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

std::string text_of(const tessera::StepCounts& counts) {
  return fmt::format("{}, {} skipped; loss scale {:g}, {} since it changed",
                     counted(counts.updates, "update", "updates"), grouped(counts.skipped_updates), counts.loss_scale,
                     counted(static_cast<std::uint64_t>(counts.good_steps), "update", "updates"));
}

std::string text_of(const CheckpointState& state) {
  std::string text =
      fmt::format("step {}: {}, {} skipped; loss scale {:g}, {} since it changed\n", state.step,
                  counted(state.updates, "update", "updates"), grouped(state.skipped_updates), state.loss_scale,
                  counted(static_cast<std::uint64_t>(state.good_steps), "update", "updates"));
  for (std::size_t replica = 0; replica < state.replicas.size(); ++replica) {
    text += fmt::format("replica {}, which trains apart: {}\n", replica, text_of(state.replicas[replica]));
  }
  for (const tessera::ProgramCounts& program : state.programs) {
    text += fmt::format("program {}: {}\n", printable(program.program), text_of(program));
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

ordered_json json_of(const tessera::StepCounts& counts) {
  return {{"updates", counts.updates},
          {"skipped_updates", counts.skipped_updates},
          {"loss_scale", counts.loss_scale},
          {"good_steps", counts.good_steps},
          {"decay_power", counts.decay_power}};
}

ordered_json json_of(const CheckpointState& state) {
  ordered_json object = {{"step", state.step},
                         {"updates", state.updates},
                         {"skipped_updates", state.skipped_updates},
                         {"loss_scale", state.loss_scale},
                         {"good_steps", state.good_steps},
                         {"decay_power", state.decay_power},
                         {"values", state.values}};
  for (const tessera::StepCounts& replica : state.replicas) object["replicas"].push_back(json_of(replica));
  for (const tessera::ProgramCounts& program : state.programs) {
    ordered_json counts = {{"name", program.program}};
    counts.update(json_of(static_cast<const tessera::StepCounts&>(program)));
    object["programs"].push_back(std::move(counts));
  }
  if (state.sampler) {
    object["sampler"] = {{"samples", state.sampler->samples},
                         {"seed", state.sampler->seed},
                         {"epoch", state.sampler->epoch},
                         {"position", state.sampler->position}};
  }
  return object;
}

ordered_json json_of(const CheckpointReader& reader) {
  ordered_json files = ordered_json::array();
  for (const auto& file : reader.manifest().files) files.push_back({{"name", file.name}, {"bytes", file.size.count()}});
  ordered_json object = {
      {"checkpoint", reader.folder().string()}, {"state", json_of(reader.state())}, {"files", files}};
  for (const TensorKind kind : tessera::tensor_kinds) {
    ordered_json tensors = ordered_json::array();
    for (const CheckpointTensor& tensor : reader.tensors(kind)) {
      tensors.push_back({{"name", tensor.name},
                         {"shape", tensor.shape},
                         {"dtype", tensor.dtype},
                         {"bytes", tensor.size.count()},
                         {"file", reader.manifest().files[tensor.file].name}});
    }
    object[std::string(to_string(kind))] = std::move(tensors);
  }
  object["aliases"] = reader.aliases();
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
  print_answer(
      json, [&] { return json_text(json_of(reader)); }, [&] { return text_of(reader); });
  return true;
}

}  // namespace tools
