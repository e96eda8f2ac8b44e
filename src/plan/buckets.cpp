// Fills buckets in the order in which gradients become complete.
#include "plan/buckets.hpp"

#include <tuple>

namespace tessera::plan {

namespace {

Bytes gradient_bytes(const Plan& plan, std::size_t unit) {
  const UnitLayout& layout = plan.layouts[unit];
  std::size_t elements = 0;
  for (std::size_t p = 0; p < layout.parameters(); ++p) {
    if (layout.part(p) == Part::trained) elements += layout.elements(p);
  }
  const DType wire = wire_type(plan, unit);
  return size_of(wire) * ((elements + block_of(wire) - 1) / block_of(wire));
}

// One operation has one type, one group, and one way by which gradients come to it.
bool travel_alike(const Plan& plan, std::size_t a, std::size_t b) {
  const auto way = [&](std::size_t unit) {
    return std::tuple(wire_type(plan, unit), accumulates(plan, unit), converts(plan, unit), plan.common(unit).bits());
  };
  return way(a) == way(b);
}

}  // namespace

std::vector<WindowUse> trained_windows(const Plan& plan, std::size_t program) {
  std::vector<WindowUse> result;
  for (const WindowUse& use : plan.programs[program].micro_batch) {
    if (plan.trains(use.unit, program)) result.push_back(use);
  }
  return result;
}

bool accumulates(const Plan& plan, std::size_t unit) {
  if (!plan.trains(unit)) return false;
  if (plan.accumulation(plan.trainers[unit]) == AccumulationMode::local) return true;
  return plan.backward_windows[unit] > 1;
}

bool converts(const Plan& plan, std::size_t unit) {
  const Precision& precision = plan.precision(unit);
  return plan.trains(unit) && !accumulates(plan, unit) && !is_written_in_place(plan, unit) &&
         precision.wire != precision.gradient;
}

namespace {

// A rank that trains by itself: its gradient needs no fp32 to be added in, where it would not be rounded on its way.
bool may_stay_narrow(const Plan& plan, std::size_t unit) {
  const Precision& precision = plan.precision(unit);
  if (plan.units[unit].is_of_two_roles() || plan.options.gradient_hooks || plan.options.fp32_sums ||
      plan.training_ranks() > 1)
    return false;
  return precision.wire == precision.gradient || precision.wire == DType::fp32;
}

}  // namespace

bool is_written_in_place(const Plan& plan, std::size_t unit) {
  if (!plan.trains(unit) || accumulates(plan, unit) || plan.micro_batches(plan.trainers[unit]) > 1) return false;
  const Precision& precision = plan.precision(unit);
  const bool is_fp32 = precision.gradient == DType::fp32 && precision.wire == DType::fp32;
  if (!is_fp32 && !may_stay_narrow(plan, unit)) return false;
  return plan.sharding(unit).gradients.empty() || plan.options.ranks == 1;
}

DType sum_type(const Plan& plan, std::size_t unit) {
  return is_written_in_place(plan, unit) ? plan.precision(unit).gradient : DType::fp32;
}

DType wire_type(const Plan& plan, std::size_t unit) {
  return accumulates(plan, unit) ? DType::fp32 : plan.precision(unit).wire;
}

std::vector<Bucket> reduction_buckets(const Plan& plan, std::size_t program) {
  const std::vector<WindowUse> windows = trained_windows(plan, program);
  const std::vector<bool> closing = closes(windows);
  std::vector<std::size_t> left(plan.units.size(), 0);
  for (const WindowUse& use : windows) left[use.unit] += use.kind == WindowKind::backward && !use.resumes ? 1 : 0;
  const Bytes cap = plan.options.bucket_cap.value_or(Bytes(0));
  std::vector<Bucket> buckets;
  Bytes filled;
  std::size_t position = 0;
  for (std::size_t k = 0; k < windows.size(); ++k) {
    const WindowUse& use = windows[k];
    if (use.kind != WindowKind::backward || !closing[k]) continue;
    if (--left[use.unit] == 0) {
      const Bytes bytes = gradient_bytes(plan, use.unit);
      const bool joins = cap > Bytes(0) && !buckets.empty() && filled + bytes <= cap &&
                         travel_alike(plan, buckets.back().units.front(), use.unit);
      if (!joins) buckets.emplace_back();
      filled = joins ? filled + bytes : bytes;
      buckets.back().units.push_back(use.unit);
      buckets.back().closes = position;
    }
    ++position;
  }
  return buckets;
}

}  // namespace tessera::plan
