// Factors are written as people say them: 1.2x.
#include "time_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cost/quantity.hpp"
#include "machine/machine.hpp"
#include "plot/plot.hpp"

namespace tools {

namespace {

constexpr std::size_t most_ranks = std::size_t{1} << 20;

[[noreturn]] void refuse_slow(const std::string& text) {
  throw OptionError(
      fmt::format("--slow takes rank=3:1.2x or link=3:2x, with commas between several, not \"{}\"", text));
}

tessera::plan::SlowRank slow_of(const std::string& text) {
  const bool is_rank = text.starts_with("rank="), is_link = text.starts_with("link=");
  const std::size_t colon = text.find(':');
  if ((!is_rank && !is_link) || colon == std::string::npos || !text.ends_with("x")) refuse_slow(text);
  double factor = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, factor);
  if (error != std::errc() || stop != end || !(factor > 0) || factor > 1e6) refuse_slow(text);
  tessera::plan::SlowRank slow{whole_number("--slow", text.substr(5, colon - 5), {0, most_ranks})};
  (is_rank ? slow.computation : slow.communication) = factor;
  return slow;
}

void require_distinct_files(const TimeRequest& request, const std::optional<std::string>& units) {
  using File = std::pair<const char*, const std::optional<std::string>&>;
  const File trace("--trace", request.trace), figure("--plot", request.figure);
  const File machine("--machine", request.machine), profile("--profile", request.profile), model("--units", units);
  for (const File& output : {trace, figure}) {
    for (const File& other : {machine, profile, model, trace}) {
      std::error_code error;
      if (output.first == other.first || !output.second || !other.second) continue;
      if (*output.second != *other.second && !std::filesystem::equivalent(*output.second, *other.second, error))
        continue;
      throw OptionError(fmt::format("{} would overwrite the file of {}, {}", output.first, other.first, *other.second));
    }
  }
}

}  // namespace

void add_time_options(CommandLine& line, TimeRequest& request) {
  line.group("Time");
  line.flag("--time", request.asked,
            "What a step takes, what of its communication shows, and what decides it; with "
            "--compare strategies, meshes and prefetch side by side");
  line.text(
      "--machine", request.machine, "NAME|FILE",
      fmt::format("{}, or a file: see docs/cost.md. Without --time it says on whose devices muon multiplies, for which "
                  "it plans memory [the CPU]",
                  fmt::join(machine_names(), ", ")));
  line.text("--profile", request.profile, "TRACE.json",
            "Windows take what --trace of a trainer measured on one rank, instead of what counting their FLOPs says");
  line.text("--whatif", request.what_if, "CHANGES",
            "Another machine: bandwidth=2x, latency=0, compute=1.3x, with commas between several");
  line.take({"--slow", "LIST", "Ranks or links that take longer: rank=3:1.2x, link=3:2x, with commas between several"},
            [&](const std::string& list) {
              for (const std::string& each : tessera::trainer::split(list)) request.slow.push_back(slow_of(each));
            });
  line.take({"--jitter", "PART",
             fmt::format("Computation varies by so much (5%), drawn for every rank, of up to {} ranks: prints the "
                         "distribution over 1,000 steps",
                         tessera::plan::most_jittered)},
            [&](const std::string& part) { request.jitter = cost::number("--jitter", part, cost::fraction); });
  line.whole("--seed", request.seed, {0, std::size_t{1} << 40}, "Of --jitter");
  line.flag("--fastest", request.fastest,
            "With --fit: the least time first, instead of the fewest bytes; what has to move is updated where and when "
            "that is quickest (update, ahead)");
  line.text("--trace", request.trace, "FILE.json", "Writes the step's timeline for https://ui.perfetto.dev");
  line.take({"--plot", "FILE.svg|FILE.png",
             "Draws tokens or samples/s from one rank to --world beside Amdahl's curve; needs Python with matplotlib"},
            [&](const std::string& path) {
              if (!is_figure(path)) throw OptionError("--plot takes a file name that ends in .svg or .png");
              request.figure = path;
            });
}

void check_time_options(const CommandLine& line, const TimeRequest& request, const std::optional<std::string>& units) {
  const auto require = [&](bool there, const char* needed, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (line.given(name) && !there) throw OptionError(fmt::format("{} needs {}", name, needed));
    }
  };
  require(request.asked, "--time",
          {"--profile", "--whatif", "--slow", "--jitter", "--seed", "--trace", "--plot", "--fastest"});
  require(line.given("--fit"), "--fit", {"--fastest"});
  require(line.given("--jitter"), "--jitter", {"--seed"});
  if (request.asked && !request.machine) {
    throw OptionError(fmt::format("--time needs --machine: {}, or a file", fmt::join(machine_names(), ", ")));
  }
  if (request.asked && line.given("--fit") && !request.fastest) {
    throw OptionError("--time with --fit needs --fastest: without it nothing is predicted");
  }
  if (request.asked && line.given("--compare") && line.given("--draw")) {
    throw OptionError("--draw and --compare with --time exclude each other: times are of many schedules");
  }
  for (const char* name : {"--trace", "--plot", "--jitter"}) {
    for (const char* other : {"--compare", "--fit"}) {
      if (line.given(name) && line.given(other))
        throw OptionError(fmt::format("{} and {} exclude each other", name, other));
    }
  }
  require_distinct_files(request, units);
}

}  // namespace tools
