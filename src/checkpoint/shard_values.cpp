// A rank's elements of one parameter are one run: the part of its shard that the parameter crosses.
#include "checkpoint/shard_values.hpp"

#include <algorithm>

#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::checkpoint {

namespace {

std::size_t most_states(const plan::Plan& plan) {
  std::size_t most = 0;
  for (const plan::UnitBuffers& unit : plan.unit_buffers) most = std::max(most, unit.states.size());
  return most;
}

}  // namespace

ShardValues::ShardValues(FullyShard& model)
    : stream_(&model.stream()),
      units_(model.unit_count()),
      states_(most_states(model.plan())),
      role_(model.plan().options.role.value_or(0)) {
  const plan::Plan& plan = model.plan();
  shares_.resize((2 + states_ + 2) * units_);
  for (std::size_t u = 0; u < units_; ++u) {
    variants_.push_back(plan.variant_of(u, plan.rank_of(static_cast<std::size_t>(model.world().rank()))));
    take(model, row_of(TensorSource::Kind::master), u, "master");
    std::vector<Share>& buffers = shares(row_of(TensorSource::Kind::buffer), u);
    for (const Buffer* buffer : model.unit(u).buffers()) {
      buffers.push_back({0, std::as_writable_bytes(model.buffer(*buffer))});
    }
    if (!plan.trains(u)) continue;
    const std::vector<plan::StateSpec>& states = plan.unit_states(u);
    for (std::size_t state = 0; state < states.size(); ++state) {
      take(model, row_of(TensorSource::Kind::state, state), u, states[state].name);
    }
    if (!plan.diverges()) continue;
    take(model, row_of(TensorSource::Kind::anchor), u, "anchor");
    take(model, row_of(TensorSource::Kind::outer_momentum), u, "outer momentum");
  }
}

void ShardValues::take(FullyShard& model, std::size_t row, std::size_t unit, std::string_view state) {
  const Unit& of = model.unit(unit);
  shares(row, unit).resize(of.parameters().size());
  for (const StatePiece& piece : model.state_pieces(of, state)) {
    shares(row, unit)[of.index_of(*piece.parameter)] = {piece.first, piece.bytes};
  }
}

std::size_t ShardValues::row_of(TensorSource::Kind kind, std::size_t state) const {
  switch (kind) {
    case TensorSource::Kind::master:
    case TensorSource::Kind::masters_apart: return 0;
    case TensorSource::Kind::state: return 1 + state;
    case TensorSource::Kind::buffer: return 1 + states_;
    case TensorSource::Kind::anchor: return 2 + states_;
    case TensorSource::Kind::outer_momentum: return 3 + states_;
  }
  throw InternalError("a tensor of no kind");
}

const ShardValues::Share& ShardValues::share(const TensorSource& source) const {
  static const Share nothing;
  if (source.role != role_) return nothing;
  if (source.replica && *source.replica != variants_[source.unit]) return nothing;
  const std::vector<Share>& of_unit = shares_[row_of(source.kind, source.state) * units_ + source.unit];
  return of_unit.empty() ? nothing : of_unit.at(source.place);
}

void ShardValues::for_each_part(const plan::Plan& plan, const TensorSource& source, std::size_t size,
                                const std::function<void(std::size_t, std::span<std::byte>)>& visit) const {
  const Share& all = share(source);
  if (all.bytes.empty()) return;
  if (source.kind == TensorSource::Kind::buffer) return visit(all.first, all.bytes);
  const plan::ParameterSpec& spec = plan.units[source.unit].parameters[source.place];
  if (!spec.slice) return visit(all.first, all.bytes);
  spec.map().for_each_run(variants_[source.unit], all.first, all.bytes.size() / size,
                          [&](std::size_t own, std::size_t whole, std::size_t count) {
                            visit(whole, all.bytes.subspan((own - all.first) * size, count * size));
                          });
}

std::span<const std::byte> ShardValues::at(const Run& run) const {
  const Share& all = share(run.tensor->source);
  const std::uint64_t before = run.held < all.first ? 0 : run.tensor->size_of(run.held - all.first);
  if (run.held < all.first || before + run.bytes() > all.bytes.size()) {
    throw InternalError("a checkpoint asked for elements that are another rank's");
  }
  return all.bytes.subspan(before, run.bytes());
}

void ShardValues::begin_outer_steps() const {
  for (std::size_t u = 0; u < units_; ++u) {
    const std::vector<Share>& anchors = shares_[row_of(TensorSource::Kind::anchor) * units_ + u];
    for (std::size_t place = 0; place < anchors.size(); ++place) {
      const Share& anchor = anchors[place];
      if (anchor.bytes.empty()) continue;
      const Bytes size(anchor.bytes.size());
      const Share& master = shares_[row_of(TensorSource::Kind::master) * units_ + u].at(place);
      const Share& momentum = shares_[row_of(TensorSource::Kind::outer_momentum) * units_ + u].at(place);
      // The anchor's share may begin behind the master's first element.
      const std::size_t before = (anchor.first - master.first) * sizeof(float);
      kernels::copy(*stream_, anchor.bytes.data(), master.bytes.subspan(before, anchor.bytes.size()).data(), size);
      kernels::fill_zero(*stream_, momentum.bytes.data(), size);
    }
  }
  stream_->synchronize();
}

ShardValues ShardValues::copied_to(std::span<std::byte> memory) const {
  ShardValues copy = *this;
  for (std::vector<Share>& of_unit : copy.shares_) {
    for (Share& share : of_unit) {
      const std::size_t bytes = share.bytes.size();
      if (bytes > memory.size()) throw InternalError("the copy for a checkpoint is larger than was planned");
      if (bytes == 0) continue;
      kernels::copy(*stream_, memory.data(), share.bytes.data(), Bytes(bytes));
      share.bytes = memory.first(bytes);
      memory = memory.subspan(bytes);
    }
  }
  stream_->synchronize();
  return copy;
}

void ShardValues::copy_from(const ShardValues& copy) const {
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    for (std::size_t place = 0; place < shares_[i].size(); ++place) {
      const std::span<std::byte> to = shares_[i][place].bytes;
      kernels::copy(*stream_, to.data(), copy.shares_[i][place].bytes.data(), Bytes(to.size()));
    }
  }
  stream_->synchronize();
}

}  // namespace tessera::checkpoint
