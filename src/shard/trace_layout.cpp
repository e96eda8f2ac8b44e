// Walks a step as the executor does: open() launches up to the first window, each close() up to the next.
#include "shard/trace_layout.hpp"

namespace tessera {

using plan::SegmentKind;
using Call = HostSection::Call;

TraceLayout::TraceLayout(const plan::Plan& plan) {
  const std::size_t last = plan.options.micro_batches - 1;
  for (std::size_t micro = 0; micro <= last; ++micro) {
    const SegmentKind kind = last == 0       ? SegmentKind::only
                             : micro == 0    ? SegmentKind::first
                             : micro == last ? SegmentKind::last
                                             : SegmentKind::middle;
    add_segment(plan, kind, micro);
  }
  begin_section(Call::update, {}, last);
  add_segment(plan, SegmentKind::update, last);
  end_section();
}

void TraceLayout::begin_section(Call call, plan::WindowUse use, std::size_t micro_batch) {
  sections.push_back({call, use, micro_batch, host_stamps++, 0});
}

void TraceLayout::add_segment(const plan::Plan& plan, SegmentKind kind, std::size_t micro_batch) {
  const std::size_t segment = plan.find(kind).value();
  const auto& uses = plan.program.micro_batch;
  const auto& listed = plan.segments[segment].operations;
  const bool windows = kind != SegmentKind::update;
  std::size_t opened = 0;
  for (std::size_t index = 0; index < listed.size(); ++index) {
    const bool window = listed[index].kind == plan::OperationKind::window;
    if (windows && (index == 0 || (window && opened > 0))) {
      if (index > 0) end_section();
      begin_section(Call::open, uses[opened], micro_batch);
    }
    add_operation(listed[index], {segment, index}, micro_batch);
    if (window) {
      end_section();
      begin_section(Call::close, uses[opened++], micro_batch);
    }
    operations.back().end = stamps++;
  }
  if (windows) end_section();
}

void TraceLayout::add_operation(const plan::Operation& operation, plan::EventPoint point, std::size_t micro_batch) {
  TracedOperation traced{.point = point,
                         .micro_batch = micro_batch,
                         .section = sections.size() - 1,
                         .arrival = stamps++,
                         .waits = 0,
                         .end = 0};
  for (const plan::Wait& wait : operation.waits) {
    if (wait.type == plan::WaitType::data) ++traced.waits;
    if (wait.type == plan::WaitType::throttle) {
      traced.throttle = host_stamps;
      host_stamps += 2;
    }
  }
  stamps += traced.waits;
  operations.push_back(traced);
}

}  // namespace tessera
