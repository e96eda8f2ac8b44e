// Options, images, and the job made of them. Limits on options keep every product here below 2^64.
#include "vision/trainer/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "models/vision/model.hpp"
#include "plot/plot.hpp"
#include "tessera/nn/threads.hpp"
#include "tessera/nn/with_element.hpp"
#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/fit.hpp"
#include "tessera/trainer/labelled_batches.hpp"
#include "tessera/trainer/number_text.hpp"
#include "tessera/trainer/stages.hpp"
#include "tessera/vision/image_folder.hpp"
#include "tessera/vision/images.hpp"
#include "trainer/src/fingerprint.hpp"

namespace train_vision {

using tessera::Bytes;
using tessera::vision::ImagePart;
using tessera::vision::ImageSet;

namespace {

constexpr const char* description =
    "Trains a convolutional network, a residual one or a vision transformer to tell images apart, with sharded data "
    "parallelism. Every stage and "
    "block is a unit of its own.";

constexpr const char* footer =
    "Example: train_vision --ranks 4 --epochs 2\n\n"
    "Fashion-MNIST comes with Debian's dataset-fashion-mnist; CIFAR's binary files from "
    "https://www.cs.toronto.edu/~kriz/cifar.html.\n\n"
    "All strategies give the same bits for the same ranks, micro-batches and --accumulate-mode; with --granules any "
    "number of ranks does. Batch norm (resnet18, resnet50) takes its moments from each rank's own images, so there "
    "other ranks give another model, not only other roundings, and what the running moments of rank 0 are is what an "
    "evaluation and a checkpoint have; with --sync-batch-norm from all ranks' images, as one rank with all of them "
    "would, and with --granules from the images of each granule.\n"
    "Exit code: 0, 1 when the run failed, 2 for bad options.";

constexpr const char* fashion_directory = "/usr/share/datasets/fashion-mnist";
constexpr std::size_t default_epochs = 3;
constexpr std::size_t most_side = 4096;
constexpr std::size_t usual_side = 224;  // of a folder's images

void add_model_options(CommandLine& line, VisionOptions& options) {
  const auto choose = [&](VisionModelKind kind) {
    return Choice{std::string(to_string(kind)), [&options, kind] { options.model = kind; }};
  };
  line.group("Model and data");
  std::vector<Choice> models;
  for (const VisionModelKind kind : vision_models) models.push_back(choose(kind));
  line.choice(
      "--model", models,
      "Two convolutions and two linear layers; a residual network (He et al. 2016), whose stem keeps the size of "
      "images of at most 64 pixels; or a vision transformer (Dosovitskiy et al. 2021), with patches of 4 x 4 for "
      "such images and of 16 x 16 for others [cnn]");
  line.whole(
      "--width", options.width, {1, most_side},
      "Channels of the first stage, or of a transformer's tokens [cnn: 32, resnet: 64, vit-s, -b, -l: 384, 768, 1024]");
  line.text(
      "--data", options.data,
      "fashion-mnist, fashion-mnist:DIR, mnist:DIR, cifar10:DIR or cifar100:DIR, DIR with the data set's files; or "
      "folder:DIR, with DIR/train/CLASS/*.jpg (or .png) and DIR/val/CLASS/*.jpg");
  line.whole("--image-size", options.image_size, {4, most_side},
             "Height and width to which the images of a folder are scaled and cut [224]");
  line.whole("--samples", options.samples, {0, std::size_t{1} << 40},
             "Images to train on: the first so many, of a folder so many of all classes alike; 0: all");
  line.whole("--shift", options.shift, {0, most_side},
             "Moves an image by up to so many pixels each way, other ones in each epoch [cifar: 4, else 0]");
  line.choice("--flip", {{"yes", [&options] { options.flip = true; }}, {"no", [&options] { options.flip = false; }}},
              "Flips every second image, left and right [cifar and folders: yes, else no]");
  line.whole("--cutout", options.cutout, {0, most_side}, "Side of a square that is cut out of each image");
  line.real("--label-smoothing", options.label_smoothing, {0, 1}, "Share of the target that all classes have alike");
  line.flag("--sync-batch-norm", options.synchronised_norms,
            "Batch norms (resnet18, resnet50) take their moments from all ranks' images together");
  line.flag("--scale-lr", options.scale_learning_rate,
            "Multiplies --lr with k = ranks x --accumulate, or --granules (sgd: Goyal et al. 2017) or its root "
            "(adamw), and warms up for five epochs or a fifth of the run, unless --warmup says otherwise; with "
            "--outer-every k counts the ranks of a replica");
  line.whole("--loader-threads", options.loader_threads, {1, 256}, "Threads of each rank that make batches of images");
  line.flag("--confusion", options.confusion, "Prints at the end which classes were taken for which");
  line.path("--plot", options.run.plot, "Draws that as a figure, .svg or .png; needs Python's matplotlib");
  line.flag("--check-data", options.check_data,
            "Prints how the first epoch's images are dealt to the ranks, and trains nothing");
}

}  // namespace

std::optional<VisionOptions> parse_options(int argc, char** argv) {
  VisionOptions options;
  options.run.batch = 64;
  options.run.undecayed = {"*bias",      "*bn?.weight", "*downsample.1.weight", "*ln_?.weight", "*norm.weight",
                           "*cls_token", "*pos_embed"};
  options.run.evaluates_epochs = true;
  options.run.learning_rate_use = "as it is used but for --scale-lr";
  CommandLine line(description, footer);
  add_model_options(line, options);
  line.group("Pipeline");
  add_schedule_options(line, options.schedule, "--accumulate");
  options.run.mesh_axes = options.run.mesh_axes | tessera::Axis::pipeline;
  add_run_options(line, options.run);
  if (!line.parse(argc, argv)) return std::nullopt;
  if (options.synchronised_norms && !has_batch_norms(options.model)) {
    throw OptionError(fmt::format("--sync-batch-norm: {} has no batch norms; leave it out", to_string(options.model)));
  }
  if (options.run.plot && !tools::is_figure(options.run.plot->string())) {
    throw OptionError(fmt::format("--plot {}: a figure's name ends in .svg or .png", options.run.plot->string()));
  }
  check_run_options(line, options.run);
  if (stages_of(options.run) > 1 && !is_transformer(options.model)) {
    throw OptionError(fmt::format(
        "--mesh: stages take models that are a row of blocks: --model vit-s, vit-b or vit-l; {} is none, so leave "
        "pipeline out",
        to_string(options.model)));
  }
  check_stages(line, options.run, options.schedule, {.layers = transformer_layers(options.model)});
  if (options.synchronised_norms && options.run.granules > 0) {
    throw OptionError(
        "--sync-batch-norm does not go with --granules: its moments are of the images that all ranks have at the same "
        "time, which differ with their number; without it each granule has moments of its own");
  }
  for (const char* name : {"--plot", "--confusion"}) {
    if (!options.run.simulated || !line.given(name)) continue;
    throw OptionError(
        fmt::format("{} and --simulate-world exclude each other: a simulated rank evaluates nothing", name));
  }
  return options;
}

namespace {

struct DataName {
  std::string kind;
  std::string directory;  // empty: none given
};

DataName name_of(const std::string& data) {
  const std::size_t colon = data.find(':');
  if (colon == std::string::npos) return {data, {}};
  return {data.substr(0, colon), data.substr(colon + 1)};
}

using Source = std::shared_ptr<const tessera::vision::ImageSource>;

Source from_files(const DataName& name, const std::string& directory, ImagePart part) {
  const auto shared = [](ImageSet set) { return std::make_shared<const ImageSet>(std::move(set)); };
  if (name.kind == "fashion-mnist")
    return shared(tessera::vision::read_mnist(directory, part, tessera::vision::fashion_classes()));
  if (name.kind == "mnist")
    return shared(tessera::vision::read_mnist(directory, part, tessera::vision::digit_classes()));
  if (name.kind == "cifar10") return shared(tessera::vision::read_cifar10(directory, part));
  return shared(tessera::vision::read_cifar100(directory, part));
}

// So many images of a source, evenly from its beginning to its end: those of a folder stand class by class.
class EvenImages final : public tessera::vision::ImageSource {
 public:
  EvenImages(Source all, std::size_t size) : all_(std::move(all)), size_(size) {}

