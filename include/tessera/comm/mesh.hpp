// The ranks of a job as a mesh of named axes, and the groups of ranks that its lines make.
//
// Axes are named outermost first: in {{"replicate", 2}, {"shard", 4}} the ranks 0 to 3 are one line of "shard", the
// ranks 0 and 4 one of "replicate". Ranks have the launcher's numbers: where it numbers those of a host one after the
// other, as launchers do unless told otherwise, a host's ranks belong to the innermost axis (World::mesh() warns).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera {

struct MeshAxis {
  std::string name;
  int size = 1;
};

// A partition of the job's ranks into groups, and one rank's view of it: its group, and its place there. Lines of a
// mesh are of equal size; of pairs the first or last rank of a line may be alone. A value; communicators are made on it
// by World::make_communicator.
class Group {
 public:
  const std::string& name() const { return name_; }  // "shard"; "shard x replicate" of two axes
  int size() const;                                  // ranks of this rank's group
  int count() const;                                 // groups
  int ranks_of_job() const { return ranks_of_job_; }
  int place() const;
  std::vector<int> ranks() const;  // of this rank's group, by place

  // Both take any rank of the job: which of the count() groups it is in, counted in the order of their lowest ranks,
  // and its place there.
  int index_of(int rank) const;
  int place_of(int rank) const;
  std::vector<int> ranks_of(int index) const;

  // All ranks of the job, each at the place of its number.
  bool is_everybody() const;
  // `shard of the mesh replicate 2 x shard 4`: the same text for the same partition of the same mesh.
  const std::string& text() const { return text_; }

 private:
  friend class Mesh;
  // One axis: ranks that differ by multiples of `stride`, `size` of them.
  struct Steps {
    int stride;
    int size;
  };
  Group(std::string name, std::string text, std::vector<Steps> axes, int ranks_of_job, int rank);
  int pair_of(int rank) const;
  int pairs() const;  // in its line

  std::string name_;
  std::string text_;
  std::vector<Steps> axes_;  // the slowest first, in the order of places
  int pairs_from_ = -1;      // of pairs along the one axis: Mesh::pairs_of()
  int ranks_of_job_;
  int rank_;
};

class Mesh {
 public:
  // Throws UsageError for no axes, axes of the same name or without one, sizes below 1, and a product that is not
  // `ranks`, naming both.
  Mesh(std::vector<MeshAxis> axes, int ranks, int rank);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  // These take an axis. They throw UsageError for one that the mesh does not have, naming those that it has; for none;
  // and for one that is named twice.
  int size(std::string_view axis) const { return axes_[index_of(axis)].size; }
  int place(std::string_view axis) const { return group(axis).place(); }

  // The lines along one axis; those along several together, with places counted in the order in which the axes are
  // named, the slowest first. {"shard", "replicate"} of the mesh above: all eight ranks, in the order 0, 4, 1, 5, …
  Group group(std::string_view axis) const { return group_of({std::string(axis)}); }
  Group group_of(const std::vector<std::string>& axes) const;

  // Neighbours along one axis, two by two: those at 0 and 1, 2 and 3, …, or with `from` 1 those at 1 and 2, 3 and 4, …;
  // with 2 the first and the last. Who is left over is alone.
  Group pairs_of(std::string_view axis, int from) const;

  // `replicate 2 x shard 4`
  std::string text() const;

 private:
  std::size_t index_of(std::string_view axis) const;
  int stride_of(std::size_t axis) const;

  std::vector<MeshAxis> axes_;
  int ranks_;
  int rank_;
};

}  // namespace tessera

#pragma GCC visibility pop
