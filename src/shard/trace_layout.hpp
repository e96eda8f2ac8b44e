// Which time stamps a traced step takes, in the order in which the executor takes them: for every operation one when
// its stream comes to it, one after each data wait and one at its end; for the host one at each end of a call into the
// runtime, and around each wait. A function of the plan alone, so equal on every rank.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera {

// Stamps are indices within a step: `arrival` + i is after the i-th of the `waits` data waits, the last of them when
// the operation starts.
struct TracedOperation {
  plan::EventPoint point;
  std::size_t micro_batch;
  std::size_t section;
  std::size_t arrival;
  std::size_t waits;
  std::size_t end;
  std::optional<std::size_t> throttle = std::nullopt;  // host stamps: before its throttle wait; + 1: after

  std::size_t start() const { return arrival + waits; }
};

// A call of the user's into the runtime. Stamps of the host.
struct HostSection {
  enum class Call { open, close, update };
  Call call;
  plan::WindowUse use;  // of open and close
  std::size_t micro_batch;
  std::size_t begin;
  std::size_t end;
};

struct TraceLayout {
  explicit TraceLayout(const plan::Plan& plan);

  std::vector<TracedOperation> operations;  // in the order of launch
  std::vector<HostSection> sections;
  std::size_t stamps = 0;       // of streams, in a step
  std::size_t host_stamps = 0;  // in a step

 private:
  void add_segment(const plan::Plan& plan, plan::SegmentKind kind, std::size_t micro_batch);
  void add_operation(const plan::Operation& operation, plan::EventPoint point, std::size_t micro_batch);
  void begin_section(HostSection::Call call, plan::WindowUse use, std::size_t micro_batch);
  void end_section() { sections.back().end = host_stamps++; }
};

}  // namespace tessera
