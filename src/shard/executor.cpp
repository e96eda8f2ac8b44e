// How an executor walks through segments and windows.
#include "shard/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "device/device_backend.hpp"
#include "device/own_processor.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {

using plan::SegmentKind;
using plan::StreamId;
using plan::WaitType;
using plan::WindowKind;

namespace {

// The compute stream does so inside windows that have collectives.
bool communicates(StreamId id) { return id == StreamId::gather || id == StreamId::reduce || id >= StreamId::overlap; }

// Communicators have the deadlines between ranks, and say more: while they let the job go on, so do its streams. Nobody
// else watches a rank that is alone.
void limit_waits(StreamOptions& options, const World& world) {
  const auto timeout = 4 * world.timeout();
  options.wait_timeout = timeout;
  options.goes_on = [&world, timeout] {
    if (world.aborted()) return false;
    return world.size() > 1 || std::chrono::steady_clock::now() - world.last_progress() < timeout;
  };
}

// A rank that meets nobody has nothing but sums of gradients to run beside its passes, and those of small units are not
// worth a thread that wakes up for them (docs/benchmarks/torch-module.md).
bool runs_on_caller(const plan::Plan& plan, const World& world, const Diagnostics& diagnostics) {
  constexpr std::size_t too_little_for_a_thread = std::size_t{1} << 18;  // parameters
  if (world.size() > 1 || world.device().kind() != DeviceKind::cpu) return false;
  if (diagnostics.queue_compute || diagnostics.delay_seed) return false;
  return std::all_of(plan.layouts.begin(), plan.layouts.end(), [](const plan::UnitLayout& layout) {
    return layout.padded_elements() <= too_little_for_a_thread;
  });
}

std::size_t most_open_windows(const plan::Plan& plan) {
  std::size_t most = 1;
  for (const plan::Program& program : plan.programs) {
    for (const auto* windows : {&program.micro_batch, &program.evaluation}) {
      const std::vector<bool> closing = plan::closes(*windows);
      std::size_t open = 0;
      for (std::size_t use = 0; use < windows->size(); ++use) {
        open += (*windows)[use].resumes ? 0 : 1;
        most = std::max(most, open);
        open -= closing[use] ? 1 : 0;
      }
    }
  }
  return most;
}

}  // namespace

Executor::Executor(const ExecutorInput& input)
    : world_(input.world),
      plan_(input.plan),
      units_(input.units),
      diagnostics_(input.diagnostics),
      memory_(world_, {.plan = plan_, .units = input.units, .disk = input.disk}),
      operations_(input, memory_),
      place_(plan_.mesh.index_of(plan_.training(),
                                 plan_.mesh.place_of(plan_.rank_of(static_cast<std::size_t>(world_.rank()))))),
      progress_(plan_, place_),
      last_steps_(plan_.programs.size()) {
  for (const auto& unit : units_) ledgers_.emplace_back(unit->parameters().size());
  make_streams(input);
  operations_.make_communicators(world_);
  make_events();
  make_touches();
  if (device::profiled(world_.device())) make_range_names();
  for (std::size_t depth = most_open_windows(plan_); depth > 0; --depth) {
    windows_.push_back(std::make_unique<OpenWindow>(OpenWindow::Model{.plan = plan_,
                                                                      .units = input.units,
                                                                      .memory = memory_,
                                                                      .ledgers = ledgers_,
                                                                      .compute = compute(),
                                                                      .rank = world_.rank()}));
  }
  link_ = std::make_shared<WindowLink>(link_to(*this, world_.rank(), input.units, input.modules));
  launch_segment(SegmentKind::cold);
  synchronize();
}

Executor::~Executor() {
  if (link_) link_->host = nullptr;
  streams_ = {};  // before what their work uses
}

