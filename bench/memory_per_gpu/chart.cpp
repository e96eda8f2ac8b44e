// Charts of rows, as plot/plot_chart.py takes them.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "memory_per_gpu/report.hpp"

namespace bench {

using tessera::plan::Category;
using tessera::plan::category_count;

namespace {

struct Unit {
  const char* name;
  double bytes;
  double of(tessera::Bytes size) const { return static_cast<double>(size.count()) / bytes; }
};

// The largest in which some rank holds one or more.
Unit unit_for(std::span<const Row> rows) {
  tessera::Bytes largest;
  for (const Row& row : rows) largest = std::max(largest, row.memory.peak.planned);
  for (const Unit& unit : {Unit{"GiB", 0x1p30}, Unit{"MiB", 0x1p20}}) {
    if (unit.of(largest) >= 1) return unit;
  }
  return {"KiB", 0x1p10};
}

std::string words(Category category) {
  std::string text(to_string(category));
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::vector<const Row*> of_last_precision(std::span<const Row> rows) {
  std::vector<const Row*> result;
  for (const Row& row : rows) {
    if (row.precision == rows.back().precision) result.push_back(&row);
  }
  return result;
}

// The largest that all run, and the largest of all; one number where these are the same.
std::vector<std::size_t> shown_ranks(const Comparison& asked) {
  std::size_t real = 0, largest = 0;
  for (const std::size_t ranks : asked.ranks) {
    largest = std::max(largest, ranks);
    if (ranks <= asked.most_real_ranks) real = std::max(real, ranks);
  }
  return real == 0 || real == largest ? std::vector{largest} : std::vector{real, largest};
}

std::string measured_note(std::span<const Row> rows) {
  const auto measured = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.memory.measurable; });
  if (measured == 0) return "As planned; nothing was run.";
  const auto equal = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.measured_as_planned(); });
  return fmt::format("{} of {} plans were run: in {} of them every category took what was planned.", measured,
                     rows.size(), equal);
}

std::string title(const Request& request, std::span<const Row> rows, const char* what) {
  return fmt::format("{}, {}, AdamW: {}", request.comparison.model_name, rows.back().precision, what);
}

}  // namespace

nlohmann::ordered_json bars_chart(const Request& request, std::span<const Row> rows) {
  const std::vector<std::size_t> ranks = shown_ranks(request.comparison);
  std::vector<const Row*> shown;
  for (const Row* row : of_last_precision(rows)) {
    if (std::find(ranks.begin(), ranks.end(), row->ranks) != ranks.end()) shown.push_back(row);
  }
  const Unit unit = unit_for(rows);
  nlohmann::ordered_json series = nlohmann::ordered_json::array(), bars = nlohmann::ordered_json::array();
  for (const Row* row : shown) bars.push_back(fmt::format("{}\nN = {}", to_string(row->strategy), row->ranks));
  for (std::size_t index = 0; index < category_count; ++index) {
    std::vector<double> sizes;
    for (const Row* row : shown) sizes.push_back(unit.of(row->memory.categories[index].planned));
    // What no bar would show is left out of the legend.
    if (*std::max_element(sizes.begin(), sizes.end()) < 0.001) continue;
    series.push_back({{"name", words(static_cast<Category>(index))}, {"y", sizes}});
  }
  return {{"kind", "stacked_bars"},      {"title", title(request, rows, "what one of N ranks holds")},
          {"note", measured_note(rows)}, {"y", {{"label", fmt::format("{} per rank", unit.name)}}},
          {"bars", std::move(bars)},     {"series", std::move(series)}};
}

nlohmann::ordered_json lines_chart(const Request& request, std::span<const Row> rows) {
  const Unit unit = unit_for(rows);
  nlohmann::ordered_json series = nlohmann::ordered_json::array();
  for (const tessera::Strategy strategy : request.comparison.strategies) {
    std::vector<std::pair<std::size_t, double>> points;
    for (const Row* row : of_last_precision(rows)) {
      if (row->strategy == strategy) points.emplace_back(row->ranks, unit.of(row->memory.peak.planned));
    }
    std::sort(points.begin(), points.end());
    nlohmann::ordered_json line = {{"name", to_string(strategy)}};
    for (const auto& [ranks, size] : points) {
      line["x"].push_back(ranks);
      line["y"].push_back(size);
    }
    series.push_back(std::move(line));
  }
  return {{"kind", "lines"},
          {"title", title(request, rows, "what a rank holds, by ranks")},
          {"note", measured_note(rows)},
          {"x", {{"label", "ranks"}, {"scale", "log2"}}},
          {"y", {{"label", fmt::format("{} per rank", unit.name)}, {"scale", "log2"}}},
          {"series", std::move(series)}};
}

}  // namespace bench
