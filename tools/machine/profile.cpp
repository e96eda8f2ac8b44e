// Medians of what a trace has seen.
#include "machine/profile.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "trace/summary.hpp"

namespace tools {

namespace {

// From the beginning of a step to that of the next, without windows and calls into the runtime.
double outside_of_calls(const TraceFile& trace) {
  std::map<std::pair<std::size_t, std::size_t>, double> begins, inside;  // by rank and step
  for (const Slice& slice : trace.slices) {
    const std::pair key(slice.rank, slice.step);
    if (slice.kind == SliceKind::window) inside[key] += slice.time();
    if (slice.kind != SliceKind::host) continue;
    inside[key] += slice.time();
    const auto begin = begins.try_emplace(key, slice.begin).first;
    begin->second = std::min(begin->second, slice.begin);
  }
  std::vector<double> times;
  for (const auto& [key, begin] : begins) {
    const auto next = begins.find({key.first, key.second + 1});
    if (next != begins.end()) times.push_back(std::max(0.0, next->second - begin - inside[key]) * 1e-6);
  }
  return times.empty() ? 0 : median(std::move(times));
}

}  // namespace

Profile profile_of(const TraceFile& trace) {
  const bool alone = trace.ranks == 1;
  std::map<std::tuple<std::string, std::string, std::size_t>, std::vector<double>> windows;
  std::map<std::tuple<std::size_t, std::size_t, std::string, std::string>, std::size_t> seen;
  std::map<std::string, std::vector<double>> rates;
  for (const Slice& slice : trace.slices) {
    if (slice.kind == SliceKind::window) {
      const std::size_t nth = seen[{slice.rank, slice.step, slice.unit, slice.pass}]++;
      windows[{slice.unit, slice.pass, nth}].push_back(slice.time() * 1e-6);
    } else if ((slice.kind == SliceKind::computation || (alone && slice.kind == SliceKind::communication)) &&
               slice.bytes > 0) {
      rates[slice.operation].push_back(slice.time() * 1e-6 / static_cast<double>(slice.bytes));
    }
  }
  Profile profile;
  profile.outside = outside_of_calls(trace);
  profile.ranks = trace.ranks;
  for (auto& [key, values] : windows) profile.windows[key] = median(std::move(values));
  for (auto& [kind, values] : rates) profile.seconds_per_byte[kind] = median(std::move(values));
  return profile;
}

}  // namespace tools
