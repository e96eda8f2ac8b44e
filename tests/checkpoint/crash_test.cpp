// The order of writes, flushes and renames of a save is recorded, and every loss that a power failure may cause is
// played through: the latest checkpoint is always a whole one. And calls that fail: an error that names the path, and
// nothing lost.
#include <doctest/doctest.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint_command.hpp"
#include "crash_model.hpp"
#include "small_save.hpp"
#include "temporary_folder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "watched_files.hpp"

using namespace checkpoint_model;

namespace {

namespace fs = std::filesystem;
using crash_model::Device;
using crash_model::Files;
using watched::Operation;

Files below(const Files& files, const std::string& folder) {
  Files result;
  for (const auto& [path, bytes] : files) {
    if (path.starts_with(folder + "/")) result[path] = bytes;
  }
  return result;
}

struct Recording {
  Files before;
  std::vector<Operation> operations;
  Files old_one;
  Files new_one;
};

Recording record_a_save(int ranks) {
  const TemporaryFolder folder;
  Recording recording;
  small_save(folder.path(), 1, ranks);
  recording.before = files_in(folder.path());
  recording.old_one = below(recording.before, "step-00000001");
  watched::start(folder.path());
  small_save(folder.path(), 2, ranks);
  recording.operations = watched::stop();
  recording.new_one = below(files_in(folder.path()), "step-00000002");
  return recording;
}

// Says what is wrong with the files that a failure left; empty when whatever has a checkpoint's name is whole, and
// there is one.
std::string fault(const Recording& recording, const Files& left) {
  std::size_t whole_ones = 0;
  for (const auto& [whole, name] :
       {std::pair(&recording.new_one, "step-00000002"), std::pair(&recording.old_one, "step-00000001")}) {
    const Files found = below(left, name);
    if (!found.empty() && found != *whole) return std::string(name) + " is not whole";
    whole_ones += !found.empty();
  }
  return whole_ones > 0 ? "" : "no checkpoint is left";
}

struct Losses {
  std::size_t tried = 0;
  std::string fault = {};  // the first
};

// Every moment of the save, and at each: all that is unsure is lost, nothing is, the names or the bytes alone are, and
// each single operation is lost or kept alone.
Losses play_through(const Recording& recording) {
  const Device device(recording.before, recording.operations);
  Losses losses;
  const auto attempt = [&](std::size_t count, const std::vector<bool>& lost) {
    ++losses.tried;
    const std::string found = fault(recording, device.after(count, lost));
    if (found.empty() || !losses.fault.empty()) return;
    losses.fault = "after operation " + std::to_string(count) + ": " + found;
  };
  for (std::size_t count = 0; count <= recording.operations.size(); ++count) {
    const std::vector<std::size_t> unsure = device.unsure(count);
    std::vector<bool> none(recording.operations.size());
    std::vector<bool> all = none;
    std::vector<bool> bytes = none;
    std::vector<bool> entries = none;
    for (const std::size_t i : unsure) {
      const watched::Call call = recording.operations[i].call;
      all[i] = true;
      (call == watched::Call::write || call == watched::Call::resize ? bytes : entries)[i] = true;
    }
    for (const auto* lost : {&none, &all, &bytes, &entries}) attempt(count, *lost);
    for (const std::size_t i : unsure) {
      std::vector<bool> one = none;
      one[i] = true;
      attempt(count, one);
      std::vector<bool> others = all;
      others[i] = false;
      attempt(count, others);
    }
  }
  return losses;
}

// The errors of a save that meets a fault, one per rank that has one; then a save that meets none.
std::vector<std::string> save_with(const watched::Fault& fault, const fs::path& directory) {
  std::mutex mutex;
  std::vector<std::string> messages;
  with_model(small_job(3), [&](FullyShard& model) {
    Checkpointer checkpoints(model, {.directory = directory, .keep = 1, .split = Bytes(12'000)});
    model.world().barrier("before");
    if (model.world().rank() == 0) {
      watched::start(directory);
      watched::set_fault(fault);
    }
    model.world().barrier("watched");
    fill(model, 2);
    try {
      checkpoints.save({.step = 2});
    } catch (const DataError& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.what());
    }
    model.world().barrier("saved");
    if (model.world().rank() == 0) watched::stop();
  });
  return messages;
}

}  // namespace

TEST_CASE("no_power_failure_leaves_a_latest_checkpoint_that_is_not_whole") {
  for (const int ranks : {1, 3}) {
    const Recording recording = record_a_save(ranks);
    CHECK(recording.operations.size() > 50);
    const Losses losses = play_through(recording);
    MESSAGE(ranks, " ranks: ", recording.operations.size(), " operations, ", losses.tried, " failures played through");
    CHECK(losses.fault == "");
  }
}

TEST_CASE("an_export_in_several_files_is_whole_after_any_power_failure_or_not_there") {
  const TemporaryFolder folder;
  small_save(folder / "run", 1, 1);
  const Files before = files_in(folder.path());
  watched::start(folder.path());
  CHECK(tools::run_checkpoint_export({folder / "run", folder / "out", "--max-file-size", "10KB"}));
  const std::vector<Operation> operations = watched::stop();
  const Files whole = below(files_in(folder.path()), "out");
  CHECK(whole.size() > 2);
  CHECK(whole.contains("out/model.safetensors.index.json"));
  const crash_model::Device device(before, operations);
  for (std::size_t count = 0; count <= operations.size(); ++count) {
    std::vector<bool> all(operations.size());
    std::vector<bool> bytes = all;
    for (const std::size_t i : device.unsure(count)) {
      all[i] = true;
      bytes[i] = operations[i].call == watched::Call::write || operations[i].call == watched::Call::resize;
    }
    CAPTURE(count);
    const Files without_bytes = below(device.after(count, bytes), "out");
    CHECK((without_bytes.empty() || without_bytes == whole));
    const Files least = below(device.after(count, all), "out");
    CHECK((least.empty() || least == whole));
    if (count == operations.size()) CHECK(least == whole);
  }
}

// Not only what is in the directory, but its own name, and those of the folders that were made for it.
TEST_CASE("a_checkpoint_in_a_new_directory_survives_a_power_failure_as_soon_as_it_is_saved") {
  const TemporaryFolder folder;
  watched::start(folder.path());
  small_save(folder / "runs/of/may", 1, 2);
  const std::vector<Operation> operations = watched::stop();
  const crash_model::Device device({}, operations);
  std::vector<bool> lost(operations.size());
  for (const std::size_t i : device.unsure(operations.size())) lost[i] = true;
  const std::string name = "runs/of/may/step-00000001";
  CHECK(below(device.after(operations.size(), lost), name) == below(files_in(folder.path()), name));
}

// The proof can fail: each flush that is left out is found.
TEST_CASE("without_any_one_of_its_flushes_a_save_is_not_safe") {
  const Recording sound = record_a_save(2);
  std::size_t flushes = 0;
  for (std::size_t i = 0; i < sound.operations.size(); ++i) {
    if (sound.operations[i].call != watched::Call::flush) continue;
    Recording broken = sound;
    broken.operations.erase(broken.operations.begin() + static_cast<std::ptrdiff_t>(i));
    INFO("without the flush of \"" << sound.operations[i].path << "\"");
    CHECK(play_through(broken).fault != "");
    ++flushes;
  }
  CHECK(flushes > 8);
}

TEST_CASE("whatever_call_fails_the_error_names_the_path_and_nothing_is_lost") {
  const TemporaryFolder folder;
  small_save(folder / "old", 1, 2);
  std::size_t refused_removals = 0;
  for (const watched::Call call : watched::all_calls) {
    for (std::size_t nth = 1;; ++nth) {
      const fs::path directory = folder / "run";
      fs::remove_all(directory);
      fs::copy(folder / "old", directory, fs::copy_options::recursive);
      const int error = nth % 2 == 0 ? EIO : ENOSPC;
      const auto messages = save_with({call, nth, error}, directory);
      INFO("failing: " << watched::to_string(call) << " " << nth);
      const auto latest = latest_checkpoint(directory);
      REQUIRE(latest);
      CHECK(verify_checkpoint(latest->path).empty());
      if (!watched::fault_happened()) {
        CHECK(messages.empty());
        CHECK(latest->step == 2);
        CHECK(nth > 1);
        break;
      }
      // An old checkpoint that cannot be removed, once the new one stands, is a warning.
      const bool may_be_of_it = call == watched::Call::rename || call == watched::Call::remove ||
                                (call == watched::Call::flush && messages.empty());
      const bool of_the_old_one = latest->step == 2 && may_be_of_it;
      CHECK(messages.size() == (of_the_old_one ? 0 : 3));
      refused_removals += of_the_old_one;
      for (const std::string& message : messages) {
        INFO(message);
        CHECK(message.starts_with(directory.string()));
        CHECK(message.find(error == EIO ? "Input/output error" : "No space left on device") != std::string::npos);
      }
      small_save(directory, 3, 3);  // training goes on
      CHECK(latest_checkpoint(directory)->step == 3);
      CHECK(unfinished_checkpoints(directory).empty());
    }
  }
  CHECK(refused_removals > 3);
}

TEST_CASE("short_writes_are_finished") {
  const TemporaryFolder folder;
  small_save(folder / "old", 1, 2);
  std::size_t nth = 1;
  for (;; nth += 3) {
    const fs::path directory = folder / "run";
    fs::remove_all(directory);
    fs::copy(folder / "old", directory, fs::copy_options::recursive);
    CHECK(save_with({watched::Call::write, nth, 0}, directory).empty());
    CHECK(whole_latest(directory) == 2);
    if (!watched::fault_happened()) break;
  }
  CHECK(nth > 3);
}

// With a time-out that is shorter than any rank's flushes, and than rank 0's of the files that it adds.
TEST_CASE("a_device_that_flushes_slowly_delays_a_save_and_ends_no_job") {
  const TemporaryFolder folder;
  watched::set_flush_time(std::chrono::milliseconds(400));
  Job job = small_job(2);
  job.timeout = std::chrono::milliseconds(1000);
  with_model(job, [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder / "run", .split = Bytes(12'000)}).save({.step = 1});
    dump_weights(model, folder / "weights");
  });
  watched::set_flush_time({});
  CHECK(latest_checkpoint(folder / "run")->step == 1);
}

TEST_CASE("where_files_cannot_be_locked_saves_go_on_and_what_a_dead_program_left_is_in_nobodys_way") {
  const TemporaryFolder folder;
  std::ofstream(folder / "weights.partial") << "half";
  watched::set_locks(false);
  with_model(small_job(2), [&](FullyShard& model) {
    Checkpointer(model, {.directory = folder / "run"}).save({.step = 1});
    dump_weights(model, folder / "weights");
  });
  watched::set_locks(true);
  CHECK(latest_checkpoint(folder / "run")->step == 1);
  CHECK(fs::exists(folder / "weights"));
}
