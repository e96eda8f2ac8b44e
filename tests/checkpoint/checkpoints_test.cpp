// A folder of checkpoints: what counts as one, and which is the latest.
#include "tessera/checkpoint/checkpoints.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;

namespace {

// A checkpoint with one file of one byte.
std::filesystem::path make(const std::filesystem::path& path, std::uint64_t step) {
  std::filesystem::create_directories(path);
  std::ofstream(path / "model.safetensors") << "x";
  std::ofstream(path / "manifest.json") << compose(
      Manifest{.step = step, .files = {{.name = "model.safetensors", .size = Bytes(1), .blocks = {0u}}}});
  return path;
}

}  // namespace

TEST_CASE("names_of_checkpoints_and_steps_are_one_to_one") {
  CHECK(checkpoint_name(0) == "step-00000000");
  CHECK(checkpoint_name(100) == "step-00000100");
  CHECK(checkpoint_name(123456789) == "step-123456789");
  for (const std::uint64_t step :
       {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{100'000'000}, std::numeric_limits<std::uint64_t>::max()}) {
    CHECK(checkpoint_step(checkpoint_name(step)) == step);
  }
  for (const char* name : {"", "step-", "step-100", "step-000000100", "step-00000100.tmp", "step-0000010x",
                           "Step-00000100", "step-+0000100", "step--0000100", "step-99999999999999999999999", "x"}) {
    CHECK_FALSE(checkpoint_step(name));
  }
}

TEST_CASE("the_latest_is_the_valid_one_of_the_highest_step") {
  const TemporaryFolder folder;
  CHECK_FALSE(latest_checkpoint(folder.path()));
  CHECK_FALSE(latest_checkpoint(folder / "none"));
  make(folder / checkpoint_name(99'999'999), 99'999'999);
  make(folder / checkpoint_name(100'000'000), 100'000'000);  // sorted by number, not by name
  make(folder / checkpoint_name(3), 3);
  CHECK(latest_checkpoint(folder.path())->step == 100'000'000);
  std::ofstream(folder / checkpoint_name(200'000'000)) << "a file, not a folder";
  make(folder / (checkpoint_name(300'000'000) + ".tmp"), 300'000'000);
  std::filesystem::create_directory(folder / checkpoint_name(400'000'000));  // no manifest
  CHECK(latest_checkpoint(folder.path())->step == 100'000'000);
}

TEST_CASE("the_newest_is_an_error_where_it_is_not_valid") {
  const TemporaryFolder folder;
  CHECK_FALSE(newest_checkpoint(folder.path()));
  CHECK_FALSE(newest_checkpoint(folder / "none"));
  make(folder / checkpoint_name(3), 3);
  make(folder / (checkpoint_name(5) + ".tmp"), 5);
  CHECK(newest_checkpoint(folder.path())->step == 3);
  CHECK(find_checkpoint(folder.path()) == folder / checkpoint_name(3));
  make(folder / checkpoint_name(4), 4);
  const std::filesystem::path manifest = folder / "step-00000004/manifest.json";
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink(manifest, manifest);
  const std::string expected =
      manifest.string() +
      ": cannot be opened: Too many levels of symbolic links; it belongs to the newest "
      "checkpoint in " +
      folder.path().string() +
      ", which therefore cannot be used: mend it, or read it with a Tessera that can, or move it "
      "away to use an older one";
  CHECK_THROWS_WITH_AS(newest_checkpoint(folder.path()), expected.c_str(), DataError);
  CHECK_THROWS_WITH_AS(find_checkpoint(folder.path()), expected.c_str(), DataError);
  CHECK(latest_checkpoint(folder.path())->step == 3);
}

TEST_CASE("what_is_not_valid_is_listed_with_its_reason") {
  const TemporaryFolder folder;
  make(folder / checkpoint_name(1), 1);
  make(folder / checkpoint_name(2), 20);
  std::filesystem::remove(make(folder / checkpoint_name(3), 3) / "model.safetensors");
  std::filesystem::resize_file(make(folder / checkpoint_name(4), 4) / "model.safetensors", 0);
  std::filesystem::resize_file(make(folder / checkpoint_name(5), 5) / "model.safetensors", 2);
  std::filesystem::resize_file(make(folder / checkpoint_name(6), 6) / "manifest.json", 100);
  make(folder / (checkpoint_name(7) + ".tmp"), 7);
  const std::string parts[] = {
      "",
      "manifest.json: is the manifest of step 20, in the folder of step 2",
      "model.safetensors: cannot be opened: No such file or directory",
      "model.safetensors: has 0 bytes, and 1 by the manifest: cut off, or another checkpoint's",
      "model.safetensors: has 2 bytes, and 1 by the manifest: another checkpoint's",
      "manifest.json: does not end as a manifest does: cut off, or not a manifest"};
  const std::vector<FoundCheckpoint> found = list_checkpoints(folder.path());
  REQUIRE(found.size() == 6);
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].step == i + 1);
    CHECK(found[i].fault == (i == 0 ? "" : (found[i].path / parts[i]).string()));
  }
  CHECK(unfinished_checkpoints(folder.path()) == std::vector{folder / (checkpoint_name(7) + ".tmp")});
}

TEST_CASE("a_checkpoint_may_have_another_name_and_is_found_by_itself") {
  const TemporaryFolder folder;
  make(folder / "best", 5);
  CHECK(check_checkpoint(folder / "best").step == 5);
  CHECK(find_checkpoint(folder / "best") == folder / "best");
  make(folder / checkpoint_name(5), 6);
  CHECK_THROWS_AS(check_checkpoint(folder / (checkpoint_name(5) + "/")), DataError);
}

TEST_CASE("no_checkpoint_is_an_error_that_says_why") {
  const TemporaryFolder folder;
  const std::string start = folder.path().string() + ": is no checkpoint (it has no manifest.json), and has none";
  CHECK_THROWS_WITH_AS(find_checkpoint(folder.path()), start.c_str(), DataError);
  std::filesystem::create_directory(folder / "step-00000001");
  CHECK_THROWS_WITH_AS(find_checkpoint(folder.path()),
                       doctest::Contains("/manifest.json: cannot be opened: No such file or directory; it belongs to"),
                       DataError);
  CHECK_THROWS_WITH_AS(find_checkpoint("/no/such"), "/no/such: is no folder", DataError);
  std::ofstream(folder / "file") << "x";
  CHECK_THROWS_AS(list_checkpoints(folder / "file"), DataError);
}
