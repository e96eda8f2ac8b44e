// Frames, fields and signatures as bytes: what is written comes back, and what is wrong is an error before it is kept.
#include "comm/rendezvous/wire.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

TEST_CASE("frames_come_back_whatever_pieces_their_bytes_come_in") {
  std::string bytes;
  const std::string payloads[] = {"", "a", std::string(1000, 'b'), ""};
  for (const std::string& payload : payloads) append_frame(bytes, FrameKind::announce, payload);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{7}, bytes.size()}) {
    FrameReader reader(Bytes(1000));
    std::size_t read = 0;
    for (std::size_t begin = 0; begin < bytes.size(); begin += piece) {
      reader.feed(std::string_view(bytes).substr(begin, piece));
      while (const auto frame = reader.next()) {
        CHECK(frame->kind == FrameKind::announce);
        CHECK(frame->payload == payloads[read++]);
      }
    }
    CHECK(read == 4);
  }
}

TEST_CASE("a_frame_above_the_limit_is_refused_by_its_head_alone") {
  std::string bytes;
  append_frame(bytes, FrameKind::hello, std::string(11, 'x'));
  FrameReader reader(Bytes(10));
  reader.feed(std::string_view(bytes).substr(0, 5));
  CHECK_THROWS_AS(reader.next(), DataError);
  FrameReader allowed(Bytes(10));
  allowed.allow(Bytes(11));
  allowed.feed(bytes);
  CHECK(allowed.next().has_value());
}

TEST_CASE("kinds_that_do_not_exist_are_refused") {
  for (const char kind : {'\0', static_cast<char>(last_frame_kind + 1), '\xff'}) {
    FrameReader reader(Bytes(10));
    reader.feed(std::string(4, '\0') + kind);
    CHECK_THROWS_AS(reader.next(), DataError);
  }
}

TEST_CASE("fields_that_end_too_early_are_errors") {
  std::string bytes;
  FieldWriter(bytes).text("four");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    FieldReader reader(std::string_view(bytes).substr(0, size));
    CHECK_THROWS_AS(reader.text(), DataError);
  }
  FieldReader reader(bytes);
  CHECK(reader.text() == "four");
  reader.require_end();
}

TEST_CASE("signatures_come_back_from_their_bytes") {
  const AllGather gathers[] = {{.shard = Bytes(8), .label = "a"}, {.shard = Bytes(0), .label = ""}};
  const ReduceScatter sums[] = {{.wire = DType::bf16, .shard_elements = 3, .divisor = 5.0f, .label = "b"},
                                {.wire = DType::fp32, .shard_elements = 7, .label = "c"},
                                {.wire = DType::fp16, .shard_elements = 0, .label = "d"}};
  const Signature all[] = {signature_of(std::span(gathers), 3), signature_of(std::span(sums), 4),
                           signature_of(AllReduce{.elements = 9, .divisor = 2.0f, .label = "norm"}, 5),
                           signature_of(Broadcast{.size = Bytes(4), .root = 6, .label = "weights"}, 6),
                           signature_of_creation("gather")};
  std::string code;
  for (const Signature& signature : all) {
    encode(signature, code);
    CHECK(*DecodedSignature(code) == signature);
    for (std::size_t size = 0; size + 1 < code.size(); size += 3) {
      const auto decode = [&] { return DecodedSignature(code.substr(0, size)); };
      CHECK_THROWS_AS(decode(), DataError);
    }
  }
}

// ---- what a rank says of a communicator that is made ----

namespace {

Opening read_whole(const std::string& bytes, int ranks) {
  FieldReader reader(bytes);
  Opening opening = read_opening(reader, ranks);
  reader.require_end();
  return opening;
}

Opening read_back(const Opening& opening, int ranks) {
  std::string bytes;
  append_opening(bytes, opening);
  return read_whole(bytes, ranks);
}

}  // namespace

TEST_CASE("an_opening_comes_back_and_what_is_none_is_an_error") {
  const Opening opening{.name = "rows", .groups = 2, .group = 1, .place = 2};
  CHECK(read_back(opening, 6).name == "rows");
  CHECK(read_back(opening, 6).groups == 2);
  CHECK(read_back(opening, 6).group == 1);
  CHECK(read_back(opening, 6).place == 2);
  CHECK(read_back(opening, 5).place == 2);  // groups need not be equal
  CHECK_THROWS_AS(read_back(opening, 2), DataError);
  CHECK_THROWS_AS(read_back({.name = "rows", .groups = 2, .group = 2, .place = 0}, 6), DataError);
  CHECK_THROWS_AS(read_back({.name = "rows", .groups = 2, .group = 1, .place = 6}, 6), DataError);
  CHECK_THROWS_AS(read_back({.name = "rows", .groups = 0, .group = 0, .place = 0}, 6), DataError);
  CHECK_THROWS_AS(read_back({.name = "rows", .groups = 12, .group = 0, .place = 0}, 6), DataError);
  std::string bytes;
  append_opening(bytes, opening);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK_THROWS_AS(read_whole(bytes.substr(0, size), 6), DataError);
  }
}

TEST_CASE("groups_are_a_partition_or_an_error") {
  using Groups = std::vector<std::vector<int>>;
  struct Seat {
    std::uint32_t group, place;
  };
  const auto said = [](std::uint32_t groups, const std::vector<Seat>& seats) {
    std::vector<Opening> openings;
    for (const Seat& seat : seats) {
      openings.push_back({.name = "rows", .groups = groups, .group = seat.group, .place = seat.place});
    }
    return openings;
  };
  CHECK(partition_of(said(1, {{0, 0}, {0, 1}, {0, 2}})) == Groups{{0, 1, 2}});
  CHECK(partition_of(said(2, {{0, 1}, {1, 0}, {0, 0}, {1, 1}})) == Groups{{2, 0}, {1, 3}});
  CHECK(partition_of(said(3, {{0, 0}, {1, 0}, {2, 0}})) == Groups{{0}, {1}, {2}});
  CHECK(partition_of(said(2, {{0, 0}, {1, 1}, {1, 0}})) == Groups{{0}, {2, 1}});
  CHECK_THROWS_AS(partition_of(said(2, {{0, 0}, {0, 1}, {1, 0}, {1, 0}})), DataError);
  CHECK_THROWS_AS(partition_of(said(2, {{0, 0}, {0, 2}, {1, 0}})), DataError);
  CHECK_THROWS_AS(partition_of(said(2, {{0, 0}, {0, 1}, {0, 2}})), DataError);
  std::vector<Opening> mixed = said(2, {{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  mixed[3] = {.name = "rows", .groups = 4, .group = 3, .place = 0};
  CHECK_THROWS_AS(partition_of(mixed), DataError);
}
