// Token files and the samples that are cut from them: every token once as a target, and errors that say where.
#include "tessera/data/tokens.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>

#include "allocation_counter.hpp"
#include "temporary_file.hpp"
#include "tessera/base/error.hpp"
#include "tessera/data/loader.hpp"

using namespace tessera;

namespace tokens_test {

using Tokens = std::vector<std::int32_t>;
using File = std::shared_ptr<const TokenFile>;

// The file may be removed while it is open.
File open_bytes(const std::string& content) {
  const TemporaryFile file(content);
  return std::make_shared<TokenFile>(file.path(), TokenFormat::bytes);
}

File counting_bytes(std::size_t count) {
  std::string content(count, '\0');
  std::iota(content.begin(), content.end(), '\0');
  return open_bytes(content);
}

std::string words(const std::vector<unsigned>& ids) {
  std::string content;
  for (const unsigned id : ids) {
    content += static_cast<char>(id & 0xffu);
    content += static_cast<char>(id >> 8);
  }
  return content;
}

Tokens all_tokens(const TokenFile& file) {
  Tokens tokens(file.size());
  file.read(0, tokens);
  return tokens;
}

std::string complaint(const std::string& content, TokenFormat format, std::optional<std::size_t> vocabulary = {}) {
  return ::complaint(content, [&](const std::filesystem::path& path) { TokenFile(path, format, vocabulary); });
}

TokenBatch read_rows(const TokenSequences& sequences, std::vector<std::size_t> rows) {
  const std::vector<float> weights(rows.size(), 1.0f);
  TokenBatch batch;
  sequences.read({.indices = std::move(rows), .weights = weights}, batch);
  return batch;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("every_byte_is_a_token") {
  const File file = open_bytes(std::string("a\0\xff\n", 4));
  CHECK(file->vocabulary() == 256);
  CHECK(all_tokens(*file) == Tokens{97, 0, 255, 10});
}

TEST_CASE("words_are_little_endian_and_the_largest_ends_the_vocabulary") {
  const TemporaryFile content(words({1, 256, 50256, 3}));
  const TokenFile file(content.path(), TokenFormat::words);
  CHECK(all_tokens(file) == Tokens{1, 256, 50256, 3});
  CHECK(file.vocabulary() == 50257);
  CHECK(TokenFile(content.path(), TokenFormat::words, 50304).vocabulary() == 50304);
  const TemporaryFile largest(words({65535}));
  CHECK(TokenFile(largest.path(), TokenFormat::words).vocabulary() == 65536);
  CHECK(TokenFile(largest.path(), TokenFormat::words, 100000).vocabulary() == 100000);
}

TEST_CASE("damaged_files_are_described_with_their_offset") {
  CHECK(complaint("", TokenFormat::bytes) == ": is empty");
  CHECK(complaint("", TokenFormat::words) == ": is empty");
  CHECK(contains(complaint("abc", TokenFormat::words), ": ends in the middle of a token at byte 2"));
  CHECK(contains(complaint(words({1, 2, 700, 3}), TokenFormat::words, 700),
                 ": the token at byte 4 is 700, but a vocabulary of 700 ends at 699"));
  CHECK(complaint(words({1, 2, 700, 3}), TokenFormat::words, 701) == "accepted");
  CHECK(contains(complaint("ab\x80", TokenFormat::bytes, 128), ": the token at byte 2 is 128"));
  CHECK(complaint("ab\x7f", TokenFormat::bytes, 128) == "accepted");
}

TEST_CASE("what_is_not_a_file_of_tokens_is_an_error") {
  CHECK_THROWS_WITH_AS(TokenFile("/no/such/file", TokenFormat::bytes), "/no/such/file: there is no such file",
                       DataError);
  const std::string folder = std::filesystem::temp_directory_path().string();
  CHECK_THROWS_WITH_AS(TokenFile(folder, TokenFormat::bytes),
                       (folder + ": is a directory, not a file of tokens").c_str(), DataError);
  CHECK_THROWS_WITH_AS(TokenFile("/dev/null", TokenFormat::words), "/dev/null: is not a regular file", DataError);
  const TemporaryFile file("ab");
  CHECK_THROWS_AS(TokenFile(file.path(), TokenFormat::words, 0), UsageError);
  CHECK_THROWS_AS(TokenFile(file.path(), TokenFormat::words, std::size_t{1} << 31), UsageError);
}

TEST_CASE("a_file_that_is_cut_off_while_it_is_read_is_an_error_that_names_it") {
  const TemporaryFile content(std::string(100'000, 'a'));
  const auto file = std::make_shared<const TokenFile>(content.path(), TokenFormat::bytes);
  const TokenSequences sequences(file, 999, 0, file->size());
  std::filesystem::resize_file(content.path(), 50'000);
  CHECK(read_rows(sequences, {49}).inputs.size() == 999);
  const std::string expected =
      content.path().string() +
      ": ends at byte 50000, and had 100000 bytes when it was opened: it was cut off meanwhile";
  CHECK_THROWS_WITH_AS(read_rows(sequences, {99}), expected.c_str(), DataError);
}

TEST_CASE("samples_follow_each_other_and_targets_come_one_later") {
  for (const std::size_t length : std::vector<std::size_t>{1, 3, 5, 7, 99}) {
    for (const std::size_t first : std::vector<std::size_t>{0, 1, 13}) {
      const TokenSequences sequences(counting_bytes(120), length, first, 107);
      REQUIRE(sequences.size() == 106 / length);
      std::vector<std::size_t> rows(sequences.size());
      std::iota(rows.begin(), rows.end(), std::size_t{0});
      const TokenBatch batch = read_rows(sequences, rows);
      Tokens expected(sequences.tokens());
      std::iota(expected.begin(), expected.end(), static_cast<std::int32_t>(first));
      CHECK(batch.inputs == expected);
      std::iota(expected.begin(), expected.end(), static_cast<std::int32_t>(first) + 1);
      CHECK(batch.targets == expected);
    }
  }
}

TEST_CASE("a_sample_needs_one_token_more_than_its_length") {
  CHECK(TokenSequences(counting_bytes(8), 7, 0, 8).size() == 1);
  CHECK(TokenSequences(counting_bytes(15), 7, 0, 15).size() == 2);
  CHECK(TokenSequences(counting_bytes(14), 7, 0, 14).size() == 1);
  CHECK_THROWS_AS(TokenSequences(counting_bytes(7), 7, 0, 7), DataError);
  CHECK(TokenSequences(counting_bytes(7), 7, 7, 0).size() == 0);
  CHECK_THROWS_AS(TokenSequences(counting_bytes(7), 0, 0, 7), UsageError);
  CHECK_THROWS_AS(TokenSequences(counting_bytes(7), 1, 4, 4), UsageError);
  CHECK_THROWS_AS(TokenSequences(counting_bytes(7), 1, 8, 0), UsageError);
  CHECK_THROWS_AS(read_rows(TokenSequences(counting_bytes(8), 7, 0, 8), {1}), UsageError);
}

TEST_CASE("a_split_shares_no_token_and_loses_none") {
  const File file = counting_bytes(101);
  for (const double fraction : {0.0, 0.1, 0.5, 1.0}) {
    const TokenSplit parts = split(file, 1, fraction);
    const auto held_out = static_cast<std::size_t>(fraction * 101.0);
    const auto used = [](std::size_t tokens) { return tokens == 0 ? 0 : tokens - 1; };
    CHECK(parts.training.size() == used(101 - held_out));
    CHECK(parts.held_out.size() == used(held_out));
    if (held_out > 0) CHECK(read_rows(parts.held_out, {0}).inputs[0] == static_cast<std::int32_t>(101 - held_out));
  }
  CHECK_THROWS_AS(split(file, 20, 0.1), DataError);
  CHECK_THROWS_AS(split(file, 1, 1.5), UsageError);
  CHECK_THROWS_AS(split(file, 1, std::nan("")), UsageError);
}

TEST_CASE("rows_that_fill_up_a_batch_weigh_nothing") {
  const TokenSequences sequences(counting_bytes(22), 3, 0, 22);
  DistributedSampler sampler({.samples = 7, .ranks = 2, .rank = 1, .batch = 2, .shuffle = false, .tail = Tail::pad});
  SampleBatch chosen;
  TokenBatch batch;
  for (const float weight : {1.0f, 0.0f}) {
    REQUIRE(sampler.next(chosen));
    sequences.read(chosen, batch);
    CHECK(batch.weights == std::vector<float>{1.0f, 1.0f, 1.0f, weight, weight, weight});
  }
  CHECK(batch.global_samples == 3);
}

TEST_CASE("a_loader_of_tokens_deals_every_sample_and_then_allocates_nothing") {
  const TokenSequences sequences(counting_bytes(122), 11, 0, 122);
  Loader<TokenBatch> loader(DistributedSampler({.samples = sequences.size(), .batch = 11, .seed = 5}), {},
                            [&](const SampleBatch& chosen, TokenBatch& batch) { sequences.read(chosen, batch); });
  Tokens seen = loader.next()->inputs;
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  CHECK(seen.size() == 121);
  for (int step = 0; step < 20; ++step) loader.next();
  const std::size_t before = allocations_so_far();
  for (int step = 0; step < 100; ++step) loader.next();
  CHECK(allocations_so_far() == before);
}

TEST_CASE("the_shipped_plays_are_whole") {
  const TokenFile plays(TESSERA_TEST_DATA "/shakespeare.txt", TokenFormat::bytes, 128);
  CHECK(plays.size() == 1043179);
  const Tokens tokens = all_tokens(plays);
  CHECK(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}) == 90019951);
  CHECK(std::count(tokens.begin(), tokens.end(), '\n') == 39693);
}

}  // namespace tokens_test
