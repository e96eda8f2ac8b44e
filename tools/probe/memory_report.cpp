// Measuring a model's regions, exchanging and writing the figures.
#include "probe/memory_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "probe/memory_probe.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::probe {
namespace {

static_assert(std::is_trivially_copyable_v<RankMemory>);

tools::Json figure(const RankMemory& rank, const Figure& of) {
  tools::Json result = {{"planned", of.planned.count()}, {"measured", nullptr}};
  if (rank.measurable) result["measured"] = of.measured.count();
  return result;
}

tools::Json to_json(const RankMemory& rank) {
  tools::Json categories = tools::Json::object();
  for (std::size_t index = 0; index < plan::category_count; ++index) {
    const Figure& category = rank.categories[index];
    if (category.planned == Bytes(0)) continue;
    categories[std::string(to_string(static_cast<plan::Category>(index)))] = figure(rank, category);
  }
  tools::Json unplanned = tools::Json::object();
  for (std::size_t index = 0; index < rank.unplanned_count; ++index) {
    unplanned[rank.unplanned[index].name.data()] = rank.unplanned[index].size.count();
  }
  return {{"categories", std::move(categories)},
          {"peak", figure(rank, rank.peak)},
          {"live", rank.live.count()},
          {"unplanned", std::move(unplanned)}};
}

}  // namespace

void RankMemory::add_unplanned(std::string_view name, Bytes size) {
  if (unplanned_count == unplanned.size() || name.size() >= unplanned[0].name.size()) {
    throw InternalError(fmt::format("no room for unplanned memory \"{}\": {} entries of {} characters", name,
                                    unplanned.size(), unplanned[0].name.size() - 1));
  }
  Unplanned& entry = unplanned[unplanned_count++];
  std::copy(name.begin(), name.end(), entry.name.begin());
  entry.size = size;
}

RankMemory measure(FullyShard& model) {
  RankMemory result;
  // The kernel knows of the host's memory alone.
  result.measurable = available() && model.stream().device().kind() == DeviceKind::cpu;
  const plan::MemoryReport planned = plan::memory(model.plan());
  for (std::size_t index = 0; index < plan::category_count; ++index) {
    result.categories[index].planned = planned.categories[index].size;
  }
  result.peak.planned = planned.peak;
  result.live = planned.live;
  if (!result.measurable) return result;
  std::array<Bytes, 3> arenas{};  // by space
  for (const MemoryRegion& region : model.regions()) {
    const bool is_file = region.space == MemorySpace::disk;
    result.categories[static_cast<std::size_t>(region.category)].measured +=
        is_file ? stored_at(region.memory.data()) : measured(region.memory);
    arenas[static_cast<std::size_t>(region.space)] = mapping_of(region.memory.data());
  }
  result.peak.measured = arenas[0] + arenas[1] + arenas[2];
  return result;
}

std::vector<RankMemory> gather(World& world, const RankMemory& mine) {
  const std::vector<std::byte> bytes = world.gather(std::as_bytes(std::span(&mine, 1)), "memory report");
  std::vector<RankMemory> result(bytes.size() / sizeof(RankMemory));
  std::memcpy(static_cast<void*>(result.data()), bytes.data(), bytes.size());
  return result;
}

tools::Json to_json(std::span<const RankMemory> ranks) {
  tools::Json result = tools::Json::array();
  for (const RankMemory& rank : ranks) result.push_back(to_json(rank));
  return {{"ranks", std::move(result)}};
}

}  // namespace tessera::probe
