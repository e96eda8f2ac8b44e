// The manifest: composed and parsed without loss, and nothing else is taken for one.
#include "tessera/checkpoint/manifest.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "checkpoint/checksum.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;

namespace manifest_test {

const Manifest good{
    .step = 100,
    .files = {{.name = "empty.safetensors", .size = Bytes(0)},
              {.name = "model.safetensors", .size = checkpoint_block + Bytes(1), .blocks = {0x01234567u, 0xffffffffu}},
              {.name = "state.json", .size = Bytes(3), .blocks = {0u}}}};

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// A manifest with this body, and the checksum that goes with it.
std::string sealed(const std::string& body) {
  return fmt::format("{}\"manifest_crc32c\": \"{}\"\n}}\n", body,
                     checkpoint::to_hexadecimal(checkpoint::crc32c(bytes_of(body))));
}

std::string complaint(const std::string& text) {
  try {
    parse_manifest(text, "folder/manifest.json");
  } catch (const DataError& error) {
    const std::string message = error.what();
    REQUIRE(message.rfind("folder/manifest.json: ", 0) == 0);
    CHECK(message.find('\n') == std::string::npos);
    return message.substr(std::strlen("folder/manifest.json: "));
  }
  return "accepted";
}

std::string with_files(const std::string& files) {
  return sealed(R"({"format":"tessera-checkpoint","version":1,"step":3,"block_bytes":4194304,"files":[)" + files +
                "],");
}

TEST_CASE("crc32c_is_that_of_the_standard_in_any_number_of_parts") {
  CHECK(checkpoint::crc32c({}) == 0);
  CHECK(checkpoint::crc32c(bytes_of("123456789")) == 0xe3069283u);  // the check value of the catalogues
  const std::string zeros(32, '\0');
  CHECK(checkpoint::crc32c(bytes_of(zeros)) == 0x8a9136aau);  // RFC 3720, section B.4
  const std::string ones(32, '\xff');
  CHECK(checkpoint::crc32c(bytes_of(ones)) == 0x62a8ab43u);
  std::string text(10'007, '\0');
  std::mt19937 random(7);
  for (char& c : text) c = static_cast<char>(random());
  const std::uint32_t whole = checkpoint::crc32c(bytes_of(text));
  for (const std::size_t cut : {0u, 1u, 7u, 64u, 4099u, 10'006u, 10'007u}) {
    const std::uint32_t first = checkpoint::crc32c(bytes_of(std::string_view(text).substr(0, cut)));
    CHECK(checkpoint::extend_crc32c(first, bytes_of(std::string_view(text).substr(cut))) == whole);
  }
}

TEST_CASE("hexadecimal_has_all_its_digits_and_no_other_form") {
  CHECK(checkpoint::to_hexadecimal(std::uint32_t{0xabc}) == "00000abc");
  CHECK(checkpoint::to_hexadecimal(std::uint64_t{1} << 63) == "8000000000000000");
  CHECK(checkpoint::from_hexadecimal<std::uint32_t>("00000abc") == 0xabcu);
  CHECK(checkpoint::from_hexadecimal<std::uint64_t>("ffffffffffffffff") == ~std::uint64_t{0});
  for (const char* text :
       {"", "abc", "00000ABC", "0x000abc", "0000 abc", "-0000abc", "+0000abc", "00000abg", "000000abc"}) {
    CHECK_FALSE(checkpoint::from_hexadecimal<std::uint32_t>(text));
  }
}

TEST_CASE("a_manifest_comes_back_as_it_was") {
  CHECK(parse_manifest(compose(good), "x") == good);
  CHECK(parse_manifest(compose(Manifest{}), "x") == Manifest{});
  const Manifest extreme{.step = std::numeric_limits<std::uint64_t>::max()};
  CHECK(parse_manifest(compose(extreme), "x") == extreme);
}

TEST_CASE("version_1_of_the_manifest_is_these_bytes") {
  CHECK(compose(good) == R"({
"format": "tessera-checkpoint",
"version": 1,
"step": 100,
"block_bytes": 4194304,
"files": [
  {"name": "empty.safetensors", "bytes": 0, "crc32c": []},
  {"name": "model.safetensors", "bytes": 4194305, "crc32c": ["01234567", "ffffffff"]},
  {"name": "state.json", "bytes": 3, "crc32c": ["00000000"]}
],
"manifest_crc32c": "5cecce14"
}
)");
}

TEST_CASE("a_manifest_is_read_from_its_folder") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_manifest(folder.path()),
                       ((folder / "manifest.json").string() + ": cannot be opened: No such file or directory").c_str(),
                       DataError);
  std::ofstream(folder / "manifest.json") << compose(good);
  CHECK(read_manifest(folder.path()) == good);
  std::filesystem::resize_file(folder / "manifest.json", manifest_limit.count() + 1);
  CHECK_THROWS_AS(read_manifest(folder.path()), DataError);
}

