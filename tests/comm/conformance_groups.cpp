// Conformance: communicators over all ranks and over groups of them. Each property holds among all, in the rows and the
// columns of every mesh of two axes that the job's size allows, and in groups whose places are in another order than
// their ranks.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "conformance.hpp"
#include "property.hpp"
#include "tessera/base/error.hpp"

namespace tessera::conformance {
namespace {

using kernels::Accumulate;
using std::chrono::steady_clock;

constexpr std::size_t line_counts[] = {0, 1, 2, 3, 7, 127, 128, 1009};

Mesh mesh_of(const World& world, int rows) { return world.mesh({{"replicate", rows}, {"shard", world.size() / rows}}); }

// With several rows wherever the job's size has divisors.
Mesh squarest_mesh(const World& world) {
  int rows = 1;
  for (int divisor = 2; divisor * divisor <= world.size(); ++divisor) {
    if (world.size() % divisor == 0) rows = divisor;
  }
  return mesh_of(world, rows);
}

std::vector<Group> partitions(const World& world) {
  std::vector<Group> all;
  for (int rows = 1; rows <= world.size(); ++rows) {
    if (world.size() % rows != 0) continue;
    const Mesh mesh = mesh_of(world, rows);
    for (const char* axis : {"shard", "replicate"}) all.push_back(mesh.group(axis));
    for (const auto& axes : {std::vector<std::string>{"replicate", "shard"}, {"shard", "replicate"}}) {
      all.push_back(mesh.group_of(axes));
    }
    if (rows == 1) all.insert(all.end(), {mesh.pairs_of("shard", 0), mesh.pairs_of("shard", 1)});
    if (rows % 2 != 0) continue;  // groups that are neither lines nor everybody
    const Mesh cube = world.mesh({{"outer", 2}, {"middle", rows / 2}, {"inner", world.size() / rows}});
    all.push_back(cube.group_of({"inner", "outer"}));
  }
  return all;
}

// A communicator over this rank's group, or over all ranks, and the ranks of the job in it, by place.
struct Line {
  explicit Line(World& world)
      : ranks(static_cast<std::size_t>(world.size())),
        is_of_all(true),
        own_rank(world.rank()),
        place(static_cast<std::size_t>(world.rank())),
        text("all ranks"),
        communicator(world.make_communicator("line")),
        stream(queued_stream("line")) {
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  Line(World& world, const Group& group)
      : ranks(group.ranks()),
        is_of_all(false),
        own_rank(world.rank()),
        place(static_cast<std::size_t>(group.place())),
        text(group.text()),
        communicator(world.make_communicator("line", {.group = group})),
        stream(queued_stream("line")) {}

  std::vector<int> ranks;
  bool is_of_all;
  int own_rank;
  std::size_t place;
  std::string text;
  std::unique_ptr<Communicator> communicator;
  Stream stream;
};

template <typename Check>
void for_each_line(World& world, Check&& check) {
  Line all(world);
  check(all);
  for (const Group& group : partitions(world)) {
    Line line(world, group);
    check(line);
  }
}

// ---- data ----

void check_gathered(const Line& line, std::span<const std::byte> data, std::size_t shard_bytes) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    const int from = line.ranks[i / shard_bytes];
    require(data[i] == test_byte(from, i % shard_bytes, shard_bytes), "{}: byte {} of parts of {} is rank {}'s",
            line.text, i, shard_bytes, from);
  }
}

// A result before sums are added to it.
float before(const Line& line, std::size_t index) { return test_value(line.own_rank, index, 1); }

// In fp32 in the order of places, as numerics.md says it of ranks. `index` counts the elements of all parts.
template <typename Element>
float expected_sum(const Line& line, std::size_t index, std::size_t shard, Accumulate accumulate = Accumulate::no) {
  const auto value = [&](int rank) { return static_cast<float>(static_cast<Element>(test_value(rank, index, shard))); };
  float sum = value(line.ranks[0]);
  if (accumulate == Accumulate::terms) sum = before(line, index % shard) + sum;
  for (std::size_t place = 1; place < line.ranks.size(); ++place) sum += value(line.ranks[place]);
  return accumulate == Accumulate::sum ? before(line, index % shard) + sum : sum;
}

struct Way {
  Accumulate accumulate;
  float divisor;
};

// One segment of a reduce-scatter: its buffers, the call, and what it must leave.
template <typename Element>
class Sum {
 public:
  Sum(const Line& line, std::size_t shard_elements, const Way& way)
      : way_(way), data_(shard_elements * line.ranks.size() * sizeof(Element)) {
    for (std::size_t i = 0; i < shard_elements * line.ranks.size(); ++i) {
      store<Element>(data_, i, test_value(line.own_rank, i, shard_elements));
    }
    for (std::size_t i = 0; i < shard_elements; ++i) result_.push_back(before(line, i));
    data_before_ = data_;
  }

