// An optimizer may want to see some tensors whole, of which ranks have shares only: Muon orthogonalises matrices, LAMB
// takes norms by layer. Optimizer::whole_tensors() says so, with what is here. An update of such a tensor has three
// parts, and each is the same for every strategy and number of ranks:
//
// 1. direct(), on shares, elementwise: from a reduced gradient, states and masters to what has to be brought together.
// 2. transform(), on one rank, which has whole tensors for a moment. Ranks share them by their cost.
// 3. apply(), on shares, elementwise: from what transform() made of them to the masters.
//
// The tensors of several units travel at once, while others are worked on (plan/whole.hpp); tensors that it does not
// want are updated as by any optimizer. Everything is enqueued on `stream` and nothing synchronises or allocates; must
// do nothing to masters and states when scalars->skip is set.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "tessera/base/shape.hpp"
#include "tessera/device/device.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/plan/layout.hpp"
#include "tessera/shard/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// The whole tensor, row by row, of this rank for the time of transform(). Device memory.
struct WholeTensor {
  std::string_view name;
  const Shape& shape;
  std::span<const kernels::Target> planes;  // what direct() wrote; the result takes the first one's place
  std::byte* workspace;                     // as much as wants() said, aligned to 512 bytes
};

// A run of this rank's share of a tensor, after transform().
struct AppliedSpans {
  float* master;
  kernels::Source direction;  // the first plane
  std::size_t count;
  const Shape& shape;  // of the whole tensor
};

class WholeTensors {
 public:
  virtual ~WholeTensors() = default;

  // The type in which values travel, fp32, bf16 or fp16, and how many there are for each element, at least one: LAMB
  // brings updates and weights.
  virtual DType type() const = 0;
  virtual std::size_t planes() const { return 1; }
  // Shell patterns over full names that a user gave it: finalize() refuses one that matches no parameter which the
  // optimizer updates.
  virtual std::vector<std::string> patterns() const { return {}; }
  // Whether it wants to see the tensor whole; then what transform() needs and costs there. A function of its arguments
  // alone, so that all ranks decide alike. Not asked for tensors without elements.
  virtual std::optional<plan::WholeSpec> wants(std::string_view name, const Shape& shape, DeviceKind device) const = 0;

  // `spans` as in Optimizer::update(); directions: one for each plane, for the same elements. They are there during the
  // call alone: a task takes copies.
  virtual void direct(Stream& stream, const OptimizerSpans& spans, std::span<const kernels::Target> directions,
                      const OptimizerGroup& group, const kernels::StepScalars* scalars) const = 0;
  // Tensors of one shape that this rank owns, for what is faster in batches. They have one workspace, and stand one
  // behind the other, every plane on the next multiple of 512 bytes. How many come at once depends on the mesh: what
  // becomes of a tensor must not depend on the others.
  virtual void transform(Stream& stream, std::span<const WholeTensor> tensors) const = 0;
  virtual void apply(Stream& stream, const AppliedSpans& spans, const OptimizerGroup& group,
                     const kernels::StepScalars* scalars) const = 0;
};

// Writes down which of the unit's tensors the optimizer wants to see whole; null: none.
void note_whole_tensors(plan::UnitSpec& unit, const WholeTensors* optimizer, DeviceKind device);

}  // namespace tessera

#pragma GCC visibility pop
