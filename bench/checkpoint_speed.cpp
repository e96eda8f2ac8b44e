// Saving and loading checkpoints against plain files of the same bytes, on the same disk, in turn: large writes with
// fsync, large reads, and for a save in the background the copy of the shards and the steps beside it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "measure/program.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace {

using namespace tessera;
namespace fs = std::filesystem;

struct Request {
  fs::path directory;
  std::size_t mebibytes = 768;  // of a checkpoint
  std::size_t ranks = 2;
  std::size_t runs = 5;
};

// A unit whose passes cost a given number of multiplications, and hold no memory worth speaking of.
class Layer final : public Module {
 public:
  Layer(std::size_t elements, std::size_t work) : weight_({elements}, Initial::uniform(-1.0f, 1.0f)), work_(work) {}
  void visit(ModuleVisitor& visitor) override { visitor("weight", weight_); }
  void forward(Window& window) { compute(window, {}); }
  void backward(Window& window) { compute(window, window.gradient<float>(weight_)); }

 private:
  void compute(Window& window, std::span<float> gradient) {
    window.stream().submit([this, gradient] {
      float value = 1.0f;
      for (std::size_t i = 0; i < work_; ++i) value = value * 0.999f + 0.001f;
      std::fill(gradient.begin(), gradient.end(), value * 1e-3f);
    });
  }

  Parameter weight_;
  std::size_t work_;
};

constexpr std::size_t units = 16;

class Model {
 public:
  Model(World& world, const Request& request, Checkpointing checkpointing, std::size_t work)
      : model_(world, {.checkpointing = checkpointing}) {
    const std::size_t elements = request.mebibytes * (std::size_t{1} << 20) / (12 * units);
    for (std::size_t i = 0; i < units; ++i) {
      layers_.push_back(std::make_unique<Layer>(elements, work));
      model_.add(*layers_.back());
    }
    model_.finalize(AdamW{});
  }
  FullyShard& runtime() { return model_; }
  void step() {
    for (auto& layer : layers_) model_.forward(*layer);
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) model_.backward(**layer);
    model_.update();
    model_.synchronize();
  }
  // The shards that a checkpoint has.
  std::vector<std::span<float>> shards() {
    std::vector<std::span<float>> result;
    for (std::size_t u = 0; u < units; ++u) {
      for (const char* state : {"master", "m", "v"}) {
        for (const ParameterPiece& piece : model_.pieces(model_.unit(u), state)) result.push_back(piece.values);
      }
    }
    return result;
  }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
  FullyShard model_;
};

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

[[noreturn]] void fail(const fs::path& path) { throw std::system_error(errno, std::generic_category(), path.string()); }

class Handle {
 public:
  Handle(const fs::path& path, int flags) : path_(path), handle_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (handle_ < 0) fail(path);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { ::close(handle_); }
  int get() const { return handle_; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int handle_;
};

constexpr std::size_t large = std::size_t{16} << 20;

// This rank's shards, one after the other, into one file.
void plain_write(const fs::path& path, std::span<const std::span<float>> shards) {
  const Handle file(path, O_WRONLY | O_CREAT | O_TRUNC);
  for (const std::span<float> shard : shards) {
    const auto bytes = std::as_bytes(shard);
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::write(file.get(), bytes.data() + done, std::min(large, bytes.size() - done));
      if (count < 0) fail(path);
      done += static_cast<std::size_t>(count);
    }
  }
  if (::fsync(file.get()) != 0) fail(path);
}

void plain_read(const fs::path& path, std::span<const std::span<float>> shards) {
  const Handle file(path, O_RDONLY);
  for (const std::span<float> shard : shards) {
    const auto bytes = std::as_writable_bytes(shard);
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::read(file.get(), bytes.data() + done, std::min(large, bytes.size() - done));
      if (count <= 0) fail(path);
      done += static_cast<std::size_t>(count);
    }
  }
}

