// Planning, and measuring where there is memory for it. Layers compute nothing: what is measured is the runtime's.
#include "memory_per_gpu/rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "memory_per_gpu/machine.hpp"
#include "probe/hollow_model.hpp"
#include "probe/memory_probe.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/memory.hpp"

namespace bench {

using tessera::Bytes;
using tessera::FullyShardOptions;
using tessera::Strategy;
using tessera::World;
using tessera::plan::Category;
using tessera::probe::RankMemory;

namespace {

// zero1 keeps whole sums of several micro-batches; with one it is zero2.
bool keeps_whole_sums(const FormulaInput& input) {
  return input.strategy == Strategy::zero1 && input.micro_batches > 1;
}

double bytes_with_sums_in_fp32(const FormulaInput& input) {
  const auto n = static_cast<double>(input.ranks);
  const double s = n / static_cast<double>(input.replicas);
  const double gradient = input.replicas > 1 ? 4 / s : 4 / n;  // each replica has a sum of its own first
  switch (input.strategy) {
    case Strategy::ddp: return input.mixed ? 18 : 16;
    case Strategy::zero1:
    case Strategy::zero2:
      if (keeps_whole_sums(input)) return input.mixed ? 6 + 12 / n : 8 + 8 / n;
      return (input.mixed ? 2 + 12 / n : 4 + 8 / n) + gradient;
    case Strategy::fsdp: return 12 / n + gradient;
    case Strategy::hsdp: return 16 / s;
    case Strategy::hfsdp:
      if (input.replicas == 1) return 16 / n;  // fsdp, which keeps no copy of its masters
      return (input.mixed ? 2 / s + 12 / n : 4 / s + 8 / n) + gradient;
  }
  throw tessera::InternalError("a strategy without a formula");
}

}  // namespace

// One rank adds nothing to the gradient of a step's one micro-batch, which then stays in its own type.
double bytes_per_parameter(const FormulaInput& input) {
  const bool is_its_own_sum = input.ranks == 1 && input.micro_batches == 1 && input.mixed;
  return bytes_with_sums_in_fp32(input) - (is_its_own_sum ? 2 : 0);
}

double bytes_per_parameter_in_the_paper(const FormulaInput& input) {
  const auto n = static_cast<double>(input.ranks);
  const double s = n / static_cast<double>(input.replicas);
  switch (input.strategy) {
    case Strategy::ddp: return 16;
    case Strategy::zero1: return 4 + 12 / n;
    case Strategy::zero2: return 2 + 14 / n;
    case Strategy::fsdp: return 16 / n;
    case Strategy::hsdp: return 16 / s;
    case Strategy::hfsdp: return 4 / s + 12 / n;
  }
  throw tessera::InternalError("a strategy without a formula");
}

namespace {

RankMemory planned(const Comparison& comparison, const FullyShardOptions& options, std::size_t ranks) {
  const tessera::plan::MemoryReport report = tessera::plan::memory(
      tessera::plan::compile({.units = comparison.model.units,
                              .programs = {comparison.model.program},
                              .options = {.strategy = options.strategy,
                                          .precision = options.precision,
                                          .ranks = ranks,
                                          .replicas = options.replicas,
                                          .micro_batches = options.micro_batches,
                                          .prefetch = options.prefetch,
                                          .activations = options.activations},
                              .optimizer_states = std::unique_ptr<tessera::Optimizer>(tessera::AdamW{})->states()}));
  RankMemory memory;
  for (std::size_t index = 0; index < tessera::plan::category_count; ++index) {
    memory.categories[index] = {report.categories[index].size, Bytes(0)};
  }
  memory.peak = {report.peak, Bytes(0)};
  memory.live = report.live;
  return memory;
}

RankMemory take_a_step(World& world, const Comparison& comparison, const FullyShardOptions& options) {
  tessera::probe::HollowModel hollow(world, comparison.model.units, options);
  hollow.step();
  hollow.model().synchronize();
  return tessera::probe::measure(hollow.model());
}

bool as_planned(const RankMemory& memory) {
  return memory.measurable && memory.peak.planned == memory.peak.measured &&
         std::all_of(memory.categories.begin(), memory.categories.end(),
                     [](const auto& category) { return category.planned == category.measured; });
}

// One whose bytes are not those of the plan, if there is one.
RankMemory worst_of_real_ranks(const Comparison& comparison, const FullyShardOptions& options, std::size_t ranks) {
  std::vector<RankMemory> all;
  tessera::launch({.ranks = static_cast<int>(ranks)}, [&](World& world) {
    const auto gathered = tessera::probe::gather(world, take_a_step(world, comparison, options));
    if (world.rank() == 0) all = gathered;
  });
  const auto different = std::find_if_not(all.begin(), all.end(), as_planned);
  return different == all.end() ? all.front() : *different;
}

RankMemory simulated_rank(const Comparison& comparison, const FullyShardOptions& options, std::size_t ranks) {
  RankMemory memory;
  tessera::simulate({.ranks = static_cast<int>(ranks)},
                    [&](World& world) { memory = take_a_step(world, comparison, options); });
  return memory;
}

void measure(const Comparison& comparison, const FullyShardOptions& options, Row& row) {
  const Bytes one = row.memory.peak.planned;
  const Bytes room = memory_to_take();
  if (!tessera::probe::available()) {
    row.how = "not measured: this build cannot interpose the allocators";
  } else if (one > room) {
    row.how = fmt::format("not measured: a rank takes {}, half of what is free is {}", to_string(one), to_string(room));
  } else if (row.mesh.ranks <= comparison.most_real_ranks && row.mesh.ranks * one <= room) {
    row.memory = worst_of_real_ranks(comparison, options, row.mesh.ranks);
    row.how = fmt::format("{} real rank{}", row.mesh.ranks, row.mesh.ranks == 1 ? "" : "s");
  } else {
    row.memory = simulated_rank(comparison, options, row.mesh.ranks);
    row.how = fmt::format("rank 0 of {}, simulated", row.mesh.ranks);
    if (row.mesh.ranks <= comparison.most_real_ranks) {
      row.how += fmt::format(": {} real ones take {}, half of what is free is {}", row.mesh.ranks,
                             to_string(row.mesh.ranks * one), to_string(room));
    }
  }
}

}  // namespace

Bytes Row::persistent() const {
  Bytes sum;
  for (const Category category : {Category::parameters, Category::gradients, Category::optimizer}) {
    sum += memory.categories[static_cast<std::size_t>(category)].planned;
  }
  return sum;
}

bool Row::measured_as_planned() const { return as_planned(memory); }

Row make_row(const Comparison& comparison, tessera::Strategy strategy, const NamedPrecision& precision,
             const Mesh& mesh) {
  const FullyShardOptions options{.strategy = strategy,
                                  .replicas = mesh.replicas,
                                  .precision = precision.precision,
                                  .micro_batches = comparison.micro_batches,
                                  .prefetch = comparison.prefetch,
                                  .program = comparison.model.program,
                                  .activations = precision.activations};
  const auto parameters = static_cast<double>(models::count_parameters(comparison.model.units).trained);
  const FormulaInput formula{.strategy = strategy,
                             .mixed = precision.precision.parameter != tessera::DType::fp32,
                             .ranks = mesh.ranks,
                             .replicas = mesh.replicas,
                             .micro_batches = comparison.micro_batches};
  Row row{.strategy = strategy,
          .precision = precision.name,
          .mesh = mesh,
          .formula = Bytes(static_cast<std::uint64_t>(parameters * bytes_per_parameter(formula))),
          .paper = Bytes(static_cast<std::uint64_t>(parameters * bytes_per_parameter_in_the_paper(formula))),
          .memory = planned(comparison, options, mesh.ranks),
          .how = "planned only"};
  if (comparison.measure) measure(comparison, options, row);
  return row;
}

}  // namespace bench
