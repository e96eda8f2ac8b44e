// The life of an executor: what it owns, how it walks through segments and windows. What single operations do stands in
// executor_operations.cpp.
#include "shard/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/profiler_ranges.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera {

using plan::SegmentKind;
using plan::StreamId;
using plan::WaitType;
using plan::WindowKind;

static_assert(plan::scalars_size == Bytes(sizeof(kernels::StepScalars)));
static_assert(plan::loss_scale_offset == Bytes(offsetof(kernels::StepScalars, loss_scale)));
static_assert(plan::region_alignment == Arena::page);

namespace {

// The end of the arena that is not the device's own memory.
Bytes host_part(const World& world, const plan::Plan& plan) {
  return world.device().kind() == DeviceKind::cpu ? Bytes(0) : plan::memory(plan).host;
}

bool communicates(StreamId id) { return id != StreamId::compute; }

}  // namespace

Executor::Executor(const ExecutorInput& input)
    : world_(input.world),
      plan_(input.plan),
      units_(input.units),
      optimizer_(input.optimizer),
      seed_(input.seed),
      diagnostics_(input.diagnostics),
      loss_scaling_(input.loss_scaling),
      gradient_hook_(input.gradient_hook),
      arena_(world_.make_arena(plan::memory(plan_).peak - host_part(world_, plan_))),
      host_arena_(Arena::on_host_of(world_.device(), host_part(world_, plan_))),
      progress_(plan_) {
  const std::size_t rank = static_cast<std::size_t>(world_.rank());
  backward_windows_.assign(units_.size(), 0);
  backward_done_.assign(units_.size(), 0);
  for (const plan::WindowUse& use : plan_.program.micro_batch) {
    if (use.kind == WindowKind::backward) ++backward_windows_[use.unit];
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    ledgers_.emplace_back(units_[unit]->parameters().size());
    runs_.push_back(optimizer_runs(plan_, unit, rank, optimizer_));
    const bool hooked = plan_.options.gradient_hooks && plan_.trains(unit);
    gradient_pieces_.push_back(hooked ? pieces_at(unit, plan_.unit_buffers[unit].gradient)
                                      : std::vector<ParameterPiece>{});
    auto& states = run_states_.emplace_back();
    for (const OptimizerRun& run : runs_.back()) {
      for (const std::size_t state : plan_.unit_buffers[unit].states) {
        states.push_back(reinterpret_cast<float*>(base(state)) + run.first);
      }
    }
  }
  gather_communicator_ = world_.make_communicator("gather", {.staging = memory(plan_.gather_staging)});
  reduce_communicator_ = world_.make_communicator("reduce", {.staging = memory(plan_.reduce_staging)});
  make_streams();
  make_events();
  make_touches();
  make_collectives();
  if (device::profiled(world_.device())) make_range_names();
  launch_segment(SegmentKind::cold);
  synchronize();
}

Executor::~Executor() = default;

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
        std::byte* first = address(access.range);
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
  const auto index = plan_.find(kind);
  if (!index) return;
  segment_ = *index;
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
  dispatch(operation, index, on);
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
    std::fill(backward_done_.begin(), backward_done_.end(), std::size_t{0});
    for (GradientLedger& ledger : ledgers_) ledger.begin_micro_batch();
    launch_to_window();
  }
  progress_.open(segment);
  const plan::Operation& operation = this->segment().operations[next_operation_];
  make_waits(operation, compute());
  touch(next_operation_, compute());
  bool last_backward = false;
  if (use.kind == WindowKind::backward && plan_.trains(use.unit)) {
    ledgers_[use.unit].begin_window();
    last_backward = ++backward_done_[use.unit] == backward_windows_[use.unit];
  }
  open_window_ = OpenWindow{use, ++serial_, next_operation_, last_backward};
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  return Window(*this, serial_);
}

void Executor::close() {
  if (open_kind() == WindowKind::backward && plan_.trains(open_window_->use.unit)) settle_gradients();
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  for (Joined& joined : joined_) {
    if (!std::exchange(joined.active, false)) continue;
    joined.stream->record(joined.join);
    compute().wait(joined.join);
  }
  touch(open_window_->operation, compute());
  if (traced_ != nullptr) traced_->stamp(compute());
  record(open_window_->operation, compute());
  open_window_.reset();
  ++next_operation_;
  progress_.close(launch_to_window());
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  check_health();
}