void Executor::make_streams(const ExecutorInput& input) {
  const bool on_caller = runs_on_caller(plan_, world_, diagnostics_);
  for (std::size_t id = 0; id < plan::stream_count; ++id) {
    if (!plan_.uses(static_cast<StreamId>(id))) continue;
    StreamOptions options;
    options.name = fmt::format("r{}.{}", world_.rank(), to_string(static_cast<StreamId>(id)));
    const bool communicating = communicates(static_cast<StreamId>(id));
    const bool computing = id == static_cast<std::size_t>(StreamId::compute);
    const bool immediate = computing ? !diagnostics_.queue_compute : communicating && on_caller;
    options.mode = immediate ? StreamMode::immediate : StreamMode::queued;
    if (computing) options.cuda_stream = input.cuda_stream;
    options.meets_peers = true;
    options.priority = communicating ? StreamPriority::high : StreamPriority::normal;
    limit_waits(options, world_);
    if (diagnostics_.delay_seed) {
      options.delay_seed =
          *diagnostics_.delay_seed * 64 + static_cast<std::uint64_t>(world_.rank()) * plan::stream_count + id;
    }
    options.on_failure = [this](std::exception_ptr failure) {
      try {
        std::rethrow_exception(failure);
      } catch (const AbortedError&) {
        // Somebody else's failure, and known.
      } catch (const std::exception& error) {
        world_.abort(error.what());
      } catch (...) {
        world_.abort("a stream task threw something that is no std::exception");
      }
    };
    streams_[id] = std::make_unique<Stream>(world_.device(), std::move(options));
  }
  StreamOptions options{.name = fmt::format("r{}.caller", world_.rank()), .mode = StreamMode::immediate};
  limit_waits(options, world_);
  host_ = std::make_unique<Stream>(Device::cpu(), std::move(options));
}

// Every event counts as recorded when the plan starts: what it stands for has not happened yet, so there is nothing to
// wait for.
void Executor::make_events() {
  for (const plan::Segment& segment : plan_.segments) recorded_by_.emplace_back(segment.operations.size());
  std::vector<bool> awaited(plan_.events.size(), false);
  for (const plan::Segment& segment : plan_.segments) {
    for (const plan::Operation& operation : segment.operations) {
      for (const plan::Wait& wait : operation.waits) {
        if (wait.type != WaitType::order) awaited[wait.event] = true;
      }
    }
  }
  events_.reserve(plan_.events.size());
  for (std::size_t event = 0; event < plan_.events.size(); ++event) {
    const plan::EventPoint point = plan_.events[event];
    events_.emplace_back(world_.device(), plan::describe(plan_, point));
    if (!awaited[event]) continue;  // an order edge: the order of launch keeps it
    recorded_by_[point.segment][point.operation] = event;
    stream(plan_.at(point).stream).record(events_.back());
  }
}

void Executor::make_touches() {
  for (const plan::Segment& segment : plan_.segments) {
    auto& operations = touches_.emplace_back(segment.operations.size());
    if (!diagnostics_.touch) continue;
    for (std::size_t index = 0; index < segment.operations.size(); ++index) {
      for (const plan::Access& access : segment.operations[index].accesses) {
        if (access.range.size == Bytes(0) || memory_.is_on_disk(access.range)) continue;
        std::byte* first = memory_.address(access.range);
        operations[index].push_back(
            {first, first + (access.range.size.count() - 1), access.mode != plan::AccessMode::read});
      }
    }
  }
}

void Executor::make_range_names() {
  for (std::size_t segment = 0; segment < plan_.segments.size(); ++segment) {
    auto& names = range_names_.emplace_back();
    for (std::size_t index = 0; index < plan_.segments[segment].operations.size(); ++index) {
      names.push_back(plan::describe(plan_, plan::EventPoint{segment, index}));
    }
  }
}

void Executor::check_health() {
  for (const auto& stream : streams_) {
    if (stream) stream->rethrow_failure();
  }
  world_.throw_if_aborted();
}

// ---- segments ----

void Executor::launch_segment(SegmentKind kind) {
  if (const auto index = plan_.find(kind, program())) launch_segment(*index);
}

void Executor::launch_segment(std::size_t segment) {
  segment_ = segment;
  next_operation_ = 0;
  if (!launch_to_window()) throw InternalError("a segment without windows stopped at a window");
}

