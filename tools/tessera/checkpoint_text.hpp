// What the subcommands of `tessera checkpoint` print alike.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "tessera/checkpoint/checkpoint_reader.hpp"

namespace tools {

tessera::Bytes total_bytes(const tessera::Manifest& manifest);
std::string name_of(const std::filesystem::path& folder);  // "step-00000100", also of "step-00000100/"
std::string printable(std::string_view name);              // of a file: without control characters and broken UTF-8
void print_json(const nlohmann::ordered_json& object);     // what is not UTF-8 is replaced

}  // namespace tools