  std::size_t size() const final { return size_; }
  tessera::vision::ImageExtents extents() const final { return all_->extents(); }
  const std::vector<std::string>& classes() const final { return all_->classes(); }
  void read_image(std::size_t index, std::span<std::uint8_t> pixels, std::int32_t& label) const final {
    const std::size_t each = all_->size() / size_, rest = all_->size() % size_;
    all_->read_image(index * each + index * rest / size_, pixels, label);
  }

 private:
  Source all_;
  std::size_t size_;
};

// Images to train on, and held-out ones.
struct Parts {
  Source training;
  Source held_out;
};

Parts from_folders(const VisionOptions& options, const std::filesystem::path& directory) {
  const std::size_t side = options.image_size.value_or(usual_side);
  const auto training = std::make_shared<const tessera::vision::ImageFolder>(
      directory / "train", tessera::vision::ImageFolderOptions{.height = side, .width = side});
  return {training, std::make_shared<const tessera::vision::ImageFolder>(
                        directory / "val", tessera::vision::ImageFolderOptions{
                                               .height = side, .width = side, .classes = training->classes()})};
}

// In a folder with a data set's files those are meant, not all that stands beside them.
void require_no_data_is_output(const RunOptions& run, const DataName& name, const std::filesystem::path& directory) {
  if (name.kind == "folder") {
    for (const char* part : {"train", "val"}) require_data_is_no_output(run, directory / part);
    return;
  }
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory, error)) {
    const std::string of = file.path().filename().string();
    if (of.ends_with("-ubyte") || of.ends_with("-ubyte.gz") || of.ends_with(".bin")) {
      require_data_is_no_output(run, file.path());
    }
  }
}

