// Rows and columns of meshes: lines along the inner axis, whose ranks stand side by side, and along the outer one,
// whose ranks do not; and all ranks in another order than their numbers'.
#include "group_properties.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "property.hpp"
#include "tessera/base/error.hpp"

namespace tessera::conformance {
namespace {

using std::chrono::steady_clock;

// Far below the worlds' 60 s and far above what an error needs to travel.
constexpr double soon_seconds = 20;
constexpr std::size_t part_counts[] = {0, 1, 3, 127, 30'011};

// 1 x 6, 2 x 3, 3 x 2 and 6 x 1 of six ranks: with groups of one and of everybody.
std::vector<Mesh> meshes_of(const World& world) {
  std::vector<Mesh> meshes;
  for (int outer = 1; outer <= world.size(); ++outer) {
    if (world.size() % outer == 0) meshes.push_back(world.mesh({{"outer", outer}, {"inner", world.size() / outer}}));
  }
  return meshes;
}

std::vector<Group> groups_of(const World& world) {
  std::vector<Group> groups;
  for (const Mesh& mesh : meshes_of(world)) {
    groups.push_back(mesh.group("outer"));
    groups.push_back(mesh.group("inner"));
    groups.push_back(mesh.group_of({"inner", "outer"}));
  }
  return groups;
}

// The columns of a mesh of two rows or more: the last rank's group are ranks that do not stand side by side.
Group columns(const World& world) {
  const int rows = world.size() % 2 == 0 ? 2 : 3;
  return world.mesh({{"outer", rows}, {"inner", world.size() / rows}}).group("outer");
}

bool is_with_the_last(const World& world, const Group& group) {
  return group.index_of(world.rank()) == group.index_of(world.size() - 1);
}

// One rank's end of a communicator over its group, and the group's ranks by place.
struct Member {
  Member(World& world, const Group& group, const std::string& name)
      : communicator(world.make_communicator(name, {.group = group})),
        stream(queued_stream(name)),
        ranks(group.ranks()),
        place(static_cast<std::size_t>(group.place())) {
    require(communicator->rank() == group.place() && communicator->size() == group.size(),
            "place {} of {} is the communicator's {} of {}", group.place(), group.size(), communicator->rank(),
            communicator->size());
  }

  std::unique_ptr<Communicator> communicator;
  Stream stream;
  std::vector<int> ranks;
  std::size_t place;
};

void check_gather(Member& member, std::size_t count, std::uint64_t round) {
  Shared<std::byte> data(count * member.ranks.size());
  for (std::size_t i = 0; i < count; ++i) {
    data[member.place * count + i] = test_byte(member.ranks[member.place], i, round);
  }
  member.communicator->all_gather(member.stream, {.data = data.data(), .shard = Bytes(count), .label = "parts"});
  member.stream.synchronize();
  for (std::size_t i = 0; i < data.size(); ++i) {
    require(data[i] == test_byte(member.ranks[i / count], i % count, round), "byte {} is of place {}", i, i / count);
  }
}

// By place, in fp32.
float sum_at(const Member& member, std::size_t index) {
  float sum = test_value(member.ranks.front(), index);
  for (std::size_t place = 1; place < member.ranks.size(); ++place) sum += test_value(member.ranks[place], index);
  return sum;
}

Shared<float> own_values(const Member& member, std::size_t count) {
  Shared<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = test_value(member.ranks[member.place], i);
  return values;
}

void check_reduce_scatter(Member& member, std::size_t count) {
  const Shared<float> data = own_values(member, count * member.ranks.size());
  Shared<float> result(count, 8.0f);
  member.communicator->reduce_scatter(member.stream, {.data = reinterpret_cast<const std::byte*>(data.data()),
                                                      .result = result.data(),
                                                      .shard_elements = count,
                                                      .accumulate = true,
                                                      .divisor = 3.0f,
                                                      .label = "sums"});
  member.stream.synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    const float expected = (8.0f + sum_at(member, member.place * count + i)) / 3.0f;
    require(same_bits(result[i], expected), "element {} of a reduce-scatter", i);
  }
}

void check_all_reduce(Member& member, std::size_t count) {
  Shared<float> data = own_values(member, count);
  member.communicator->all_reduce(member.stream, {.data = data.data(), .elements = count, .label = "norms"});
  member.stream.synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    require(same_bits(data[i], sum_at(member, i)), "element {} of an all-reduce", i);
  }
}

void check_broadcast(Member& member, std::size_t count, std::size_t root) {
  Shared<std::byte> data(count, std::byte{1});
  for (std::size_t i = 0; i < count && member.place == root; ++i) data[i] = test_byte(member.ranks[root], i);
  member.communicator->broadcast(
      member.stream, {.data = data.data(), .size = Bytes(count), .root = static_cast<int>(root), .label = "copies"});
  member.stream.synchronize();
  for (std::size_t i = 0; i < count; ++i) require(data[i] == test_byte(member.ranks[root], i), "byte {} of a copy", i);
}

// Ranks whose own group did not fail hear of it as of any other rank's failure.
void check_aborted(const World& world, std::string_view cause) {
  for (const auto start = steady_clock::now(); !world.aborted();) {
    require(seconds_since(start) < soon_seconds, "the world is aborted");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require_contains(text_of_expected<AbortedError>([&] { world.throw_if_aborted(); }), cause);
}

template <typename Expected>
std::string text_of_barrier(Member& member, std::string_view label) {
  return text_of_expected<Expected>([&] {
    member.communicator->barrier(member.stream, label);
    member.stream.synchronize();
  });
}

}  // namespace

void rows_and_columns_gather_their_members_parts(World& world) {
  for (const Group& group : groups_of(world)) {
    Member member(world, group, "gather");
    for (const std::size_t count : part_counts) check_gather(member, count, count);
  }
}

void rows_and_columns_sum_by_place_bitwise(World& world) {
  for (const Group& group : groups_of(world)) {
    Member member(world, group, "reduce");
    for (const std::size_t count : part_counts) {
      check_reduce_scatter(member, count);
      check_all_reduce(member, count);
    }
  }
}

void rows_and_columns_broadcast_from_every_place(World& world) {
  for (const Group& group : groups_of(world)) {
    Member member(world, group, "copy");
    for (std::size_t root = 0; root < member.ranks.size(); ++root) check_broadcast(member, 70'001, root);
  }
}

// As a step does, all in flight together: gathers along one axis and sums along the other.
void rows_and_columns_take_turns(World& world) {
  const Mesh mesh = meshes_of(world)[meshes_of(world).size() / 2];
  Member row(world, mesh.group("inner"), "gather");
  Member column(world, mesh.group("outer"), "reduce");
  constexpr std::size_t rounds = 40;
  constexpr std::size_t count = 33;
  std::vector<Shared<float>> gathered(rounds, Shared<float>(count * row.ranks.size()));
  std::vector<Shared<float>> sums(rounds, own_values(column, count));
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto own = gathered[round].begin() + static_cast<std::ptrdiff_t>(row.place * count);
    for (std::size_t i = 0; i < count; ++i) own[static_cast<std::ptrdiff_t>(i)] = test_value(world.rank(), i, round);
    row.communicator->all_gather(row.stream, {.data = reinterpret_cast<std::byte*>(gathered[round].data()),
                                              .shard = Bytes(count * sizeof(float)),
                                              .label = "blocks.1"});
    column.communicator->all_reduce(column.stream,
                                    {.data = sums[round].data(), .elements = count, .label = "blocks.2"});
  }
  row.stream.synchronize();
  column.stream.synchronize();
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < gathered[round].size(); ++i) {
      require(same_bits(gathered[round][i], test_value(row.ranks[i / count], i % count, round)), "a gather's {}", i);
    }
    for (std::size_t i = 0; i < count; ++i) require(same_bits(sums[round][i], sum_at(column, i)), "a sum's {}", i);
  }
}

