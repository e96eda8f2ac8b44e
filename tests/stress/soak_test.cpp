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
#include "shard/toy_model.hpp"
#include "tessera/checkpoint/checkpointer.hpp"

namespace {

using namespace tessera;
using toy::Values;

constexpr int ranks = 3;
constexpr std::size_t micro_batches = 2;
constexpr std::size_t rows = 3;

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

// One rank's model and samples. A step allocates nothing that is not the runtime's.
class Trainee {
 public:
  explicit Trainee(World& world)
      : world_(world),
        model_(world,
               {.strategy = Strategy::fsdp, .micro_batches = micro_batches, .checkpointing = Checkpointing::blocking}) {
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      model_.add(*layers_.emplace_back(std::make_unique<toy::Layer<float>>(widths[l], widths[l + 1], rows)));
    }
    model_.finalize(AdamW{.learning_rate = 0.001f, .weight_decay = 0.1f, .clip_norm = 1.0f});
  }

  FullyShard& model() { return model_; }

  void step(std::size_t number) {
    for (std::size_t micro = 0; micro < micro_batches; ++micro) {
      fill(number, micro);
      const Values* y = &inputs_[micro];
      for (auto& layer : layers_) y = &model_.forward(*layer, *y);
      model_.stream().submit([this, y, micro] {
        for (std::size_t i = 0; i < y->size(); ++i) slopes_[micro][i] = (*y)[i] - targets_[micro][i];
      });
      const Values* dx = &slopes_[micro];
      for (std::size_t l = layers_.size(); l > 0; --l) dx = &model_.backward(*layers_[l - 1], *dx);
    }
    model_.update();
    norms_ += model_.last_step().gradient_norm;  // also: the samples are free again
  }

  double norms() const { return norms_; }

 private:
  inline static const std::vector<std::size_t> widths = {5, 11, 7, 3};

  // A function of step, micro-batch and rank.
  void fill(std::size_t step, std::size_t micro) {
    const std::uint64_t at = ((step * micro_batches + micro) * ranks + static_cast<std::uint64_t>(world_.rank())) * 64;
    Initial::uniform(-1.0f, 1.0f).fill(inputs_[micro], 1, "inputs", at);
    Initial::uniform(-1.0f, 1.0f).fill(targets_[micro], 2, "targets", at);
  }

  World& world_;
  std::vector<Values> inputs_{micro_batches, Values(rows* widths.front())};
  std::vector<Values> targets_{micro_batches, Values(rows* widths.back())};
  std::vector<Values> slopes_{micro_batches, Values(rows* widths.back())};
  std::vector<std::unique_ptr<toy::Layer<float>>> layers_;
  double norms_ = 0;
  FullyShard model_;  // last: its queued work uses the rest
};

struct Outcome {
  std::map<std::string, Values> weights;
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
  std::mutex mutex;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(120)}, [&](World& world) {
    Trainee trainee(world);
    std::optional<Checkpointer> checkpoints;
    if (piece.folder) checkpoints.emplace(trainee.model(), CheckpointerOptions{.directory = *piece.folder, .keep = 1});
    if (piece.folder && piece.first > 1) CHECK(checkpoints->load(checkpoints->latest()->path).step == piece.first - 1);
    for (std::size_t step = piece.first; step <= piece.last; ++step) {
      trainee.step(step);
      if (world.rank() == 0) watch(step);
    }
    if (checkpoints) checkpoints->save({.step = piece.last, .sampler = std::nullopt});
    toy::collect_weights(trainee.model(), outcome.weights, mutex);
    if (world.rank() == 0) outcome.norms = trainee.norms();
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
  CHECK(last.weights.size() == whole.weights.size());
  for (const auto& weight : whole.weights) {
    CAPTURE(weight.first);
    CHECK(toy::same_bits(last.weights.at(weight.first), weight.second));
  }
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
