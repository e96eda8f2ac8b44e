// A block of one rank's elements is that rank's; those of several are dealt round in turn, so that every rank puts one
// together while others do.
#include "checkpoint/block_map.hpp"

#include <algorithm>
#include <utility>

#include "tessera/plan/checkpoint_memory.hpp"

namespace tessera::checkpoint {

namespace {

constexpr std::uint64_t block_bytes = plan::checkpoint_block.count();

// The first of a file's tensors that ends behind `offset`.
std::size_t first_tensor(const LaidFile& file, std::uint64_t offset) {
  const auto found = std::partition_point(file.tensors.begin(), file.tensors.end(),
                                          [&](const LaidTensor& tensor) { return tensor.end() <= offset; });
  return static_cast<std::size_t>(found - file.tensors.begin());
}

}  // namespace

BlockMap::BlockMap(Plans plans, const CheckpointFiles& files) : plans_(std::move(plans)), files_(files) {
  first_block_.push_back(0);
  for (std::size_t file = 0; file < files.tensors.size(); ++file) {
    const std::uint64_t size = files.tensors[file].size();
    for (std::uint64_t begin = 0; begin < size; begin += block_bytes) {
      add({.file = file,
           .index = static_cast<std::size_t>(begin / block_bytes),
           .begin = begin,
           .end = std::min(size, begin + block_bytes)});
    }
    first_block_.push_back(writers_.size());
  }
}

void BlockMap::add(Block block) {
  bool owned = false;
  for_each_run(block, [&](const Run& run) {
    block.shared = block.shared || (owned && run.rank != block.writer);
    if (!owned) block.writer = run.rank;
    owned = true;
  });
  if (block.shared) block.writer = shared_.size() % plans_.front()->job_ranks();
  (block.shared ? shared_ : direct_).push_back(block);
  writers_.push_back(static_cast<std::uint32_t>(block.writer));
}

Run BlockMap::run_at(const LaidTensor& tensor, std::size_t element) const {
  const TensorSource& source = tensor.source;
  const plan::Plan& plan = plan_of(plans_, source);
  if (source.kind == TensorSource::Kind::buffer) {
    const plan::Coordinates first = plan.mesh.place_at(plan.apart(source.unit), source.replica.value_or(0));
    return {plan.job_rank(plan.mesh.rank_at(first)), &tensor, element, element, tensor.elements - element};
  }
  const plan::UnitLayout& layout = plan.layouts[source.unit];
  const plan::ParameterSpec& spec = plan.units[source.unit].parameters[source.place];
  if (spec.slice) {
    const plan::SliceMap::Place found = spec.map().find(element);
    const plan::UnitLayout::Owned owned = layout.owner(source.place, found.own, plan.own(source.unit),
                                                       plan.mesh.place_at(plan.apart(source.unit), found.place));
    return {plan.job_rank(owned.rank), &tensor, element, found.own, std::min(owned.count, found.count)};
  }
  const std::size_t of_parameter = element * source.block;
  const plan::UnitLayout::Owned owned = source.replica
                                            ? layout.owner(source.place, of_parameter, plan.own(source.unit),
                                                           plan.mesh.place_at(plan.apart(source.unit), *source.replica))
                                            : layout.owner(source.place, of_parameter);
  return {plan.job_rank(owned.rank), &tensor, element, element, plan::values_of(owned.count, source.block)};
}

void BlockMap::for_each_run(const Block& block, const std::function<void(const Run&)>& visit) const {
  const LaidFile& file = files_.tensors[block.file];
  for (std::size_t t = first_tensor(file, block.begin); t < file.tensors.size(); ++t) {
    const LaidTensor& tensor = file.tensors[t];
    if (tensor.begin >= block.end) return;
    const std::uint64_t size = tensor.size_of(1);
    std::size_t element = block.begin > tensor.begin ? (block.begin - tensor.begin) / size : 0;
    const std::size_t last = std::min<std::uint64_t>(tensor.elements, (block.end - tensor.begin) / size);
    while (element < last) {
      Run run = run_at(tensor, element);
      run.count = std::min(run.count, last - element);
      visit(run);
      element += run.count;
    }
  }
}

}  // namespace tessera::checkpoint
