// Ten thousand small steps: memory, threads and open files are after the last what they were after the first thousand,
// and the bits are those of the same run in pieces, each a new model that goes on from the last one's checkpoint.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>

#include "../extent.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "memory/trainee.hpp"
#include "tessera/checkpoint/checkpointer.hpp"

namespace {

using namespace tessera;

const toy::Run run{.options = {.micro_batches = 2, .checkpointing = Checkpointing::blocking},
                   .ranks = 3,
                   .widths = {5, 11, 7, 3},
                   .clip = 1.0f};

// Counted page by page: the figures of statm and status lag behind by up to 64 pages per thread.
std::size_t resident_kib() {
  std::ifstream pages("/proc/self/smaps_rollup");
  for (std::string word; pages >> word;) {
    std::size_t size = 0;
    if (word == "Rss:" && pages >> size) return size;
  }
  throw std::runtime_error("/proc/self/smaps_rollup says nothing of Rss");
}

std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

struct Held {
  std::size_t resident = resident_kib();
  std::size_t threads = entries("/proc/self/task");
  std::size_t files = entries("/proc/self/fd");
};

struct Outcome {
  toy::Weights weights;
  double norms = 0;  // the sum over all steps of this piece
};

struct Piece {
  std::size_t first;
  std::size_t last;
  std::optional<std::filesystem::path> folder = std::nullopt;  // of checkpoints: goes on from the latest, and saves one
};

template <typename Watch>
Outcome train(const Piece& piece, Watch watch) {
  Outcome outcome;
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(120)}, [&](World& world) {
    toy::Trainee<float> trainee(world, run);
    std::optional<Checkpointer> checkpoints;
    if (piece.folder) checkpoints.emplace(trainee.model(), CheckpointerOptions{.directory = *piece.folder, .keep = 1});
    if (piece.folder && piece.first > 1) CHECK(checkpoints->load(checkpoints->latest()->path).step == piece.first - 1);
    for (std::size_t step = piece.first; step <= piece.last; ++step) {
      trainee.bring(step);
      trainee.step();
      const double norm = trainee.model().last_step().gradient_norm;  // waits: the samples are free again
      if (world.rank() != 0) continue;
      outcome.norms += norm;
      watch(step);
    }
    if (checkpoints) checkpoints->save({.step = piece.last, .sampler = std::nullopt});
    toy::collect_weights(trainee.model(), outcome.weights);
  });
  return outcome;
}

TEST_CASE("a_long_run_holds_no_more_at_its_end_and_has_the_bits_of_the_same_run_in_pieces") {
  const std::size_t steps = tests::reduced() ? 300 : 10'000;
  std::optional<Held> early;
  std::optional<Held> late;
  const Outcome whole = train({.first = 1, .last = steps}, [&](std::size_t step) {
    if (step == steps / 10) early.emplace(), early.emplace();  // twice: looking takes memory, too
    if (step == steps - 2) late.emplace();                     // before any rank can be done
  });
  MESSAGE(steps << " steps; resident " << early->resident << " KiB after a tenth, " << late->resident << " at the end");
  CHECK(late->threads == early->threads);
  CHECK(late->files == early->files);
  // Sanitizers keep what was freed.
  if (!tests::sanitized) CHECK(late->resident <= early->resident + 128);

  const TemporaryFolder folder;
  Outcome last;
  double norms = 0;
  const std::size_t ends[] = {steps / 7, steps / 2 + 1, steps - 1, steps};
  for (std::size_t first = 1; const std::size_t end : ends) {
    last = train({.first = first, .last = end, .folder = folder.path()}, [](std::size_t) {});
    norms += last.norms;
    first = end + 1;
  }
  CHECK(toy::same_bits(last.weights, whole.weights));
  CHECK(norms == doctest::Approx(whole.norms));
  CHECK(whole.norms > 0);
}

// The measurement rests on this: 64 bytes a step are seen.
TEST_CASE("a_leak_of_sixty_four_bytes_a_step_would_be_seen") {
  if (tests::sanitized) return;
  const std::size_t before = resident_kib();
  std::vector<std::unique_ptr<char[]>> leaked(9000);
  for (auto& block : leaked) {
    block = std::make_unique<char[]>(64);
    block[0] = 1;
  }
  CHECK(resident_kib() > before + 128);
}

}  // namespace
