// Turns, one after the other; an NCCL communicator's life: connecting, launching, watching, ending.
#include "comm/nccl/nccl_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/nccl/nccl_job.hpp"
#include "comm/patience.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

// ---- the order of launches ----

namespace {

constexpr std::chrono::milliseconds turn_poll{5};  // of the job's failure, while waiting

}  // namespace

LaunchOrder::LaunchOrder(Control& control, Device device, bool by_events)
    : control_(control), by_events_(by_events), last_launch_(device) {}

std::uint64_t LaunchOrder::take() {
  const std::lock_guard lock(mutex_);
  return ++taken_;
}

void LaunchOrder::await(std::uint64_t place) {
  const auto deadline = std::chrono::steady_clock::now() + control_.timeout();
  std::unique_lock lock(mutex_);
  while (next_ != place) {
    if (control_.failure() != nullptr) control_.fail_at({});
    if (std::chrono::steady_clock::now() > deadline) {
      const std::string text = fmt::format(
          "rank {} waited up to {:.3g} s to launch collective {} of its job, because an earlier one was never "
          "launched: did "
          "its stream fail?",
          control_.rank(), in_seconds(control_.timeout()), place);
      control_.abort(text, std::make_exception_ptr(CommunicationError(text)));
      throw CommunicationError(text);
    }
    changed_.wait_for(lock, turn_poll);
  }
}

LaunchOrder::Turn::Turn(LaunchOrder& order, std::uint64_t place, device::CudaQueue& queue)
    : order_(order), queue_(queue) {
  order.await(place);
  if (order.by_events_ && order.last_queue_ != nullptr && order.last_queue_ != &queue) queue.wait(order.last_launch_);
}

LaunchOrder::Turn::~Turn() {
  try {
    if (order_.by_events_) queue_.record(order_.last_launch_);
  } catch (const Error&) {
    // The device has failed, which whoever synchronises is told.
  }
  order_.last_queue_ = &queue_;
  const std::lock_guard lock(order_.mutex_);
  ++order_.next_;
  order_.changed_.notify_all();
}

// ---- a communicator ----

