// How an executor walks through segments and windows.
#include "shard/executor.hpp"

#include <fmt/format.h>

#include <utility>

#include "device/device_backend.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {

using plan::SegmentKind;
using plan::StreamId;
using plan::WaitType;
using plan::WindowKind;

namespace {

bool communicates(StreamId id) { return id != StreamId::compute; }

}  // namespace

Executor::Executor(const ExecutorInput& input)
    : world_(input.world),
      plan_(input.plan),
      diagnostics_(input.diagnostics),
      memory_(world_, plan_, input.units),
      operations_(input, memory_),
      progress_(plan_) {
  make_streams();
  make_events();
  make_touches();
  if (device::profiled(world_.device())) make_range_names();
  window_.emplace(OpenWindow::Model{
      .plan = plan_, .units = input.units, .memory = memory_, .compute = compute(), .rank = world_.rank()});
  link_ = std::make_shared<WindowLink>(WindowLink{.host = this, .rank = world_.rank(), .units = {}});
  for (const auto& unit : input.units) link_->units.push_back(unit->name());
  launch_segment(SegmentKind::cold);
  synchronize();
}

Executor::~Executor() {
  if (link_) link_->host = nullptr;
}

void Executor::make_streams() {
  for (std::size_t id = 0; id < plan::stream_count; ++id) {
    StreamOptions options;
    options.name = fmt::format("r{}.{}", world_.rank(), to_string(static_cast<StreamId>(id)));
    const bool communicating = communicates(static_cast<StreamId>(id));
    options.mode = communicating || diagnostics_.queue_compute ? StreamMode::queued : StreamMode::immediate;
    options.priority = communicating ? StreamPriority::high : StreamPriority::normal;
    // Longer than a communicator's deadline, whose error says more.
    options.wait_timeout = 4 * world_.timeout();
    if (diagnostics_.delay_seed) {
      options.delay_seed = *diagnostics_.delay_seed * 64 + static_cast<std::uint64_t>(world_.rank()) * 4 + id;
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
    streams_.push_back(std::make_unique<Stream>(world_.device(), std::move(options)));
  }
  host_ = std::make_unique<Stream>(Device::cpu(), StreamOptions{.name = fmt::format("r{}.host", world_.rank()),
                                                                .mode = StreamMode::immediate,
                                                                .wait_timeout = 4 * world_.timeout()});
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
        if (access.range.size == Bytes(0)) continue;
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
  for (const auto& stream : streams_) stream->rethrow_failure();
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
    launch(operations[next_operation_], next_operation_);
  }
  return true;
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
    window_->begin_micro_batch();
    launch_to_window();
  }
  progress_.open(segment);
  const plan::Operation& operation = this->segment().operations[next_operation_];
  make_waits(operation, compute());
  touch(next_operation_, compute());
  const std::size_t serial = window_->open(use, program());
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  return Window(link_, use, serial);
}

void Executor::close() {
  window_->settle_gradients();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  window_->leave_joined_streams();
  touch(next_operation_, compute());
  if (traced_ != nullptr) traced_->stamp(compute());
  record(next_operation_, compute());
  window_->close();
  ++next_operation_;
  progress_.close(launch_to_window());
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  check_health();
}

void Executor::abandon(std::string_view what) noexcept {
  try {
    world_.abort(window_->any() ? fmt::format("{}: {}", window_->describe(), what) : std::string(what));
  } catch (...) {
    world_.abort(what);
  }
}

// ---- steps ----

void Executor::update(float learning_rate, std::optional<double> weight) {
  check_health();
  progress_.check_update();
  const kernels::StepPart counted{.weight = static_cast<double>(progress_.micro_batches_done()),
                                  .kind = kernels::StepPart::Kind::micro_batches};
  skip_micro_batches();
  launch_update(learning_rate,
                weight ? kernels::StepPart{.weight = *weight, .kind = kernels::StepPart::Kind::samples} : counted);
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

void Executor::look_at_steps() {
  if (!operations_.looks_late()) return;
  for (std::size_t program = 0; program < plan_.programs.size(); ++program) {
    kernels::StepScalars now;
    kernels::copy(compute(), &now, memory_.scalars(program), Bytes(sizeof now));
    compute().synchronize();
    operations_.look_at(program, now);
  }
}

// Those of this step that are missing: all of their operations happen, on gradients of zero.
void Executor::skip_micro_batches() {
  while (!progress_.ends_step()) {
    for (const plan::WindowUse& use : plan_.programs[program()].micro_batch) {
      Window skipped = open(use);
      window_->skip();
      skipped.close();
    }
  }
}

void Executor::launch_update(std::optional<float> learning_rate, const kernels::StepPart& part) {
  operations_.set_step(program(), learning_rate, part);
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  launch_segment(SegmentKind::update);
  progress_.update();
  if (traced_ != nullptr) {
    traced_->stamp_host(*host_);
    std::exchange(traced_, nullptr)->end_step();
  }
  // Behind the end of a traced step: one with an outer step is measured as any other.
  if (const auto outer = plan_.outer_after(++updates_)) launch_segment(*outer);
}

void Executor::trace(std::shared_ptr<TraceRecorder> recorder) {
  synchronize();  // stamps of an earlier trace are still on their way
  recorder_ = std::move(recorder);
}

void Executor::begin_traced_step() {
  if (recorder_ && recorder_->program() == program() && recorder_->begin_step()) traced_ = recorder_.get();
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
  for (const auto& stream : streams_) stream->synchronize();
  world_.throw_if_aborted();
}

}  // namespace tessera