bool Executor::launch_to_window() {
  const auto& operations = segment().operations;
  for (; next_operation_ < operations.size(); ++next_operation_) {
    if (operations[next_operation_].kind == plan::OperationKind::window) return false;
    try {
      launch(operations[next_operation_], next_operation_);
    } catch (...) {
      abandon_segment();
      throw;
    }
  }
  return true;
}

// A hook of the user's has thrown, say. A segment that is launched in part can neither go on nor begin again.
void Executor::abandon_segment() noexcept {
  try {
    throw;
  } catch (const AbortedError&) {
    // Somebody else's failure, and known.
  } catch (const std::exception& error) {
    abandon_operation(error.what());
  } catch (...) {
    abandon_operation("something that is no std::exception was thrown");
  }
}

void Executor::abandon_operation(std::string_view what) noexcept {
  try {
    world_.abort(fmt::format("{}: {}", plan::describe(plan_, plan::EventPoint{segment_, next_operation_}), what));
  } catch (...) {
    world_.abort(what);
  }
}

void Executor::launch(const plan::Operation& operation, std::size_t index) {
  Stream& on = stream(operation.stream);
  make_waits(operation, on);
  touch(index, on);
  if (!range_names_.empty()) device::begin_range(on, range_names_[segment_][index].c_str());
  operations_.launch({segment_, index}, on);
  if (!range_names_.empty()) device::end_range(on);
  touch(index, on);
  if (traced_ != nullptr) traced_->stamp(on);
  record(index, on);
}

void Executor::make_waits(const plan::Operation& operation, Stream& on) {
  if (traced_ != nullptr) return make_traced_waits(operation, on);
  for (const plan::Wait& wait : operation.waits) make_wait(wait, on);
}

void Executor::make_traced_waits(const plan::Operation& operation, Stream& on) {
  traced_->stamp(on);
  for (const plan::Wait& wait : operation.waits) {
    if (wait.type == WaitType::throttle) traced_->stamp_host(*host_);
    make_wait(wait, on);
    if (wait.type == WaitType::throttle) traced_->stamp_host(*host_);
    if (wait.type == WaitType::data) traced_->stamp(on);
  }
}

void Executor::make_wait(const plan::Wait& wait, Stream& on) {
  switch (wait.type) {
    case WaitType::data: return on.wait(events_[wait.event]);
    case WaitType::throttle: return host_->wait(events_[wait.event]);
    case WaitType::order: return;  // launched later in the same order on every rank
  }
}

void Executor::record(std::size_t index, Stream& on) {
  if (const auto event = recorded_by_[segment_][index]) on.record(events_[*event]);
}

void Executor::touch(std::size_t index, Stream& on) {
  const std::vector<Touch>& touches = touches_[segment_][index];
  for (const Touch& touch : touches) kernels::touch(on, touch.first, touch.last, touch.write);
}

// ---- windows ----

Window Executor::open(const plan::WindowUse& use) {
  check_health();
  const std::size_t segment = progress_.check_open(use);
  if (progress_.begins_step() && use.kind != WindowKind::evaluate) begin_traced_step();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  if (progress_.begins_segment()) {
    segment_ = segment;
    next_operation_ = 0;
    for (GradientLedger& ledger : ledgers_) ledger.begin_micro_batch();
    launch_to_window();
  } else if (progress_.is_inside_window()) {
    end_window();  // the one around it goes on later
  }
  progress_.open(segment);
  begin_window();
  windows_[depth_++]->open(this->segment().operations[next_operation_], program(), ++serial_);
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  return Window(link_, use, serial_);
}

WindowView* Executor::open_window(std::size_t serial) {
  for (std::size_t depth = depth_; depth > 0; --depth) {
    if (windows_[depth - 1]->is(serial)) return windows_[depth - 1].get();
  }
  return nullptr;
}

void Executor::close(std::size_t serial) {
  const OpenWindow& innermost = *windows_[depth_ - 1];
  if (innermost.is(serial)) return close();
  throw UsageError(
      fmt::format("a window around it cannot close: the {} is still open, close it first", innermost.describe()));
}

