// `tessera cost scaling`: how far ranks help when a part of the work stays serial.
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "commands.hpp"
#include "cost/job.hpp"
#include "cost/quantity.hpp"
#include "json/json.hpp"
#include "options.hpp"
#include "plot/plot.hpp"
#include "text.hpp"

namespace tools {

namespace cost_scaling {

constexpr std::size_t most_fractions = 8;  // as many as a figure tells apart by colour
constexpr std::size_t most_rank_counts = 64;

constexpr const char* description =
    "Speed-up and efficiency by Amdahl's law: 1 / (s + (1 - s) / N), where a fraction s of the work does not divide.";
constexpr const char* footer =
    "Example: with 1 % of serial work 64 ranks are 39 times as fast as one, and no number of them is 100 times.\n"
    "  tessera cost scaling --serial-fraction 0.01,10% --ranks 1,2,4,8,64 --plot scaling.svg\n\n"
    "Serial is what each rank does in full whatever their number, and the communication that nothing hides.";

struct Request {
  std::vector<double> fractions;
  std::vector<std::uint64_t> ranks{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  std::optional<std::string> figure;
  bool json = false;
};

std::optional<Request> parse(std::vector<std::string> arguments) {
  Request request;
  CostLine line("scaling", description, footer);
  line.list({"--serial-fraction", "S,S,...", "From 0 to 1, or in percent; up to 8 of them", true}, request.fractions,
            cost::fraction);
  line.rising({"--ranks", "N,N,...", "[1,2,4,...,1024]"}, request.ranks, cost::rank_count);
  line.plot(request.figure);
  line.json(request.json);
  if (!line.parse(std::move(arguments))) return std::nullopt;
  if (request.fractions.size() > most_fractions)
    throw OptionError(
        fmt::format("--serial-fraction takes up to {} fractions, not {}", most_fractions, request.fractions.size()));
  if (request.ranks.size() > most_rank_counts)
    throw OptionError(fmt::format("--ranks takes up to {} numbers, not {}", most_rank_counts, request.ranks.size()));
  return request;
}

double efficiency(double fraction, std::uint64_t ranks) {
  return cost::amdahl_speedup(fraction, ranks) / static_cast<double>(ranks);
}

std::string limit_text(double fraction) {
  const double limit = cost::amdahl_limit(fraction);
  return std::isinf(limit) ? "none" : fmt::format("{:.2f}", limit);
}

std::string text_of(const Request& request) {
  std::string fractions = fmt::format("{:>8}", "");
  std::string heads = fmt::format("{:>8}", "ranks");
  std::string limits = fmt::format("{:>8}", "limit");
  for (const double fraction : request.fractions) {
    fractions += fmt::format("  {:>22}", fmt::format("s = {:g}", fraction));
    heads += fmt::format("  {:>10}  {:>10}", "speed-up", "efficiency");
    limits += fmt::format("  {:>10}  {:>10}", limit_text(fraction), "");
  }
  std::string rows;
  for (const std::uint64_t ranks : request.ranks) {
    rows += fmt::format("{:>8}", ranks);
    for (const double fraction : request.fractions) {
      rows += fmt::format("  {:>10.2f}  {:>10}", cost::amdahl_speedup(fraction, ranks),
                          cost::percent_text(efficiency(fraction, ranks)));
    }
    rows += "\n";
  }
  limits.erase(limits.find_last_not_of(' ') + 1);
  return fractions + "\n" + heads + "\n" + rows + limits + "\n";
}

Json json_of(const Request& request) {
  Json curves = Json::array();
  for (const double fraction : request.fractions) {
    const double limit = cost::amdahl_limit(fraction);
    Json points = Json::array();
    for (const std::uint64_t ranks : request.ranks) {
      points.push_back({{"ranks", ranks},
                        {"speedup", cost::amdahl_speedup(fraction, ranks)},
                        {"efficiency", efficiency(fraction, ranks)}});
    }
    curves.push_back(
        {{"serial_fraction", fraction}, {"limit", std::isinf(limit) ? Json() : Json(limit)}, {"points", points}});
  }
  return {{"scaling", curves}};
}

Json line_of(const Request& request, double fraction) {
  std::vector<double> speedups;
  for (const std::uint64_t ranks : request.ranks) speedups.push_back(cost::amdahl_speedup(fraction, ranks));
  return {{"name", fmt::format("{:g} % serial", 100 * fraction)}, {"x", request.ranks}, {"y", speedups}};
}

Json chart_of(const Request& request) {
  Json lines = Json::array();
  for (const double fraction : request.fractions) lines.push_back(line_of(request, fraction));
  Json ideal = line_of(request, 0);
  ideal["name"] = "ideal: N times on N ranks";
  ideal["reference"] = true;
  lines.push_back(ideal);
  return {{"kind", "lines"},
          {"title", "Speed-up over one rank by Amdahl's law"},
          {"x", {{"label", "ranks"}, {"scale", "log2"}}},
          {"y", {{"label", "times as fast as one rank"}, {"scale", "log2"}}},
          {"series", lines}};
}

}  // namespace cost_scaling

bool run_cost_scaling(std::vector<std::string> arguments) {
  using namespace cost_scaling;
  const auto request = parse(std::move(arguments));
  if (!request) return true;
  if (request->figure) plot(chart_of(*request), *request->figure);
  fmt::print("{}", request->json ? object_text(json_of(*request)) : text_of(*request));
  return true;
}

}  // namespace tools