  ReduceScatter operation() {
    return {.data = data_.data(),
            .wire = dtype_of<Element>,
            .result = result_.data(),
            .shard_elements = result_.size(),
            .accumulate = way_.accumulate,
            .divisor = way_.divisor,
            .label = "gradients"};
  }

  void check(const Line& line) const {
    const std::size_t shard = result_.size();
    for (std::size_t i = 0; i < shard; ++i) {
      const float sum = expected_sum<Element>(line, line.place * shard + i, shard, way_.accumulate);
      require(same_bits(result_[i], sum / way_.divisor),
              "{}: {} sum of {} elements, accumulate {}, divisor {}, element {} is {}, expected {}", line.text,
              to_string(dtype_of<Element>), shard, static_cast<int>(way_.accumulate), way_.divisor, i, result_[i],
              sum / way_.divisor);
    }
    require(data_ == data_before_, "{}: a sum leaves data as it was", line.text);
  }

 private:
  Way way_;
  Shared<std::byte> data_, data_before_;
  Shared<float> result_;
};

template <typename Element>
void check_sums(Line& line) {
  std::vector<Sum<Element>> together;
  std::vector<ReduceScatter> segments;
  std::vector<Way> ways = {{Accumulate::sum, 3.0f}, {Accumulate::terms, 3.0f}};
  if (line.is_of_all) {
    const auto ranks = static_cast<float>(line.ranks.size());
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::sum, Accumulate::terms}) {
      ways.insert(ways.end(), {{accumulate, 1.0f}, {accumulate, ranks}});
    }
  }
  for (const std::size_t count : line_counts) {
    for (const Way& way : ways) {
      Sum<Element> alone(line, count, way);
      line.communicator->reduce_scatter(line.stream, alone.operation());
      line.stream.synchronize();
      alone.check(line);
      together.emplace_back(line, count, way);
    }
  }
  for (Sum<Element>& each : together) segments.push_back(each.operation());
  line.communicator->reduce_scatter(line.stream, segments);
  line.stream.synchronize();
  for (const Sum<Element>& each : together) each.check(line);
}

void check_all_reduce(Line& line, std::size_t count) {
  Shared<float> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = test_value(line.own_rank, i, count);
  line.communicator->all_reduce(line.stream,
                                {.data = data.data(), .elements = count, .divisor = 7.0f, .label = "norm"});
  line.stream.synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    const float expected = expected_sum<float>(line, i, count) / 7.0f;
    require(same_bits(data[i], expected), "{}: all-reduce of {}, element {}", line.text, count, i);
  }
}

void check_broadcast(Line& line, std::size_t root, std::size_t count) {
  Shared<std::byte> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = test_byte(line.own_rank, i);
  line.communicator->broadcast(
      line.stream, {.data = data.data(), .size = Bytes(count), .root = static_cast<int>(root), .label = "weights"});
  line.stream.synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    require(data[i] == test_byte(line.ranks[root], i), "{}: broadcast of {} bytes from place {}", line.text, count,
            root);
  }
}

// Parts for an all-gather: a rank's own one, and zeros.
Shared<std::byte> own_part(const Line& line, std::size_t bytes) {
  Shared<std::byte> data(bytes * line.ranks.size());
  for (std::size_t i = 0; i < bytes; ++i) data[line.place * bytes + i] = test_byte(line.own_rank, i, bytes);
  return data;
}

