// Text, CSV and JSON.
#include "memory_per_gpu/report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "memory_per_gpu/machine.hpp"
#include "tessera/base/version.hpp"

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

nlohmann::ordered_json figure(const Row& row, const tessera::probe::Figure& of) {
  nlohmann::ordered_json object = {{"planned", of.planned.count()}, {"measured", nullptr}};
  if (row.memory.measurable) object["measured"] = of.measured.count();
  return object;
}

nlohmann::ordered_json to_json(const Row& row) {
  nlohmann::ordered_json categories = nlohmann::ordered_json::object();
  for (std::size_t index = 0; index < category_count; ++index) {
    categories[std::string(name_of(index))] = figure(row, row.memory.categories[index]);
  }
  return {{"strategy", to_string(row.strategy)},
          {"precision", row.precision},
          {"ranks", row.ranks},
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
      "| {:8} | {:9} | {:>5} | {:>10} | {:>10} | {:>10} | {:>10} | {:>12} | {:>10} | {:>10} | {:>10} | {:>10} | {:>10} "
      "| "
      "{:>10} | {:>10} | {}\n|{:-<10}|{:-<11}|{:->6}:|{:->11}:|{:->11}:|{:->11}:|{:->11}:|{:->13}:|{:->11}:|{:->11}:|"
      "{:->11}:|{:->11}:|{:->11}:|{:->11}:|{:->11}:|---|\n",
      "strategy", "precision", "ranks", "ZeRO", "formula", "parameters", "gradients", "optimizer", "sums", "p. slots",
      "g. slots", "activat.", "rest", "planned", "measured", "how it was measured |", "", "", "", "", "", "", "", "",
      "", "", "", "", "", "", "");
}

std::string table_line(const Row& row) {
  Bytes rest;
  for (const Category category : {Category::staging, Category::buffers, Category::scalars, Category::collectives}) {
    rest += row.memory.categories[static_cast<std::size_t>(category)].planned;
  }
  return fmt::format(
      "| {:8} | {:9} | {:>5} | {:>10} | {:>10} | {:>10} | {:>10} | {:>12} | {:>10} | {:>10} | {:>10} | {:>10} | {:>10} "
      "| "
      "{:>10} | {:>10} | {} |\n",
      to_string(row.strategy), row.precision, row.ranks, cell(row.paper), cell(row.formula),
      planned(row, Category::parameters), planned(row, Category::gradients), planned(row, Category::optimizer),
      planned(row, Category::accumulation), planned(row, Category::parameter_slots),
      planned(row, Category::gradient_slots), planned(row, Category::activations), cell(rest),
      cell(row.memory.peak.planned), measured_text(row), row.how);
}

std::string to_csv(std::span<const Row> rows) {
  std::string text = "strategy,precision,ranks,category,planned,measured,how\n";
  const auto add = [&](const Row& row, std::string_view name, const tessera::probe::Figure& of) {
    const std::string measured = row.memory.measurable ? fmt::to_string(of.measured.count()) : "";
    text += fmt::format("{},{},{},{},{},{},\"{}\"\n", to_string(row.strategy), row.precision, row.ranks, name,
                        of.planned.count(), measured, row.how);
  };
  for (const Row& row : rows) {
    for (std::size_t index = 0; index < category_count; ++index) {
      add(row, name_of(index), row.memory.categories[index]);
    }
    add(row, "peak", row.memory.peak);
    for (const auto& [name, bytes] : {std::pair("formula", row.formula), std::pair("paper", row.paper)}) {
      text += fmt::format("{},{},{},{},{},,\n", to_string(row.strategy), row.precision, row.ranks, name, bytes.count());
    }
  }
  return text;
}

nlohmann::ordered_json to_json(const Request& request, std::span<char* const> command, std::span<const Row> rows) {
  const Comparison& asked = request.comparison;
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
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

}  // namespace bench