namespace {

using std::chrono::steady_clock;

// Making connections may take longer than any collective of a small job.
constexpr std::chrono::milliseconds least_connect_time{60'000};
constexpr std::chrono::microseconds background_poll{50};
// A launch goes on in a thread that NCCL starts for it, some 20 µs, and all of this rank's later launches wait for its
// end: whoever slept meanwhile would double that.
constexpr std::chrono::microseconds launch_spin{1000};

}  // namespace

NcclGroup::NcclGroup(const NcclParts& parts, Identity identity, const CommunicatorUse& use, const NcclLibrary::Id& id)
    : parts_(parts),
      identity_(std::move(identity)),
      group_(use.group ? use.group->index_of(parts.control.rank()) : 0),
      own_staging_(parts.device, use.staging.empty() ? parts.options.staging : Bytes(0)),
      staging_(use.staging.empty() ? std::span(own_staging_.data(), parts.options.staging.count()) : use.staging),
      contributions_(members().ranks.size()) {
  if (Bytes(staging_.size()) < plan::gather_staging(contributions_.size())) {
    throw InternalError(fmt::format("communicator {} has {} bytes of staging", name(), staging_.size()));
  }
  connect(id);
  parts_.job.begin(*this);
}

// Finalizing waits for what runs, and after a failure that does not end by itself.
NcclGroup::~NcclGroup() {
  parts_.job.end(*this);
  const std::lock_guard lock(handle_mutex_);
  if (ended_) return;
  for (const auto& [data, memory] : memory_) parts_.library.remove_memory(handle_, memory);
  try {
    if (parts_.control.failure() != nullptr) throw NcclFailure("the job has failed");
    complete(parts_.library.finalize(handle_));
    parts_.library.destroy(handle_);
  } catch (const std::exception&) {  // what runs is ended
    parts_.library.abort(handle_);
  }
}

std::string NcclGroup::place_of(const Signature& signature) const {
  return fmt::format("rank {} on {}, in {}", members().rank(), to_string(parts_.device), place_text(name(), signature));
}

void NcclGroup::fail(const std::string& what, const Signature& signature) {
  const std::string text = fmt::format("{}: {}", place_of(signature), what);
  parts_.control.abort(text, std::make_exception_ptr(CommunicationError(text)));
  throw CommunicationError(text);
}

// Until a call that goes on in the background has come to its end. A failure of the job ends the wait, and NCCL after
// it.
void NcclGroup::complete(NcclState state, NcclLibrary::Handle handle, std::chrono::milliseconds timeout) {
  const auto begin = steady_clock::now();
  while (state == NcclState::in_progress) {
    if (parts_.control.failure() != nullptr) parts_.control.fail_at(last_.value_or(Position{.channel = channel()}));
    const auto waited = steady_clock::now() - begin;
    if (waited > timeout) {
      throw NcclFailure(fmt::format("NCCL did not get ready within {:.3g} s; is a rank's device or network stuck?",
                                    in_seconds(timeout)));
    }
    if (waited < launch_spin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(background_poll);
    }
    state = parts_.library.state(handle);
  }
}

// Memory for greeting is there before anybody is connected: NcclJob::make_group says why.
void NcclGroup::connect(const NcclLibrary::Id& id) {
  if (size() == 1) return join(id);
  std::optional<device::CudaQueue> queue(std::in_place, parts_.device, StreamPriority::normal);
  std::optional<Arena> memory = parts_.job.make_arena(greeting_part() * (2 * contributions_.size()));
  join(id);
  void* known = nullptr;
  const auto forget = [&] {
    if (known != nullptr) parts_.library.remove_memory(handle_, std::exchange(known, nullptr));
  };
  try {
    // This memory is added like other arenas: NCCL moves memory that it knows in ways of its own.
    known = parts_.library.add_memory(handle_, memory->data(), memory->size());
    greet_everybody(*queue, memory->data());
    forget();
    memory.reset();
    queue.reset();
  } catch (...) {
    forget();
    parts_.library.abort(handle_);  // ends what runs in the queue; the ends of queue and memory wait for that
    throw;
  }
}

void NcclGroup::join(const NcclLibrary::Id& id) {
  const Signature creation = signature_of_creation(name());
  try {
    const NcclLibrary::Place where{.rank = place(), .ranks = size(), .name = name().c_str()};
    const auto timeout = std::max(parts_.control.timeout(), least_connect_time);
    const NcclLibrary::Handle parent = parts_.options.parent;
    if (parent != nullptr) handle_ = split(parent, where, timeout);
    const NcclState state = parent != nullptr ? parts_.library.state(handle_) : parts_.library.join(handle_, id, where);
    complete(state, handle_, timeout);
  } catch (const NcclFailure& failure) {
    if (handle_ != nullptr) parts_.library.abort(handle_);
    fail(failure.what(), creation);
  } catch (...) {
    if (handle_ != nullptr) parts_.library.abort(handle_);
    throw;
  }
}

// NCCL's own thread may store the child in its place after a failure has ended the wait, and this group with it: then
// the place is given up, not freed.
NcclLibrary::Handle NcclGroup::split(NcclLibrary::Handle parent, const NcclLibrary::Place& where,
                                     std::chrono::milliseconds timeout) {
  auto child = std::make_unique<NcclLibrary::Handle>(nullptr);
  const NcclState state = parts_.library.split(*child, parent, group_, where);
  try {
    complete(state, parent, timeout);
  } catch (...) {
    static_cast<void>(child.release());
    throw;
  }
  return *child;
}

// Returns the bytes of each rank's part; the whole is at least as large as NCCL asks for.
Bytes NcclGroup::greeting_part() const {
  const std::uint64_t pieces = contributions_.size() * plan::staging_alignment.count();
  return plan::staging_alignment * ((parts_.library.greeting().count() + pieces - 1) / pieces);
}

// NCCL makes connections when they are first used, and which ones a collective uses depends on its size: now, with a
// byte and with much data, so that no step waits for that or takes memory for it.
void NcclGroup::greet_everybody(device::CudaQueue& queue, std::byte* memory) {
  const Call call{.queue = queue, .turn = 0, .signature = signature_of_creation(name())};
  const Bytes part = greeting_part();
  const auto at = [&](int place) { return memory + static_cast<std::size_t>(place) * part.count(); };
  try {
    const std::lock_guard lock(handle_mutex_);
    for (const Bytes each : {Bytes(1), part}) {
      complete(parts_.library.all_gather(on(call), memory, each));
      if (parts_.options.sums == SumChoice::ranked) continue;
      const std::size_t elements = std::max(each.count() / size_of(DType::bf16).count(), std::size_t{1});
      complete(parts_.library.reduce_scatter(
          on(call), {.data = memory, .result = at(size()), .elements = elements, .type = DType::bf16}));
    }
    in_group([&] {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == place()) continue;
        parts_.library.send(on(call), at(place()), part, peer);
        parts_.library.receive(on(call), at(size() + peer), part, peer);
      }
    });
  } catch (const NcclFailure& failure) {
    fail(failure.what(), call.signature);
  }
  device::CudaMark met(parts_.device);
  queue.record(met);
  const auto deadline = steady_clock::now() + std::max(parts_.control.timeout(), least_connect_time);
  while (!met.complete()) {
    if (parts_.control.failure() != nullptr) parts_.control.fail_at({.channel = channel(), .number = 0});
    if (steady_clock::now() > deadline) fail("the ranks' devices do not reach each other", call.signature);
    std::this_thread::sleep_for(background_poll);
  }
}

