// Conformance: what collectives move and sum, against naive references, for counts that divide by nothing.
#include <algorithm>
#include <span>
#include <thread>

#include "conformance.hpp"
#include "property.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera::conformance {
namespace {

using kernels::Accumulate;

constexpr std::size_t small_counts[] = {0, 1, 2, 3, 7, 127, 128, 1009};

bool holds_every_part(std::span<const std::byte> data, std::size_t shard_bytes, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < shard_bytes; ++i) {
      if (data[static_cast<std::size_t>(rank) * shard_bytes + i] != test_byte(rank, i)) return false;
    }
  }
  return true;
}

constexpr Accumulate every_accumulate[] = {Accumulate::no, Accumulate::sum, Accumulate::terms};

struct SumCase {
  std::size_t shard_elements = 0;
  Accumulate accumulate = Accumulate::no;
  float divisor = 1.0f;
};

// Buffers of one segment: of any of the wire's types, sized for it.
struct SumBuffers {
  Shared<std::byte> data;
  Shared<float> result;
};

template <typename Element>
SumBuffers sum_buffers(const World& world, std::size_t shard) {
  const std::size_t whole = shard * static_cast<std::size_t>(world.size());
  SumBuffers buffers{Shared<std::byte>(whole * sizeof(Element)), Shared<float>(shard)};
  for (std::size_t i = 0; i < whole; ++i) store<Element>(buffers.data, i, test_value(world.rank(), i, shard));
  for (std::size_t i = 0; i < shard; ++i) buffers.result[i] = test_value(world.rank(), i, shard + 1);
  return buffers;
}

// Segments of every size and type.
std::vector<SumBuffers> group_buffers(const World& world) {
  std::vector<SumBuffers> all;
  for (const std::size_t shard : small_counts) {
    all.push_back(sum_buffers<float>(world, shard));
    all.push_back(sum_buffers<bf16>(world, shard));
    all.push_back(sum_buffers<fp16>(world, shard));
  }
  return all;
}

std::vector<ReduceScatter> group_of(std::vector<SumBuffers>& buffers) {
  constexpr DType types[] = {DType::fp32, DType::bf16, DType::fp16};
  std::vector<ReduceScatter> segments;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    segments.push_back({.data = buffers[i].data.data(),
                        .wire = types[i % 3],
                        .result = buffers[i].result.data(),
                        .shard_elements = buffers[i].result.size(),
                        .accumulate = every_accumulate[i / 3 % 3],
                        .divisor = static_cast<float>(i % 5 + 1),
                        .label = "segment"});
  }
  return segments;
}

// A rank's values from element `first` on, as they are when they have travelled in blocks of codes; and these.
std::vector<float> test_values_in_codes(int rank, std::size_t first, std::size_t count, std::byte* coded) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = test_value(rank, first + i);
  Stream host(Device::cpu(), {.mode = StreamMode::immediate});
  kernels::cast(host, {coded, DType::int8}, {values.data(), DType::fp32}, count);
  kernels::cast(host, {values.data(), DType::fp32}, {coded, DType::int8}, count);
  return values;
}

void check_reduce_scatter_of_codes(World& world, Communicator& communicator, Stream& stream, const SumCase& sum_case) {
  const std::size_t shard = sum_case.shard_elements;
  const auto me = static_cast<std::size_t>(world.rank());
  const std::size_t whole = shard * static_cast<std::size_t>(world.size());
  Shared<std::byte> data(bytes_of(DType::int8, whole).count()), part(bytes_of(DType::int8, shard).count());
  test_values_in_codes(world.rank(), 0, whole, data.data());
  std::vector<std::vector<float>> brought;
  for (int rank = 0; rank < world.size(); ++rank) {
    brought.push_back(test_values_in_codes(rank, me * shard, shard, part.data()));
  }
  Shared<float> result(shard);
  for (std::size_t i = 0; i < shard; ++i) result[i] = test_value(world.rank(), i, 1);
  communicator.reduce_scatter(stream, {.data = data.data(),
                                       .wire = DType::int8,
                                       .result = result.data(),
                                       .shard_elements = shard,
                                       .accumulate = sum_case.accumulate,
                                       .divisor = sum_case.divisor,
                                       .label = "gradients"});
  stream.synchronize();
  for (std::size_t i = 0; i < shard; ++i) {
    const float before = test_value(world.rank(), i, 1);
    float expected = brought[0][i];
    if (sum_case.accumulate == Accumulate::terms) expected = before + expected;
    for (std::size_t rank = 1; rank < brought.size(); ++rank) expected += brought[rank][i];
    if (sum_case.accumulate == Accumulate::sum) expected = before + expected;
    expected /= sum_case.divisor;
    require(same_bits(result[i], expected),
            "reduce-scatter of {} elements in codes, accumulate {}, divisor {}: element {} is {}, expected {}", shard,
            static_cast<int>(sum_case.accumulate), sum_case.divisor, i, result[i], expected);
  }
}

}  // namespace