// A group calls what it likes before another one has called anything.
void a_group_needs_nobody_of_another_one(World& world) {
  for (const Group& group : groups_of(world)) {
    Member member(world, group, "gather");
    for (int turn = 0; turn < group.count(); ++turn) {
      if (group.index_of(world.rank()) == turn) {
        for (int call = 0; call <= turn; ++call) check_gather(member, 100, static_cast<std::uint64_t>(call));
      }
      world.barrier("the next group's turn");
    }
  }
}

void misuse_names_the_rank_of_the_job(World& world) {
  Member member(world, columns(world), "gather");
  const std::string text = text_of_expected<UsageError>(
      [&] { member.communicator->all_gather(member.stream, {.shard = Bytes(4), .label = "blocks.3"}); });
  require_contains(text, fmt::format("rank {}, all-gather \"blocks.3\"", world.rank()));
}

void disagreement_in_one_group_names_job_ranks_everywhere(World& world) {
  const Group group = columns(world);
  const int last = world.size() - 1;
  Member member(world, group, "reduce");
  member.communicator->barrier(member.stream, "start");
  member.stream.synchronize();
  world.barrier("every group has started");
  const std::vector<int> failing = group.ranks_of(group.index_of(last));
  const std::string cause = fmt::format("rank {} called #2 barrier \"mine\"", last);
  if (!is_with_the_last(world, group)) return check_aborted(world, cause);
  const std::string text = text_of_barrier<CommunicationError>(member, world.rank() == last ? "mine" : "theirs");
  require_contains(text, cause);
  require_contains(text, fmt::format("{} {}", failing.size() == 2 ? "rank" : "ranks", failing.front()));
  require_contains(text, "called #2 barrier \"theirs\"");
  require_contains(text, "in communicator reduce over outer");
  check_aborted(world, cause);
}

