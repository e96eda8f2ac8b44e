// `tessera cost allreduce`: one collective between ranks, and its two halves.
#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "commands.hpp"
#include "cost/quantity.hpp"
#include "cost/ring.hpp"
#include "json/json.hpp"
#include "options.hpp"

namespace tools {

namespace cost_allreduce {

constexpr const char* description = "Bytes and time of a ring all-reduce, and of its two halves.";
constexpr const char* footer =
    "Example: 100 MB of gradients over 10 Gbit Ethernet take 120 ms.\n"
    "  tessera cost allreduce --bytes 100MB --ranks 4 --bandwidth 1.25GB/s\n"
    "  tessera cost allreduce --bytes 100MB --ranks 4 --bandwidth 10Gbit/s --latency 5us --dtype bf16\n\n"
    "Each rank sends 2 (N - 1) / N * size in 2 (N - 1) rounds, and each round begins with a latency\n"
    "(Patarasuk and Yuan 2009). What of it a step hides is said by its plan: tessera plan --time.";

struct Request {
  double bytes = 0;
  std::uint64_t ranks = 1;
  cost::Link link{.bandwidth = 0};
  tessera::DType dtype = tessera::DType::fp32;
  bool json = false;

  double wire_bytes() const { return bytes * static_cast<double>(size_of(dtype).count()) / 4; }
};

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
  line.dtype(request.dtype);
  line.json(request.json);
  if (!line.parse(std::move(arguments))) return std::nullopt;
  return request;
}

cost::Traffic traffic_of(const Request& request, const Half& collective) {
  return collective.traffic(request.wire_bytes(), request.ranks, request.link);
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
  return object;
}

}  // namespace cost_allreduce

void run_cost_allreduce(std::vector<std::string> arguments) {
  using namespace cost_allreduce;
  const auto request = parse(std::move(arguments));
  if (!request) return;
  fmt::print("{}", request->json ? json_of(*request).dump(std::size_t{2}) + "\n" : text_of(*request));
}

}  // namespace tools
