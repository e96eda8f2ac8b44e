// The folder of the program is asked of Linux, as a link to its file.
#include "trainer/src/shipped_data.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <system_error>

#include "tessera/base/error.hpp"

namespace tessera::trainer {

namespace {

namespace fs = std::filesystem;

// Empty where no folder above the program has it.
fs::path beside_program(std::string_view name) {
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error);
  while (folder.has_relative_path()) {
    folder = folder.parent_path();
    const fs::path found = folder / "examples/data" / name;
    if (fs::exists(found, error)) return found;
  }
  return {};
}

}  // namespace

fs::path shipped_data(std::string_view name) {
  if (const char* const folder = std::getenv("TESSERA_EXAMPLES_DATA")) return fs::path(folder) / name;
  if (const fs::path found = beside_program(name); !found.empty()) return found;
  const fs::path built_from = fs::path(EXAMPLES_DATA_DIRECTORY) / name;
  std::error_code error;
  if (fs::exists(built_from, error)) return built_from;
  throw tessera::DataError(
      fmt::format("{} is neither in examples/data of a folder that the program is in, nor at {}; name its folder with "
                  "TESSERA_EXAMPLES_DATA",
                  name, built_from.string()));
}

}  // namespace tessera::trainer
