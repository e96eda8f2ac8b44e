// Runs a plan on one rank: streams, events, communicators and the arena, and the user's windows in between.
//
// Invariants: operations are launched in the order of the plan; every data wait is made on the device, every throttle
// wait on the host, and order waits are kept by the order of launch itself. It knows no strategy: only operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shard/gradient_ledger.hpp"
#include "shard/optimizer_runs.hpp"
#include "shard/progress.hpp"
#include "shard/trace_recorder.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera {

using GradientHook = std::function<void(const ReducedGradient&)>;

struct ExecutorInput {
  World& world;
  const plan::Plan& plan;
  std::span<const std::unique_ptr<Unit>> units;
  const Optimizer& optimizer;
  std::uint64_t seed;
  Diagnostics diagnostics;
  kernels::LossScaling loss_scaling;
  const GradientHook& gradient_hook;  // empty: none
};

class Executor {
 public:
  // Takes the arena, starts the streams, makes the communicators, runs the cold start. Collective; synchronises.
  explicit Executor(const ExecutorInput& input);
  ~Executor();

  // ---- what FullyShard does ----
  Window open(const plan::WindowUse& use);
  void update(float learning_rate);
  void refresh();
  void synchronize();
  void abandon(std::string_view what) noexcept;
  Stream& compute() { return stream(plan::StreamId::compute); }
  StepReport last_step();
  void synchronize_buffers();
  // This rank's share of one of a unit's fp32 buffers, parameter by parameter. Only between steps; synchronises.
  std::vector<ParameterPiece> pieces(std::size_t unit, std::size_t buffer);
  std::span<float> buffer(const Unit& unit, const Buffer& buffer);
  void require_between_steps(const char* what) const { progress_.check_between_steps(what); }
  std::span<std::byte> memory(std::size_t buffer);  // of one of the plan's buffers; empty for no_buffer
  // The step's scalars. Synchronises with the compute stream.
  kernels::StepScalars step_scalars();
  void set_step_scalars(const kernels::StepScalars& values);
  std::vector<FullyShard::Region> regions();
  // The steps that the recorder asks for take time stamps. It replaces an earlier one. Synchronises.
  void trace(std::shared_ptr<TraceRecorder> recorder);

  // ---- what an open window does ----
  struct View {
    void* data;
    std::size_t elements;
  };
  void require_open(std::size_t serial) const;
  bool is_open(std::size_t serial) const { return open_window_ && open_window_->serial == serial; }
  const Unit& open_unit() const { return *units_[open_window_->use.unit]; }
  plan::WindowKind open_kind() const { return open_window_->use.kind; }
  View parameter(const Parameter& parameter, DType type);
  View gradient(const Parameter& parameter, DType type, GradientMode mode);
  bool trains(const Parameter& parameter) const;
  void skip();  // the open window: its gradients count as zero
  const float* loss_scale() const;
  void join(Stream& other);
  void close();
  std::string describe_open_window() const;

 private:
  struct OpenWindow {
    plan::WindowUse use;
    std::size_t serial;
    std::size_t operation;  // in the current segment
    bool last_backward;     // of its unit, in this micro-batch
    bool skipped = false;   // by the user: an optional unit
  };
  // A stream of the user's that took part in a window.
  struct Joined {
    Stream* stream;
    Event fork;
    Event join;
    bool active;
  };
  // Bytes at the ends of an operation's ranges, for the touch test mode.
  struct Touch {
    std::byte* first;
    std::byte* last;
    bool write;
  };

  // What a collective is called with, made once: communicators keep views of groups.
  struct Collective {
    std::vector<AllGather> gathers;
    std::vector<ReduceScatter> reductions;
  };

  void make_streams();
  void make_events();
  void make_collectives();
  Collective collective_of(const plan::Operation& operation);
  void make_touches();
  void make_range_names();
  void check_health();
  void begin_traced_step();