// Gradients that nobody asked for: zero in an earlier window of several and for optional parameters, else an error.
void Executor::settle_gradients() {
  const std::size_t unit = open_window_->use.unit;
  GradientLedger& ledger = ledgers_[unit];
  if (!open_window_->skipped) ledger.end_computed_window();
  for (std::size_t p = 0; p < units_[unit]->parameters().size(); ++p) {
    if (plan_.units[unit].parameters[p].frozen) continue;
    if (ledger.asked_in_window(p)) continue;
    const Parameter& parameter = *units_[unit]->parameters()[p];
    const bool missing =
        open_window_->last_backward && ledger.computed_in_micro_batch() && !ledger.asked_in_micro_batch(p);
    if (missing && parameter.elements() > 0 && !parameter.options().optional) {
      throw UsageError(
          fmt::format("{}: the gradient of {} was never asked for; write it, or declare the parameter optional",
                      describe_open_window(), parameter.name()));
    }
    fill_gradient_zero(unit, p);
  }
}

void Executor::fill_gradient_zero(std::size_t unit, std::size_t parameter) {
  const plan::UnitLayout& layout = plan_.layouts[unit];
  const Bytes element = size_of(plan_.precision(unit).gradient);
  std::byte* gradient = base(plan_.unit_buffers[unit].gradient_slot) + (element * layout.offset(parameter)).count();
  kernels::fill_zero(compute(), gradient, element * layout.elements(parameter));
}

void Executor::require_open(std::size_t serial) const {
  if (is_open(serial)) return;
  throw UsageError(fmt::format(
      "rank {}: a window was used after it had closed; parameters are whole only inside their window", world_.rank()));
}

Executor::View Executor::parameter(const Parameter& parameter, DType type) {
  const std::size_t unit = open_window_->use.unit;
  const std::size_t index = units_[unit]->index_of(parameter);
  const DType actual = plan_.precision(unit).parameter;
  if (type != actual) {
    throw UsageError(fmt::format("{}: parameter {} is {} here, not {}", describe_open_window(), parameter.name(),
                                 to_string(actual), to_string(type)));
  }
  const plan::UnitLayout& layout = plan_.layouts[unit];
  std::byte* data = base(plan_.unit_buffers[unit].parameters) + (size_of(actual) * layout.offset(index)).count();
  return {data, layout.elements(index)};
}

Executor::View Executor::gradient(const Parameter& parameter, DType type, GradientMode mode) {
  const std::size_t unit = open_window_->use.unit;
  const std::size_t index = units_[unit]->index_of(parameter);
  if (open_kind() != WindowKind::backward) {
    throw UsageError(fmt::format("{}: gradient of {} asked for outside a backward window", describe_open_window(),
                                 parameter.name()));
  }
  if (plan_.units[unit].parameters[index].frozen) {
    throw UsageError(fmt::format("{}: {} is frozen and has no gradient; ask Window::trains() first",
                                 describe_open_window(), parameter.name()));
  }
  const DType actual = plan_.precision(unit).gradient;
  if (type != actual) {
    throw UsageError(fmt::format("{}: the gradient of {} is {} here, not {}", describe_open_window(), parameter.name(),
                                 to_string(actual), to_string(type)));
  }
  if (ledgers_[unit].ask(index) && mode == GradientMode::accumulate) fill_gradient_zero(unit, index);
  const plan::UnitLayout& layout = plan_.layouts[unit];
  std::byte* data = base(plan_.unit_buffers[unit].gradient_slot) + (size_of(actual) * layout.offset(index)).count();
  return {data, layout.elements(index)};
}

bool Executor::trains(const Parameter& parameter) const {
  const std::size_t unit = open_window_->use.unit;
  return !plan_.units[unit].parameters[units_[unit]->index_of(parameter)].frozen;
}

void Executor::skip() { open_window_->skipped = true; }

std::span<float> Executor::buffer(const Unit& unit, const Buffer& buffer) {
  const std::size_t offset = plan_.layouts[unit.index()].buffer_offset(unit.index_of(buffer));
  return {reinterpret_cast<float*>(base(plan_.unit_buffers[unit.index()].buffers)) + offset, buffer.elements()};
}

std::span<std::byte> Executor::memory(std::size_t buffer) {
  if (buffer == plan::no_buffer) return {};
  return {base(buffer), plan_.buffers[buffer].size.count()};
}

const float* Executor::loss_scale() const { return &const_cast<Executor*>(this)->scalars()->loss_scale; }

