// Plain text.
#include "text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "tessera/base/error.hpp"

namespace tools {

std::string decimal_size(double bytes) {
  constexpr std::array units = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < units.size(); ++unit) bytes /= 1000.0;
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", bytes, decimals, units[unit]);
}

std::string counted(std::uint64_t count, const std::string& one, const std::string& many) {
  return fmt::format("{} {}", grouped(count), count == 1 ? one : many);
}

std::string mesh_text(std::size_t ranks, std::size_t replicas) {
  const std::string all = counted(ranks, "rank", "ranks");
  if (replicas == 1) return all;
  return fmt::format("{} ({} replicas of {})", all, grouped(replicas), grouped(ranks / replicas));
}

std::string mesh_text(const tessera::plan::PlanOptions& options) {
  if (!options.mesh) return mesh_text(options.ranks, options.replicas);
  return fmt::format("{} ({})", counted(options.mesh->size(), "rank", "ranks"), options.mesh->text());
}

std::string group_text(tessera::AxisSet group) {
  if (group == tessera::Axis::shard) return " inside replicas";
  if (group == tessera::Axis::replicate) return " across replicas";
  return group == tessera::AxisSet::all() ? "" : fmt::format(" along {}", to_string(group));
}

std::string resharding_name(tessera::Resharding resharding) {
  if (resharding == tessera::Axis::shard) return "group";
  return resharding == true ? "yes" : "no";
}

std::string resharding_text(tessera::Resharding resharding) {
  if (resharding == true) return "";
  return resharding == false ? ", units stay whole from forward to backward"
                             : ", units are resharded to each replica until backward";
}

Json resharding_json(tessera::Resharding resharding) {
  if (resharding == tessera::Axis::shard) return "group";
  return resharding == true;
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      text += column == 0 ? fmt::format("{:<{}}", row[column], widths[column])
                          : fmt::format("  {:>{}}", row[column], widths[column]);
    }
    text += "\n";
  }
  return text;
}

std::string object_text(const Json& object) { return object.dump(std::size_t{2}) + "\n"; }

void print_object(const Json& object) { fmt::print("{}", object_text(object)); }

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw tessera::DataError(fmt::format("{}: cannot be written", path.string()));
}

}  // namespace tools
