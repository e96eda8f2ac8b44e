// The tensor files of a checkpoint: which tensor stands where. A pure function of the model, the same on every rank,
// whatever the strategy and the number of ranks; with outer steps of the number of replicas, too. Roles' units follow
// each other, and one that is tied stands in the checkpoint once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/tensor_index.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::checkpoint {

// A TensorSource says what a tensor is of the model.
struct TensorSource {
  // masters_apart: of replicas that train apart, beside the anchor, which is what they had in common last.
  enum class Kind { master, state, buffer, anchor, outer_momentum, masters_apart };
  Kind kind;
  std::size_t unit;
  std::size_t place;      // of the parameter or the buffer in its unit
  std::size_t state = 0;  // in Plan::unit_states()
  std::size_t block = 1;  // elements of the parameter that share a value
  // Masters and states of replicas that train apart, and whatever is of a unit in each replica: whose. None of slices,
  // which are of one tensor.
  std::optional<std::size_t> replica = std::nullopt;
  std::size_t role = 0;  // whose plan has the unit
};

// Those of a job's roles (ShardedModel::plans()).
using Plans = std::vector<const plan::Plan*>;
inline const plan::Plan& plan_of(const Plans& plans, const TensorSource& source) { return *plans[source.role]; }

struct LaidTensor {
  TensorSource source;
  TensorSpec spec;
  std::size_t elements;
  std::uint64_t begin = 0;  // in the file
  std::uint64_t size_of(std::size_t count) const { return tessera::size_of(spec.dtype).count() * count; }
  std::uint64_t end() const { return begin + size_of(elements); }
};

struct LaidFile {
  std::string name;
  std::string head;  // the length field and the header
  std::vector<LaidTensor> tensors;
  std::uint64_t size() const { return tensors.empty() ? head.size() : tensors.back().end(); }
};

// A file of text that one rank writes.
struct TextFile {
  std::string name;
  std::string text;
};

struct CheckpointFiles {
  std::vector<LaidFile> tensors;
  std::vector<TextFile> indices;  // of what was split
};

struct LayoutOptions {
  std::map<std::string, std::string> aliases = {};   // of tied parameters: another name → the stored tensor's
  std::map<std::string, std::string> metadata = {};  // of the model's files, beside what they always have
  Bytes split = split_limit;
};

// Lays out a checkpoint of the plans' model: with outer steps what the replicas have in common, and what each has for
// itself. Throws UsageError for an alias of what is not there, or whose name is taken, and for a model so large that no
// reader would take the manifest.
CheckpointFiles lay_out(const Plans& plans, const LayoutOptions& options);

// Lists what the model has to find in a checkpoint, of replicas that train apart, or of a model of which none do.
// Tensors of tied units are there in each role that has them. They have no places.
std::vector<LaidTensor> tensors_of(const Plans& plans, bool apart);

// The name of an optimizer's state of a parameter: "m/blocks.3.weight".
std::string state_tensor_name(const std::string& state, const std::string& parameter);

}  // namespace tessera::checkpoint
