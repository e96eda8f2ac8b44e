// Windows are looked up, collectives have formulas of their own, and everything else takes as long as its bytes.
#include "machine/durations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "machine/collective_seconds.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/roles.hpp"

namespace tools {

namespace plan = tessera::plan;
using plan::AccessMode;
using plan::Operation;
using plan::OperationKind;

namespace {

double declared_bytes(const Operation& operation) {
  double bytes = 0;
  for (const plan::Access& access : operation.accesses) {
    if (access.mode != AccessMode::discard) bytes += static_cast<double>(access.range.size.count());
  }
  return bytes;
}

// Updated values are read and written.
double moved_bytes(const Operation& operation) {
  double bytes = declared_bytes(operation);
  for (const plan::Access& access : operation.accesses) {
    if (access.mode == AccessMode::update) bytes += static_cast<double>(access.range.size.count());
  }
  return bytes;
}

// Pairs of a shard and the whole. Beside the result of a window's sum may stand what it was rounded from.
double whole_bytes(const Operation& operation) {
  if (operation.kind == OperationKind::broadcast || operation.kind == OperationKind::sum_tied ||
      operation.passes_message())
    return declared_bytes(operation);
  if (operation.kind == OperationKind::collective && sums(operation.collective_kind))
    return static_cast<double>(operation.source().range.size.count());
  double bytes = 0;
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    bytes +=
        static_cast<double>(std::max(operation.source(move).range.size, operation.target(move).range.size).count());
  }
  return bytes;
}

// A slot's end is a note, and of a gradient only padding is cleared.
bool takes_no_time(OperationKind kind) {
  return kind == OperationKind::release || kind == OperationKind::prepare_gradient || kind == OperationKind::hook ||
         kind == OperationKind::initialize || kind == OperationKind::initialize_scalars ||
         kind == OperationKind::weight || kind == OperationKind::settle;
}

}  // namespace

double traced_bytes(const Operation& operation) {
  return is_collective(operation.kind) ? whole_bytes(operation) : declared_bytes(operation);
}

DurationModel::DurationModel(const plan::Plan& plan, const Machine& machine, const Workload& load,
                             const std::optional<Profile>& profile)
    : plan_(plan), machine_(machine) {
  add_windows(load, profile);
  const double profiled = profile ? computing_time(profile->ranks) : 1;
  for (auto& [window, seconds] : windows_) seconds *= computing_time(plan.job_ranks()) / profiled;
  if (!profile) return;
  seconds_per_byte_ = profile->seconds_per_byte;
  profiled_ranks_ = profile->ranks;
  add_outside(profile->outside);
}

void DurationModel::add_outside(double seconds) {
  using enum plan::SegmentKind;
  for (const plan::Segment& segment : plan_.segments) {
    const bool is_micro_batch =
        segment.kind == only || segment.kind == first || segment.kind == middle || segment.kind == last;
    if (!is_micro_batch || segment.operations.empty()) continue;
    outside_[&segment.operations.front()] = seconds / static_cast<double>(plan_.micro_batches(segment.program));
  }
}

double DurationModel::host_seconds(const Operation& operation) const {
  const auto outside = outside_.find(&operation);
  return machine_.launch + (outside == outside_.end() ? 0 : outside->second);
}

void DurationModel::add_windows(const Workload& load, const std::optional<Profile>& profile) {
  for (const plan::Segment& segment : plan_.segments) {
    std::map<std::pair<std::size_t, plan::WindowKind>, std::size_t> seen;
    const Operation* before = nullptr;
    double* whole = nullptr;
    for (const Operation& operation : segment.operations) {
      const Operation* const previous = std::exchange(before, &operation);
      if (operation.kind != OperationKind::window || operation.window == plan::WindowKind::evaluate) continue;
      // A profile has every stretch of a window; what is counted, is done in the first, but for what overlaps.
      if (!profile && operation.resumes) {
        const bool overlaps = previous->stream == plan::StreamId::overlap;
        const double beside = overlaps ? std::min(*whole, product_beside(*previous, load.shape)) : 0;
        windows_[&operation] = beside;
        *whole -= beside;
        continue;
      }
      whole = &windows_[&operation];
      const std::size_t nth = seen[{operation.unit, operation.window}]++;
      if (!profile) {
        const Work work = work_of(plan_, {operation.unit, operation.window, nth}, load);
        windows_[&operation] = counted(work, plan_.precision(operation.unit).parameter);
        continue;
      }
      const std::string& unit = plan_.units[operation.unit].name;
      const auto known = profile->windows.find({unit, std::string(to_string(operation.window)), nth});
      if (known == profile->windows.end()) {
        throw tessera::UsageError(fmt::format("the profile has no {} window {} of {}: it is of another model",
                                              to_string(operation.window), nth + 1, unit));
      }
      windows_[&operation] = known->second;
    }
  }
}

