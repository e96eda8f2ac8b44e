// The texts of failed collectives, word for word.
#include "comm/collective_errors.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <span>
#include <vector>

#include "comm/meeting_collectives.hpp"

using namespace tessera;
using namespace tessera::comm;

// A rank more than an area has blocks for would write behind it.
TEST_CASE("an_area_holds_whole_blocks_for_every_rank_or_the_sum_is_refused") {
  constexpr std::size_t area = 64 << 10;
  for (const std::size_t ranks : {1u, 3u, 7u, 63u, 252u}) {
    for (const DType type : {DType::fp32, DType::bf16, DType::int8}) {
      const std::size_t blocks = blocks_in_area(type, ranks, area);
      CHECK(blocks > 0);
      CHECK(size_of(type).count() * blocks * ranks <= area);
    }
  }
  CHECK_THROWS_WITH_AS((void)blocks_in_area(DType::int8, 253, area), doctest::Contains("253 ranks cannot sum"),
                       UsageError);
}

TEST_CASE("rank_lists_are_short") {
  CHECK(rank_list(std::vector<int>{2}) == "rank 2");
  CHECK(rank_list(std::vector<int>{0, 3}) == "ranks 0, 3");
  CHECK(rank_list(std::vector<int>{4, 5}) == "ranks 4, 5");
  CHECK(rank_list(std::vector<int>{0, 1, 2, 4, 6, 7, 8, 9}) == "ranks 0-2, 4, 6-9");
  std::vector<int> many(1000);
  std::iota(many.begin(), many.end(), 0);
  CHECK(rank_list(many) == "ranks 0-999");
}

TEST_CASE("timeout_text_names_ranks_collective_label_communicator_and_sequence") {
  const AllGather operation = {.shard = Bytes(8), .label = "blocks.3"};
  const int waiting[] = {1, 2};
  const int missing[] = {0, 3};
  const Standstill standstill = {
      .communicator = "gather", .signature = signature_of(operation, 17), .waiting = waiting, .missing = missing};
  CHECK(timeout_text(standstill, std::chrono::milliseconds(1500)) ==
        "ranks 1, 2 waited up to 1.5 s in all-gather \"blocks.3\" (communicator gather, #17) for ranks 0, 3, "
        "which did not come; raise the timeout if they are only slow");
  CHECK(left_text(standstill) ==
        "ranks 0, 3 have left the job while ranks 1, 2 waited in all-gather \"blocks.3\" (communicator gather, #17); "
        "every rank must call the same collectives");
}

TEST_CASE("disagreement_text_groups_ranks_by_what_they_called") {
  const Signature barrier = signature_of(Barrier{"end"}, 17);
  const Signature sum = signature_of(
      ReduceScatter{.wire = DType::bf16, .shard_elements = 2048, .divisor = 4.0f, .label = "blocks.3"}, 17);
  const std::vector<Signature> signatures = {sum, barrier, sum, barrier, sum};
  CHECK(disagreement_text("reduce", signatures) ==
        "the ranks disagree in communicator reduce: "
        "ranks 0, 2, 4 called #17 reduce-scatter \"blocks.3\" of 4096 bytes bf16, divided by 4; "
        "ranks 1, 3 called #17 barrier \"end\"");
}

TEST_CASE("disagreement_text_names_the_first_segment_in_dispute") {
  const AllGather most[] = {{.shard = Bytes(4), .label = "a"}, {.shard = Bytes(8), .label = "b"}};
  const AllGather another[] = {{.shard = Bytes(4), .label = "a"}, {.shard = Bytes(8), .label = "c"}};
  const auto signature = [](std::span<const AllGather> segments) { return signature_of(segments, 17); };
  CHECK(signature(most) == signature(std::vector<AllGather>(std::begin(most), std::end(most))));
  CHECK(disagreement_text("gather", {signature(most), signature(another), signature(std::span(most, 1))}) ==
        "the ranks disagree in communicator gather: "
        "rank 0 called #17 all-gather \"b\" (segment 2 of 2) of 8 bytes; "
        "rank 1 called #17 all-gather \"c\" (segment 2 of 2) of 8 bytes; "
        "rank 2 called #17 all-gather \"a\" of 4 bytes");
}

TEST_CASE("signatures_differ_in_every_field_that_ranks_must_agree_on") {
  const ReduceScatter base = {.wire = DType::bf16, .shard_elements = 4, .label = "a"};
  const auto differs = [&](auto change) {
    ReduceScatter changed = base;
    change(changed);
    return signature_of(changed, 1) != signature_of(base, 1);
  };
  CHECK_FALSE(differs([](ReduceScatter&) {}));
  CHECK(differs([](ReduceScatter& r) { r.wire = DType::fp16; }));
  CHECK(differs([](ReduceScatter& r) { r.shard_elements = 5; }));
  CHECK(differs([](ReduceScatter& r) { r.divisor = 2.0f; }));
  CHECK(differs([](ReduceScatter& r) { r.label = "b"; }));
  CHECK(signature_of(base, 1) != signature_of(base, 2));
  CHECK(signature_of(Broadcast{.root = 0}, 1) != signature_of(Broadcast{.root = 1}, 1));
}
