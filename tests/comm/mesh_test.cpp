// Meshes and the groups of their lines: pure bookkeeping.
#include "tessera/comm/mesh.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../error_text.hpp"
#include "comm/hosts.hpp"
#include "tessera/base/error.hpp"

namespace mesh_test {

using namespace tessera;

std::string refusal(std::vector<MeshAxis> axes, int ranks) {
  return tests::error_text<UsageError>([&] { Mesh(std::move(axes), ranks, 0); });
}

TEST_CASE("a_hosts_ranks_are_a_line_of_the_innermost_axis") {
  const Mesh mesh({{"replicate", 2}, {"shard", 4}}, 8, 5);
  CHECK(mesh.text() == "replicate 2 x shard 4");
  CHECK(mesh.place("replicate") == 1);
  CHECK(mesh.place("shard") == 1);
  CHECK(mesh.group("shard").ranks() == std::vector<int>{4, 5, 6, 7});
  CHECK(mesh.group("replicate").ranks() == std::vector<int>{1, 5});
  CHECK(mesh.group("shard").text() == "shard of the mesh replicate 2 x shard 4");
}

TEST_CASE("places_of_several_axes_count_in_the_order_in_which_they_are_named") {
  const Mesh mesh({{"replicate", 2}, {"shard", 4}}, 8, 5);
  const Group owners = mesh.group_of({"shard", "replicate"});
  CHECK(owners.ranks() == std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7});
  CHECK(owners.place() == 3);
  CHECK_FALSE(owners.is_everybody());
  CHECK(mesh.group_of({"replicate", "shard"}).is_everybody());
}

// Every rank is in exactly one group, at exactly one place, and all ranks say the same of each other.
TEST_CASE("groups_are_a_partition_on_which_all_ranks_agree") {
  const std::vector<MeshAxis> axes = {{"pipeline", 2}, {"replicate", 3}, {"shard", 5}};
  const std::vector<std::vector<std::string>> choices = {{"pipeline"},
                                                         {"replicate"},
                                                         {"shard"},
                                                         {"pipeline", "shard"},
                                                         {"shard", "pipeline"},
                                                         {"shard", "replicate"},
                                                         {"replicate", "pipeline"},
                                                         {"shard", "pipeline", "replicate"}};
  for (const auto& choice : choices) {
    std::vector<std::set<int>> places(30);
    for (int rank = 0; rank < 30; ++rank) {
      const Group group = Mesh(axes, 30, rank).group_of(choice);
      CHECK(group.count() * group.size() == 30);
      CHECK(group.index_of(rank) < group.count());
      CHECK(places[static_cast<std::size_t>(group.index_of(rank))].insert(group.place()).second);
      CHECK(group.ranks()[static_cast<std::size_t>(group.place())] == rank);
      for (const int other : group.ranks()) {
        const Group theirs = Mesh(axes, 30, other).group_of(choice);
        CHECK(theirs.ranks() == group.ranks());
        CHECK(group.place_of(other) == theirs.place());
      }
    }
  }
}

TEST_CASE("pairs_of_neighbours_are_a_partition_too") {
  for (const int stages : {1, 2, 3, 6}) {
    const int ranks = 2 * stages * 3;
    for (const int from : {0, 1, 2}) {
      std::set<std::pair<int, int>> places;
      std::set<int> groups;
      for (int rank = 0; rank < ranks; ++rank) {
        const Mesh mesh({{"replicate", 2}, {"pipeline", stages}, {"shard", 3}}, ranks, rank);
        const Group pair = mesh.pairs_of("pipeline", from);
        const int stage = mesh.place("pipeline"), last = stages - 1;
        const int neighbour = from == 2                 ? (stage == 0      ? last
                                                           : stage == last ? 0
                                                                           : stage)
                              : (stage + from) % 2 == 0 ? stage + 1
                                                        : stage - 1;
        const bool alone = neighbour < 0 || neighbour == stages || neighbour == stage;
        const int other = rank + (neighbour - stage) * 3;
        CHECK(pair.ranks() ==
              (alone ? std::vector<int>{rank} : std::vector<int>{std::min(rank, other), std::max(rank, other)}));
        CHECK(pair.size() == (alone ? 1 : 2));
        CHECK(pair.ranks()[static_cast<std::size_t>(pair.place())] == rank);
        CHECK(places.insert({pair.index_of(rank), pair.place()}).second);
        groups.insert(pair.index_of(rank));
      }
      CHECK(static_cast<int>(groups.size()) ==
            Mesh({{"replicate", 2}, {"pipeline", stages}, {"shard", 3}}, ranks, 0).pairs_of("pipeline", from).count());
      CHECK(*groups.rbegin() + 1 == static_cast<int>(groups.size()));
    }
  }
}

