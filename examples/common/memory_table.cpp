// The other strategies' figures need no run: their plans are compiled and added up.
#include "common/memory_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>

#include "tessera/plan/compile.hpp"
#include "tessera/plan/memory.hpp"

namespace examples {

namespace {

namespace plan = tessera::plan;
namespace probe = tessera::probe;
using tessera::Bytes;
using tessera::Strategy;

plan::MemoryReport plan_of(const tessera::FullyShard& model, Strategy strategy) {
  const plan::Plan& ran = model.plan();
  if (strategy == ran.options.strategy) return plan::memory(ran);
  plan::CompileInput input{
      .units = ran.units, .program = ran.program, .options = ran.options, .optimizer_states = ran.optimizer_states};
  input.options.strategy = strategy;
  input.options.accumulation = model.options().accumulation;  // as it was asked for: a default is the strategy's own
  return plan::memory(plan::compile(input));
}

constexpr std::size_t strategies = std::size(tessera::all_strategies);

struct Row {
  std::string_view name;
  std::array<Bytes, strategies> planned;
  std::optional<Bytes> measured;  // of the strategy that ran
};

std::string shown(std::optional<Bytes> bytes) { return bytes ? to_string(*bytes) : "-"; }

class Table {
 public:
  explicit Table(Strategy ran) {
    text_ = fmt::format("{:<18}", "Bytes per rank");
    for (const Strategy strategy : tessera::all_strategies) text_ += fmt::format("{:>12}", to_string(strategy));
    text_ += fmt::format("{:>18}\n", fmt::format("{} measured", to_string(ran)));
  }

  void add(const Row& row) {
    text_ += fmt::format("{:<18}", row.name);
    for (const Bytes planned : row.planned) text_ += fmt::format("{:>12}", to_string(planned));
    text_ += fmt::format("{:>18}\n", shown(row.measured));
  }
  void add_unplanned(std::string_view name, Bytes size) {
    text_ += fmt::format("{:<18}{:>{}}\n", name, to_string(size), 12 * strategies + 18);
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::optional<Bytes> largest_measured(std::span<const probe::RankMemory> ranks,
                                      const probe::Figure& (*figure)(const probe::RankMemory&, std::size_t),
                                      std::size_t index) {
  Bytes largest;
  for (const probe::RankMemory& rank : ranks) {
    if (!rank.measurable) return std::nullopt;
    largest = std::max(largest, figure(rank, index).measured);
  }
  return largest;
}

const probe::Figure& category_figure(const probe::RankMemory& rank, std::size_t index) {
  return rank.categories[index];
}
const probe::Figure& peak_figure(const probe::RankMemory& rank, std::size_t) { return rank.peak; }

}  // namespace

std::string memory_table(const tessera::FullyShard& model, std::span<const probe::RankMemory> ranks) {
  std::array<plan::MemoryReport, strategies> reports;
  for (std::size_t i = 0; i < strategies; ++i) reports[i] = plan_of(model, tessera::all_strategies[i]);
  const auto of_all = [&](auto figure) {
    std::array<Bytes, strategies> sizes;
    std::transform(reports.begin(), reports.end(), sizes.begin(), figure);
    return sizes;
  };
  Table table(model.plan().options.strategy);
  for (std::size_t index = 0; index < plan::category_count; ++index) {
    const auto sizes = of_all([&](const plan::MemoryReport& report) { return report.categories[index].size; });
    if (std::all_of(sizes.begin(), sizes.end(), [](Bytes size) { return size == Bytes(0); })) continue;
    table.add({.name = to_string(static_cast<plan::Category>(index)),
               .planned = sizes,
               .measured = largest_measured(ranks, category_figure, index)});
  }
  table.add({.name = "all of the above",
             .planned = of_all([](const plan::MemoryReport& report) { return report.peak; }),
             .measured = largest_measured(ranks, peak_figure, 0)});
  table.add({.name = "in use at once",
             .planned = of_all([](const plan::MemoryReport& report) { return report.live; }),
             .measured = std::nullopt});
  const probe::RankMemory& first = ranks.front();
  for (std::size_t index = 0; index < first.unplanned_count; ++index) {
    table.add_unplanned(first.unplanned[index].name.data(), first.unplanned[index].size);
  }
  return table.text();
}

}  // namespace examples
