// The proof is a file made and removed beside the path: permissions alone say nothing to root, nor of a full disk.
#include "common/output_file.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "tessera/base/error.hpp"

namespace examples {

void require_writable(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) {
    throw tessera::DataError(fmt::format("{}: is a directory, so no file can be written there", path.string()));
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw tessera::DataError(fmt::format("{}: is not a regular file, and will not be replaced", path.string()));
  }
  std::string probe = path.string() + ".XXXXXX";
  const int file = mkstemp(probe.data());
  if (file < 0) {
    throw tessera::DataError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  }
  close(file);
  unlink(probe.c_str());
}

}  // namespace examples