TEST_CASE("axes_of_one_rank_change_no_group") {
  for (int rank = 0; rank < 6; ++rank) {
    const Mesh mesh({{"a", 2}, {"b", 1}, {"c", 3}, {"d", 1}}, 6, rank);
    CHECK(mesh.group_of({"a", "b"}).ranks() == mesh.group("a").ranks());
    CHECK(mesh.group_of({"c", "d"}).ranks() == mesh.group("c").ranks());
    CHECK(mesh.group_of({"a", "b", "c", "d"}).is_everybody());
    CHECK(mesh.group_of({"b", "d"}).ranks() == std::vector<int>{rank});
  }
}

TEST_CASE("groups_count_in_the_order_of_their_lowest_ranks") {
  const Mesh mesh({{"pipeline", 2}, {"replicate", 3}, {"shard", 5}}, 30, 0);
  const Group group = mesh.group("replicate");
  std::vector<int> lowest;
  for (int index = 0; index < group.count(); ++index) lowest.push_back(group.ranks_of(index).front());
  CHECK(lowest == std::vector<int>{0, 1, 2, 3, 4, 15, 16, 17, 18, 19});
}

TEST_CASE("every_mistake_about_a_mesh_names_both_sides") {
  CHECK(refusal({{"replicate", 2}, {"shard", 3}}, 8) ==
        "the mesh replicate 2 x shard 3 is for 6 ranks, but the job has 8");
  CHECK(refusal({{"shard", 0}}, 1) == "axis shard of a mesh has the size 0: it is at least 1");
  CHECK(refusal({{"shard", 2}, {"shard", 2}}, 4) == "two axes of the mesh shard 2 x shard 2 have the name \"shard\"");
  CHECK(refusal({{"", 4}}, 4) == "an axis of a mesh needs a name");
  CHECK(refusal({}, 1) == "a mesh needs an axis: {{\"shard\", world.size()}}, say");
  CHECK(refusal({{"a", 1 << 30}, {"b", 1 << 30}, {"c", 4}}, 4) != "");
  const Mesh mesh({{"replicate", 2}, {"shard", 4}}, 8, 0);
  CHECK_THROWS_WITH_AS(mesh.group("rows"), "the mesh replicate 2 x shard 4 has no axis \"rows\"", UsageError);
  CHECK_THROWS_WITH_AS(mesh.group_of({"shard", "shard"}), "axis shard is named twice in one group", UsageError);
  CHECK_THROWS_WITH_AS(mesh.group_of({}), "a group of the mesh replicate 2 x shard 4 needs an axis", UsageError);
}

TEST_CASE("hosts_that_the_launcher_interleaves_are_named_where_a_mesh_suffers") {
  const std::vector<int> interleaved = {0, 1, 0, 1};
  const auto warning = [](std::vector<MeshAxis> axes, const std::vector<int>& host_of) {
    const auto ranks = static_cast<int>(host_of.size());
    return comm::needless_crossing(Mesh(std::move(axes), ranks, 0),
                                   {.host_of = host_of, .host_names = {"a", "b", "c"}});
  };
  const std::string text = warning({{"replicate", 2}, {"shard", 2}}, interleaved);
  CHECK(text.find("2 of 2 groups \"shard\" of the mesh replicate 2 x shard 2 are on several hosts, and 0 would be") ==
        0);
  CHECK(text.find("(ranks 0, 2 on a; ranks 1, 3 on b): start them so (mpirun --map-by slot") != std::string::npos);
  CHECK(warning({{"replicate", 1}, {"shard", 4}}, interleaved).empty());  // it has to cross
  CHECK(warning({{"replicate", 4}, {"shard", 1}}, interleaved).empty());  // it does not
  CHECK(warning({{"replicate", 2}, {"shard", 2}}, {0, 0, 1, 1}).empty());
  CHECK(warning({{"replicate", 2}, {"shard", 3}}, {0, 1, 1, 2, 2, 2}).empty());  // host by host, and one crosses
  CHECK(warning({{"replicate", 3}, {"shard", 2}}, {0, 1, 1, 0, 2, 2}).find("2 of 3 groups") == 0);
  CHECK(warning({{"replicate", 2}, {"shard", 2}}, {0, 1, 0, 2}).find("several hosts, and 1 would be") !=
        std::string::npos);
  CHECK(comm::needless_crossing(Mesh({{"replicate", 2}, {"shard", 2}}, 4, 0), {}).empty());
}

}  // namespace mesh_test
