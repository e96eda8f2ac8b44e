// One unit that all ranks' shards divide stands for any number of parameters.
#include "models/persistent.hpp"

#include "models/model.hpp"
#include "tessera/plan/compile.hpp"

namespace models {

namespace plan = tessera::plan;

tessera::Bytes persistent(const plan::MemoryReport& memory) {
  tessera::Bytes sum;
  for (const plan::CategoryBytes& category : memory.categories) {
    using enum plan::Category;
    const auto kind = category.category;
    if (kind == parameters || kind == gradients || kind == optimizer || kind == accumulation || kind == offloaded ||
        kind == on_disk)
      sum += category.size;
  }
  return sum;
}

double persistent_per_parameter(plan::PlanOptions options, const std::vector<plan::StateSpec>& optimizer_states) {
  const std::size_t elements = 4096 * options.ranks;  // every shard is whole, and fills its alignment
  plan::UnitSpec unit{"unit", {}};
  add_parameter(unit, "weight", {elements});
  const plan::Plan planned = plan::compile({{unit}, {plan::Program::chain(1)}, options, optimizer_states});
  return static_cast<double>(persistent(plan::memory(planned)).count()) / static_cast<double>(elements);
}

double zero_paper_per_parameter(const tessera::Strategy& strategy, std::size_t ranks, std::size_t replicas) {
  using tessera::Axis;
  const auto share = [&](tessera::AxisSet over) {
    const std::size_t shards = over.contains(Axis::shard) ? ranks / replicas : 1;
    return 1.0 / static_cast<double>(over.contains(Axis::replicate) ? shards * replicas : shards);
  };
  const tessera::Sharding& sharding = strategy.sharding;
  const double gradients = strategy == tessera::Strategy::zero1 ? 1.0 : share(sharding.gradients);
  return 2.0 * share(sharding.parameters) + 2.0 * gradients + 12.0 * share(sharding.optimizer);
}

}  // namespace models
