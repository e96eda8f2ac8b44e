// train_cnn_torch: a small convolutional network of torch::nn learns to tell clothes apart (Fashion-MNIST), sharded
// over the ranks. Try: build/examples/train_cnn_torch --ranks 2 --strategy fsdp
#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <optional>

#include "probe/memory_report.hpp"
#include "tessera/tessera.hpp"
#include "tessera/torch/fully_shard.hpp"
#include "tessera/torch/make_module.hpp"
#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/program.hpp"
#include "tessera/vision/images.hpp"
#include "trainer/src/memory_table.hpp"

namespace {

namespace nn = torch::nn;

struct Options {
  std::optional<std::size_t> ranks;
  std::size_t epochs = 3;
  std::size_t batch = 64;  // per rank
  std::size_t samples = 0;
  double learning_rate = 0.001;
  tessera::Strategy strategy = tessera::Strategy::fsdp;
  std::string data = "/usr/share/datasets/fashion-mnist";
};

constexpr const char* description =
    "Trains a convolutional network of torch::nn, which knows nothing of sharding, to tell clothes apart "
    "(Fashion-MNIST). Every layer with parameters is a unit of its own. Each epoch says its loss and the accuracy on "
    "held-out images; at the end stands what each rank held.";

constexpr const char* footer =
    "Example: train_cnn_torch --ranks 2 --samples 5000 --epochs 1\n\n"
    "The data set comes with Debian's dataset-fashion-mnist (scripts/install-packages --torch).\n"
    "Exit code: 0, 1 when the run failed, 2 for bad options.";

bool parse(int argc, char** argv, Options& options) {
  tessera::trainer::CommandLine line(description, footer);
  line.whole("--ranks", options.ranks, {1, 1024},
             "Ranks, each a thread of this process; under mpirun there is one for each process [1]");
  std::vector<tessera::trainer::Choice> strategies;
  for (const tessera::Strategy strategy : tessera::flat_strategies) {
    strategies.push_back({std::string(to_string(strategy)), [&options, strategy] { options.strategy = strategy; }});
  }
  line.choice("--strategy", strategies, "What each rank keeps whole [fsdp]");
  line.whole("--epochs", options.epochs, {1, 1000}, "Passes over the training images");
  line.whole("--batch", options.batch, {1, 4096}, "Images per rank and step");
  line.whole("--samples", options.samples, {0, 1'000'000}, "Training images; 0: all");
  line.real("--lr", options.learning_rate, {0.0, 1.0}, "Learning rate of AdamW");
  line.text("--data", options.data, "Directory with the four files of the data set");
  return line.parse(argc, argv);
}

struct Net : nn::Module {
  Net() {
    const auto same_size = [](int from, int to) { return nn::Conv2dOptions(from, to, 3).padding(1); };
    features = register_module("features", nn::Sequential(nn::Conv2d(same_size(1, 32)), nn::ReLU(), nn::MaxPool2d(2),
                                                          nn::Conv2d(same_size(32, 64)), nn::ReLU(), nn::MaxPool2d(2)));
    hidden = register_module("hidden", nn::Linear(64 * 7 * 7, 512));
    output = register_module("output", nn::Linear(512, 10));
  }
  // [samples, 1, 28, 28] -> [samples, 10]
  torch::Tensor forward(const torch::Tensor& images) {
    return output(torch::relu(hidden(features->forward(images).flatten(1))));
  }
  nn::Sequential features{nullptr};
  nn::Linear hidden{nullptr}, output{nullptr};
};

struct LabelledImages {
  torch::Tensor images;  // [samples, rows, columns], bytes
  torch::Tensor labels;  // [samples]
};

LabelledImages read(const std::string& directory, tessera::vision::ImagePart part) {
  const tessera::vision::ImageSet set =
      tessera::vision::read_mnist(directory, part, tessera::vision::fashion_classes());
  const auto samples = static_cast<std::int64_t>(set.size());
  const auto rows = static_cast<std::int64_t>(set.extents().height);
  const auto columns = static_cast<std::int64_t>(set.extents().width);
  const auto tensor = [](const auto& values, torch::IntArrayRef sizes, torch::Dtype type) {
    using Value = typename std::remove_cvref_t<decltype(values)>::value_type;
    return torch::from_blob(const_cast<Value*>(values.data()), sizes, type).clone();
  };
  return {tensor(set.pixels(), {samples, rows, columns}, torch::kByte), tensor(set.labels(), {samples}, torch::kInt)};
}

struct Batch {
  torch::Tensor images;
  torch::Tensor labels;
  torch::Tensor weights;  // 0 for an image that only fills the last batch up
};

Batch take(const LabelledImages& data, const tessera::SampleBatch& chosen) {
  const std::vector<std::int64_t> indices(chosen.indices.begin(), chosen.indices.end());
  const torch::Tensor rows = torch::tensor(indices, torch::kLong);
  return {data.images.index_select(0, rows).to(torch::kFloat).div(255).unsqueeze(1),
          data.labels.index_select(0, rows).to(torch::kLong), torch::tensor(chosen.weights)};
}

class Trainer {
 public:
  Trainer(tessera::World& world, const Options& options)
      : world_(world),
        options_(options),
        model_(world, tessera::torch::make_module<Net>(1),
               {.units = tessera::torch::named({"features.0", "features.3", "hidden", "output"})},
               {.strategy = options.strategy}) {
    model_.finalize(tessera::AdamW{.learning_rate = static_cast<float>(options.learning_rate)});
  }

