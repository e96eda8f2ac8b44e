// Tables and JSON of a summary.
#include "commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "checkpoint_command.hpp"
#include "json/json.hpp"
#include "options.hpp"
#include "text.hpp"
#include "trace/summary.hpp"

namespace tools {

namespace trace_command {

constexpr std::string_view usage = R"(Usage: tessera trace SUBCOMMAND [options]

  summary FILE   overlap, exposed communication, the longest waits, time by operation and by unit

FILE is what --trace of the trainers and of tessera plan writes; https://ui.perfetto.dev draws it.
Exit code: 0; 1 when the file is no trace; 2 for bad options.
)";

using Rows = std::vector<std::vector<std::string>>;

std::string shown(double microseconds) {
  if (microseconds >= 1e6) return fmt::format("{:.2f} s", microseconds / 1e6);
  if (microseconds >= 1e3) return fmt::format("{:.2f} ms", microseconds / 1e3);
  return fmt::format("{:.1f} us", microseconds);
}

std::string per_cent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

std::string ranks_text(const TraceFile& trace, const Summary& summary) {
  const bool of_stages = trace.stages > 1;
  Rows rows = {{"rank", "step", "computing", "communicating", "hidden", "exposed", "overlap", "compute waited"}};
  if (of_stages) rows[0].push_back("bubble");
  for (const RankFigures& rank : summary.ranks) {
    rows.push_back({fmt::format("{}", rank.rank), shown(rank.step), shown(rank.computing), shown(rank.communicating),
                    shown(rank.hidden), shown(rank.exposed()), per_cent(rank.hidden, rank.communicating),
                    shown(rank.waited)});
    if (of_stages) rows.back().push_back(per_cent(rank.bubble, 1));
  }
  return table(rows);
}

std::string waits_text(const Summary& summary) {
  std::string text = "longest waits\n";
  for (const Slice& wait : summary.waits) {
    text += fmt::format("{:>10}  rank {}, step {}, {}: {} waited for {} ({})\n", shown(wait.time()), wait.rank,
                        wait.step, printable(wait.stream), printable(wait.operation), printable(wait.cause),
                        printable(wait.cause_stream));
  }
  return text;
}

std::string kinds_text(const Summary& summary) {
  Rows rows = {{"operation", "count", "time", "bytes", "GB/s"}};
  for (const KindFigures& kind : summary.kinds) {
    rows.push_back({printable(kind.kind), fmt::format("{:g}", kind.count), shown(kind.time), decimal_size(kind.bytes),
                    kind.communication && kind.time > 0 ? fmt::format("{:.1f}", kind.bytes / kind.time / 1e3) : "-"});
  }
  return table(rows);
}

std::string units_text(const Summary& summary) {
  const bool recomputes =
      std::any_of(summary.units.begin(), summary.units.end(), [](const auto& unit) { return unit.recompute > 0; });
  Rows rows = {{"unit", "forward"}};
  if (recomputes) rows[0].push_back("recompute");
  for (const char* title : {"backward", "other computing", "communicating", "compute waited"}) rows[0].push_back(title);
  for (const UnitFigures& unit : summary.units) {
    std::vector<std::string> row = {printable(unit.unit), shown(unit.forward)};
    if (recomputes) row.push_back(shown(unit.recompute));
    for (const double time : {unit.backward, unit.other_computing, unit.communicating, unit.waited}) {
      row.push_back(shown(time));
    }
    rows.push_back(row);
  }
  return table(rows);
}

// A row for each unit, a column for each pass.
std::string host_text(const Summary& summary) {
  std::vector<std::string> units, passes;
  std::map<std::pair<std::string, std::string>, double> times;
  const auto add = [](std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const HostFigures& host : summary.host) {
    add(units, host.unit);
    add(passes, host.pass);
    times[{host.unit, host.pass}] = host.time;
  }
  Rows rows = {{"host, per window"}};
  for (const std::string& pass : passes) rows[0].push_back(printable(pass));
  for (const std::string& unit : units) {
    std::vector<std::string> row = {printable(unit)};
    for (const std::string& pass : passes) {
      const auto found = times.find({unit, pass});
      row.push_back(found == times.end() ? "-" : shown(found->second));
    }
    rows.push_back(row);
  }
  return table(rows);
}

std::string text_of(const TraceFile& trace, const Summary& summary) {
  const std::string steps = trace.steps() == 1 ? fmt::format("step {}", trace.first_step)
                                               : fmt::format("steps {} to {}", trace.first_step, trace.last_step);
  return fmt::format(
      "{} on {}: {}; times per rank and step\n\n{}\noverlap {}: so much of the communication ran while "
      "the rank computed\n\n{}\n{}\n{}\n{}",
      steps, counted(summary.ranks.size(), "rank", "ranks"), printable(trace.description), ranks_text(trace, summary),
      per_cent(overlap(summary), 1), waits_text(summary), kinds_text(summary), units_text(summary), host_text(summary));
}

Json json_of(const TraceFile& trace, const Summary& summary) {
  Json object = {{"first_step", trace.first_step}, {"last_step", trace.last_step}, {"overlap", overlap(summary)}};
  for (const char* list : {"ranks", "waits", "operations", "units", "host"}) {
    object[list] = Json::array();
  }
  for (const RankFigures& rank : summary.ranks) {
    object["ranks"].push_back({{"rank", rank.rank},
                               {"step_us", rank.step},
                               {"computing_us", rank.computing},
                               {"communicating_us", rank.communicating},
                               {"hidden_us", rank.hidden},
                               {"exposed_us", rank.exposed()},
                               {"compute_waited_us", rank.waited},
                               {"bubble", rank.bubble}});
  }
  for (const Slice& wait : summary.waits) {
    object["waits"].push_back({{"us", wait.time()},
                               {"rank", wait.rank},
                               {"step", wait.step},
                               {"stream", wait.stream},
                               {"operation", wait.operation},
                               {"unit", wait.unit},
                               {"for", wait.cause},
                               {"for_stream", wait.cause_stream}});
  }
  for (const KindFigures& kind : summary.kinds) {
    object["operations"].push_back(
        {{"kind", kind.kind}, {"count", kind.count}, {"us", kind.time}, {"bytes", kind.bytes}});
  }
  for (const UnitFigures& unit : summary.units) {
    object["units"].push_back({{"unit", unit.unit},
                               {"forward_us", unit.forward},
                               {"recompute_us", unit.recompute},
                               {"backward_us", unit.backward},
                               {"other_computing_us", unit.other_computing},
                               {"communicating_us", unit.communicating},
                               {"compute_waited_us", unit.waited}});
  }
  for (const HostFigures& host : summary.host) {
    object["host"].push_back({{"unit", host.unit}, {"pass", host.pass}, {"us", host.time}});
  }
  return object;
}

bool run_summary(std::vector<std::string> arguments) {
  std::filesystem::path path;
  std::size_t waits = 5;
  bool json = false;
  CommandLine options(
      "Says what a trace shows: how much communication computation hid.",
      "Communicating: a collective runs, which includes waiting for slower ranks. Hidden: the part of it\n"
      "in which the same rank computes on any stream; exposed: the rest. Host: what the runtime takes of\n"
      "the host's time to open and close one window, as a median, the time stamps of the trace included.\n"
      "Bubble: the part of the passes, from the first window of any rank to the last one's end, in which\n"
      "the compute stream of a rank in a pipeline's stage is idle.",
      "tessera trace summary");
  options.place("FILE", path, "What --trace wrote");
  options.whole("--waits", waits, {0, 10'000}, "How many of the longest waits are listed");
  options.flag("--json", json, "Prints JSON; times in microseconds");
  if (!options.parse(std::move(arguments))) return true;
  const TraceFile trace = read_trace(path);
  const Summary summary = summarize(trace, waits);
  fmt::print("{}", json ? object_text(json_of(trace, summary)) : text_of(trace, summary));
  return true;
}

}  // namespace trace_command

bool run_trace(std::vector<std::string> arguments) {
  return run_subcommand({.command = "tessera trace",
                         .names = "summary",
                         .usage = trace_command::usage,
                         .commands = {{"summary", trace_command::run_summary}}},
                        arguments);
}

}  // namespace tools