// A layer overlaps a collective with one product with its weight.
double DurationModel::product_beside(const Operation& collective, TokenShape shape) const {
  const plan::UnitSpec& unit = plan_.units[collective.unit];
  const std::string& name = unit.collectives[collective.collective].name;
  const std::string weight = name.substr(0, name.rfind('.')) + ".weight";
  const auto found = std::find_if(unit.parameters.begin(), unit.parameters.end(),
                                  [&](const plan::ParameterSpec& parameter) { return parameter.name == weight; });
  if (found == unit.parameters.end()) return 0;
  const double flops = 2 * static_cast<double>(shape.rows) * static_cast<double>(tessera::element_count(found->shape));
  return counted({.products = {{flops}}, .passes = {}}, plan_.precision(collective.unit).parameter);
}

double DurationModel::counted(const Work& work, tessera::DType type) const {
  double seconds = 0;
  for (const double bytes : work.passes) seconds += bytes / memory_rate(bytes, plan_.job_ranks());
  for (const Product& product : work.products) {
    seconds += product.count * product.flops / rate_of(product, type).at(product.flops);
  }
  return seconds;
}

// Convolutions of a machine that has no rates for them are products of what the kernel sees.
const Curve& DurationModel::rate_of(const Product& product, tessera::DType type) const {
  const auto index = static_cast<std::size_t>(type);
  if (product.convolution) {
    const ConvolutionRates& rates = machine_.convolutions[index][static_cast<std::size_t>(*product.convolution)];
    const Curve& rate = product.backward ? rates.backward : rates.forward;
    if (!rate.empty()) return rate;
  }
  if (!machine_.products[index].empty()) return machine_.products[index];
  throw tessera::UsageError(
      fmt::format("{} has no rate for products in {}: its file lacks it", machine_.name, to_string(type)));
}

// How many times as long computing takes as on a rank whose host has processors to spare: what else runs there, and
// whatever processors share, takes from all of them.
double DurationModel::computing_time(std::size_t ranks) const {
  const auto on_host = static_cast<double>(std::min(machine_.ranks_per_host, ranks));
  return machine_.processors && on_host >= *machine_.processors ? machine_.all_busy : 1;
}

// Ranks of a host compute the same things at about the same time, so they are at its memory together.
double DurationModel::memory_rate(double bytes, std::size_t ranks) const {
  const double alone = machine_.memory.at(bytes);
  if (machine_.host_memory.empty()) return alone;
  const auto on_host = static_cast<double>(std::min(machine_.ranks_per_host, ranks));
  const double at_once = machine_.processors ? std::clamp(*machine_.processors, 1.0, on_host) : on_host;
  return std::min(alone, machine_.host_memory.at(bytes) / at_once);
}

double DurationModel::memory_seconds(const Operation& operation) const {
  const auto measured = seconds_per_byte_.find(std::string(to_string(operation.kind)));
  const double bytes = moved_bytes(operation);
  if (bytes == 0) return 0;
  const double rate = memory_rate(bytes, plan_.job_ranks());
  if (measured == seconds_per_byte_.end()) return bytes / rate;
  return traced_bytes(operation) * measured->second * memory_rate(bytes, profiled_ranks_) / rate;
}

// Ranks wait for the owner that takes longest. What an optimizer does with whole tensors is products, of which Muon has
// 15 for each.
double DurationModel::transform_seconds(const Operation& operation) const {
  constexpr double products = 15;
  std::map<std::size_t, double> by_owner;
  for (const plan::WholeTensor& tensor : plan_.whole_groups[operation.whole_group].tensors) {
    const plan::UnitSpec& unit = plan_.units[tensor.unit];
    const auto flops = static_cast<double>(unit.parameters[tensor.parameter].whole->cost);
    const Product each{.flops = flops / products};
    by_owner[tensor.owner] += flops / rate_of(each, unit.whole_type).at(each.flops);
  }
  double longest = 0;
  for (const auto& [owner, seconds] : by_owner) longest = std::max(longest, seconds);
  return longest * computing_time(plan_.job_ranks());
}

