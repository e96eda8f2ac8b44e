// A whole file in memory, for readers of data sets.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::data {

// Throws DataError, which begins with the path: missing, a directory and not `kind` ("a CSV file"), not a regular file,
// cannot be opened or read.
std::string read_whole_file(const std::filesystem::path& path, std::string_view kind);

}  // namespace tessera::data
