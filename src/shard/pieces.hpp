// Pieces are what a model holds between two steps, seen from the host: this rank's pieces, whole parameters, scalars.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/pieces.hpp"

namespace tessera {

class Executor;

// A rank's pieces of parameters in memory of the host: where they are on the CPU, copies of them on a CUDA device.
class HostPieces {
 public:
  // Enqueues on `stream`, of the device that the pieces are on, and synchronises with it.
  HostPieces(Stream& stream, std::vector<ParameterPiece> of_device);

  std::span<const ParameterPiece> pieces() const { return pieces_; }

  // Takes the values back to where they came from, after they were changed. Synchronises.
  void put_back();

 private:
  Stream& stream_;
  std::vector<ParameterPiece> of_device_;
  std::vector<float> copy_;  // empty on the CPU
  std::vector<ParameterPiece> pieces_;
};

// Whether this rank, and another of the plan's, do not differ along these axes. This one may have another role.
bool is_with(const plan::Plan& plan, std::size_t rank, const World& world, AxisSet axes);

// Puts one parameter, or a state of it, together from the shares of all ranks that have its values in common; it is
// sharded over `owned` (Plan::own). `plan` is that of the role that has it. Collective over all roles; blocks.
struct WholeParameter {
  const Parameter& parameter;
  std::string_view state;  // all ranks mean the same
  AxisSet owned;
  DType type = DType::fp32;
  std::size_t block = 1;  // elements that share a value
};
// `mine`: this rank's share, none where it has none.
std::vector<std::byte> whole_values(World& world, const plan::Plan& plan, const WholeParameter& asked,
                                    std::optional<std::span<const std::byte>> mine);
// The same of fp32 values, one for each element. `pieces`: this rank's of the unit, of which those of the parameter are
// taken.
std::vector<float> whole_parameter(World& world, const plan::Plan& plan, const WholeParameter& asked,
                                   std::span<const ParameterPiece> pieces);

// This rank's share of one of a unit's buffers in fp32, once all that was enqueued is done. Only between steps, as the
// caller has made sure. Of a gradient or masters that are kept in 16 bits `copy` becomes its values in fp32, where the
// pieces then are, in the host's memory: taking some of the device may wait there for a peer that waits for this rank.
// Else it is left alone.
std::vector<ParameterPiece> settled_pieces(Executor& executor, std::size_t unit, const plan::Content& content,
                                           std::vector<float>& copy);
// The same of buffers that are fp32 always.
std::vector<ParameterPiece> settled_pieces(Executor& executor, std::size_t unit, const plan::Content& content);

// Rounds such a copy to nearest, back to where its values are kept. Synchronises.
void put_back_rounded(Executor& executor, std::size_t unit, const plan::Content& content, std::vector<float>& copy);

// The same of one of a unit's persistent buffers in its own type.
std::vector<StatePiece> settled_state_pieces(Executor& executor, std::size_t unit, const plan::Content& content);

// The step's scalars. Both synchronise with the compute stream.
kernels::StepScalars step_scalars(Executor& executor, std::size_t program);
void set_step_scalars(Executor& executor, std::size_t program, const kernels::StepScalars& values);

}  // namespace tessera