  // The mean loss of the epoch, over all ranks.
  double train(const LabelledImages& data, std::size_t epoch) {
    tessera::DistributedSampler sampler(world_, {.samples = count(data), .batch = options_.batch});
    sampler.set_epoch(epoch);
    tessera::SampleBatch chosen;
    double sum = 0.0;
    while (sampler.next(chosen)) {
      const Batch batch = take(data, chosen);
      const torch::Tensor loss = torch::cross_entropy_loss(model_.forward(batch.images), batch.labels);
      model_.backward(loss);
      model_.update();
      sum += loss.item<double>();
    }
    const double batches = static_cast<double>(sampler.batches_per_epoch()) * world_.size();
    return world_.sum(sum, "loss") / batches;
  }

  // The table has what the plan counted beside what the rank holds, and torch's own tensors. Collective.
  std::string memory_table() {
    tessera::probe::RankMemory mine = tessera::probe::measure(model_.sharded());
    mine.add_unplanned("torch's activations", model_.peak_activations());
    return tessera::trainer::memory_table(model_.sharded(), tessera::probe::gather(world_, mine));
  }

  // The share of images that are told right, over all ranks.
  double accuracy(const LabelledImages& data) {
    const torch::NoGradGuard no_grad;
    tessera::DistributedSampler sampler(
        world_, {.samples = count(data), .batch = 250, .shuffle = false, .tail = tessera::Tail::pad});
    tessera::SampleBatch chosen;
    double right = 0.0;
    while (sampler.next(chosen)) {
      const Batch batch = take(data, chosen);
      const torch::Tensor told = model_.forward(batch.images).argmax(1);
      right += ((told == batch.labels) * batch.weights).sum().item<double>();
    }
    return world_.sum(right, "right") / static_cast<double>(count(data));
  }

 private:
  static std::size_t count(const LabelledImages& data) { return static_cast<std::size_t>(data.labels.size(0)); }

  tessera::World& world_;
  const Options& options_;
  tessera::torch::FullyShard<Net> model_;
};

void run_rank(tessera::World& world, const Options& options, const LabelledImages& training,
              const LabelledImages& held_out) {
  Trainer trainer(world, options);
  for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    const double loss = trainer.train(training, epoch);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const double accuracy = trainer.accuracy(held_out);
    if (world.rank() == 0) {
      fmt::print("epoch {}  loss {:.4f}  held-out accuracy {:.4f}  {:.1f} s\n", epoch + 1, loss, accuracy,
                 took.count());
    }
  }
  const std::string memory = trainer.memory_table();
  if (world.rank() == 0) fmt::print("\n{}", memory);
}

int train(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) return 0;
  LabelledImages training = read(options.data, tessera::vision::ImagePart::training);
  const LabelledImages held_out = read(options.data, tessera::vision::ImagePart::held_out);
  if (options.samples > 0) {
    const auto kept = std::min(static_cast<std::int64_t>(options.samples), training.labels.size(0));
    training = {training.images.narrow(0, 0, kept), training.labels.narrow(0, 0, kept)};
  }
  tessera::LaunchOptions launch;
  if (options.ranks) launch.ranks = static_cast<int>(*options.ranks);
  return tessera::run(launch, [&](tessera::World& world) { run_rank(world, options, training, held_out); });
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::trainer::run_program([&] { return train(argc, argv); });
}
