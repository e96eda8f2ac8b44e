// Files of values that are to take no memory: what is written is read, whatever the places, and nothing of them is
// left.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../error_text.hpp"
#include "device/disk_file.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/arena.hpp"

namespace disk_file_test {

using tessera::Bytes;
using tessera::device::DiskFile;

constexpr std::size_t page = tessera::Arena::page.count();

std::string failure_of(const std::filesystem::path& folder, Bytes size) {
  return tests::error_text<tessera::DataError>([&] { const DiskFile file(folder, size); });
}

// Past the page cache, through it, and through the mapping, each after the others.
TEST_CASE("a file has what was last written, wherever ranges begin and end, and its mapping shows the same") {
  const TemporaryFolder folder;
  constexpr std::size_t pages = 24, size = pages * page;
  DiskFile file(folder.path(), Bytes(size));
  tessera::Arena memory(tessera::Device::cpu(), Bytes(size + page));
  std::vector<std::byte> expected(size);
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return std::size_t(random()) % limit; };
  for (int round = 0; round < 400; ++round) {
    const bool aligned = round % 2 == 0;
    const std::size_t first = aligned ? below(pages) * page : below(size), count = 1 + below(size - first);
    std::byte* const mine = memory.data() + (aligned ? 0 : below(page));
    switch (below(4)) {
      case 0:
        for (std::size_t i = 0; i < count; ++i) mine[i] = std::byte(random());
        file.write(Bytes(first), {mine, count});
        std::memcpy(expected.data() + first, mine, count);
        break;
      case 1:
        std::memset(file.data() + first, round, count);
        std::memset(expected.data() + first, round, count);
        break;
      case 2: REQUIRE(std::memcmp(file.data() + first, expected.data() + first, count) == 0); break;
      case 3:
        file.read(Bytes(first), {mine, count});
        REQUIRE(std::memcmp(mine, expected.data() + first, count) == 0);
        break;
    }
  }
}

TEST_CASE("a file begins with zeros, and has no name") {
  const TemporaryFolder folder;
  DiskFile file(folder.path(), Bytes(3 * page));
  CHECK(folder.empty());
  std::vector<std::byte> values(3 * page, std::byte{1});
  file.read(Bytes(0), values);
  CHECK(values == std::vector<std::byte>(3 * page));
}

TEST_CASE("what cannot be had names the folder and what to do") {
  const TemporaryFolder folder;
  const std::string missing = failure_of(folder / "nowhere", Bytes(page));
  CHECK(missing.starts_with((folder / "nowhere").string()));
  CHECK(missing.find("--offload-to disk:") != std::string::npos);
  const std::string full = failure_of(folder.path(), Bytes(std::uint64_t{1} << 43));
  CHECK(full.find("are free. Make room") != std::string::npos);
  CHECK(folder.empty());
  CHECK(failure_of(folder / "nowhere", Bytes(0)).empty());
}

TEST_CASE("what the disk does not give is an error that names the folder") {
  const TemporaryFolder folder;
  DiskFile file(folder.path(), Bytes(page));
  std::vector<std::byte> values(2 * page);
  CHECK_THROWS_WITH_AS(file.read(Bytes(0), values), doctest::Contains(folder.path().c_str()), tessera::DataError);
}

}  // namespace disk_file_test
