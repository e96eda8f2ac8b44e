// The cost of states and masters in the host's memory, and on disk: steps of one rank in bf16 with everything on the
// device, with the optimizer's states elsewhere, and with masters, too, updated on the device or by the host's
// processors; beside a plain copy of the bytes that an update on the device brings and takes, and a plain write and
// read of them past the page cache. All take turns.
//
// usage: offload [--units N] [--width N] [--batch N] [--rounds N] [--disk FOLDER]    prints figures, one per line
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/threads.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace {

using namespace tessera;

struct Options {
  std::size_t units = 8;
  std::size_t width = 1024;
  std::size_t batch = 256;
  std::size_t rounds = 11;
  std::filesystem::path disk = std::filesystem::temp_directory_path();
};

constexpr Bytes scratch{std::uint64_t{256} << 20};  // of products

// Linear layers of one width, a unit each, and their steps.
class Trainee {
 public:
  Trainee(World& world, const Options& options, const Offload& offload)
      : model_(world, {.precision = bf16_mixed, .offload = offload, .disk = options.disk, .activations = scratch}),
        rows_(options.batch),
        values_(rows_ * options.width, bf16(0.01f)),
        gradients_(values_),
        saved_(options.units) {
    for (std::size_t i = 0; i < options.units; ++i) {
      units_.push_back(
          &model_.add(*layers_.emplace_back(std::make_unique<nn::Linear<bf16>>(options.width, options.width))));
    }
    model_.finalize(AdamW{.learning_rate = 1e-6f});
    stack_.emplace(model_.activation_memory());
  }

  void step() {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      model_.within(*units_[i], plan::WindowKind::forward, [&](Window& window) {
        saved_[i] = layers_[i]->forward(window, *stack_, matrix(values_), matrix(gradients_));
      });
    }
    for (std::size_t i = units_.size(); i-- > 0;) {
      model_.within(*units_[i], plan::WindowKind::backward, [&](Window& window) {
        layers_[i]->backward(window, *stack_, saved_[i], matrix(values_), matrix(gradients_));
      });
    }
    model_.update();
    model_.synchronize();
    if (!(model_.last_step().gradient_norm > 0.0)) throw InternalError("a step without gradients");
  }

  // Both ways, in one step.
  Bytes transferred() const {
    Bytes sum;
    for (const plan::SegmentKind kind : {plan::SegmentKind::only, plan::SegmentKind::update}) {
      for (const plan::Operation& operation : model_.plan().segments[*model_.plan().find(kind)].operations) {
        if (operation.kind != plan::OperationKind::transfer) continue;
        for (std::size_t move = 0; move < operation.moves(); ++move) sum += operation.source(move).range.size;
      }
    }
    return sum;
  }

 private:
  nn::MatrixView<bf16> matrix(std::vector<bf16>& values) { return {values.data(), rows_, values.size() / rows_}; }

  FullyShard model_;
  std::vector<std::unique_ptr<nn::Linear<bf16>>> layers_;
  std::vector<Unit*> units_;
  std::size_t rows_;
  std::vector<bf16> values_;
  std::vector<bf16> gradients_;
  std::optional<nn::ActivationStack> stack_;
  std::vector<nn::Linear<bf16>::Saved> saved_;  // by unit
};

