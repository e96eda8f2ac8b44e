// A rank's elements of one parameter are one run: the part of its shard that the parameter crosses.
#include "checkpoint/shard_values.hpp"

#include <string_view>

#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::checkpoint {

ShardValues::ShardValues(FullyShard& model)
    : stream_(&model.stream()), units_(model.unit_count()), states_(model.plan().optimizer_states.size()) {
  const plan::Plan& plan = model.plan();
  shares_.resize((2 + states_) * units_);
  for (std::size_t u = 0; u < units_; ++u) {
    const Unit& unit = model.unit(u);
    for (std::size_t kind = 0; kind < 1 + states_; ++kind) {
      shares(kind, u).resize(unit.parameters().size());
      if (kind > 0 && !plan.trains(u)) continue;
      const std::string_view state = kind == 0 ? std::string_view("master") : plan.optimizer_states[kind - 1];
      for (const ParameterPiece& piece : model.pieces(unit, state)) {
        shares(kind, u)[unit.index_of(*piece.parameter)] = {piece.first, piece.values};
      }
    }
    for (const Buffer* buffer : unit.buffers()) shares(1 + states_, u).push_back({0, model.buffer(*buffer)});
  }
}

const ShardValues::Share& ShardValues::share(const TensorSource& source) const {
  std::size_t kind = 0;
  switch (source.kind) {
    case TensorSource::Kind::master: kind = 0; break;
    case TensorSource::Kind::state: kind = 1 + source.state; break;
    case TensorSource::Kind::buffer: kind = 1 + states_; break;
  }
  return shares_[kind * units_ + source.unit].at(source.place);
}

std::span<float> ShardValues::at(const TensorSource& source, std::size_t first, std::size_t count) const {
  const Share& all = share(source);
  if (first < all.first || first - all.first + count > all.values.size()) {
    throw InternalError("a checkpoint asked for elements that are another rank's");
  }
  return all.values.subspan(first - all.first, count);
}

ShardValues ShardValues::copied_to(std::span<std::byte> memory) const {
  ShardValues copy = *this;
  for (std::vector<Share>& of_unit : copy.shares_) {
    for (Share& share : of_unit) {
      const std::size_t bytes = share.values.size_bytes();
      if (bytes > memory.size()) throw InternalError("the copy for a checkpoint is larger than was planned");
      if (bytes == 0) continue;
      kernels::copy(*stream_, memory.data(), share.values.data(), Bytes(bytes));
      share.values = {reinterpret_cast<float*>(memory.data()), share.values.size()};
      memory = memory.subspan(bytes);
    }
  }
  stream_->synchronize();
  return copy;
}

void ShardValues::copy_from(const ShardValues& copy) const {
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    for (std::size_t place = 0; place < shares_[i].size(); ++place) {
      const std::span<float> to = shares_[i][place].values;
      kernels::copy(*stream_, to.data(), copy.shares_[i][place].values.data(), Bytes(to.size_bytes()));
    }
  }
  stream_->synchronize();
}

}  // namespace tessera::checkpoint
