"""Faults of the runtime, as data: what is wrong, where, and which tests ought to see it. `scripts/faults` puts one at a time
into a copy of the sources and runs those tests; faults_apply_test.py checks that each still fits the sources.

A fault replaces `old`, which must stand exactly once in the file, with `new`. Its tests are tried in turn until one goes red.
"""
import dataclasses

# Programs that a fault's tests are cases of: name → target of the build. Cases are doctest filters.
PROGRAMS = {
    "checkpoint": "tests/checkpoint/test_checkpoint",
    "checkpoint_crash": "tests/checkpoint/test_checkpoint_crash",
    "comm": "tests/comm/test_comm",
    "data": "tests/data/test_data",
    "kernels": "tests/kernels/test_kernels",
    "memory": "tests/memory/test_memory",
    "plan": "tests/plan/test_plan",
    "shard": "tests/shard/test_shard",
    "shard_matrix": "tests/shard/test_shard_matrix",
    "stress_seeds": "tests/stress/test_stress_seeds",
    "stress_soak": "tests/stress/test_stress_soak",
    "trace": "tests/shard/test_trace",
}


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    new: str
    tests: tuple  # of (program, case filter)


def whole(*programs):
    return tuple((program, "*") for program in programs)


FAULTS = [
    # ---- waits and events ----
    Fault("a wait is dropped: windows do not wait for the gather",
          "src/shard/executor.cpp",
          "    case WaitType::data: return on.wait(events_[wait.event]);",
          "    case WaitType::data:\n"
          "      if (plan_.at(plan_.events[wait.event]).kind == plan::OperationKind::all_gather) return;\n"
          "      return on.wait(events_[wait.event]);",
          whole("shard_matrix", "stress_seeds")),
    Fault("a wait is dropped: who takes a slot does not wait for its release",
          "src/shard/executor.cpp",
          "    case WaitType::data: return on.wait(events_[wait.event]);",
          "    case WaitType::data:\n"
          "      if (plan_.at(plan_.events[wait.event]).kind == plan::OperationKind::release) return;\n"
          "      return on.wait(events_[wait.event]);",
          whole("shard_matrix", "stress_seeds")),
    Fault("an event is recorded one operation early",
          "src/shard/executor.cpp",
          "  operations_.launch({segment_, index}, on);\n  if (!range_names_.empty()) device::end_range(on);\n  touch(index, on);\n"
          "  if (traced_ != nullptr) traced_->stamp(on);\n  record(index, on);",
          "  record(index, on);\n  operations_.launch({segment_, index}, on);\n  if (!range_names_.empty()) device::end_range(on);\n"
          "  touch(index, on);\n  if (traced_ != nullptr) traced_->stamp(on);",
          whole("shard_matrix", "stress_seeds")),
    Fault("the host is not throttled",
          "src/shard/executor.cpp",
          "    case WaitType::throttle: return host_->wait(events_[wait.event]);",
          "    case WaitType::throttle: return;",
          whole("stress_seeds")),
    Fault("a wait for an event looks at the record before the latest",
          "src/device/cpu_stream.cpp",
          "  record_.position = position;",
          "  record_.position = position == 0 ? 0 : position - 1;",
          whole("shard_matrix", "stress_seeds")),
    Fault("a planned wait is left out",
          "src/plan/emit.cpp",
          "  add(OperationKind::release, StreamId::compute, unit).accesses = {\n"
          "      {whole_range(plan_, unit, buffers(unit).parameters, parameter_type(unit)), AccessMode::discard, unit}};",
          "  add(OperationKind::release, StreamId::compute, unit);",
          (("plan", "verify_accepts*"), ("shard_matrix", "*"))),
    # ---- slots and places ----
    Fault("a slot is freed early: before the window that reads it",
          "src/plan/emit.cpp",
          "    const WindowUse& use = windows[position];\n    if (use.kind == WindowKind::backward) {",
          "    const WindowUse& use = windows[position];\n"
          "    if (gathers && stays[position].release_after) release_parameters(use.unit);\n"
          "    if (use.kind == WindowKind::backward) {",
          (("plan", "verify_accepts*"),)),
    Fault("a wrong shard offset: each rank's part is the next one's",
          "src/shard/model_memory.cpp",
          "range.shard_stride * place_.shard;",
          "range.shard_stride * ((place_.shard + 1) % plan_.ranks_of_replica());",
          whole("shard", "shard_matrix")),
    Fault("a wrong shard offset: a parameter's piece is read one element late",
          "src/plan/layout.cpp",
          "begin_in(extent, part) + first - begin, last - first});",
          "begin_in(extent, part) + first - begin + (first > begin ? 1 : 0), last - first});",
          (("plan", "verify_accepts*"), ("shard", "*"))),
    Fault("a gather writes into the first unit's slot, whosever parameters they are",
          "src/shard/operations.cpp",
          "      result.gathers.push_back({.data = address(target), .shard",
          "      result.gathers.push_back({.data = unit != plan::no_unit ? "
          "base(plan_.unit_buffers[0].parameters) : address(target), .shard",
          whole("shard_matrix")),
    Fault("the optimizer's second state is the first one's",
          "src/shard/operations.cpp",
          "      for (const std::size_t state : plan_.unit_buffers[unit].states) {\n        states",
          "      for (std::size_t state : plan_.unit_buffers[unit].states) {\n"
          "        state = plan_.unit_buffers[unit].states.front();\n        states",
          whole("shard")),
    Fault("prefetch is one window too deep",
          "src/plan/residency.cpp",
          "      result[k].gather_before = k > prefetch ? k - prefetch : 0;",
          "      result[k].gather_before = k > prefetch + 1 ? k - prefetch - 1 : 0;",
          (("plan", "verify_accepts*"), ("shard_matrix", "*"))),
    # ---- meshes of replicas ----
    Fault("replicas are not summed: each updates with its own gradient",
          "src/plan/emit.cpp",
          "  if (last && sums_replicas()) reduce_across_replicas(bucket);",
          "  if (last && sums_replicas() && bucket.units.empty()) reduce_across_replicas(bucket);",
          (("plan", "verify_accepts*"),)),
    Fault("replicas are summed after every micro-batch",
          "src/plan/emit.cpp",
          "  if (last && sums_replicas()) reduce_across_replicas(bucket);",
          "  if (sums_replicas()) reduce_across_replicas(bucket);",
          (("plan", "each_gradient_is_summed*"), ("shard_matrix", "*mesh*"))),
    Fault("the sum over replicas is taken as one over all ranks",
          "src/plan/abstract_rank.cpp",
          "    const std::size_t ranks = operation.group == GroupKind::all     ? plan_->options.ranks",
          "    const std::size_t ranks = operation.group != GroupKind::shard   ? plan_->options.ranks",
          (("plan", "verify_objects*"), ("plan", "verify_accepts*"))),
    Fault("an outer step leaves the anchor where it was",
          "src/kernels/optimizer.cpp",
          "    a.anchor[i] = master;\n",
          "",
          (("kernels", "*outer*"), ("shard_matrix", "*outer*"))),
    Fault("a shard's owner is the rank of its number, whatever the mesh",
          "src/plan/layout.cpp",
          "  return rank % ranks_of_replica * replicas_ + rank / ranks_of_replica;",
          "  return rank + 0 * ranks_of_replica;",
          (("plan", "owners_of*"), ("shard_matrix", "*mesh*"))),
    Fault("gathers across replicas and inside them exchange their groups",
          "src/shard/operations.cpp",
          "  const Group groups[plan::group_count] = {mesh.group_of({\"shard\", \"replicate\"}), mesh.group(\"shard\"),\n"
          "                                           mesh.group(\"replicate\")};",
          "  const Group groups[plan::group_count] = {mesh.group_of({\"shard\", \"replicate\"}), mesh.group(\"replicate\"),\n"
          "                                           mesh.group(\"shard\")};",
          (("shard_matrix", "*mesh*"),)),
    # ---- sums ----
    Fault("the average over ranks is missing",
          "src/plan/emit.cpp",
          "  reduction.divisor = last && !sums_replicas() ? plan_.training_ranks() * plan_.options.micro_batches : 1;",
          "  reduction.divisor = last && !sums_replicas() ? plan_.options.micro_batches : 1;",
          (("plan", "verify_accepts*"), ("shard", "*"))),
    Fault("every micro-batch divides, not the last one alone",
          "src/plan/emit.cpp",
          "  reduction.divisor = last && !sums_replicas() ? plan_.training_ranks() * plan_.options.micro_batches : 1;",
          "  reduction.divisor = first || last ? plan_.options.ranks * plan_.options.micro_batches : 1;",
          (("plan", "verify_accepts*"), ("shard", "*"))),
    Fault("the communicator forgets to divide",
          "src/comm/direct_collectives.hpp",
          "              .accumulate = operation.accumulate,\n              .divisor = operation.divisor});",
          "              .accumulate = operation.accumulate,\n              .divisor = 1.0f});",
          whole("comm", "shard")),
    Fault("accumulation on the rank overwrites",
          "src/shard/operations.cpp",
          "  if (operation.add) {\n    kernels::accumulate",
          "  if (operation.add && operation.unit == plan::no_unit) {\n    kernels::accumulate",
          whole("shard", "shard_matrix")),
    Fault("accumulation of reduced micro-batches overwrites",
          "src/shard/operations.cpp",
          "                                 .accumulate = operation.add,",
          "                                 .accumulate = false,",
          whole("shard", "shard_matrix")),
    Fault("ranks are summed starting from one's own",
          "src/comm/direct_collectives.hpp",
          "    pointers[static_cast<std::size_t>(place)] = place == reader.place() ? own : address(place);",
          "    const int other = (place + reader.place()) % reader.size();\n"
          "    pointers[static_cast<std::size_t>(place)] = other == reader.place() ? own : address(other);",
          whole("comm")),
    Fault("a rank leaves a collective while peers still read its memory",
          "src/comm/local/local_group.cpp",
          "  stop_moving();\n  pass(lock);\n  slot(place).busy = false;",
          "  stop_moving();\n  slot(place).busy = false;",
          whole("comm", "stress_seeds")),
    # ---- norm, clipping, scale, update ----
    Fault("the norm counts padding: it is not zero",
          "src/shard/operations.cpp",
          "  clear(end_of_last, layout.padded_elements(plan::Part::trained));",
          "  if (poison_) clear(end_of_last, layout.padded_elements(plan::Part::trained));",
          whole("shard", "shard_matrix")),
    Fault("norms are added in another order: by rank, then by unit",
          "src/kernels/step_scalars.cpp",
          "  for (std::size_t unit = 0; unit < partials.units; ++unit) {\n"
          "    for (std::size_t rank = 0; rank < partials.ranks; ++rank) sum += partials.values[rank * partials.units + unit];\n"
          "  }",
          "  for (std::size_t i = 0; i < partials.units * partials.ranks; ++i) sum += partials.values[i];",
          whole("kernels")),
    Fault("the norm leaves the last block out",
          "src/kernels/cpu/kernels_of_lanes.hpp",
          "  for (std::size_t block = 0; block < blocks; ++block) {",
          "  for (std::size_t block = 0; block + 1 < blocks; ++block) {",
          whole("kernels")),
    Fault("the clip factor is ignored",
          "src/kernels/step_arithmetic.hpp",
          "(clip > 0.0 && norm > clip ? clip / norm : 1.0) / scale);",
          "(clip > 1e30 && norm > clip ? clip / norm : 1.0) / scale);",
          whole("kernels", "shard")),
    Fault("the loss scale is not taken out of the gradients",
          "src/kernels/step_arithmetic.hpp",
          "(clip > 0.0 && norm > clip ? clip / norm : 1.0) / scale);",
          "(clip > 0.0 && norm > clip ? clip / norm : 1.0));",
          whole("kernels", "shard")),
    Fault("a step with an overflow is applied",
          "src/kernels/step_arithmetic.hpp",
          "  scalars.skip = norm - norm == 0.0 ? 0 : 1;",
          "  scalars.skip = 0;",
          whole("kernels", "shard")),
    Fault("parameters are stale after the update: zero1 and zero2 do not gather them",
          "src/shard/operations.cpp",
          "    case OperationKind::all_gather:\n    case OperationKind::all_gather_sum:",
          "    case OperationKind::all_gather:\n"
          "      if (plan_.segments[point.segment].kind == plan::SegmentKind::update) return;\n"
          "      [[fallthrough]];\n    case OperationKind::all_gather_sum:",
          whole("shard", "shard_matrix")),
    Fault("parameters are stale after the update: fsdp gathers what it cast once",
          "src/shard/operations.cpp",
          "  const DType type = memory_.type_of(operation.unit, to.buffer);\n  kernels::cast",
          "  const DType type = memory_.type_of(operation.unit, to.buffer);\n"
          "  if (memory_.scalars()->step > 1 && operation.unit == 0) return;\n  kernels::cast",
          whole("shard", "shard_matrix")),
    # ---- agreement, deadlines, failures ----
    Fault("signatures are not compared",
          "src/comm/control/ledger.cpp",
          "  if (std::all_of(entry.codes.begin(), entry.codes.end(), same)) {",
          "  if (std::any_of(entry.codes.begin(), entry.codes.end(), same)) {",
          whole("comm")),
    Fault("the deadline is ignored",
          "src/comm/control/thread_control.cpp",
          "    if (patience.is_over()) {",
          "    if (patience.is_over() && timeout_ < std::chrono::milliseconds(0)) {",
          (("comm", "local: rank_that_never_comes_is_named"),)),
    Fault("a failed task of a stream does not end the job",
          "src/shard/executor.cpp",
          "      } catch (const std::exception& error) {\n        world_.abort(error.what());\n      } catch (...) {\n"
          "        world_.abort(\"a stream",
          "      } catch (const std::exception&) {\n      } catch (...) {\n        world_.abort(\"a stream",
          whole("shard")),
    Fault("ranks with different plans are not told",
          "src/shard/agreement.cpp",
          "[&](std::uint64_t other) { return other == hash; })) return;",
          "[&](std::uint64_t) { return true; })) return;",
          whole("shard")),
    # ---- checkpoints ----
    Fault("checksums are not checked",
          "src/checkpoint/checked_file.cpp",
          "  if (read_sum(first, spans) == expected_.blocks[block]) return;",
          "  if (read_sum(first, spans) != 1) return;",
          (("checkpoint", "a_flipped_bit*"),)),
    Fault("a checkpoint gets its name before its folder is flushed",
          "src/checkpoint/checkpoint_directory.cpp",
          "  flush_folder(folder);\n  const",
          "  const",
          whole("checkpoint_crash")),
    Fault("a checkpoint gets its name before its contents are flushed",
          "src/checkpoint/save.cpp",
          "    guarded([&] { file(index).flush(); });",
          "    guarded([&] { file(index); });",
          whole("checkpoint_crash")),
    Fault("a loaded run forgets the optimizer's counts",
          "src/checkpoint/checkpointer.cpp",
          "  model.set_step_scalars(scalars);\n",
          "  if (scalars.step < 0) model.set_step_scalars(scalars);\n",
          (("checkpoint", "what_updates_carry*"), ("stress_soak", "*"))),
    # ---- data ----
    Fault("the sampler repeats: every rank gets the first rank's samples",
          "src/data/sampler.cpp",
          "  const std::size_t first = options_.rank * options_.batch;",
          "  const std::size_t first = 0 * options_.batch;",
          whole("data")),
    Fault("a restored sampler begins its epoch again",
          "src/data/sampler.cpp",
          "  set_epoch(state.epoch);\n  position_ = state.position;",
          "  set_epoch(state.epoch);",
          whole("data")),
    # ---- memory and measurement ----
    Fault("64 bytes are lost in each update",
          "src/shard/operations.cpp",
          "  settings.loss_scaling = loss_scaling_;\n",
          "  settings.loss_scaling = loss_scaling_;\n"
          "  static std::byte* volatile lost = nullptr;\n  lost = new std::byte[64];\n  lost[0] = std::byte(1);\n",
          (("memory", "nothing_is_allocated_once*"),)),
    Fault("freed slots are not poisoned",
          "src/shard/operations.cpp",
          "  if (!poison_) return;",
          "  if (!poison_ || plan_.options.ranks > 0) return;",
          whole("shard")),
    Fault("a trace stamps the end of an operation before it runs",
          "src/shard/executor.cpp",
          "  operations_.launch({segment_, index}, on);\n  if (!range_names_.empty()) device::end_range(on);\n  touch(index, on);\n"
          "  if (traced_ != nullptr) traced_->stamp(on);",
          "  if (traced_ != nullptr) traced_->stamp(on);\n  operations_.launch({segment_, index}, on);\n"
          "  if (!range_names_.empty()) device::end_range(on);\n  touch(index, on);",
          whole("trace")),
    Fault("a trace leaves waits out: their stamps come first",
          "src/shard/executor.cpp",
          "    make_wait(wait, on);\n    if (wait.type == WaitType::throttle) traced_->stamp_host(*host_);\n"
          "    if (wait.type == WaitType::data) traced_->stamp(on);",
          "    if (wait.type == WaitType::data) traced_->stamp(on);\n    make_wait(wait, on);\n"
          "    if (wait.type == WaitType::throttle) traced_->stamp_host(*host_);",
          whole("trace")),
]
