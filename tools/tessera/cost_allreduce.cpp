// `tessera cost allreduce`: one collective between ranks, its two halves, and the step around it.
#include <fmt/format.h>

#include <optional>

#include "commands.hpp"
#include "cost/job.hpp"
#include "cost/quantity.hpp"
#include "cost/ring.hpp"
#include "json/json.hpp"
#include "options.hpp"
#include "text.hpp"

namespace tools {

namespace cost_allreduce {

constexpr const char* description =
    "Bytes and time of a ring all-reduce, of its two halves, and what of it a training step hides.";
constexpr const char* footer =
    "Example: 100 MB of gradients over 10 Gbit Ethernet take 120 ms; 28.6 % of the step when nothing hides them.\n"
    "  tessera cost allreduce --bytes 100MB --ranks 4 --bandwidth 1.25GB/s --compute 300ms\n"
    "  tessera cost allreduce --bytes 100MB --ranks 4 --bandwidth 10Gbit/s --latency 5us --dtype bf16\n\n"
    "Each rank sends 2 (N - 1) / N * size in 2 (N - 1) rounds, and each round begins with a latency\n"
    "(Patarasuk and Yuan 2009). The backward pass is two thirds of --compute: only beside it are there gradients to "
    "send.\n"
    "Amdahl's column: how many times as fast as one rank N are, where that share is the part that does not divide.\n"
    "What a plan of this runtime hides: tessera plan --time.";

struct Request {
  double bytes = 0;
  std::uint64_t ranks = 1;
  cost::Link link{.bandwidth = 0};
  std::optional<double> compute;
  tessera::DType dtype = tessera::DType::fp32;
  bool json = false;

  double wire_bytes() const { return bytes * static_cast<double>(size_of(dtype).count()) / 4; }
};

struct Overlap {
  const char* key;
  const char* words;
  double cover;  // the part of compute that communication runs beside
};
constexpr Overlap overlaps[] = {{"no_overlap", "nothing", 0},
                                {"backward_overlap", "the backward pass", cost::backward_part},
                                {"full_overlap", "all of compute", 1}};

struct Half {
  const char* key;
  const char* words;
  cost::Traffic (*traffic)(double, std::size_t, const cost::Link&);
};
constexpr Half collectives[] = {{"reduce_scatter", "reduce-scatter", cost::ring_reduce_scatter},
                                {"all_gather", "all-gather", cost::ring_all_gather},
                                {"all_reduce", "all-reduce", cost::ring_all_reduce}};

std::optional<Request> parse(std::vector<std::string> arguments) {
  Request request;
  CostLine line("allreduce", description, footer);
  line.number({"--bytes", "SIZE", "Of the gradients in fp32: 4 bytes per parameter", true}, request.bytes,
              cost::byte_size);
  line.whole({"--ranks", "N", "Ranks in the ring", true}, request.ranks, cost::rank_count);
  line.number({"--bandwidth", "RATE", "That a rank sends at while it receives as much", true}, request.link.bandwidth,
              cost::byte_rate);
  line.number({"--latency", "TIME", "Before the first byte of each round arrives [0s]"}, request.link.latency,
              cost::duration);
  line.number({"--compute", "TIME", "Of a step on one rank: forward, backward and update"}, request.compute,
              cost::duration);
  line.dtype(request.dtype);
  line.json(request.json);
  if (!line.parse(std::move(arguments))) return std::nullopt;
  return request;
}

cost::Traffic traffic_of(const Request& request, const Half& collective) {
  return collective.traffic(request.wire_bytes(), request.ranks, request.link);
}

cost::Step step_of(const Request& request, const Overlap& overlap) {
  const double communication = ring_all_reduce(request.wire_bytes(), request.ranks, request.link).seconds;
  return cost::step(*request.compute, communication, *request.compute * overlap.cover);
}

std::string text_of(const Request& request) {
  std::string text =
      fmt::format("{} of {} gradients in a ring of {} ranks, each at {}", cost::bytes_text(request.wire_bytes()),
                  to_string(request.dtype), request.ranks, cost::rate_text(request.link.bandwidth));
  if (request.link.latency > 0) text += fmt::format(" with {} per round", cost::seconds_text(request.link.latency));
  text += fmt::format("\n\n{:<18} {:>16} {:>8} {:>12}\n", "", "bytes per rank", "rounds", "time");
  for (const Half& collective : collectives) {
    const cost::Traffic traffic = traffic_of(request, collective);
    text += fmt::format("{:<18} {:>16} {:>8} {:>12}\n", collective.words, cost::bytes_text(traffic.bytes),
                        traffic.rounds, cost::seconds_text(traffic.seconds));
  }
  if (!request.compute) return text;
  text +=
      fmt::format("\nA step with {} of compute, when communication runs beside\n{:<18} {:>16} {:>12} {:>19} {:>10}\n",
                  cost::seconds_text(*request.compute), "", "not hidden", "step", "share of the step", "Amdahl");
  for (const Overlap& overlap : overlaps) {
    const cost::Step step = step_of(request, overlap);
    text += fmt::format("{:<18} {:>16} {:>12} {:>19} {:>10.2f}\n", overlap.words, cost::seconds_text(step.exposed),
                        cost::seconds_text(step.seconds), cost::percent_text(step.share),
                        cost::amdahl_speedup(step.share, request.ranks));
  }
  return text;
}

Json json_of(const Request& request) {
  Json object = {{"bytes", request.wire_bytes()},
                 {"fp32_bytes", request.bytes},
                 {"dtype", to_string(request.dtype)},
                 {"ranks", request.ranks},
                 {"bandwidth_bytes_per_second", request.link.bandwidth},
                 {"latency_seconds", request.link.latency}};
  for (const Half& collective : collectives) {
    const cost::Traffic traffic = traffic_of(request, collective);
    object[collective.key] = {
        {"bytes_per_rank", traffic.bytes}, {"rounds", traffic.rounds}, {"seconds", traffic.seconds}};
  }
  if (!request.compute) return object;
  object["compute_seconds"] = *request.compute;
  for (const Overlap& overlap : overlaps) {
    const cost::Step step = step_of(request, overlap);
    object[overlap.key] = {{"exposed_seconds", step.exposed},
                           {"step_seconds", step.seconds},
                           {"share", step.share},
                           {"amdahl_speedup", cost::amdahl_speedup(step.share, request.ranks)}};
  }
  return object;
}

}  // namespace cost_allreduce

bool run_cost_allreduce(std::vector<std::string> arguments) {
  using namespace cost_allreduce;
  const auto request = parse(std::move(arguments));
  if (!request) return true;
  fmt::print("{}", request->json ? object_text(json_of(*request)) : text_of(*request));
  return true;
}

}  // namespace tools
