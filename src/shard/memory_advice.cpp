// Tries the settings that save memory, mildest first.
#include "shard/memory_advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera {

namespace {

struct Setting {
  const char* text;
  void (*apply)(plan::PlanOptions&);
};

// Each is tried on top of those before it.
constexpr Setting settings[] = {
    {"reshard_after_forward = true", [](plan::PlanOptions& o) { o.reshard_after_forward = true; }},
    {"accumulation = reduced", [](plan::PlanOptions& o) { o.accumulation = AccumulationMode::reduced; }},
    {"bucket_cap = 0",
     [](plan::PlanOptions& o) {
       if (o.bucket_cap || o.strategy != Strategy::fsdp) o.bucket_cap = Bytes(0);
     }},
    {"overlap_reduction = false", [](plan::PlanOptions& o) { o.overlap_reduction = false; }},
    {"prefetch = 0", [](plan::PlanOptions& o) { o.prefetch = 0; }},
    {"strategy = zero2",
     [](plan::PlanOptions& o) { o.strategy = o.strategy == Strategy::fsdp ? Strategy::fsdp : Strategy::zero2; }},
    {"strategy = fsdp", [](plan::PlanOptions& o) { o.strategy = Strategy::fsdp; }},
};

std::string advice(plan::CompileInput input, Bytes limit) {
  std::string changed;
  Bytes smallest = plan::memory(plan::compile(input)).peak;
  for (const Setting& setting : settings) {
    const plan::PlanOptions before = input.options;
    setting.apply(input.options);
    if (input.options == before) continue;
    changed += (changed.empty() ? "" : ", ") + std::string(setting.text);
    const Bytes peak = plan::memory(plan::compile(input)).peak;
    if (peak <= limit) return fmt::format("it fits ({}) with {}", to_string(peak), changed);
    smallest = std::min(smallest, peak);
  }
  return fmt::format("no setting fits on {} ranks (the smallest needs {}): use more ranks or smaller units",
                     input.options.ranks, to_string(smallest));
}

}  // namespace

void require_fit(const plan::Plan& plan, const plan::CompileInput& input, Bytes limit) {
  const plan::MemoryReport report = plan::memory(plan);
  if (report.peak <= limit) return;
  const auto largest = std::max_element(report.categories.begin(), report.categories.end(),
                                        [](const auto& a, const auto& b) { return a.size < b.size; });
  throw MemoryError(
      fmt::format("the plan needs {} per rank, more than the limit of {}; the largest term is {} with {}; {}",
                  to_string(report.peak), to_string(limit), to_string(largest->category), to_string(largest->size),
                  advice(input, limit)));
}

}  // namespace tessera
