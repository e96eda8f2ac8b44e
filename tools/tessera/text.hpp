// Numbers and tables as people read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "json/json.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/strategy.hpp"
#include "tessera/trainer/number_text.hpp"

namespace tools {

using tessera::trainer::grouped;

std::string decimal_size(double bytes);  // "31.4 GB": three significant digits, in powers of 1000
// "1 rank", "1,024 ranks"
std::string counted(std::uint64_t count, const std::string& one, const std::string& many);
// "8 ranks", "8 ranks (2 replicas of 4)"
std::string mesh_text(std::size_t ranks, std::size_t replicas);
std::string mesh_text(const tessera::plan::PlanOptions& options);  // or "8 ranks (shard 4 x tensor 2)"
// " along tensor", " inside replicas"; "" for all ranks
std::string group_text(tessera::AxisSet group);

// "yes", "no", "group"; what stands behind a prefetch depth, "" for the default; true, false, "group"
std::string resharding_name(tessera::Resharding resharding);
std::string resharding_text(tessera::Resharding resharding);
Json resharding_json(tessera::Resharding resharding);

// Columns as wide as they must be, two blanks apart; the first to the left, the others to the right. Rows of equal
// length.
std::string table(const std::vector<std::vector<std::string>>& rows);

std::string object_text(const Json& object);  // in several lines
void print_object(const Json& object);
void write_file(const std::filesystem::path& path, const std::string& text);  // throws DataError

}  // namespace tools