// ---- failures ----
//
// The last rank is at fault, in the last row.

bool is_in_last_row(const Group& row) { return row.index_of(row.ranks().front()) == row.count() - 1; }

// The communicator of the row. Null where another rank came to its failure, whose text has the cause, before this one
// had made its own: a backend may need several rounds for that.
std::unique_ptr<Communicator> make_before_failure(World& world, std::string name, const Group& row,
                                                  std::string_view cause) {
  try {
    return world.make_communicator(std::move(name), {.group = row});
  } catch (const AbortedError& error) {
    require_contains(error.what(), cause);
    return nullptr;
  }
}

// In every group, whether its ranks were at fault or not.
void check_first_cause(const World& world, Communicator& communicator, std::string_view cause) {
  wait_for_abort(world);
  require_contains(text_of_expected<AbortedError>([&] { world.throw_if_aborted(); }), cause);
  Stream stream = queued_stream("after the failure");
  const std::string text = text_of_expected<AbortedError>([&] {
    communicator.barrier(stream, "after the failure");
    stream.synchronize();
  });
  require_contains(text, cause);
}

// `rank 2`, `ranks 0, 1`, `ranks 4-6`: those of the row but its last.
std::string innocent_ranks(const Group& row) {
  const std::vector<int> ranks = row.ranks();
  if (ranks.size() == 2) return fmt::format("rank {}", ranks[0]);
  if (ranks.size() == 3) return fmt::format("ranks {}, {}", ranks[0], ranks[1]);
  return fmt::format("ranks {}-{}", ranks[0], ranks[ranks.size() - 2]);
}

}  // namespace

void groups_have_their_sizes_and_places(World& world) {
  for_each_line(world, [&](const Line& line) {
    require(line.communicator->size() == static_cast<int>(line.ranks.size()), "{}: the size", line.text);
    require(line.communicator->rank() == static_cast<int>(line.place), "{}: the place", line.text);
    require(line.ranks[line.place] == world.rank(), "{}: the rank at its place", line.text);
    require_contains(line.communicator->name(), "line");
  });
}

void groups_gather_the_parts_of_their_ranks(World& world) {
  for_each_line(world, [&](Line& line) {
    std::vector<Shared<std::byte>> buffers;
    std::vector<AllGather> segments;
    for (const std::size_t bytes : line_counts) {
      auto& data = buffers.emplace_back(own_part(line, bytes));
      segments.push_back({.data = data.data(), .shard = Bytes(bytes), .label = "parameters"});
    }
    const auto check_and_erase = [&] {
      line.stream.synchronize();
      for (std::size_t s = 0; s < buffers.size(); ++s) {
        check_gathered(line, buffers[s], line_counts[s]);
        for (std::size_t i = 0; i < buffers[s].size(); ++i) {
          if (i / line_counts[s] != line.place) buffers[s][i] = std::byte{0};
        }
      }
    };
    for (const AllGather& segment : segments) line.communicator->all_gather(line.stream, segment);
    check_and_erase();
    line.communicator->all_gather(line.stream, segments);
    check_and_erase();
  });
}

void groups_sum_in_the_order_of_places_bitwise(World& world) {
  for_each_line(world, [&](Line& line) {
    check_sums<float>(line);
    check_sums<bf16>(line);
    check_sums<fp16>(line);
    for (const std::size_t count : line_counts) check_all_reduce(line, count);
  });
}