// Drops a folder's files from the page cache: they are read from the device next time.
void forget(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const Handle file(entry.path(), O_RDONLY);
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

// Times by name, in the order of the first mention; rank 0's, between two barriers.
class Times {
 public:
  explicit Times(World& world) : world_(world) {}
  void measure(const std::string& name, const std::function<void()>& work) {
    world_.barrier("before");
    const double time = seconds([&] {
      work();
      world_.barrier("after");
    });
    times_[name].push_back(time);
  }
  double of(const std::string& name) const { return median(times_.at(name)); }

 private:
  World& world_;
  std::map<std::string, std::vector<double>> times_;
};

void print_ratio(const char* what, double ours, const char* peer, double theirs, double bytes) {
  fmt::print("| {} | {:.3f} | {:.2f} | {} | {:.3f} | {:.2f} | {:.2f} |\n", what, ours, bytes / ours / 1e9, peer, theirs,
             bytes / theirs / 1e9, theirs / ours);
}

fs::path newest_in(const fs::path& directory) { return latest_checkpoint(directory)->path; }

void measure_blocking(World& world, const Request& request) {
  Model model(world, request, Checkpointing::blocking, 0);
  const fs::path saved = request.directory / "saved";
  Checkpointer checkpoints(model.runtime(), {.directory = saved});
  const auto shards = model.shards();
  const fs::path plain = request.directory / fmt::format("plain-{}", world.rank());
  Times times(world);
  const auto forget_all = [&] {
    if (world.rank() == 0) forget(request.directory);
  };
  // Each removes what it has written before the other writes: both then find as many free pages.
  const auto take_turn_plain = [&] {
    times.measure("plain write", [&] { plain_write(plain, shards); });
    times.measure("plain read, cached", [&] { plain_read(plain, shards); });
    forget_all();
    times.measure("plain read", [&] { plain_read(plain, shards); });
    world.barrier("read");
    fs::remove(plain);
  };
  const auto take_turn = [&](std::size_t run) {
    times.measure("save", [&] { checkpoints.save({.step = run}); });
    times.measure("load, cached", [&] { checkpoints.load(newest_in(saved)); });
    forget_all();
    times.measure("load", [&] { checkpoints.load(newest_in(saved)); });
    world.barrier("loaded");
    if (world.rank() == 0) fs::remove_all(newest_in(saved));
  };
  for (std::size_t run = 1; run <= request.runs; ++run) {
    if (run % 2 == 0) take_turn_plain();
    take_turn(run);
    if (run % 2 == 1) take_turn_plain();
  }
  if (world.rank() != 0) return;
  const double bytes = static_cast<double>(request.mebibytes << 20);
  print_ratio("save", times.of("save"), "plain writes and fsync", times.of("plain write"), bytes);
  print_ratio("load, from the device", times.of("load"), "plain reads", times.of("plain read"), bytes);
  print_ratio("load, from the page cache", times.of("load, cached"), "plain reads", times.of("plain read, cached"),
              bytes);
}

// How much work makes a step of about a second.
constexpr std::size_t long_work = 25'000'000;

void measure_background(World& world, const Request& request) {
  Model model(world, request, Checkpointing::background, long_work / request.ranks);
  Checkpointer checkpoints(model.runtime(), {.directory = request.directory / "background", .keep = 1});
  const auto shards = model.shards();
  std::size_t elements = 0;
  for (const auto& shard : shards) elements += shard.size();
  std::vector<float> target(elements, 1.0f);
  const fs::path plain = request.directory / fmt::format("plain-{}", world.rank());
  Times times(world);
  model.step();
  for (std::size_t run = 1; run <= request.runs; ++run) {
    times.measure("copy", [&] {
      float* to = target.data();
      for (const auto& shard : shards) to = std::copy(shard.begin(), shard.end(), to);
    });
    times.measure("step", [&] { model.step(); });
    times.measure("stall", [&] { checkpoints.save_async({.step = run}); });
    times.measure("step beside a save", [&] { model.step(); });
    checkpoints.wait();
    // A plain thread writes the copy's bytes beside the steps: any writer would cost that here.
    const std::vector<std::span<float>> copied{std::span(target)};
    std::thread writer([&] { plain_write(plain, copied); });
    times.measure("step beside plain writes", [&] { model.step(); });
    writer.join();
    world.barrier("written");
    fs::remove(plain);
  }
  if (world.rank() != 0) return;
  const double bytes = static_cast<double>(request.mebibytes << 20);
  print_ratio("stall of save_async", times.of("stall"), "a copy of the shards", times.of("copy"), bytes);
  const double alone = times.of("step");
  fmt::print("\na step takes {:.3f} s alone", alone);
  for (const char* beside : {"a save", "plain writes"}) {
    const double time = times.of(fmt::format("step beside {}", beside));
    fmt::print(", {:.3f} s ({:+.1f} %) beside {} in the background", time, 100.0 * (time / alone - 1.0), beside);
  }
  fmt::print("\n");
}

void run(const Request& request) {
  utsname system{};
  uname(&system);
  fmt::print("{} cores, {} {}, {}: checkpoint of {} MiB, {} ranks, medians of {} runs\n\n",
             std::thread::hardware_concurrency(), system.sysname, system.release, request.directory.string(),
             request.mebibytes, request.ranks, request.runs);
  fmt::print("| Tessera | s | GB/s | plain | s | GB/s | ratio |\n|---|--:|--:|---|--:|--:|--:|\n");
  launch({.ranks = static_cast<int>(request.ranks)}, [&](World& world) {
    measure_blocking(world, request);
    measure_background(world, request);
  });
}

// A directory of our own, removed at the end.
class Workplace {
 public:
  explicit Workplace(const fs::path& parent) {
    std::string pattern = (parent / "checkpoint_speed_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) fail(parent);
    path_ = pattern;
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  ~Workplace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

int main(int argc, char** argv) {
  Request request;
  std::string parent = ".";
  tessera::trainer::CommandLine line(
      "Saves and loads checkpoints, in turn with plain files of the same bytes on the same disk.", "");
  line.text("--directory", parent, "On the disk to measure; what is written there is removed");
  line.whole("--mib", request.mebibytes, {16, 65536}, "Of a checkpoint");
  line.whole("--ranks", request.ranks, {1, 64}, "Threads");
  line.whole("--runs", request.runs, {1, 100}, "Of each");
  return bench::run_bench(line, argc, argv, [&] {
    const Workplace place(parent);
    request.directory = place.path();
    run(request);
  });
}
