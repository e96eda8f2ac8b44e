// Text, CSV and JSON; charts as plot/plot_chart.py takes them.
#include "memory_per_gpu/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "json/json.hpp"
#include "memory_per_gpu/machine.hpp"
#include "tessera/version.hpp"

namespace bench {

using tessera::Bytes;
using tessera::plan::Category;
using tessera::plan::category_count;

namespace {

std::string joined(std::span<char* const> command) {
  std::string text;
  for (const char* word : command) text.append(text.empty() ? "" : " ").append(word);
  return text;
}

std::string_view name_of(std::size_t category) { return to_string(static_cast<Category>(category)); }

std::string cell(Bytes bytes) { return bytes == Bytes(0) ? "0" : to_string(bytes); }

std::string planned(const Row& row, Category category) {
  return cell(row.memory.categories[static_cast<std::size_t>(category)].planned);
}

std::string measured_text(const Row& row) {
  if (!row.memory.measurable) return "-";
  return to_string(row.memory.peak.measured) + (row.measured_as_planned() ? "" : " DIFFERS");
}

tools::Json figure(const Row& row, const tessera::probe::Figure& of) {
  tools::Json object = {{"planned", of.planned.count()}, {"measured", nullptr}};
  if (row.memory.measurable) object["measured"] = of.measured.count();
  return object;
}

tools::Json to_json(const Row& row) {
  tools::Json categories = tools::Json::object();
  for (std::size_t index = 0; index < category_count; ++index) {
    categories[std::string(name_of(index))] = figure(row, row.memory.categories[index]);
  }
  return {{"strategy", to_string(row.strategy)},
          {"precision", row.precision},
          {"ranks", row.mesh.ranks},
          {"replicas", row.mesh.replicas},
          {"categories", std::move(categories)},
          {"peak", figure(row, row.memory.peak)},
          {"live", row.memory.live.count()},
          {"persistent", row.persistent().count()},
          {"formula", row.formula.count()},
          {"paper", row.paper.count()},
          {"how", row.how}};
}

}  // namespace

std::string heading(const Request& request, std::span<char* const> command) {
  const Comparison& asked = request.comparison;
  const models::ParameterCounts count = models::count_parameters(asked.model.units);
  return fmt::format(
      "command      {}\nmachine      {}\ndate         {}, Tessera {}\n"
      "model        {}: {} parameters in {} units\n"
      "options      AdamW, prefetch {}, micro-batches per step: {}\nactivations  {}\n\n",
      joined(command), machine(), today(), tessera::version, asked.model_name, count.all(), asked.model.units.size(),
      asked.prefetch, asked.micro_batches, request.activations);
}

std::string table_heading() {
  return fmt::format(
      "| {:8} | {:9} | {:>5} | {:>8} | {:>10} | {:>10} | {:>10} | {:>10} | {:>12} | {:>10} | {:>10} | {:>10} | {:>10} "
      "| "
      "{:>10} | "
      "{:>10} | {:>10} | "
      "{}\n|{:-<10}|{:-<11}|{:->6}:|{:->9}:|{:->11}:|{:->11}:|{:->11}:|{:->11}:|{:->13}:|{:->11}:|{:->11}:|"
      "{:->11}:|{:->11}:|{:->11}:|{:->11}:|{:->11}:|---|\n",
      "strategy", "precision", "ranks", "replicas", "ZeRO", "formula", "parameters", "gradients", "optimizer", "sums",
      "p. slots", "g. slots", "activat.", "rest", "planned", "measured", "how it was measured |", "", "", "", "", "",
      "", "", "", "", "", "", "", "", "", "", "");
}

std::string table_line(const Row& row) {
  Bytes rest;
  for (const Category category : {Category::staging, Category::buffers, Category::scalars, Category::collectives}) {
    rest += row.memory.categories[static_cast<std::size_t>(category)].planned;
  }
  return fmt::format(
      "| {:8} | {:9} | {:>5} | {:>8} | {:>10} | {:>10} | {:>10} | {:>10} | {:>12} | {:>10} | {:>10} | {:>10} | {:>10} "
      "| "
      "{:>10} | "
      "{:>10} | {:>10} | {} |\n",
      to_string(row.strategy), row.precision, row.mesh.ranks, row.mesh.replicas, cell(row.paper), cell(row.formula),
      planned(row, Category::parameters), planned(row, Category::gradients), planned(row, Category::optimizer),
      planned(row, Category::accumulation), planned(row, Category::parameter_slots),
      planned(row, Category::gradient_slots), planned(row, Category::activations), cell(rest),
      cell(row.memory.peak.planned), measured_text(row), row.how);
}

std::string to_csv(std::span<const Row> rows) {
  std::string text = "strategy,precision,ranks,replicas,category,planned,measured,how\n";
  const auto add = [&](const Row& row, std::string_view name, const tessera::probe::Figure& of) {
    const std::string measured = row.memory.measurable ? fmt::to_string(of.measured.count()) : "";
    text += fmt::format("{},{},{},{},{},{},{},\"{}\"\n", to_string(row.strategy), row.precision, row.mesh.ranks,
                        row.mesh.replicas, name, of.planned.count(), measured, row.how);
  };
  for (const Row& row : rows) {
    for (std::size_t index = 0; index < category_count; ++index) {
      add(row, name_of(index), row.memory.categories[index]);
    }
    add(row, "peak", row.memory.peak);
    for (const auto& [name, bytes] : {std::pair("formula", row.formula), std::pair("paper", row.paper)}) {
      text += fmt::format("{},{},{},{},{},{},,\n", to_string(row.strategy), row.precision, row.mesh.ranks,
                          row.mesh.replicas, name, bytes.count());
    }
  }
  return text;
}

tools::Json to_json(const Request& request, std::span<char* const> command, std::span<const Row> rows) {
  const Comparison& asked = request.comparison;
  tools::Json lines = tools::Json::array();
  for (const Row& row : rows) lines.push_back(to_json(row));
  return {{"command", joined(command)},
          {"machine", machine()},
          {"date", today()},
          {"version", tessera::version},
          {"model", asked.model_name},
          {"parameters", models::count_parameters(asked.model.units).all()},
          {"prefetch", asked.prefetch},
          {"micro_batches", asked.micro_batches},
          {"activations", request.activations},
          {"rows", std::move(lines)}};
}

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
  for (const Mesh& mesh : asked.meshes) {
    largest = std::max(largest, mesh.ranks);
    if (mesh.ranks <= asked.most_real_ranks) real = std::max(real, mesh.ranks);
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

std::string bar_name(const Row& row) {
  std::string name = fmt::format("{}\nN = {}", to_string(row.strategy), row.mesh.ranks);
  if (row.mesh.replicas > 1) name += fmt::format("\nR = {}", row.mesh.replicas);
  return name;
}

std::string line_name(const Row& row) {
  if (row.mesh.replicas == 1) return std::string(to_string(row.strategy));
  return fmt::format("{}, {} replicas", to_string(row.strategy), row.mesh.replicas);
}

std::vector<std::string> line_names(std::span<const Row> rows) {
  std::vector<std::string> names;
  for (const Row* row : of_last_precision(rows)) {
    if (std::find(names.begin(), names.end(), line_name(*row)) == names.end()) names.push_back(line_name(*row));
  }
  return names;
}

}  // namespace

tools::Json bars_chart(const Request& request, std::span<const Row> rows) {
  const std::vector<std::size_t> ranks = shown_ranks(request.comparison);
  std::vector<const Row*> shown;
  for (const Row* row : of_last_precision(rows)) {
    if (std::find(ranks.begin(), ranks.end(), row->mesh.ranks) != ranks.end()) shown.push_back(row);
  }
  const Unit unit = unit_for(rows);
  tools::Json series = tools::Json::array(), bars = tools::Json::array();
  for (const Row* row : shown) bars.push_back(bar_name(*row));
  for (std::size_t index = 0; index < category_count; ++index) {
    std::vector<double> sizes;
    for (const Row* row : shown) sizes.push_back(unit.of(row->memory.categories[index].planned));
    // The legend leaves out what no bar would show.
    if (*std::max_element(sizes.begin(), sizes.end()) < 0.001) continue;
    series.push_back({{"name", words(static_cast<Category>(index))}, {"y", sizes}});
  }
  return {{"kind", "stacked_bars"},      {"title", title(request, rows, "what one of N ranks holds")},
          {"note", measured_note(rows)}, {"y", {{"label", fmt::format("{} per rank", unit.name)}}},
          {"bars", std::move(bars)},     {"series", std::move(series)}};
}

tools::Json lines_chart(const Request& request, std::span<const Row> rows) {
  const Unit unit = unit_for(rows);
  tools::Json series = tools::Json::array();
  for (const std::string& name : line_names(rows)) {
    std::vector<std::pair<std::size_t, double>> points;
    for (const Row* row : of_last_precision(rows)) {
      if (line_name(*row) == name) points.emplace_back(row->mesh.ranks, unit.of(row->memory.peak.planned));
    }
    std::sort(points.begin(), points.end());
    tools::Json line = {{"name", name}};
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
