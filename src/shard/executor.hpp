// Runs a plan on one rank: streams, events and waits, from window to window. What single operations do stands in
// operations.hpp, where things lie in model_memory.hpp, what a user does inside a window in open_window.hpp.
//
// Invariants: operations are launched in the order of the plan; every data wait is made on the device, every throttle
// wait on the host, and order waits are kept by the order of launch itself. It knows no strategy: only operations.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shard/kept_objects.hpp"
#include "shard/model_memory.hpp"
#include "shard/open_window.hpp"
#include "shard/operations.hpp"
#include "shard/progress.hpp"
#include "shard/trace_recorder.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/step_scalars.hpp"

namespace tessera {

class Executor final : public WindowHost {
 public:
  // Takes the arena, starts the streams, makes the communicators, runs the cold start. Collective; synchronises.
  explicit Executor(const ExecutorInput& input);
  ~Executor() override;

  // Whose windows and updates follow; 0 at the start.
  void begin(std::size_t program) { progress_.begin(program); }
  std::size_t program() const { return progress_.program(); }
  Window open(const plan::WindowUse& use) override;
  void close(std::size_t serial) override;  // launches what comes before the next window
  WindowView* open_window(std::size_t serial) override;
  const Unit& unit(std::size_t index) const override { return *units_[index]; }
  void begin(std::size_t serial, const Collective& collective) override;
  Collected<std::byte> collect(std::size_t serial, const Collective& collective) override;
  // Opens and closes it, and all that is inside it, without computing: gradients count as zero. Throws UsageError,
  // before it opens anything, where a unit inside it is not optional, too.
  void skip(const plan::WindowUse& use);
  // This rank's place among those that train together.
  std::size_t place() const { return place_; }
  // The update is of the micro-batches that were computed, or of samples of this weight; with granules, of these.
  struct Brought {
    std::optional<double> weight;
    std::span<const double> granules;
  };
  void update(float learning_rate, const Brought& brought);
  void skip_step(float learning_rate);
  void discard_gradients();
  // Returns what the last step of the current program has left; where tasks do not see the device's memory, what is
  // wrong with that of any program is told now. Synchronises, once.
  const kernels::StepScalars& look_at_steps();
  // How many updates were asked for so far: by it outer steps are due. Where there are any, setting it ends a trace.
  void set_updates(std::size_t updates);
  std::size_t updates() const { return updates_; }
  void refresh();              // what is whole follows the masters. Synchronises
  void synchronize_buffers();  // untrained state becomes rank 0's. Synchronises
  void synchronize();
  void abandon(std::string_view what) noexcept override;
  // The steps that the recorder asks for take time stamps. It replaces an earlier one. Synchronises.
  void trace(std::shared_ptr<TraceRecorder> recorder);
  void require_training(std::string_view call) const { progress_.require_training(call); }
  void require_between_steps(std::string_view call) const { progress_.check_between_steps(call); }
  bool is_between_steps() const { return progress_.begins_step(); }

  Stream& compute() { return stream(plan::StreamId::compute); }
  ModelMemory& memory() { return memory_; }
  Operations& operations() { return operations_; }

 private:
  // Bytes at the ends of an operation's ranges, for the touch test mode.
  struct Touch {
    std::byte* first;
    std::byte* last;
    bool write;
  };

  void make_streams(const ExecutorInput& input);
  void make_events();
  void make_touches();
  void make_range_names();
  void check_health();
  void begin_traced_step();
  void skip_micro_batches();  // those of this step that are missing, or are other ranks' alone
  void close();               // the innermost window
  void skip_collectives(OpenWindow& window);
  void launch_collective(OpenWindow& window, const Collective& collective);
  Collected<std::byte> end_collective(OpenWindow& window);
  void resume(OpenWindow& window);  // in its next stretch
  void begin_window();
  bool end_window();  // true when the segment has ended
  void launch_update(std::optional<float> learning_rate, const kernels::StepPart& part,
                     std::span<const double> granule_weights = {});
  kernels::StepPart part_of(const Brought& brought) const;

  // Launches the current segment's operations up to the next window; true when there is none left.
  bool launch_to_window();
  void abandon_segment() noexcept;  // inside a catch block: aborts the world with the current exception as cause
  void abandon_operation(std::string_view what) noexcept;
  void launch_segment(plan::SegmentKind kind);
  void launch_segment(std::size_t segment);
  void launch(const plan::Operation& operation, std::size_t index);
  void make_waits(const plan::Operation& operation, Stream& on);
  void make_traced_waits(const plan::Operation& operation, Stream& on);
  void make_wait(const plan::Wait& wait, Stream& on);
  void record(std::size_t index, Stream& on);
  void touch(std::size_t index, Stream& on);

  Stream& stream(plan::StreamId id) { return *streams_[static_cast<std::size_t>(id)]; }
  const plan::Segment& segment() const { return plan_.segments[segment_]; }

  World& world_;
  const plan::Plan& plan_;
  std::span<const std::unique_ptr<Unit>> units_;
  Diagnostics diagnostics_;
  ModelMemory memory_;
  Operations operations_;
  // Streams drain and stop before anything that their tasks use goes away.
  std::vector<Event> events_;                                         // by Plan::events
  std::vector<std::vector<std::optional<std::size_t>>> recorded_by_;  // event that an operation records
  std::vector<std::vector<std::vector<Touch>>> touches_;              // by segment and operation
  std::vector<std::vector<std::string>> range_names_;                 // likewise, for a profiler; empty without one
  std::shared_ptr<TraceRecorder> recorder_;                           // none: nothing is traced
  TraceRecorder* traced_ = nullptr;                                   // while a step runs that the recorder asked for
  std::array<std::unique_ptr<Stream>, plan::stream_count> streams_;   // by StreamId; null: the plan has no use for it
  std::unique_ptr<Stream> host_;                                      // immediate: its waits are the host's
  std::vector<GradientLedger> ledgers_;                               // by unit
  std::vector<std::unique_ptr<OpenWindow>> windows_;                  // one for each depth; the first `depth_` are open
  std::size_t depth_ = 0;
  KeptObjects kept_;
  std::size_t serial_ = 0;            // of openings
  std::shared_ptr<WindowLink> link_;  // to the handles

  std::size_t place_;  // of this rank among those that train together
  Progress progress_;
  std::vector<kernels::StepScalars> last_steps_;  // by program, as they were looked at
  std::size_t updates_ = 0;
  std::size_t segment_ = 0;
  std::size_t next_operation_ = 0;  // in the segment; while a window is open, the window
};

}  // namespace tessera