  // Launches the current segment's operations up to the next window; true when there is none left.
  bool launch_to_window();
  void launch_segment(plan::SegmentKind kind);
  void launch(const plan::Operation& operation, std::size_t index);
  void make_waits(const plan::Operation& operation, Stream& on);
  void make_traced_waits(const plan::Operation& operation, Stream& on);
  void make_wait(const plan::Wait& wait, Stream& on);
  void record(std::size_t index, Stream& on);
  void touch(std::size_t index, Stream& on);
  void dispatch(const plan::Operation& operation, std::size_t index, Stream& on);

  // Elements of a tensor, from the first one on, and its name.
  struct InitialPlace {
    std::span<float> values;
    const std::string& name;
    std::size_t first;
  };
  void fill_initial(const Initial& initial, const InitialPlace& place, Stream& on);
  void initialize(const plan::Operation& operation, Stream& on);
  void cast(const plan::Operation& operation, Stream& on);
  void prepare_gradient(const plan::Operation& operation, Stream& on);
  void accumulate(const plan::Operation& operation, Stream& on);
  void hook(const plan::Operation& operation, Stream& on);
  void broadcast(const plan::Operation& operation, Stream& on);
  void begin_update(Stream& on);
  void optimize(const plan::Operation& operation, Stream& on);
  void release(const plan::Operation& operation, Stream& on);

  std::vector<ParameterPiece> pieces_at(std::size_t unit, std::size_t buffer);
  void settle_gradients();
  void fill_gradient_zero(std::size_t unit, std::size_t parameter);

  Stream& stream(plan::StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }
  std::byte* address(const plan::Range& range);
  std::byte* base(std::size_t buffer);
  DType type_of(std::size_t unit, std::size_t buffer) const;
  kernels::StepScalars* scalars();
  const plan::Segment& segment() const { return plan_.segments[segment_]; }

  World& world_;
  const plan::Plan& plan_;
  std::span<const std::unique_ptr<Unit>> units_;
  const Optimizer& optimizer_;
  std::uint64_t seed_;
  Diagnostics diagnostics_;
  kernels::LossScaling loss_scaling_;
  const GradientHook& gradient_hook_;

  Arena arena_;
  Arena host_arena_;  // on a CUDA device what the plan wants in the host's memory; empty on the CPU, where all is
  // Streams drain and stop before anything that their tasks use goes away.
  std::vector<Event> events_;                                         // by Plan::events
  std::vector<std::vector<std::optional<std::size_t>>> recorded_by_;  // event that an operation records
  std::vector<std::vector<std::vector<Touch>>> touches_;              // by segment and operation
  std::vector<std::vector<std::string>> range_names_;                 // likewise, for a profiler; empty without one
  std::vector<std::vector<Collective>> collectives_;                  // by segment and operation
  std::vector<std::vector<OptimizerRun>> runs_;                       // by unit
  std::vector<std::vector<float*>> run_states_;                       // by unit: states of each run, run after run
  std::vector<std::vector<ParameterPiece>> gradient_pieces_;          // by unit, for hooks
  std::vector<GradientLedger> ledgers_;                               // by unit
  std::vector<std::size_t> backward_windows_;                         // by unit, in a micro-batch
  std::vector<std::size_t> backward_done_;                            // by unit, in this micro-batch
  std::unique_ptr<Communicator> gather_communicator_;
  std::unique_ptr<Communicator> reduce_communicator_;
  std::shared_ptr<TraceRecorder> recorder_;       // none: nothing is traced
  TraceRecorder* traced_ = nullptr;               // while a step runs that the recorder asked for
  std::vector<std::unique_ptr<Stream>> streams_;  // by StreamId
  std::unique_ptr<Stream> host_;                  // immediate: its waits are the host's
  std::vector<Joined> joined_;

  Progress progress_;
  std::size_t segment_ = 0;
  std::size_t next_operation_ = 0;
  float learning_rate_ = 0.0f;
  std::optional<OpenWindow> open_window_;
  std::size_t serial_ = 0;
};

}  // namespace tessera