// The last takes several rounds of every backend that has rounds, which all add up in the same way.
void reduce_scatter_of_codes_sums_their_values_bitwise(World& world) {
  const auto communicator = world.make_communicator("reduce");
  Stream stream = queued_stream("reduce");
  const std::size_t many = 9000 / static_cast<std::size_t>(world.size());
  for (const std::size_t blocks : {std::size_t{0}, std::size_t{1}, std::size_t{3}, many}) {
    for (const Accumulate accumulate : every_accumulate) {
      if (blocks == many && accumulate != Accumulate::terms) continue;
      check_reduce_scatter_of_codes(
          world, *communicator, stream,
          {.shard_elements = blocks * block_of(DType::int8), .accumulate = accumulate, .divisor = 3.0f});
    }
  }
}

// Ranks whose parts are all −0 leave what is there, −0 too.
void minus_zeros_leave_results_as_they_are(World& world) {
  const auto communicator = world.make_communicator("reduce");
  Stream stream = queued_stream("reduce");
  const auto check = [&]<typename Element>(Element minus_zero, Accumulate accumulate) {
    for (const std::size_t shard : small_counts) {
      const std::size_t whole = shard * static_cast<std::size_t>(world.size());
      Shared<std::byte> data(whole * sizeof(Element));
      for (std::size_t i = 0; i < whole; ++i) store<Element>(data, i, static_cast<float>(minus_zero));
      Shared<float> result(shard);
      const auto before = [&](std::size_t i) { return i % 2 == 0 ? test_value(world.rank(), i) : -0.0f; };
      for (std::size_t i = 0; i < shard; ++i) result[i] = before(i);
      communicator->reduce_scatter(stream, {.data = data.data(),
                                            .wire = dtype_of<Element>,
                                            .result = result.data(),
                                            .shard_elements = shard,
                                            .accumulate = accumulate,
                                            .label = "nothing"});
      stream.synchronize();
      for (std::size_t i = 0; i < shard; ++i) {
        require(same_bits(result[i], before(i)), "{} zeros, accumulate {}: element {} is {}",
                to_string(dtype_of<Element>), static_cast<int>(accumulate), i, result[i]);
      }
    }
  };
  for (const Accumulate accumulate : {Accumulate::sum, Accumulate::terms}) {
    check(-0.0f, accumulate);
    check(bf16(-0.0f), accumulate);
    check(fp16(-0.0f), accumulate);
  }
}

void grouped_reduce_scatters_equal_single_ones_bitwise(World& world) {
  const auto communicator = world.make_communicator("reduce");
  Stream stream = queued_stream("reduce");
  std::vector<SumBuffers> together = group_buffers(world);
  std::vector<SumBuffers> alone = together;
  const std::vector<ReduceScatter> group = group_of(together);
  for (int round = 0; round < 2; ++round) {  // the second adds to what the first left
    communicator->reduce_scatter(stream, group);
    for (const ReduceScatter& segment : group_of(alone)) communicator->reduce_scatter(stream, segment);
    stream.synchronize();
    for (std::size_t s = 0; s < together.size(); ++s) {
      for (std::size_t i = 0; i < together[s].result.size(); ++i) {
        require(same_bits(together[s].result[i], alone[s].result[i]), "round {}, segment {}, element {}", round, s, i);
      }
      require(together[s].data == alone[s].data, "a grouped reduce-scatter leaves data as it was");
    }
  }
}

void reduce_scatter_results_may_be_own_parts_of_data(World& world) {
  const auto communicator = world.make_communicator("reduce");
  Stream stream = queued_stream("reduce");
  for (const bool grouped : {false, true}) {
    std::vector<Shared<float>> buffers;
    std::vector<ReduceScatter> segments;
    for (const std::size_t shard : small_counts) {
      auto& data = buffers.emplace_back(shard * static_cast<std::size_t>(world.size()));
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = test_value(world.rank(), i, shard);
      segments.push_back({.data = reinterpret_cast<const std::byte*>(data.data()),
                          .result = data.data() + shard * static_cast<std::size_t>(world.rank()),
                          .shard_elements = shard,
                          .label = "in place"});
    }
    if (grouped) communicator->reduce_scatter(stream, segments);
    for (const ReduceScatter& segment : segments) {
      if (!grouped) communicator->reduce_scatter(stream, segment);
    }
    stream.synchronize();
    for (std::size_t s = 0; s < buffers.size(); ++s) {
      const std::size_t first = small_counts[s] * static_cast<std::size_t>(world.rank());
      for (std::size_t i = 0; i < buffers[s].size(); ++i) {
        float expected = test_value(world.rank(), i, small_counts[s]);
        if (i >= first && i < first + small_counts[s]) {
          expected = test_value(0, i, small_counts[s]);
          for (int rank = 1; rank < world.size(); ++rank) expected += test_value(rank, i, small_counts[s]);
        }
        require(same_bits(buffers[s][i], expected), "in place, segment {}, element {}", s, i);
      }
    }
  }
}