void Executor::join(Stream& other) {
  auto known =
      std::find_if(joined_.begin(), joined_.end(), [&](const Joined& joined) { return joined.stream == &other; });
  if (known == joined_.end()) {
    joined_.push_back({&other, Event(other.device(), other.name() + " after the window opened"),
                       Event(other.device(), other.name() + " before the window closes"), false});
    known = joined_.end() - 1;
  }
  known->active = true;
  compute().record(known->fork);
  other.wait(known->fork);
}

std::string Executor::describe_open_window() const {
  return fmt::format("rank {}, {} window of unit {}", world_.rank(), to_string(open_kind()), open_unit().name());
}

void Executor::abandon(std::string_view what) noexcept {
  try {
    world_.abort(open_window_ ? fmt::format("{}: {}", describe_open_window(), what) : std::string(what));
  } catch (...) {
    world_.abort(what);
  }
}

// ---- steps ----

void Executor::update(float learning_rate) {
  check_health();
  progress_.check_update();
  learning_rate_ = learning_rate;
  if (traced_ != nullptr) traced_->stamp_host(*host_);
  launch_segment(SegmentKind::update);
  progress_.update();
  if (traced_ == nullptr) return;
  traced_->stamp_host(*host_);
  std::exchange(traced_, nullptr)->end_step();
}

void Executor::trace(std::shared_ptr<TraceRecorder> recorder) {
  synchronize();  // stamps of an earlier trace are still on their way
  recorder_ = std::move(recorder);
}

void Executor::begin_traced_step() {
  if (recorder_ && recorder_->begin_step()) traced_ = recorder_.get();
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

StepReport Executor::last_step() {
  const kernels::StepScalars now = step_scalars();
  world_.throw_if_aborted();
  return {.gradient_norm = now.gradient_norm,
          .skipped = now.skip != 0,
          .updates = now.step,
          .skipped_updates = now.skipped_steps,
          .loss_scale = now.loss_scale};
}

kernels::StepScalars Executor::step_scalars() {
  kernels::StepScalars values;
  kernels::copy(compute(), &values, scalars(), Bytes(sizeof values));
  compute().synchronize();
  return values;
}

void Executor::set_step_scalars(const kernels::StepScalars& values) {
  kernels::set_scalars(compute(), scalars(), values);
  compute().synchronize();
}

std::vector<ParameterPiece> Executor::pieces(std::size_t unit, std::size_t buffer) {
  progress_.check_between_steps("pieces()");
  synchronize();
  return pieces_at(unit, buffer);
}

// Of masters every parameter's, of everything else the trained ones'.
std::vector<ParameterPiece> Executor::pieces_at(std::size_t unit, std::size_t buffer) {
  const plan::UnitLayout& layout = plan_.layouts[unit];
  const std::size_t rank = static_cast<std::size_t>(world_.rank());
  const bool whole = plan_.holds_whole(unit, buffer);
  const bool masters = buffer == plan_.unit_buffers[unit].master;
  float* data = reinterpret_cast<float*>(base(buffer));
  std::vector<ParameterPiece> result;
  for (const plan::ShardPiece& piece : layout.pieces(rank)) {
    if (!masters && layout.part(piece.parameter) == plan::Part::frozen) continue;
    const std::size_t at = whole ? layout.offset(piece.parameter) + piece.parameter_offset : piece.shard_offset;
    result.push_back({units_[unit]->parameters()[piece.parameter], piece.parameter_offset, {data + at, piece.count}});
  }
  return result;
}

std::vector<FullyShard::Region> Executor::regions() {
  std::vector<FullyShard::Region> result;
  for (const plan::CategoryBytes& category : plan::memory(plan_).categories) {
    if (category.size == Bytes(0)) continue;
    const bool host = category.offset >= arena_.size();
    result.push_back({category.category, host ? host_arena_.range(category.offset - arena_.size(), category.size)
                                              : arena_.range(category.offset, category.size)});
  }
  return result;
}

// ---- addresses ----

std::byte* Executor::base(std::size_t buffer) {
  const Bytes offset = plan_.buffers[buffer].offset;
  if (offset < arena_.size()) return arena_.data() + offset.count();
  return host_arena_.data() + (offset - arena_.size()).count();
}

std::byte* Executor::address(const plan::Range& range) {
  const Bytes offset = range.offset + range.rank_stride * static_cast<std::uint64_t>(world_.rank());
  return base(range.buffer) + offset.count();
}

kernels::StepScalars* Executor::scalars() { return reinterpret_cast<kernels::StepScalars*>(base(plan_.scalars)); }

}  // namespace tessera