void Executor::close() {
  progress_.check_close();
  OpenWindow& closing = *windows_[depth_ - 1];
  if (closing.is_skipped()) skip_collectives(closing);
  closing.require_collectives_done();
  closing.settle_gradients();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  closing.leave_joined_streams();
  kept_.keep(closing.take_kept(), compute());
  closing.close();
  --depth_;
  progress_.close(end_window());
  if (progress_.resumes()) {
    progress_.resume();
    begin_window();
  }
  if (progress_.begins_segment()) clear_kept_calls();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  kept_.release();
  check_health();
}

// A window's collective ends one stretch of it and begins the next, and so does the end of one that overlaps. Where
// others open inside a window it has no collectives (plan/compile), so it is the innermost.
void Executor::begin(std::size_t, const Collective& collective) {
  launch_collective(*windows_[depth_ - 1], collective);
  check_health();
}

Collected<std::byte> Executor::collect(std::size_t, const Collective& collective) {
  OpenWindow& innermost = *windows_[depth_ - 1];
  if (!innermost.has_begun(collective)) launch_collective(innermost, collective);
  const Collected<std::byte> came = end_collective(innermost);
  check_health();
  return came;
}

// A rank alone has nobody to meet, and a message goes when the window has closed; streams that joined go on as if it
// had.
void Executor::launch_collective(OpenWindow& window, const Collective& collective) {
  window.begin_collective(collective);
  if (window.meets_others()) return resume(window);
  window.await_joined_streams();
  window.fork_joined_streams();
}

Collected<std::byte> Executor::end_collective(OpenWindow& window) {
  if (window.meets_others() && window.overlaps()) resume(window);
  return window.take_collective();
}

// Streams that joined may bring something, and read what came.
void Executor::resume(OpenWindow& window) {
  window.await_joined_streams();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  end_window();
  begin_window();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  window.fork_joined_streams();
}

// This rank brings nothing, which counts as nothing, and follows what the others brought.
void Executor::skip_collectives(OpenWindow& window) {
  while (const Collective* const collective = window.next_collective()) {
    if (collective->options().kind != CollectiveKind::receive) {
      const WindowView::View mine = window.contribution(*collective, collective->options().type);
      kernels::fill_zero(compute(), static_cast<std::byte*>(mine.data),
                         Bytes(mine.elements * (collective->spec().bytes().count() / collective->elements())));
    }
    launch_collective(window, *collective);
    const Collected<std::byte> came = end_collective(window);
    if (!collective->when_skipped()) continue;
    Window handle(link_, window.use(), window.serial());
    try {
      collective->when_skipped()(handle, came.as<double>());
    } catch (...) {
      handle.abandon();
      throw;
    }
  }
}

// A window's use: what the plan waits for before it, and what it tells behind it.
void Executor::begin_window() {
  make_waits(segment().operations[next_operation_], compute());
  touch(next_operation_, compute());
  if (compute().device().kind() == DeviceKind::cpu) compute().submit([] { device::settle_on_own_processor(); });
}

bool Executor::end_window() {
  touch(next_operation_, compute());
  if (traced_ != nullptr) traced_->stamp(compute());
  record(next_operation_, compute());
  ++next_operation_;
  return launch_to_window();
}

void Executor::skip(const plan::WindowUse& use) {
  check_health();
  for (const plan::WindowUse& inside : progress_.next_window(progress_.check_open(use))) {
    const Unit& unit = *units_[inside.unit];
    if (inside.unit == use.unit || unit.options().optional) continue;
    throw UsageError(
        fmt::format("unit {} cannot be skipped with {}, inside which it opens: add it with UnitOptions::optional",
                    unit.name(), units_[use.unit]->name()));
  }
  open(use);
  windows_[depth_ - 1]->skip();
  while (!progress_.closes()) skip(plan::WindowUse(progress_.next_use()));
  close();
}

void Executor::abandon(std::string_view what) noexcept {
  try {
    world_.abort(depth_ > 0 ? fmt::format("{}: {}", windows_[depth_ - 1]->describe(), what) : std::string(what));
  } catch (...) {
    world_.abort(what);
  }
}

// ---- steps ----