void rank_that_its_group_misses_is_named_though_others_go_on(World& world) {
  const Group group = columns(world);
  const int last = world.size() - 1;
  Member member(world, group, "gather");
  const std::string cause = fmt::format("for rank {}, which did not come", last);
  if (world.rank() == last) return check_aborted(world, cause);
  if (is_with_the_last(world, group)) {
    const std::string text = text_of_barrier<CommunicationError>(member, "blocks.3");
    require_contains(text, fmt::format("rank{} {}", group.size() == 2 ? "" : "s", member.ranks.front()));
    require_contains(text, "waited up to 1 s in barrier \"blocks.3\" (communicator gather over outer, #1)");
    return require_contains(text, cause);
  }
  // What another group does is no sign of life of the rank that is missing.
  const std::string text = text_of_expected<AbortedError>([&] {
    for (const auto start = steady_clock::now(); seconds_since(start) < soon_seconds;) {
      member.communicator->barrier(member.stream, "on");
      member.stream.synchronize();
    }
  });
  require_contains(text, cause);
}

void disagreement_about_the_partition_names_both(World& world) {
  const Group theirs = columns(world);
  const Mesh mesh = world.mesh({{"outer", theirs.size()}, {"inner", world.size() / theirs.size()}});
  const bool is_last = world.rank() == world.size() - 1;
  const std::string text = text_of_expected<CommunicationError>(
      [&] { world.make_communicator("reduce", {.group = is_last ? mesh.group("inner") : theirs}); });
  const std::string where = "of the mesh " + mesh.text();
  require_contains(text, fmt::format("called make_communicator \"reduce over outer {}\"", where));
  require_contains(text,
                   fmt::format("rank {} called make_communicator \"reduce over inner {}\"", world.size() - 1, where));
  check_aborted(world, "reduce over inner");
}

void rank_that_has_left_is_named_in_its_group(World& world) {
  const Group group = columns(world);
  const int last = world.size() - 1;
  Member member(world, group, "gather");
  if (world.rank() == last) return;
  const std::string cause = fmt::format("rank {} has left the job while", last);
  if (!is_with_the_last(world, group)) return check_aborted(world, cause);
  const std::string text = text_of_barrier<Error>(member, "blocks.3");
  require_contains(text, cause);
  require_contains(text, "in barrier \"blocks.3\" (communicator gather over outer, #1)");
}

}  // namespace tessera::conformance
