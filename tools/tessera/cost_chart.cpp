// `tessera cost chart`: all-reduce time over model sizes, for the kinds of link that ranks are joined by.
#include <fmt/format.h>

#include <optional>

#include "commands.hpp"
#include "cost/quantity.hpp"
#include "cost/ring.hpp"
#include "json/json.hpp"
#include "options.hpp"
#include "plot/plot.hpp"
#include "text.hpp"

namespace tools {

namespace cost_chart {

constexpr std::size_t most_models = 64;

constexpr const char* description =
    "Time of a ring all-reduce of a model's gradients, by the number of parameters and the kind of link.";
constexpr const char* footer =
    "Example: what faster Ethernet would change.\n"
    "  tessera cost chart --ranks 16 --dtype bf16 --ethernet 100Gbit/s --plot allreduce.svg\n\n"
    "The rates are a link's own, in one direction and per rank; what a program reaches is less. NVLink joins the GPUs "
    "of\n"
    "one machine: a ring over several machines runs at the rate of the links between them.";

struct NamedLink {
  std::string option;
  std::string name;
  std::string what;
  double bandwidth;  // bytes per second, in one direction
};

struct Request {
  std::vector<NamedLink> links = {{"--nvlink", "NVLink", "NVLink 4 of an H100 [450GB/s]", 450e9},
                                  {"--infiniband", "InfiniBand", "NDR, 400 Gbit/s [50GB/s]", 50e9},
                                  {"--pcie", "PCIe", "4.0 with 16 lanes [31.5GB/s]", 31.5e9},
                                  {"--ethernet", "Ethernet", "10 Gbit/s [1.25GB/s]", 1.25e9}};
  std::vector<std::uint64_t> parameters{1'000'000,     10'000'000,     100'000'000,
                                        1'000'000'000, 10'000'000'000, 100'000'000'000};
  std::uint64_t ranks = 8;
  double latency = 0;
  tessera::DType dtype = tessera::DType::fp32;
  std::optional<std::string> figure;
  bool json = false;
};

std::optional<Request> parse(std::vector<std::string> arguments) {
  Request request;
  CostLine line("chart", description, footer);
  line.whole({"--ranks", "N", "Ranks in the ring [8]"}, request.ranks, cost::rank_count);
  line.rising({"--parameters", "N,N,...", "Of the models [1M,10M,100M,1B,10B,100B]"}, request.parameters, cost::count);
  for (NamedLink& link : request.links) line.number({link.option, "RATE", link.what}, link.bandwidth, cost::byte_rate);
  line.number({"--latency", "TIME", "Of every link, before the first byte of each round arrives [0s]"}, request.latency,
              cost::duration);
  line.dtype(request.dtype);
  line.plot(request.figure);
  line.json(request.json);
  if (!line.parse(std::move(arguments))) return std::nullopt;
  if (request.parameters.size() > most_models)
    throw OptionError(
        fmt::format("--parameters takes up to {} numbers, not {}", most_models, request.parameters.size()));
  if (request.figure && request.ranks < 2)
    throw OptionError("--plot needs --ranks of 2 or more: one rank sends nothing, and no time can be drawn");
  return request;
}

double bytes_of(const Request& request, std::uint64_t parameters) {
  return static_cast<double>(parameters) * static_cast<double>(size_of(request.dtype).count());
}

double seconds_of(const Request& request, const NamedLink& link, std::uint64_t parameters) {
  const cost::Link joined{.bandwidth = link.bandwidth, .latency = request.latency};
  return ring_all_reduce(bytes_of(request, parameters), request.ranks, joined).seconds;
}

std::vector<double> times_of(const Request& request, const NamedLink& link) {
  std::vector<double> times;
  for (const std::uint64_t parameters : request.parameters) times.push_back(seconds_of(request, link, parameters));
  return times;
}

std::string title_of(const Request& request) {
  return fmt::format("Ring all-reduce of {} gradients over {} ranks", to_string(request.dtype), request.ranks);
}

std::string text_of(const Request& request) {
  std::string text = title_of(request);
  if (request.latency > 0) text += fmt::format(", {} per round", cost::seconds_text(request.latency));
  text += fmt::format("\n\n{:>10}  {:>10}", "parameters", "size");
  for (const NamedLink& link : request.links) text += fmt::format("  {:>12}", link.name);
  text += fmt::format("\n{:>10}  {:>10}", "", "");
  for (const NamedLink& link : request.links) text += fmt::format("  {:>12}", cost::rate_text(link.bandwidth));
  for (const std::uint64_t parameters : request.parameters) {
    text += fmt::format("\n{:>10}  {:>10}", cost::count_text(static_cast<double>(parameters)),
                        cost::bytes_text(bytes_of(request, parameters)));
    for (const NamedLink& link : request.links)
      text += fmt::format("  {:>12}", cost::seconds_text(seconds_of(request, link, parameters)));
  }
  return text + "\n";
}

Json json_of(const Request& request) {
  Json links = Json::array();
  for (const NamedLink& link : request.links)
    links.push_back(
        {{"name", link.name}, {"bandwidth_bytes_per_second", link.bandwidth}, {"seconds", times_of(request, link)}});
  return {{"ranks", request.ranks},
          {"dtype", to_string(request.dtype)},
          {"latency_seconds", request.latency},
          {"parameters", request.parameters},
          {"links", links}};
}

Json chart_of(const Request& request) {
  Json lines = Json::array();
  for (const NamedLink& link : request.links) {
    lines.push_back({{"name", fmt::format("{}, {}", link.name, cost::rate_text(link.bandwidth))},
                     {"x", request.parameters},
                     {"y", times_of(request, link)}});
  }
  const std::string latency =
      request.latency > 0 ? fmt::format("{} of latency per round", cost::seconds_text(request.latency)) : "no latency";
  return {{"kind", "lines"},
          {"title", title_of(request)},
          {"note",
           fmt::format("2 (N - 1) / N of the gradients' bytes leave each rank at the rate of its link; {}.", latency)},
          {"x", {{"label", "parameters"}, {"scale", "log"}, {"format", "count"}}},
          {"y", {{"label", "time of one all-reduce"}, {"scale", "log"}, {"format", "seconds"}}},
          {"series", lines}};
}

}  // namespace cost_chart

bool run_cost_chart(std::vector<std::string> arguments) {
  using namespace cost_chart;
  const auto request = parse(std::move(arguments));
  if (!request) return true;
  if (request->figure) plot(chart_of(*request), *request->figure);
  fmt::print("{}", request->json ? object_text(json_of(*request)) : text_of(*request));
  return true;
}

}  // namespace tools