void Executor::update(float learning_rate, const Brought& brought) {
  check_health();
  progress_.check_update();
  const kernels::StepPart part = part_of(brought);
  skip_micro_batches();
  launch_update(learning_rate, part, brought.granules);
}

// Weights of granules travel one by one, so that they are added in the order of granules.
kernels::StepPart Executor::part_of(const Brought& brought) const {
  using Kind = kernels::StepPart::Kind;
  const std::size_t done = progress_.micro_batches_done();
  if (brought.weight) return {.weight = *brought.weight, .kind = Kind::samples};
  if (brought.granules.empty()) return {.weight = static_cast<double>(done), .kind = Kind::micro_batches};
  if (brought.granules.size() == done) return {.weight = 0.0, .kind = Kind::samples};
  throw UsageError(
      fmt::format("update() with {} granule_weights, and this rank has computed {} granules in this step: give one for "
                  "each",
                  brought.granules.size(), done));
}

void Executor::skip_step(float learning_rate) {
  check_health();
  progress_.check_skip_step();
  skip_micro_batches();
  launch_update(learning_rate, {.weight = 0.0, .kind = kernels::StepPart::Kind::nothing});
}

void Executor::discard_gradients() {
  check_health();
  progress_.check_discard();
  skip_micro_batches();
  launch_update(std::nullopt, {.weight = 0.0, .kind = kernels::StepPart::Kind::discarded});
}

const kernels::StepScalars& Executor::look_at_steps() {
  for (std::size_t program = 0; program < last_steps_.size(); ++program) {
    kernels::StepScalars& now = last_steps_[program];
    kernels::copy(compute(), &now, memory_.scalars(program), Bytes(sizeof now));
  }
  compute().synchronize();
  world_.throw_if_aborted();
  for (std::size_t program = 0; operations_.looks_late() && program < last_steps_.size(); ++program) {
    operations_.look_at(program, last_steps_[program]);
  }
  return last_steps_[program()];
}

// Those of this step that are missing: all of their operations happen, on gradients of zero.
void Executor::skip_micro_batches() {
  progress_.skip_rest();
  while (!progress_.ends_step()) {
    for (const plan::WindowUse& use : plan_.programs[program()].micro_batch) {
      if (!use.resumes) {
        open(use);
        windows_[depth_ - 1]->skip();
      }
      if (progress_.closes()) close();
    }
  }
}

void Executor::launch_update(std::optional<float> learning_rate, const kernels::StepPart& part,
                             std::span<const double> granule_weights) {
  operations_.set_step(program(), learning_rate, part, granule_weights);
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  launch_segment(SegmentKind::update);
  progress_.update();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  if (const auto outer = plan_.outer_after(++updates_)) {
    if (traced_ != nullptr) traced_->stamp_host(*host_);
    launch_segment(*outer);
    if (traced_ != nullptr) traced_->stamp_host(*host_);
  }
  if (traced_ != nullptr) std::exchange(traced_, nullptr)->end_step();
}

// A trace knows which of its steps have outer ones by the count that it began with.
void Executor::set_updates(std::size_t updates) {
  updates_ = updates;
  if (plan_.diverges()) trace(nullptr);
}

void Executor::trace(std::shared_ptr<TraceRecorder> recorder) {
  synchronize();  // stamps of an earlier trace are still on their way
  recorder_ = std::move(recorder);
}

void Executor::begin_traced_step() {
  if (recorder_ && recorder_->mine().program() == program() && recorder_->begin_step()) traced_ = recorder_.get();
}

void Executor::refresh() {
  check_health();
  progress_.check_between_steps("shards_changed()");
  launch_segment(SegmentKind::refresh);
  synchronize();
}

void Executor::synchronize_buffers() {
  check_health();
  progress_.check_between_steps("synchronize_buffers()");
  launch_segment(SegmentKind::synchronize);
  synchronize();
}

void Executor::synchronize() {
  for (const auto& stream : streams_) {
    if (stream) stream->synchronize();
  }
  kept_.release();
  world_.throw_if_aborted();
}

}  // namespace tessera