Parts read_parts(const VisionOptions& options, const DataName& name) {
  const bool fashion = name.kind == "fashion-mnist";
  const std::string directory = name.directory.empty() && fashion ? fashion_directory : name.directory;
  if (directory.empty()) {
    throw OptionError(fmt::format("--data {} needs the folder of its files: --data {}:DIR", name.kind, name.kind));
  }
  if (fashion && directory == fashion_directory && !std::filesystem::exists(directory)) {
    throw OptionError(
        fmt::format("--data fashion-mnist: {} is not here; install Debian's dataset-fashion-mnist, or "
                    "name the folder of its files: --data fashion-mnist:DIR",
                    directory));
  }
  require_no_data_is_output(options.run, name, directory);
  if (name.kind == "folder") return from_folders(options, directory);
  if (options.image_size) {
    throw OptionError(fmt::format("--image-size is for --data folder:DIR: the images of {} have their own", name.kind));
  }
  return {from_files(name, directory, ImagePart::training), from_files(name, directory, ImagePart::held_out)};
}

// A folder's images are read when they are wanted, so their moments are those that networks on photographs are trained
// with: ImageNet's.
tessera::vision::ChannelMoments moments_of(const DataName& name, const tessera::vision::ImageSource& training) {
  if (name.kind != "folder") return channel_moments(training);
  return {.mean = {0.485f, 0.456f, 0.406f}, .deviation = {0.229f, 0.224f, 0.225f}};
}

// Some images and their labels, from the first to the last.
std::string fingerprint_of(const tessera::vision::ImageSource& images) {
  Fingerprint fingerprint;
  std::vector<std::uint8_t> pixels(images.extents().elements());
  std::int32_t label = 0;
  for (std::size_t i = 0; i < images.size(); i += std::max<std::size_t>(1, images.size() / 64)) {
    images.read_image(i, pixels, label);
    fingerprint.add(std::as_bytes(std::span(pixels)));
    fingerprint.add(std::as_bytes(std::span(&label, 1)));
  }
  return fingerprint.text();
}

tessera::vision::Augmentation augmentation(const VisionOptions& options, const DataName& name) {
  const bool cifar = name.kind.starts_with("cifar");
  return {.shift = options.shift.value_or(cifar ? 4 : 0),
          .flip = options.flip.value_or(cifar || name.kind == "folder"),
          .cutout = options.cutout,
          .seed = options.run.seed};
}

}  // namespace

ImageData load_images(const VisionOptions& options) {
  const DataName name = name_of(options.data);
  constexpr const char* known[] = {"fashion-mnist", "mnist", "cifar10", "cifar100", "folder"};
  if (std::find(std::begin(known), std::end(known), name.kind) == std::end(known)) {
    throw OptionError(
        fmt::format("--data {}: there is no such data set; known are {}", options.data, fmt::join(known, ", ")));
  }
  Parts parts = read_parts(options, name);
  if (name.kind == "folder" && options.samples != 0 && options.samples < parts.training->size()) {
    parts.training = std::make_shared<const EvenImages>(parts.training, options.samples);
  }
  if (parts.training->extents() != parts.held_out->extents()) {
    throw tessera::DataError(
        fmt::format("--data {}: the images to train on and the held-out ones differ in size", options.data));
  }
  const tessera::vision::ChannelMoments moments = moments_of(name, *parts.training);
  ImageData data;
  data.name = name.kind;
  const std::size_t images = parts.training->size();
  data.training_images = options.samples == 0 ? images : std::min<std::size_t>(options.samples, images);
  if (needs_fingerprint(options.run)) data.fingerprint = fingerprint_of(*parts.training);
  data.training = std::make_shared<tessera::vision::ImageBatches>(parts.training, moments, augmentation(options, name));
  data.held_out = std::make_shared<tessera::vision::ImageBatches>(parts.held_out, moments);
  return data;
}

