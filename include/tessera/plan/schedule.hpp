// Schedules of a pipeline as data: in which order each stage's ranks go forward and back through which micro-batches. A
// schedule is a list for each stage, of one's own or by one of the functions here, and check() holds every one to the
// same: nothing here knows more of a schedule than its lists. All functions are pure.
//
// Facts, with P stages, m micro-batches, F and B the time of a stage's forward and whole backward pass of one, W the
// part of B that forms the gradients of parameters, all stages alike (tests hold the lists to them): what a stage
// stands still in a step, and the micro-batches whose activations stage s holds at once.
//   gpipe        (P - 1) (F + B)          m               Huang et al. 2019
//   one_f_one_b  (P - 1) (F + B)          min(m, P - s)   Narayanan et al. 2019
//   interleaved  (P - 1) (F + B) / V      min(mV, (V + 1) P - 1 - 2s), of V > 1 chunks  Narayanan et al. 2021
//   zb_h1        (P - 1) (F + B - 2W)     min(m, P)       Qi et al. 2023
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/program.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

// One step of a stage's list. Stage s of P has the chunks s, P + s, 2P + s, … of the model, counted here 0, 1, 2, …: a
// micro-batch goes forward through all stages' first chunks, then their second ones, and back likewise. `kind` is
// forward, backward, or backward_input, behind which backward forms the gradients of parameters alone.
struct ScheduledPass {
  WindowKind kind;
  std::size_t micro_batch;
  std::size_t chunk = 0;
  friend bool operator==(const ScheduledPass&, const ScheduledPass&) = default;
};
using Schedule = std::vector<std::vector<ScheduledPass>>;  // by stage

struct ScheduleShape {
  std::size_t stages;
  std::size_t micro_batches;
  std::size_t chunks = 1;  // of each stage
};

enum class ScheduleKind { gpipe, one_f_one_b, interleaved, zb_h1 };
std::string_view to_string(ScheduleKind kind);  // "1f1b"

// Gradients of micro-batches add up in their order in all, so that they have the same bits. Throws UsageError for none
// of anything, for chunks where the kind has one, and where interleaved micro-batches are no multiple of the stages.
Schedule schedule(ScheduleKind kind, const ScheduleShape& shape);

// Throws UsageError naming stage and pass: a micro-batch that does not go through a chunk exactly once forward and
// back, or back before forward, and stages that wait for each other for ever.
void check(const Schedule& schedule, const ScheduleShape& shape);

// How many micro-batches' activations a stage holds at most, each of one chunk, from its forward pass to the end of its
// backward one.
std::size_t in_flight(const std::vector<ScheduledPass>& stage);

// Seconds of one pass through one chunk; messages take none.
struct PassSeconds {
  double forward = 1;
  double backward_input = 1;
  double backward_parameters = 1;  // the rest of backward
};
struct ScheduleTimes {
  double step = 0;                          // until the last stage is done
  std::vector<double> idle;                 // of each stage in that
  std::vector<std::vector<double>> begins;  // by stage and pass
};
// When everything happens, with as many buffers as it takes. `slowdown`: by stage, how many times as long it takes;
// empty: all alike. Throws as check() does.
ScheduleTimes times(const Schedule& schedule, const ScheduleShape& shape, const PassSeconds& seconds = {},
                    const std::vector<double>& slowdown = {});

// A line for each stage, in which a forward pass F, a whole backward pass B and its two halves b and W take as many
// cells as seconds, with their micro-batch and a mark for each chunk behind the first.
std::string draw(const Schedule& schedule, const ScheduleShape& shape);

}  // namespace tessera::plan

#pragma GCC visibility pop