// A redistribution takes as long as a gather in which a rank sends as much.
double DurationModel::gathered_bytes(const Operation& operation) const {
  if (operation.kind != OperationKind::redistribute) return whole_bytes(operation);
  const plan::WholeGroup& group = plan_.whole_groups[operation.whole_group];
  const auto ranks = static_cast<double>(plan_.mesh.size(group.axes));
  const tessera::Bytes sent =
      operation.goes_to_owners() ? bytes_to_owners(plan_, group) : bytes_from_owners(plan_, group);
  return static_cast<double>(sent.count()) * ranks / (ranks - 1);
}

// Values of the disk pass the host's memory, a part beside the next one: the slower link counts.
double DurationModel::transfer_seconds(const Operation& operation) const {
  const double bytes = whole_bytes(operation);
  const double copied = machine_.to_host.empty() ? memory_seconds(operation) : bytes / machine_.to_host.at(bytes);
  const auto stored = static_cast<double>(plan::size_on_disk(plan_, operation).count());
  if (stored == 0) return copied;
  if (machine_.to_disk.empty()) {
    throw tessera::UsageError(fmt::format(
        "machine {} says nothing of its disk, where the plan keeps states or masters, so the time is not known: add "
        "\"to_disk\", the rate of a rank's reads and writes in bytes per second, to its file (--machine FILE); tessera "
        "calibrate measures it",
        machine_.name));
  }
  return std::max(copied, stored / machine_.to_disk.at(stored));
}

// The host's processors pass over its memory.
double DurationModel::host_update_seconds(const Operation& operation) const {
  const double bytes = moved_bytes(operation);
  if (bytes == 0) return 0;
  if (!machine_.host_update.empty()) return bytes / machine_.host_update.at(bytes);
  if (machine_.to_host.empty()) return memory_seconds(operation);
  throw tessera::UsageError(
      fmt::format("machine {} says nothing of its host's processors, which are to update: add \"host_update\", the "
                  "bytes per second "
                  "that a rank's part of them reads and writes in an update, to its file (--machine FILE)",
                  machine_.name));
}

double DurationModel::seconds(const Operation& operation) const {
  if (operation.kind == OperationKind::window) {
    const auto known = windows_.find(&operation);
    return known == windows_.end() ? 0 : known->second;  // of evaluation
  }
  if (takes_no_time(operation.kind)) return 0;
  if (operation.kind == OperationKind::transfer) return transfer_seconds(operation);
  if (operation.stream == plan::StreamId::host) return host_update_seconds(operation);
  if (operation.kind == OperationKind::transform) return transform_seconds(operation);
  if (!is_collective(operation.kind)) return memory_seconds(operation);
  if (operation.passes_message() && plan_.options.role) {
    return message_seconds(machine_, plan_, neighbour(*plan_.options.role, plan_.roles(), operation),
                           declared_bytes(operation));
  }
  if (operation.kind == OperationKind::sum_tied) {
    const std::size_t last = plan_.roles() - 1;
    return message_seconds(machine_, plan_, *plan_.options.role == last ? 0 : last, whole_bytes(operation));
  }
  if (operation.group.empty()) return memory_seconds(operation);
  const auto seconds_of = [&](bool sums) {
    return collective_seconds(machine_, plan_, {operation.group, sums, gathered_bytes(operation)});
  };
  if (operation.kind != OperationKind::collective) return seconds_of(operation.kind == OperationKind::reduce_scatter);
  if (operation.collective_kind == plan::CollectiveKind::all_reduce) return seconds_of(true) + seconds_of(false);
  return seconds_of(operation.collective_kind == plan::CollectiveKind::reduce_scatter);
}

plan::Durations DurationModel::durations() const {
  return {.on_stream = [this](const Operation& operation) { return seconds(operation); },
          .on_host = [this](const Operation& operation) { return host_seconds(operation); }};
}

plan::SimulationOptions DurationModel::simulation_options() const {
  plan::SimulationOptions options;
  options.immediate_compute = machine_.immediate_compute;
  options.sharing.slowdown = machine_.slowdown;
  options.sharing.one_network = machine_.one_network;
  if (machine_.processors) {
    const auto ranks = static_cast<double>(std::min(machine_.ranks_per_host, plan_.job_ranks()));
    options.sharing.processors = *machine_.processors / ranks;
  }
  return options;
}

}  // namespace tools
