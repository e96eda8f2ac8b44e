// Names come from files: they are printed so that they cannot steer a terminal.
#include "checkpoint_command.hpp"

#include "commands.hpp"
#include "json/json.hpp"
#include "options.hpp"

namespace tools {

namespace checkpoint_command {

constexpr std::string_view usage = R"(Usage: tessera checkpoint SUBCOMMAND [options]

  list DIR                  the checkpoints of a folder, and why one is not valid
  show CHECKPOINT           state, tensors, shapes, dtypes and bytes
  verify CHECKPOINT         reads everything against the checksums
  export CHECKPOINT OUT     weights and buffers as safetensors; weights as fp32, bf16 or fp16
  diff A B                  two checkpoints, tensor by tensor

CHECKPOINT is one of them, runs/step-00000100, or their folder, runs, which stands for the latest in it.
Each has --help and --json.
Exit code: 0; 1 when a checkpoint is damaged, when two differ, or when something cannot be read or written; 2 for bad
options.
)";

}  // namespace checkpoint_command

tessera::Bytes total_bytes(const tessera::Manifest& manifest) {
  tessera::Bytes total;
  for (const tessera::ManifestFile& file : manifest.files) total += file.size;
  return total;
}

std::string name_of(const std::filesystem::path& folder) {
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

std::string printable(std::string_view name) {
  const std::string quoted = Json(name).dump();
  return quoted.substr(1, quoted.size() - 2);
}

bool run_checkpoint(std::vector<std::string> arguments) {
  return run_subcommand({.command = "tessera checkpoint",
                         .names = "list, show, verify, export or diff",
                         .usage = checkpoint_command::usage,
                         .commands = {{"list", run_checkpoint_list},
                                      {"show", run_checkpoint_show},
                                      {"verify", run_checkpoint_verify},
                                      {"export", run_checkpoint_export},
                                      {"diff", run_checkpoint_diff}}},
                        arguments);
}

}  // namespace tools
