// `tessera checkpoint list`: what a folder has.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "checkpoint_command.hpp"
#include "options.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "text.hpp"

namespace tools {

using tessera::FoundCheckpoint;

namespace {

struct Listing {
  std::filesystem::path folder;
  std::vector<FoundCheckpoint> found;
  std::vector<std::filesystem::path> unfinished;
};

Listing list(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw tessera::DataError(fmt::format("{}: is no folder", folder.string()));
  }
  if (std::filesystem::exists(folder / tessera::manifest_name)) {
    throw tessera::DataError(
        fmt::format("{}: is a checkpoint, not a folder of checkpoints: see tessera checkpoint show", folder.string()));
  }
  return {folder, tessera::list_checkpoints(folder), tessera::unfinished_checkpoints(folder)};
}

std::optional<FoundCheckpoint> latest(const Listing& listing) {
  for (auto each = listing.found.rbegin(); each != listing.found.rend(); ++each) {
    if (each->valid()) return *each;
  }
  return std::nullopt;
}

double size_of(const FoundCheckpoint& checkpoint) {
  return static_cast<double>(total_bytes(tessera::read_manifest(checkpoint.path)).count());
}

std::string text_of(const Listing& listing) {
  std::vector<std::vector<std::string>> rows;
  std::string faults;
  for (const FoundCheckpoint& each : listing.found) {
    rows.push_back(
        {name_of(each.path), each.valid() ? decimal_size(size_of(each)) : "-", each.valid() ? "valid" : "not valid"});
    if (!each.valid()) faults += fmt::format("{}\n", each.fault);
  }
  for (const auto& path : listing.unfinished) rows.push_back({name_of(path), "-", "not finished"});
  if (rows.empty()) return fmt::format("{}: no checkpoints\n", listing.folder.string());
  const auto last = latest(listing);
  return fmt::format("{}{}{}\n", table(rows), faults,
                     last ? fmt::format("latest: {}", name_of(last->path)) : std::string("none of them is valid"));
}

Json json_of(const Listing& listing) {
  Json checkpoints = Json::array();
  for (const FoundCheckpoint& each : listing.found) {
    Json object = {{"name", name_of(each.path)}, {"step", each.step}, {"valid", each.valid()}};
    if (each.valid()) {
      object["bytes"] = total_bytes(tessera::read_manifest(each.path)).count();
    } else {
      object["fault"] = each.fault;
    }
    checkpoints.push_back(std::move(object));
  }
  Json unfinished = Json::array();
  for (const auto& path : listing.unfinished) unfinished.push_back(name_of(path));
  const auto last = latest(listing);
  return {{"folder", listing.folder.string()},
          {"checkpoints", checkpoints},
          {"unfinished", unfinished},
          {"latest", last ? Json(name_of(last->path)) : Json()}};
}

}  // namespace

bool run_checkpoint_list(std::vector<std::string> arguments) {
  std::filesystem::path folder;
  bool json = false;
  CommandLine options(
      "The checkpoints of a folder, by step.",
      "A checkpoint is valid when it has a manifest of its step, and all files with their sizes; what the\n"
      "files hold is checked by tessera checkpoint verify.",
      "tessera checkpoint list");
  options.place("DIR", folder, "The folder that they are in");
  options.flag("--json", json, "Prints JSON");
  if (!options.parse(std::move(arguments))) return true;
  const Listing listing = list(folder);
  fmt::print("{}", json ? object_text(json_of(listing)) : text_of(listing));
  return true;
}

}  // namespace tools