TEST_CASE("blocks_are_counted_up_to_the_largest_file") {
  CHECK(block_count(Bytes(0)) == 0);
  CHECK(block_count(Bytes(1)) == 1);
  CHECK(block_count(checkpoint_block) == 1);
  CHECK(block_count(checkpoint_block + Bytes(1)) == 2);
  CHECK(block_count(Bytes(std::numeric_limits<std::uint64_t>::max())) == (std::uint64_t{1} << 42));
}

TEST_CASE("a_changed_byte_or_a_lost_end_is_damage") {
  const std::string text = compose(good);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK(complaint(damaged) != "accepted");
    CHECK(complaint(text.substr(0, i)) != "accepted");
  }
  CHECK(complaint("") == "does not end as a manifest does: cut off, or not a manifest");
  std::string damaged = text;
  ++damaged[text.find("100")];
  CHECK(complaint(damaged) == "is damaged: its own checksum does not match");
}

TEST_CASE("another_format_and_another_version_are_named") {
  CHECK(complaint(sealed(R"({"format":"other",)")) == "format: is not that of a checkpoint");
  // The text behind the version is not looked at: it may be of any form.
  CHECK(
      complaint(sealed(R"({"format":"tessera-checkpoint","version":2,"colour":[[]],)")) ==
      "version: the checkpoint is of format 2, written by a newer version of Tessera; this one reads up to 1: read it "
      "with that version or a later one");
  CHECK(complaint(sealed(R"({"format":"tessera-checkpoint","version":0,)")) == "version: there is no version 0");
  CHECK(complaint(sealed(R"({"format":"tessera-checkpoint","version":1,"step":3,"block_bytes":4096,)")) ==
        "block_bytes: blocks of 4096 bytes; this format's have 4194304");
}

TEST_CASE("manifests_that_are_not_the_json_they_must_be_are_refused") {
  CHECK(complaint(sealed("")) == "expected an object, found a text");
  CHECK(complaint(sealed("{,")).find("is not JSON: wrong at its byte 2") == 0);
  CHECK(complaint(sealed("[{")).find("expected an object, found a list") != std::string::npos);
  CHECK(complaint(sealed("{")) == R"(has no member "format")");
  CHECK(complaint(sealed(R"({"step":1,"step":2,)")) == R"("step" is given twice)");
  CHECK(complaint(sealed(R"({"step":-1,)")) == "step: expected a whole number, found a negative number");
  CHECK(complaint(sealed(R"({"step":18446744073709551616,)")) ==
        "step: expected a whole number, found a fraction or too large a number");
  CHECK(complaint(sealed(R"({"step":"1",)")) == "step: expected a whole number, found a text");
  CHECK(complaint(sealed(R"({"colour":1,)")) == R"(has an unknown member "colour")");
  CHECK(complaint(with_files("7")) == "files[0]: expected an object, found a number");
  CHECK(complaint(with_files(R"({"name":"a","bytes":1})")) == R"(files[0]: has no member "crc32c")");
  CHECK(complaint(with_files(R"({"name":"a","bytes":1,"crc32c":["0000000g"]})")) ==
        R"(files[0].crc32c[0]: expected eight hexadecimal digits, found "0000000g")");
  CHECK(complaint(with_files(std::string(100'000, '['))).find("files[0]: expected an object, found a list") == 0);
}

TEST_CASE("files_with_names_that_lead_elsewhere_or_sizes_that_do_not_fit_are_refused") {
  const auto file = [](const std::string& name, const std::string& bytes, const std::string& blocks) {
    return fmt::format(R"({{"name":"{}","bytes":{},"crc32c":[{}]}})", name, bytes, blocks);
  };
  const std::string checksum = R"("00000000")";
  CHECK(complaint(with_files(file("a", "1", checksum))) == "accepted");
  for (const char* name :
       {"", ".", "..", "../a", "a/b", "/a", "a\\u0000b", "a\\nb", ".tmp", "manifest.json", "\\u00e9"}) {
    CHECK(complaint(with_files(file(name, "1", checksum))).find("is no name for a file of a checkpoint") !=
          std::string::npos);
  }
  CHECK(complaint(with_files(file(std::string(256, 'a'), "1", checksum))).find("is no name") != std::string::npos);
  CHECK(complaint(with_files(file("a", "1", checksum) + "," + file("a", "1", checksum))) ==
        R"(files[1]: file "a" is given twice)");
  CHECK(complaint(with_files(file("b", "1", checksum) + "," + file("a", "1", checksum))) ==
        R"(files[1]: file "a" must stand before "b")");
  CHECK(complaint(with_files(file("a", "0", checksum))) == R"(files[0]: file "a" of 0 bytes has 0 blocks, not 1)");
  CHECK(complaint(with_files(file("a", "4194305", checksum))) ==
        R"(files[0]: file "a" of 4194305 bytes has 2 blocks, not 1)");
  CHECK(complaint(with_files(file("a", "18446744073709551615", checksum))) ==
        R"(files[0]: file "a" cannot have 18446744073709551615 bytes)");
  CHECK_THROWS_AS(compose(Manifest{.files = {{.name = "a/b", .size = Bytes(0)}}}), UsageError);
  CHECK_THROWS_AS(compose(Manifest{.files = {{.name = "a", .size = Bytes(1)}}}), UsageError);
}

}  // namespace manifest_test
