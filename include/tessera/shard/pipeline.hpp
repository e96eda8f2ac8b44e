// A model whose parts stand on different ranks: micro-batches flow through them by a schedule (plan/schedule.hpp).
//
// The user cuts the model into parts, in their order, as many as stages and chunks ask for: a part is units of a
// FullyShard, whatever they are, and says how it goes forward and back on memory that it is given. The pipeline gives
// each stage a model of its parts' units and of what passes activations and their gradients on, with the windows in the
// order of the schedule. All stages' plans are proved together, with the buffers that messages have
// (finalize_roles()), and each micro-batch's gradient counts once. Inside a stage ranks shard as in any other model.
//
// Memory. A part has memory for each micro-batch whose activations it holds at once (plan::in_flight()), and scratch
// memory once, which are in the plan as FullyShardOptions::activations. Bits are those of any other schedule on the
// same mesh: gradients add up in the order of micro-batches.
//
// Tied parameters. A unit of the last part may have those of one of the first, with its name and tensors, as an output
// head has those of an embedding: add it with UnitOptions::tied. Both then have the sum of both gradients, which counts
// once in the norm, and stay equal bit by bit.
//
// Every rank makes all parts, and has parameters of its own stage's alone. Thread safety: none.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/dtype.hpp"
#include "tessera/plan/schedule.hpp"
#include "tessera/shard/fully_shard.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// A part works on this, of one micro-batch: device memory, aligned to 512 bytes.
struct PartMemory {
  std::size_t micro_batch;           // of the step
  std::size_t place;                 // which of those that the stage holds at once: one at a time has it
  std::span<std::byte> activations;  // PipelinePart::activations() bytes; what forward leaves there, backward finds
  std::span<const std::byte> input;  // from the part before, as it came until backward is done; empty: the first part
  std::span<std::byte> output;       // to the next part; empty: the last part
  std::span<std::byte> output_gradient = {};  // in passes back, from the next part; may be overwritten
  std::span<std::byte> input_gradient = {};   // … and to the part before
  std::span<std::byte> scratch = {};          // PipelinePart::scratch() bytes, until the end of this pass
};

class PipelinePart {
 public:
  virtual ~PipelinePart() = default;
  // Adds its units, each of which opens one forward, evaluate and backward window a micro-batch, backward in reverse,
  // unless windows() says otherwise. Names are unique among all parts. A unit that recomputes is given its forward
  // arguments again in the backward pass of that micro-batch: what was given by reference must still be the
  // micro-batch's own then, as a member for each PartMemory::place is, and one member for all is not.
  virtual void add_to(FullyShard& model) = 0;
  virtual std::vector<UnitWindow> windows(plan::WindowKind kind, std::span<const Unit* const> units) const;
  virtual Bytes activations() const { return {}; }  // of one micro-batch
  virtual Bytes scratch() const { return {}; }

  // These open their windows, in which they enqueue.
  virtual void forward(FullyShard& model, const PartMemory& memory) = 0;
  virtual void backward(FullyShard& model, const PartMemory& memory) = 0;
  virtual void evaluate(FullyShard& model, const PartMemory& memory) = 0;
  // The first part of backward where the schedule has it in two: it forms the gradient of the input, in backward_input
  // windows, and leaves in activations() what backward needs, which then forms those of parameters alone (output and
  // input gradient are empty). Default: UsageError.
  virtual void backward_input(FullyShard& model, const PartMemory& memory);
};

// Cuts a row of units into so many parts of neighbours, none empty, so that the one that takes most takes least: each
// has its seconds, or bytes, or whatever counts. `begins`: the first unit of each part.
struct EvenCut {
  std::vector<std::size_t> begins;
  double imbalance;  // the part that takes most, by the mean; 1: all alike. The slowest one sets the pace
};
// Throws UsageError for more parts than units, and for none.
EvenCut cut_evenly(std::span<const double> units, std::size_t parts);

struct PipelineOptions {
  plan::Schedule schedule;
  plan::ScheduleShape shape;
  // So much passes from part to part in one micro-batch, and in evaluation.
  std::size_t elements = 0;
  DType type = DType::fp32;
  std::size_t buffers = 2;  // of each message, on each side
};

class Pipeline {
 public:
  // `options`: with a mesh that has shape.stages places along the axis pipeline; micro_batches and activations are not
  // looked at, the schedule and the parts say them. Throws UsageError for a schedule that check() refuses, for another
  // number of parts than stages x chunks, and for several chunks on one stage.
  Pipeline(World& world, const FullyShardOptions& options, const PipelineOptions& pipeline,
           std::vector<std::unique_ptr<PipelinePart>> parts);
  ~Pipeline();

  // In place of the models' finalize(): each stage's gets an optimizer. Collective; throws as finalize_roles() does.
  void finalize(const std::function<std::unique_ptr<Optimizer>()>& optimizer);

  // In place of finalize(), where nothing is to run: what it compiles for each stage (plan_roles()).
  std::vector<plan::RankRole> plans(const std::function<std::unique_ptr<Optimizer>()>& optimizer);

  // Forward and back through all micro-batches of a step; update() ends it.
  void train();
  // Updates by the mean over all micro-batches of all ranks, or by what weights say (UpdateOptions).
  void update(UpdateOptions options = {});
  // One micro-batch, forward, in evaluate windows.
  void evaluate();

  std::size_t stage() const { return stage_; }
  bool is_last() const { return stage_ + 1 == pipeline_.shape.stages; }
  FullyShard& model() { return *models_[stage_]; }  // this rank's
  PipelinePart& part(std::size_t index) { return *parts_[index]; }

 private:
  struct Links;
  std::size_t part_of(std::size_t stage, std::size_t chunk) const { return chunk * pipeline_.shape.stages + stage; }
  std::vector<ModelRole> roles(const std::function<std::unique_ptr<Optimizer>()>& optimizer) const;
  void make_model(World& world, FullyShardOptions options, std::size_t stage);
  Bytes place_size(std::size_t stage) const;
  Bytes scratch_size(std::size_t stage) const;
  Bytes message_size() const;
  PartMemory memory_of(const plan::ScheduledPass& pass, std::size_t place);
  template <typename Work>
  void run(const Work& work);
  void go_forward(const plan::ScheduledPass& pass, std::size_t place, plan::WindowKind kind);
  void go_back(const plan::ScheduledPass& pass, std::size_t place, bool is_rest);

  PipelineOptions pipeline_;
  std::vector<std::unique_ptr<PipelinePart>> parts_;
  std::vector<std::unique_ptr<Links>> links_;        // by part: with the one before it
  std::vector<std::vector<std::size_t>> places_;     // by stage and pass
  std::vector<std::vector<bool>> is_rest_;           // likewise: of a backward pass whose first part was done before
  std::vector<std::unique_ptr<FullyShard>> models_;  // by stage; they end before what they use
  std::size_t stage_ = 0;
};

}  // namespace tessera

#pragma GCC visibility pop