// Where it goes in rounds, in several.
void groups_reduce_large_data_bitwise(World& world) {
  const auto check = [](Line& line) {
    Sum<float> sum(line, 150'001, {Accumulate::terms, 3.0f});
    Sum<bf16> narrow(line, 100'003, {Accumulate::sum, 7.0f});
    line.communicator->reduce_scatter(line.stream, sum.operation());
    line.communicator->reduce_scatter(line.stream, narrow.operation());
    line.stream.synchronize();
    sum.check(line);
    narrow.check(line);
    check_all_reduce(line, 300'007);
  };
  Line all(world);
  check(all);
  for (const char* axis : {"shard", "replicate"}) {
    Line line(world, squarest_mesh(world).group(axis));
    check(line);
  }
}

void large_data_is_gathered_and_broadcast(World& world) {
  Line all(world);
  constexpr std::size_t bytes = 1'000'003;
  Shared<std::byte> data = own_part(all, bytes);
  all.communicator->all_gather(all.stream, {.data = data.data(), .shard = Bytes(bytes), .label = "parameters"});
  all.stream.synchronize();
  check_gathered(all, data, bytes);
  for (std::size_t root = 0; root < all.ranks.size(); ++root) check_broadcast(all, root, 200'003);
}

void groups_broadcast_from_every_place(World& world) {
  for_each_line(world, [&](Line& line) {
    for (std::size_t root = 0; root < line.ranks.size(); ++root) {
      for (const std::size_t count : line_counts) check_broadcast(line, root, count);
    }
  });
}

void nobody_passes_a_groups_barrier_before_its_ranks_have(World& world) {
  for_each_line(world, [&](Line& line) {
    if (line.place + 1 == line.ranks.size()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto came = steady_clock::now().time_since_epoch().count();
    line.communicator->barrier(line.stream, "meeting");
    line.stream.synchronize();
    const std::int64_t mine[] = {came, steady_clock::now().time_since_epoch().count()};
    const std::vector<std::int64_t> all = gather_times(world, mine);
    for (const int rank : line.ranks) {
      const std::int64_t others_came = all[2 * static_cast<std::size_t>(rank)];
      require(others_came <= mine[1], "{}: nobody passes before rank {} has come", line.text, rank);
    }
  });
}

// The first group comes to its collectives when all others are through with theirs.
void groups_wait_for_none_but_their_ranks(World& world) {
  for (const Group& group : partitions(world)) {
    Line line(world, group);
    const bool first = group.index_of(world.rank()) == 0;
    const auto call = [&] {
      check_all_reduce(line, 127);
      line.communicator->barrier(line.stream, "meeting");
      line.stream.synchronize();
    };
    if (!first) call();
    world.barrier("the others are through");
    if (first) call();
  }
}

void misuse_of_a_group_is_an_error_at_the_call(World& world) {
  const int ranks = world.size();
  const auto refused = [&](const Mesh& mesh) {
    return text_of_expected<UsageError>([&] { world.make_communicator("reduce", {.group = mesh.group("shard")}); });
  };
  require_contains(refused(Mesh({{"shard", ranks + 1}}, ranks + 1, world.rank())), fmt::format("of {}", ranks + 1));
  if (ranks > 1) {
    const int other = (world.rank() + 1) % ranks;
    require_contains(refused(Mesh({{"shard", ranks}}, ranks, other)), fmt::format("rank {}", other));
  }
  world.barrier("a rejected call leaves no trace");
}

void rank_that_never_comes_to_its_group_is_named(World& world) {
  const Group row = squarest_mesh(world).group("shard");
  const std::string cause = fmt::format("for rank {}, which", last_rank(world));
  const auto communicator = make_before_failure(world, "gather", row, cause);
  if (communicator == nullptr) return;
  if (is_in_last_row(row) && !is_last(world)) {
    Stream stream = queued_stream("gather");
    Shared<std::byte> data(row.ranks().size());
    const std::string text = text_of_expected<CommunicationError>([&] {
      communicator->all_gather(stream, {.data = data.data(), .shard = Bytes(1), .label = "blocks.3"});
      stream.synchronize();
    });
    require_contains(text, "all-gather \"blocks.3\" (communicator gather");
    require_contains(text, innocent_ranks(row) + " waited");
    require_contains(text, cause);
  }
  check_first_cause(world, *communicator, cause);
}

// Rank 2 works for twice the timeout and says so, while rank 3 waits for it in their row. The other row says nothing.
void rank_of_a_group_that_makes_progress_is_waited_for(World& world) {
  if (world.size() != 4) return;
  const Group row = squarest_mesh(world).group("shard");
  const auto communicator = world.make_communicator("files", {.host_memory = true, .group = row});
  Stream stream(Device::cpu(), {.name = "files"});
  const auto start = steady_clock::now();
  while (world.rank() != 3 && steady_clock::now() - start < 2 * world.timeout() && !world.aborted()) {
    if (world.rank() == 2) world.note_progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  communicator->barrier(stream, "files are there");
  stream.synchronize();
}

void rank_that_makes_no_groups_communicator_is_named(World& world) {
  if (is_last(world)) return wait_for_abort(world);
  const Group column = squarest_mesh(world).group("replicate");
  const std::string text =
      text_of_expected<CommunicationError>([&] { world.make_communicator("reduce", {.group = column}); });
  require_contains(text, fmt::format("make_communicator \"reduce over {}\"", column.text()));
  require_contains(text, fmt::format("for rank {}, which", last_rank(world)));
}

void rank_that_has_left_its_group_is_named_at_once(World& world) {
  const Group row = squarest_mesh(world).group("shard");
  const std::string cause = fmt::format("rank {} has left", last_rank(world));
  const auto communicator = make_before_failure(world, "gather", row, cause);
  if (communicator == nullptr) return;
  if (is_last(world)) return;
  const auto start = steady_clock::now();
  if (is_in_last_row(row)) {
    Stream stream = queued_stream("gather");
    const std::string text = text_of_expected<Error>([&] {
      communicator->barrier(stream, "blocks.3");
      stream.synchronize();
    });
    require_contains(text, cause);
    require_contains(text, "barrier \"blocks.3\" (communicator gather");
  }
  check_first_cause(world, *communicator, cause);
  require(seconds_since(start) < at_once_seconds, "the error does not wait for the deadline");
}

// About the root, which the call counts by places, and the error by ranks.
void disagreement_in_one_group_reaches_all(World& world) {
  const Group row = squarest_mesh(world).group("shard");
  const std::string cause = fmt::format("rank {} called #1 broadcast", last_rank(world));
  const auto communicator = make_before_failure(world, "reduce", row, cause);
  if (communicator == nullptr) return;
  const std::vector<int> ranks = row.ranks();
  const auto called = [](std::string_view who, int root) {
    return fmt::format("{} called #1 broadcast \"weights\" of 4 bytes from rank {}", who, root);
  };
  if (is_in_last_row(row)) {
    Stream stream = queued_stream("reduce");
    Shared<std::byte> data(4);
    const std::string text = text_of_expected<CommunicationError>([&] {
      const int root = is_last(world) ? 1 : 0;
      communicator->broadcast(stream, {.data = data.data(), .size = Bytes(4), .root = root, .label = "weights"});
      stream.synchronize();
    });
    require_contains(text, "communicator reduce");
    require_contains(text, called(innocent_ranks(row), ranks[0]));
    require_contains(text, called(fmt::format("rank {}", last_rank(world)), ranks[1]));
  }
  check_first_cause(world, *communicator, cause);
}

// With another axis, with none, and with another mesh: a disagreement ends the world, so one per run of the property,
// by the number of ranks.
void disagreement_about_the_groups_names_both(World& world) {
  const Group rows = squarest_mesh(world).group("shard");
  const Group other_mesh = mesh_of(world, world.size()).group("shard");
  std::optional<Group> mine = rows;
  std::string text_of_last = "reduce";
  if (world.size() % 3 == 1) text_of_last += " over " + other_mesh.text();
  if (world.size() % 3 == 2) text_of_last += " over " + squarest_mesh(world).group("replicate").text();
  if (is_last(world)) {
    if (world.size() % 3 == 0) mine = std::nullopt;
    if (world.size() % 3 == 1) mine = other_mesh;
    if (world.size() % 3 == 2) mine = squarest_mesh(world).group("replicate");
  }
  const std::string text =
      text_of_expected<CommunicationError>([&] { world.make_communicator("reduce", {.group = mine}); });
  require_contains(text, fmt::format("called make_communicator \"reduce over {}\"", rows.text()));
  require_contains(text, fmt::format("rank {} called make_communicator \"{}\"", last_rank(world), text_of_last));
}

}  // namespace tessera::conformance