// Everybody gives everybody, itself too, a part of another size: sources stand one after the other, and what comes
// stands behind them, in the order of the list.
void redistribution_moves_what_the_list_says(World& world) {
  const auto communicator = world.make_communicator("redistribute");
  Stream stream = queued_stream("redistribute");
  // The largest go through several rounds where ranks cannot read each other's memory.
  const std::size_t large = 2'000'003 / static_cast<std::size_t>(world.size());
  for (const std::size_t scale : {std::size_t{0}, std::size_t{1}, std::size_t{129}, large}) {
    std::vector<Transfer> transfers;
    std::vector<std::size_t> given(static_cast<std::size_t>(world.size())), got = given;
    for (int round = 0; round < 2; ++round) {
      for (int from = world.size(); from-- > 0;) {
        for (int to = 0; to < world.size(); ++to) {
          std::size_t& source = given[static_cast<std::size_t>(from)];
          std::size_t& target = got[static_cast<std::size_t>(to)];
          const std::size_t size = scale * static_cast<std::size_t>((from + 2 * to + round) % 4);
          transfers.push_back({from, to, Bytes(source), Bytes(target), Bytes(size)});
          source += size;
          target += size;
        }
      }
    }
    const auto me = static_cast<std::size_t>(world.rank());
    const std::size_t sources = *std::max_element(given.begin(), given.end());
    for (Transfer& each : transfers) each.target += Bytes(sources);
    Shared<std::byte> data(sources + got[me] + 1, std::byte{0xa5});
    for (std::size_t i = 0; i < given[me]; ++i) data[i] = test_byte(world.rank(), i);
    communicator->redistribute(stream, {.data = data.data(), .transfers = transfers, .label = "matrices"});
    stream.synchronize();
    for (const Transfer& transfer : transfers) {
      if (transfer.to != world.rank()) continue;
      for (std::size_t i = 0; i < transfer.size.count(); ++i) {
        require(data[transfer.target.count() + i] == test_byte(transfer.from, transfer.source.count() + i),
                "byte {} of {} from rank {}", i, transfer.size.count(), transfer.from);
      }
    }
    for (std::size_t i = 0; i < given[me]; ++i) require(data[i] == test_byte(world.rank(), i), "sources stay");
    require(data[sources + got[me]] == std::byte{0xa5}, "nothing is written behind what comes");
  }
}

void nobody_passes_a_barrier_before_all_have_come(World& world) {
  const auto communicator = world.make_communicator("barrier");
  Stream stream = queued_stream("barrier");
  for (int late = 0; late < world.size(); ++late) {
    if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto came = std::chrono::steady_clock::now().time_since_epoch().count();
    communicator->barrier(stream, "meeting");
    stream.synchronize();
    const auto passed = std::chrono::steady_clock::now().time_since_epoch().count();
    const std::int64_t times[] = {came, passed};
    const std::vector<std::int64_t> values = gather_times(world, times);
    std::int64_t last_came = values[0];
    std::int64_t first_passed = values[1];
    for (std::size_t i = 0; i < values.size(); i += 2) {
      last_came = std::max(last_came, values[i]);
      first_passed = std::min(first_passed, values[i + 1]);
    }
    require(last_came <= first_passed, "nobody passes before the last has come");
  }
}

void host_conveniences_agree_on_every_rank(World& world) {
  const int ranks = world.size();
  float expected_average = test_value(0, 0);
  double expected_sum_of_doubles = test_value(0, 1);
  for (int rank = 1; rank < ranks; ++rank) {
    expected_average += test_value(rank, 0);
    expected_sum_of_doubles += test_value(rank, 1);
  }
  expected_average /= static_cast<float>(ranks);
  require(same_bits(world.average(test_value(world.rank(), 0), "loss"), expected_average), "average in rank order");
  const double sum = world.sum(test_value(world.rank(), 1), "samples");
  require(std::bit_cast<std::uint64_t>(sum) == std::bit_cast<std::uint64_t>(expected_sum_of_doubles),
          "sum in rank order");
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{13}}) {
    Shared<std::byte> mine(size);
    for (std::size_t i = 0; i < size; ++i) mine[i] = test_byte(world.rank(), i);
    const std::vector<std::byte> all = world.gather(mine, "names");
    require(all.size() == size * static_cast<std::size_t>(ranks), "gather returns every rank's bytes");
    require(holds_every_part(all, size, ranks), "gather keeps rank order");
  }
  world.require_equal(42, "plan hash");
  world.barrier("end");
}

void require_equal_names_ranks_and_values(World& world) {
  const int last = world.size() - 1;
  const std::string text = text_of_expected<CommunicationError>(
      [&] { world.require_equal(world.rank() == last ? 77777 : 55555, "plan hash"); });
  require_contains(text, "plan hash");
  require_contains(text, "55555");
  require_contains(text, fmt::format("rank {} said 77777", last));
  require_contains(text, last == 1 ? "rank 0 said" : "ranks 0");
  world.barrier("an inequality does not end the world");
}

}  // namespace tessera::conformance
