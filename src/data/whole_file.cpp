// Says which of the many ways not to be readable it was.
#include "data/whole_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include "tessera/base/error.hpp"

namespace tessera::data {

std::string read_whole_file(const std::filesystem::path& path, std::string_view kind) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw DataError(fmt::format("{}: there is no such file", path.string()));
  if (std::filesystem::is_directory(status)) {
    throw DataError(fmt::format("{}: is a directory, not {}", path.string(), kind));
  }
  if (!std::filesystem::is_regular_file(status))
    throw DataError(fmt::format("{}: is not a regular file", path.string()));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno)));
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw DataError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  return text;
}

}  // namespace tessera::data
