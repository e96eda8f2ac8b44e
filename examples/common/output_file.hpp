// Finds out before hours of training whether their result can be written.
#pragma once

#include <filesystem>

namespace examples {

// Throws DataError when no file can appear under this path. Leaves nothing behind, and what stands there untouched.
void require_writable(const std::filesystem::path& path);

}  // namespace examples