NcclGroup::Flight& NcclGroup::take_off(const Call& call, const Position& position) {
  const std::lock_guard lock(flights_mutex_);
  if (landed_.empty()) landed_.emplace_back(parts_.device);
  Flight& flight = landed_.front();
  flight.signature = call.signature;
  flight.position = position;
  flight.issued = false;
  flight.since.reset();
  call.queue.record(flight.begin);
  flights_.splice(flights_.end(), landed_, landed_.begin());
  last_ = position;
  last_signature_ = call.signature;
  return flight;
}

void NcclGroup::land(Flight& flight, device::CudaQueue& queue) {
  const std::lock_guard lock(flights_mutex_);
  queue.record(flight.end);
  flight.issued = true;
}

void NcclGroup::settle() {
  Position position;
  Signature signature;
  {
    const std::lock_guard lock(flights_mutex_);
    if (!last_) return;
    position = *last_;
    signature = last_signature_;
  }
  parts_.control.await_agreement(position, signature);
  if (parts_.control.failure() != nullptr) parts_.control.fail_at(position);
}

void NcclGroup::look_at(Flight& flight) {
  if (!flight.since && flight.begin.complete()) flight.since = steady_clock::now();
  if (!flight.since || steady_clock::now() - *flight.since < parts_.control.timeout()) return;
  parts_.control.late(flight.position, flight.signature);
  *flight.since += look_interval(parts_.control.timeout());  // asked again where somebody makes progress
}

void NcclGroup::watch() noexcept {
  try {
    device::make_current(parts_.device);
    const std::lock_guard lock(flights_mutex_);
    while (!flights_.empty() && flights_.front().issued && flights_.front().end.complete()) {
      landed_.splice(landed_.end(), flights_, flights_.begin());
    }
    if (!flights_.empty()) look_at(flights_.front());
  } catch (const std::exception& error) {  // the device has failed
    parts_.control.abort(error.what(), std::current_exception());
  }
  const std::lock_guard lock(handle_mutex_);
  if (ended_) return;
  try {
    if (parts_.control.failure() == nullptr) parts_.library.state(handle_);
  } catch (const NcclFailure& failure) {
    const std::lock_guard flights_lock(flights_mutex_);
    const Signature signature = flights_.empty() ? last_signature_ : flights_.front().signature;
    const std::string text = fmt::format("{}: {}", place_of(signature), failure.what());
    parts_.control.abort(text, std::make_exception_ptr(CommunicationError(text)));
  }
  if (parts_.control.failure() == nullptr) return;
  parts_.library.abort(handle_);
  ended_ = true;
}

void NcclGroup::add_memory(void* data, Bytes size) {
  const std::lock_guard lock(handle_mutex_);
  if (ended_) return;
  if (void* const memory = parts_.library.add_memory(handle_, data, size)) memory_.emplace_back(data, memory);
}

void NcclGroup::remove_memory(void* data) noexcept {
  const std::lock_guard lock(handle_mutex_);
  std::erase_if(memory_, [&](const auto& entry) {
    if (entry.first != data) return false;
    if (!ended_) parts_.library.remove_memory(handle_, entry.second);
    return true;
  });
}

// ---- what each collective launches ----

void NcclGroup::run(const Call& call, std::span<const AllGather> segments) {
  launch(call, [&] {
    in_group([&] {
      for (const AllGather& segment : segments) {
        if (segment.shard > Bytes(0)) parts_.library.all_gather(on(call), segment.data, segment.shard);
      }
    });
  });
}

void NcclGroup::run(const Call& call, std::span<const ReduceScatter> segments) {
  launch(call, [&] {
    if (parts_.options.sums == SumChoice::fast) return reduce_fast(call, segments);
    reduce_ranked(call, segments);
  });
}

void NcclGroup::run(const Call& call, const Broadcast& operation) {
  launch(call, [&] {
    if (operation.size == Bytes(0)) return;
    complete(parts_.library.broadcast(on(call), operation.data, operation.size, operation.root));
  });
}

// Sends and receives between two ranks meet in the order of the list. What stays on the rank is a copy.
void NcclGroup::run(const Call& call, const Redistribute& operation) {
  launch(call, [&] {
    in_group([&] {
      for (const Transfer& transfer : operation.transfers) {
        if (transfer.from == transfer.to || transfer.size == Bytes(0)) continue;
        if (transfer.from == place()) {
          parts_.library.send(on(call), operation.data + transfer.source.count(), transfer.size, transfer.to);
        }
        if (transfer.to == place()) {
          parts_.library.receive(on(call), operation.data + transfer.target.count(), transfer.size, transfer.from);
        }
      }
    });
    for (const Transfer& transfer : operation.transfers) {
      if (transfer.from != place() || transfer.to != place() || transfer.size == Bytes(0)) continue;
      call.queue.copy(operation.data + transfer.target.count(), operation.data + transfer.source.count(),
                      transfer.size);
    }
  });
}

void NcclGroup::run(const Call& call, const Barrier&) {
  launch(call, [&] { complete(parts_.library.all_gather(on(call), staging(0), Bytes(1))); });
}

}  // namespace tessera::comm
