// Axes as strides: along one of them ranks differ by the product of the sizes of those inside it.
#include "tessera/comm/mesh.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera {

namespace {

constexpr int both_ends = 2;  // Mesh::pairs_of()

}  // namespace

// ---- groups ----

Group::Group(std::string name, std::string text, std::vector<Steps> axes, int ranks_of_job, int rank)
    : name_(std::move(name)),
      text_(std::move(text)),
      axes_(std::move(axes)),
      ranks_of_job_(ranks_of_job),
      rank_(rank) {}

int Group::size() const {
  if (pairs_from_ >= 0) return static_cast<int>(ranks().size());
  int size = 1;
  for (const Steps& axis : axes_) size *= axis.size;
  return size;
}

int Group::count() const {
  if (pairs_from_ < 0) return ranks_of_job_ / size();
  return ranks_of_job_ / axes_.front().size * pairs();
}

// The line's first rank is the second half of a pair without a first one where whole pairs begin at 1.
int Group::pair_of(int rank) const {
  const int along = rank / axes_.front().stride % axes_.front().size;
  if (pairs_from_ == both_ends) return along == axes_.front().size - 1 ? 0 : along;
  return (along + pairs_from_) / 2;
}

// Counts those of one line along the axis.
int Group::pairs() const {
  const int size = axes_.front().size;
  return pairs_from_ == both_ends ? std::max(1, size - 1) : (size + pairs_from_ + 1) / 2;
}

int Group::place() const { return place_of(rank_); }

std::vector<int> Group::ranks() const { return ranks_of(index_of(rank_)); }

int Group::place_of(int rank) const {
  if (pairs_from_ >= 0) {
    const int along = rank / axes_.front().stride % axes_.front().size;
    if (pairs_from_ == both_ends) return along > 0 && along == axes_.front().size - 1 ? 1 : 0;
    return along < pairs_from_ ? 0 : (along + pairs_from_) % 2;
  }
  int place = 0;
  for (const Steps& axis : axes_) place = place * axis.size + rank / axis.stride % axis.size;
  return place;
}

// The index is what is left of a rank without the group's own axes, counted without gaps: the axes that it does not
// have keep their order.
int Group::index_of(int rank) const {
  if (pairs_from_ >= 0) {
    const auto& [stride, size] = axes_.front();
    return (rank / (stride * size) * pairs() + pair_of(rank)) * stride + rank % stride;
  }
  std::vector<Steps> inner_first = axes_;
  std::sort(inner_first.begin(), inner_first.end(), [](const Steps& a, const Steps& b) { return a.stride < b.stride; });
  int removed = 1;  // how many ranks the axes so far have folded into one
  for (const Steps& axis : inner_first) {
    if (axis.size == 1) continue;  // it may have the stride of the axis outside it
    const int stride = axis.stride / removed;
    rank = rank / (stride * axis.size) * stride + rank % stride;
    removed *= axis.size;
  }
  return rank;
}

std::vector<int> Group::ranks_of(int index) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < ranks_of_job_; ++rank) {
    if (index_of(rank) != index) continue;
    const auto place = static_cast<std::size_t>(place_of(rank));
    if (ranks.size() <= place) ranks.resize(place + 1);
    ranks[place] = rank;
  }
  return ranks;
}

bool Group::is_everybody() const {
  if (size() != ranks_of_job_) return false;
  for (int rank = 0; rank < ranks_of_job_; ++rank) {
    if (place_of(rank) != rank) return false;
  }
  return true;
}

// ---- meshes ----

Mesh::Mesh(std::vector<MeshAxis> axes, int ranks, int rank) : axes_(std::move(axes)), ranks_(ranks), rank_(rank) {
  if (axes_.empty()) throw UsageError("a mesh needs an axis: {{\"shard\", world.size()}}, say");
  std::set<std::string_view> names;
  long long product = 1;
  for (const MeshAxis& axis : axes_) {
    if (axis.name.empty()) throw UsageError("an axis of a mesh needs a name");
    if (!names.insert(axis.name).second) {
      throw UsageError(fmt::format("two axes of the mesh {} have the name \"{}\"", text(), axis.name));
    }
    if (axis.size < 1) {
      throw UsageError(fmt::format("axis {} of a mesh has the size {}: it is at least 1", axis.name, axis.size));
    }
    product = std::min<long long>(product * axis.size, 1LL << 31);
  }
  if (product == ranks) return;
  throw UsageError(fmt::format("the mesh {} is for {} ranks, but the job has {}", text(), product, ranks));
}

std::size_t Mesh::index_of(std::string_view axis) const {
  for (std::size_t index = 0; index < axes_.size(); ++index) {
    if (axes_[index].name == axis) return index;
  }
  throw UsageError(fmt::format("the mesh {} has no axis \"{}\"", text(), axis));
}

int Mesh::stride_of(std::size_t axis) const {
  int stride = 1;
  for (std::size_t inner = axis + 1; inner < axes_.size(); ++inner) stride *= axes_[inner].size;
  return stride;
}

Group Mesh::group_of(const std::vector<std::string>& axes) const {
  if (axes.empty()) throw UsageError(fmt::format("a group of the mesh {} needs an axis", text()));
  std::vector<Group::Steps> steps;
  std::set<std::string_view> named;
  for (const std::string& axis : axes) {
    const std::size_t index = index_of(axis);
    if (!named.insert(axis).second) throw UsageError(fmt::format("axis {} is named twice in one group", axis));
    steps.push_back({.stride = stride_of(index), .size = axes_[index].size});
  }
  std::string name = fmt::format("{}", fmt::join(axes, " x "));
  std::string of_mesh = fmt::format("{} of the mesh {}", name, text());
  return Group(std::move(name), std::move(of_mesh), std::move(steps), ranks_, rank_);
}

Group Mesh::pairs_of(std::string_view axis, int from) const {
  Group pairs = group(axis);
  pairs.pairs_from_ = from;
  pairs.name_ = from == both_ends ? fmt::format("both ends of {}", pairs.name_)
                                  : fmt::format("{} pairs from {}", pairs.name_, from);
  pairs.text_ = fmt::format("{} of the mesh {}", pairs.name_, text());
  return pairs;
}

std::string Mesh::text() const {
  std::string text;
  for (const MeshAxis& axis : axes_) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.size);
  }
  return text;
}

}  // namespace tessera
