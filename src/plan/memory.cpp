// Adds up a plan's bytes.
#include "tessera/plan/memory.hpp"

#include <algorithm>

#include "plan/overlap.hpp"

namespace tessera::plan {

namespace {

bool is_slot(const Buffer& buffer) {
  return buffer.category == Category::parameter_slots || buffer.category == Category::gradient_slots ||
         buffer.category == Category::staging;
}

// The most that slots hold at once, in the order of launch: from the first write of a tenant to its release.
Bytes live_in_slots(const Plan& plan) {
  std::vector<Bytes> held(plan.buffers.size());
  Bytes now;
  Bytes most;
  for (const Segment& segment : plan.segments) {
    for (const Operation& operation : segment.operations) {
      for (const Access& access : operation.accesses) {
        const std::size_t buffer = access.range.buffer;
        if (!is_slot(plan.buffers[buffer])) continue;
        // A slot is taken for the whole unit, also while only this rank's shard stands in it.
        const std::size_t ranks = access.range.rank_stride == Bytes(0) ? 1 : plan.options.ranks;
        const Bytes after = access.mode == AccessMode::discard
                                ? Bytes(0)
                                : std::max(held[buffer], access.range.offset + access.range.size * ranks);
        now = now - held[buffer] + after;
        held[buffer] = after;
        most = std::max(most, now);
      }
    }
  }
  return most;
}

}  // namespace

MemoryReport memory(const Plan& plan) {
  MemoryReport report{};
  Bytes persistent;
  for (std::size_t index = 0; index < category_count; ++index) {
    CategoryBytes& category = report.categories[index];
    category.category = static_cast<Category>(index);
    Bytes end;
    bool any = false;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.category != category.category) continue;
      if (!any) category.offset = buffer.offset;
      any = true;
      end = std::max(end, buffer.offset + buffer.size);
      if (!is_slot(buffer)) persistent += buffer.size;
    }
    if (any) category.size = round_up(end - category.offset, region_alignment);
    report.peak += category.size;
    if (category.category == Category::checkpoints) report.host += category.size;
  }
  report.live = persistent + live_in_slots(plan);
  return report;
}

}  // namespace tessera::plan