// A file without a name, which is written and read past the page cache.
class PlainFile {
 public:
  PlainFile(const std::filesystem::path& folder, Bytes size) : memory_(Device::cpu(), size) {
    std::string name = (folder / "plain-XXXXXX").string();
    file_ = ::mkostemp(name.data(), O_DIRECT);
    if (file_ < 0) throw DataError(name + ": this file system takes no O_DIRECT: name another folder (--disk)");
    ::unlink(name.c_str());
  }
  ~PlainFile() { ::close(file_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  void write() { move(::pwrite); }
  void read() { move(::pread); }

 private:
  template <typename Call>
  void move(Call call) {
    for (std::size_t done = 0; done < memory_.size().count();) {
      const ssize_t moved = call(file_, memory_.data() + done, memory_.size().count() - done, static_cast<off_t>(done));
      if (moved <= 0) throw DataError("a plain write or read has failed: is the disk full?");
      done += static_cast<std::size_t>(moved);
    }
  }

  Arena memory_;
  int file_;
};

void run(const Options& options) {
  launch({.ranks = 1, .device = DeviceChoice::cpu}, [&](World& world) {
    nn::set_threads(world.threads());
    Trainee here(world, options, {});
    Trainee states(world, options, {.optimizer = MemorySpace::host});
    Trainee both(world, options, {.optimizer = MemorySpace::host, .masters = MemorySpace::host});
    Trainee there(world, options,
                  {.optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host});
    Trainee ahead(world, options,
                  {.optimizer = MemorySpace::host,
                   .masters = MemorySpace::host,
                   .update = MemorySpace::host,
                   .ahead = Ahead::revocable});
    Trainee for_good(world, options,
                     {.optimizer = MemorySpace::host,
                      .masters = MemorySpace::host,
                      .update = MemorySpace::host,
                      .ahead = Ahead::final});
    Trainee disk(world, options, {.optimizer = MemorySpace::disk, .masters = MemorySpace::disk});
    std::vector<std::byte> from(both.transferred().count()), to(from.size());
    PlainFile plain(options.disk, Bytes(from.size() / 2));
    const std::array<std::function<void()>, 10> bodies = {
        [&] { here.step(); },  [&] { states.step(); },
        [&] { both.step(); },  [&] { std::memcpy(to.data(), from.data(), from.size()); },
        [&] { disk.step(); },  [&] { plain.write(); },
        [&] { plain.read(); }, [&] { there.step(); },
        [&] { ahead.step(); }, [&] { for_good.step(); }};
    const std::vector<double> seconds = bench::alternate(bodies, options.rounds);
    const double share = static_cast<double>(states.transferred().count()) / static_cast<double>(from.size());
    bench::print_figure("step", 1e3 * seconds[0], "ms");
    bench::print_figure("copy/both", 1e3 * seconds[3], "ms");
    bench::print_figure("throughput/states", seconds[0] / seconds[1], "of everything on the device");
    bench::print_figure("throughput/both", seconds[0] / seconds[2], "of everything on the device");
    bench::print_figure("throughput/updated there", seconds[0] / seconds[7], "of everything on the device");
    bench::print_figure("throughput/updated ahead", seconds[0] / seconds[8], "of everything on the device");
    bench::print_figure("updated ahead for good", seconds[7] / seconds[9], "of the throughput of updated there");
    bench::print_figure("updated ahead", seconds[7] / seconds[8], "of the throughput of updated there");
    bench::print_figure("added/states", (seconds[1] - seconds[0]) / (share * seconds[3]), "of a plain copy");
    bench::print_figure("added/both", (seconds[2] - seconds[0]) / seconds[3], "of a plain copy");
    bench::print_figure("added/updated there", (seconds[7] - seconds[0]) / seconds[3], "of a plain copy");
    bench::print_figure("throughput/disk", seconds[0] / seconds[4], "of everything on the device");
    bench::print_figure("write", 1e3 * seconds[5], "ms");
    bench::print_figure("read", 1e3 * seconds[6], "ms");
    bench::print_figure("rate/disk", (seconds[5] + seconds[6]) / (seconds[4] - seconds[0]),
                        "of a plain write and then a plain read of the same bytes");
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("What states and masters in the host's memory and on disk cost a step.", "");
  line.whole("--units", options.units, {1, 1000}, "linear layers, a unit each");
  line.whole("--width", options.width, {1, 1 << 14}, "of each");
  line.whole("--batch", options.batch, {1, 1 << 16}, "rows");
  line.whole("--rounds", options.rounds, {1, 10000}, "that are timed");
  line.take({"--disk", "FOLDER", "in which files stand [the temporary one]"},
            [&](const std::string& text) { options.disk = text; });
  return bench::run_bench(line, argc, argv, [&] { run(options); });
}
