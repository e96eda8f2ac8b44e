// The data that the trainers' own examples learn from, which goes where the programs go.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::trainer {

// Where `name` is, a file of examples/data: in the folder that TESSERA_EXAMPLES_DATA names; without it in examples/data
// of a folder that the program is in, as in a build inside the checkout; else where the sources were when it was built.
// Throws DataError, naming the places, when it is in none.
std::filesystem::path shipped_data(std::string_view name);

}  // namespace tessera::trainer
