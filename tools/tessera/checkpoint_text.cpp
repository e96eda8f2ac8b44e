// Names come from files: they are printed so that they cannot steer a terminal.
#include "checkpoint_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tools {

using nlohmann::ordered_json;

tessera::Bytes total_bytes(const tessera::Manifest& manifest) {
  tessera::Bytes total;
  for (const tessera::ManifestFile& file : manifest.files) total += file.size;
  return total;
}

std::string name_of(const std::filesystem::path& folder) {
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

std::string printable(std::string_view name) {
  const std::string quoted =
      ordered_json(std::string(name)).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

void print_json(const ordered_json& object) {
  fmt::print("{}\n", object.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

}  // namespace tools