VisionShape shape_of(const Job& job) {
  const VisionOptions& options = job.options;
  return {.kind = options.model,
          .image = job.data.extents(),
          .classes = job.data.classes().size(),
          .width = options.width.value_or(usual_width(options.model)),
          .label_smoothing = static_cast<float>(options.label_smoothing),
          .synchronised_norms = options.synchronised_norms,
          .granule_norms = options.run.granules > 0,
          .stages_save = options.run.offload.activations == tessera::MemorySpace::host};
}

namespace {

Bytes activation_bytes(const Job& job) {
  return tessera::nn::with_element(job.options.run.precision, [&](auto element) {
    return VisionModel<decltype(element)>::planned_activation_bytes(shape_of(job), job.options.run.batch,
                                                                    device_kind(job.options.run));
  });
}

void require_countable(const Job& job) {
  const VisionShape shape = shape_of(job);
  if (can_be_counted(shape, job.options.run.batch)) return;
  throw OptionError(
      fmt::format("--batch {} of images of {} x {} and --width {} are more than {} numbers in a "
                  "micro-batch: take a smaller --batch, --image-size or --width",
                  job.options.run.batch, shape.image.height, shape.image.width, shape.width, most_image_numbers));
}

// The linear scaling rule, and its warm-up. Replicas that train apart have batches of their own.
void scale_learning_rate(RunOptions& run, std::size_t epoch_steps) {
  const std::size_t jobs = run.outer.every > 0 ? run.replicas : 1;
  const auto times = static_cast<double>(run.granules > 0 ? run.granules : run.ranks_of_job() / jobs * run.accumulate);
  run.learning_rate = learning_rate(run) * (run.optimizer == OptimizerKind::sgd ? times : std::sqrt(times));
  if (run.warmup) return;
  const std::size_t steps = run.steps.value_or(run.epochs.value_or(default_epochs) * epoch_steps);
  run.warmup = std::min(5 * epoch_steps, steps / 5);
}

}  // namespace

Job make_job(const VisionOptions& options) {
  Job job{.options = options, .data = load_images(options)};
  RunOptions& run = job.options.run;
  run.data_fingerprint = job.data.fingerprint;
  require_enough_samples(run, job.data.name, job.data.training_images);
  const std::size_t epoch_steps = steps_per_epoch(run, job.data.training_images);
  if (options.scale_learning_rate) scale_learning_rate(run, epoch_steps);
  job.length = run_length(run, epoch_steps, default_epochs);
  require_countable(job);
  job.sharding = fitting_options(run, {.activations = stages_of(run) > 1 ? Bytes(0) : activation_bytes(job),
                                       .batches = LabelledBatches::bytes(*job.data.training, run),
                                       .smaller = "--batch or --width"});
  return job;
}

std::string dealt_images(const Job& job) {
  const RunOptions& run = job.options.run;
  const std::size_t images = job.data.training_images;
  std::vector<std::size_t> times(images, 0);
  std::string text;
  for (std::size_t rank = 0; rank < run.ranks; ++rank) {
    tessera::DistributedSampler sampler(sampler_options(run, images, rank));
    std::vector<std::size_t> first;
    std::size_t dealt = 0;
    for (tessera::SampleBatch batch; sampler.next(batch);) {
      for (std::size_t i = 0; i < batch.indices.size(); ++i) {
        if (batch.weights[i] == 0.0f) continue;  // fills up
        ++dealt;
        ++times[batch.indices[i]];
        if (first.size() < 5) first.push_back(batch.indices[i]);
      }
    }
    text += fmt::format("rank {:<4} {:>9} images, the first {}\n", rank, grouped(dealt), fmt::join(first, " "));
  }
  const auto seen = static_cast<std::size_t>(std::count_if(times.begin(), times.end(), [](auto n) { return n > 0; }));
  const auto twice = static_cast<std::size_t>(std::count_if(times.begin(), times.end(), [](auto n) { return n > 1; }));
  return text + fmt::format("epoch 1: {} of {} images, {} of them more than once\n", grouped(seen), grouped(images),
                            grouped(twice));
}

}  // namespace train_vision
