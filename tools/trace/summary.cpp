// Every figure in one pass over the slices.
#include "trace/summary.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/stretches.hpp"

namespace tools {
namespace {

using tessera::common_length;
using tessera::length;
using tessera::merged;
using tessera::Stretches;

constexpr const char* no_unit = "-";
std::string unit_of(const Slice& slice) { return slice.unit.empty() ? no_unit : slice.unit; }

bool is_operation(const Slice& slice) { return slice.kind != SliceKind::wait && slice.kind != SliceKind::host; }

std::vector<std::size_t> ranks_of(const TraceFile& trace) {
  std::set<std::size_t> ranks;
  for (const Slice& slice : trace.slices) ranks.insert(slice.rank);
  return {ranks.begin(), ranks.end()};
}

using Ends = std::map<std::size_t, std::pair<double, double>>;  // by step

void widen(Ends& ends, const Slice& slice) {
  auto& [begin, end] = ends.try_emplace(slice.step, slice.begin, slice.end).first->second;
  begin = std::min(begin, slice.begin);
  end = std::max(end, slice.end);
}

double sum_of(const Ends& ends) {
  double sum = 0;
  for (const auto& [step, of_step] : ends) sum += of_step.second - of_step.first;
  return sum;
}

// All ranks' windows lie between them.
Ends passes_of(const TraceFile& trace) {
  Ends ends;
  for (const Slice& slice : trace.slices)
    if (slice.kind == SliceKind::window) widen(ends, slice);
  return ends;
}

RankFigures rank_figures(const TraceFile& trace, std::size_t rank, const Ends& passes) {
  Stretches computing, communicating, waited, passing;
  Ends ends;
  for (const Slice& slice : trace.slices) {
    if (slice.rank != rank) continue;
    if (slice.kind == SliceKind::wait && slice.stream == "compute") waited.emplace_back(slice.begin, slice.end);
    if (!is_operation(slice)) continue;
    widen(ends, slice);
    const auto pass = passes.find(slice.step);
    if (slice.kind != SliceKind::communication && slice.stream == "compute" && pass != passes.end()) {
      const double begin = std::max(slice.begin, pass->second.first), end = std::min(slice.end, pass->second.second);
      if (begin < end) passing.emplace_back(begin, end);
    }
    (slice.kind == SliceKind::communication ? communicating : computing).emplace_back(slice.begin, slice.end);
  }
  computing = merged(std::move(computing));
  communicating = merged(std::move(communicating));
  const auto steps = static_cast<double>(trace.steps());
  return {.rank = rank,
          .step = sum_of(ends) / steps,
          .computing = length(computing) / steps,
          .communicating = length(communicating) / steps,
          .hidden = common_length(computing, communicating) / steps,
          .waited = length(merged(std::move(waited))) / steps,
          .bubble = passes.empty() ? 0 : 1 - length(merged(std::move(passing))) / sum_of(passes)};
}

std::vector<Slice> longest(const TraceFile& trace, std::size_t count) {
  std::vector<Slice> waits;
  for (const Slice& slice : trace.slices) {
    if (slice.kind == SliceKind::wait) waits.push_back(slice);
  }
  std::stable_sort(waits.begin(), waits.end(), [](const Slice& a, const Slice& b) { return a.time() > b.time(); });
  waits.resize(std::min(count, waits.size()));
  return waits;
}

std::vector<KindFigures> kind_figures(const TraceFile& trace, double shares) {
  std::map<std::string, KindFigures> kinds;
  for (const Slice& slice : trace.slices) {
    if (!is_operation(slice)) continue;
    KindFigures& kind = kinds[slice.pass.empty() ? slice.operation : slice.pass + " " + slice.operation];
    kind.communication = slice.kind == SliceKind::communication;
    kind.count += 1;
    kind.time += slice.time();
    kind.bytes += static_cast<double>(slice.bytes);
  }
  std::vector<KindFigures> result;
  for (const auto& [name, kind] : kinds) {
    result.push_back({name, kind.communication, kind.count / shares, kind.time / shares, kind.bytes / shares});
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.time > b.time; });
  return result;
}

double& place_of(UnitFigures& unit, const Slice& slice) {
  if (slice.kind == SliceKind::communication) return unit.communicating;
  if (slice.kind == SliceKind::computation) return unit.other_computing;
  if (slice.kind == SliceKind::wait) return unit.waited;
  return slice.pass == "forward" ? unit.forward : slice.pass == "recompute" ? unit.recompute : unit.backward;
}

std::vector<UnitFigures> unit_figures(const TraceFile& trace, double shares) {
  std::vector<UnitFigures> units;
  std::map<std::string, std::size_t> places;
  for (const Slice& slice : trace.slices) {
    if (slice.kind == SliceKind::host) continue;
    if (slice.kind == SliceKind::wait && slice.stream != "compute") continue;
    const auto [place, added] = places.emplace(unit_of(slice), units.size());
    if (added) units.push_back({.unit = place->first});
    place_of(units[place->second], slice) += slice.time();
  }
  for (UnitFigures& unit : units) {
    for (double* time :
         {&unit.forward, &unit.recompute, &unit.backward, &unit.other_computing, &unit.communicating, &unit.waited}) {
      *time /= shares;
    }
  }
  return units;
}

// A window's time is that of the call that opens it and of the next one, which closes it.
std::vector<HostFigures> host_figures(const TraceFile& trace) {
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, std::vector<double>> times;
  std::map<std::size_t, double> opened;  // by rank
  for (const Slice& slice : trace.slices) {
    if (slice.kind != SliceKind::host) continue;
    if (slice.name.starts_with("open ")) {
      opened[slice.rank] = slice.host;
      continue;
    }
    const std::pair key(unit_of(slice), slice.pass);
    auto& values = times[key];
    if (values.empty()) order.push_back(key);
    values.push_back(slice.host + (slice.name.starts_with("close ") ? opened[slice.rank] : 0));
  }
  std::vector<HostFigures> result;
  for (const auto& key : order) result.push_back({key.first, key.second, median(times[key])});
  return result;
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Summary summarize(const TraceFile& trace, std::size_t longest_waits) {
  Summary summary;
  const std::vector<std::size_t> ranks = ranks_of(trace);
  const Ends passes = passes_of(trace);
  for (const std::size_t rank : ranks) summary.ranks.push_back(rank_figures(trace, rank, passes));
  const double shares = static_cast<double>(ranks.size()) * static_cast<double>(trace.steps());
  summary.waits = longest(trace, longest_waits);
  summary.kinds = kind_figures(trace, shares);
  summary.units = unit_figures(trace, shares);
  summary.host = host_figures(trace);
  return summary;
}

double overlap(const Summary& summary) {
  double communicating = 0;
  double hidden = 0;
  for (const RankFigures& rank : summary.ranks) {
    communicating += rank.communicating;
    hidden += rank.hidden;
  }
  return communicating > 0 ? hidden / communicating : 1;
}

}  // namespace tools
