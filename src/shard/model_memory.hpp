// Where everything that a plan lists stands on this rank: the arena, addresses in it, and what people and checkpoints
// look at. It waits for nothing: who reads or writes values orders that by streams.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "device/disk_file.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/pieces.hpp"
#include "tessera/shard/unit.hpp"

namespace tessera {

class ModelMemory {
 public:
  // Takes the memory, and of the file system of `disk` what stands there. The plan and the units must outlive it.
  struct Model {
    const plan::Plan& plan;
    std::span<const std::unique_ptr<Unit>> units;
    const std::filesystem::path& disk;
  };
  ModelMemory(World& world, const Model& model);

  std::byte* base(std::size_t buffer);           // of values on disk: DiskFile::data()
  std::byte* device() { return arena_.data(); }  // what the plan places in the device's memory begins here
  std::byte* address(const plan::Range& range) { return base(range.buffer) + offset(range).count(); }
  std::span<std::byte> bytes(std::size_t buffer);  // of one of the plan's buffers; empty for no_buffer
  kernels::StepScalars* scalars(std::size_t program);
  bool is_on_disk(const plan::Range& range) const { return plan_.buffers[range.buffer].space == MemorySpace::disk; }
  device::DiskFile& disk() { return disk_; }
  Bytes place_on_disk(const plan::Range& range) const;

  // Returns what this rank owns of one of a unit's fp32 buffers (Plan::own), parameter by parameter: every parameter's
  // masters, and of everything else the trained ones'.
  std::vector<ParameterPiece> pieces(std::size_t unit, const plan::Content& content) {
    return pieces_of(unit, content, base(content.buffer));
  }
  // The same of values in fp32 that stand at `values` as those of the buffer would.
  std::vector<ParameterPiece> pieces_of(std::size_t unit, const plan::Content& content, std::byte* values);
  // The same of any of its persistent buffers, in its own type.
  std::vector<StatePiece> state_pieces(std::size_t unit, const plan::Content& content);
  // Returns where such a buffer has the value of an element of what the rank holds of the unit's trained part.
  std::size_t place_in(std::size_t unit, const plan::Content& content, std::size_t element) const;
  std::span<float> values(const Unit& unit, const Buffer& untrained);
  std::vector<MemoryRegion> regions();

 private:
  ModelMemory(World& world, const Model& model, const plan::MemoryReport& memory);
  bool has_values(std::size_t unit, const plan::Content& content, std::size_t parameter) const;
  Bytes offset(const plan::Range& range) const;  // in its buffer

  const plan::Plan& plan_;
  std::span<const std::unique_ptr<Unit>> units_;
  std::size_t rank_;
  plan::Coordinates place_;
  Arena arena_;
  Arena host_arena_;       // what the plan wants in the host's memory: offsets follow those of the other
  device::DiskFile disk_;  // and on disk: offsets follow those
};

}  // namespace tessera
