// Images in memory and out of data sets' files, as they are and damaged; and the batches that are made of them.
#include "tessera/vision/images.hpp"

#include <doctest/doctest.h>
#include <isa-l/igzip_lib.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "image_test_files.hpp"
#include "tessera/base/error.hpp"
#include "tessera/vision/image_batches.hpp"

using namespace tessera;
using namespace tessera::vision;
using test::failure_of;
using test::Folder;
using test::Image;
using test::image_of;

namespace images_test {

namespace fs = std::filesystem;

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

std::string idx(const std::vector<std::uint32_t>& sizes, const std::string& elements) {
  std::string content{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) content += big_endian(size);
  return content + elements;
}

std::string counted(std::size_t count, std::size_t first = 0) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>((first + i) % 256);
  return bytes;
}

std::string compressed(const std::string& content) {
  isal_zstream stream;
  isal_deflate_init(&stream);
  std::vector<std::uint8_t> out(content.size() + 1000);
  stream.gzip_flag = IGZIP_GZIP;
  stream.end_of_stream = 1;
  stream.next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<std::uint32_t>(content.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<std::uint32_t>(out.size());
  REQUIRE(isal_deflate(&stream) == COMP_OK);
  return {reinterpret_cast<const char*>(out.data()), stream.total_out};
}

std::vector<std::string> classes(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

TEST_CASE("mnist_files_are_read_plain_and_compressed") {
  const Folder folder;
  const std::string images = idx({3, 2, 5}, counted(30)), labels = idx({3}, std::string{'\0', '\x02', '\x01'});
  folder.write("train-images-idx3-ubyte", images);
  folder.write("train-labels-idx1-ubyte.gz", compressed(labels));
  folder.write("t10k-images-idx3-ubyte.gz", compressed(images));
  folder.write("t10k-labels-idx1-ubyte", labels);
  for (const ImagePart part : {ImagePart::training, ImagePart::held_out}) {
    const ImageSet set = read_mnist(folder.path(), part, classes(3));
    CHECK(set.size() == 3);
    CHECK(set.extents() == ImageExtents{2, 5, 1});
    const Image second = image_of(set, 1);
    CHECK(second.label == 2);
    CHECK(second.pixels == std::vector<std::uint8_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
  }
}

TEST_CASE("mnist_files_that_are_damaged_are_named") {
  const Folder folder;
  const std::string good = idx({2, 2, 2}, counted(8)), labels = idx({2}, std::string(2, '\x01'));
  const std::string zipped = compressed(idx({400, 20, 20}, counted(160000)));
  const auto failure = [&](const std::string& images, const std::string& of_labels) {
    folder.write("train-images-idx3-ubyte", images);
    folder.write("train-labels-idx1-ubyte", of_labels);
    return failure_of([&] { read_mnist(folder.path(), ImagePart::training, classes(2)); });
  };
  const std::string name = (folder.path() / "train-images-idx3-ubyte").string();
  const std::string label_name = (folder.path() / "train-labels-idx1-ubyte").string();
  CHECK(failure(good, labels) == "none");
  CHECK(failure("", labels) == name + ": does not begin as 3 dimensions of bytes in the format of MNIST do");
  CHECK(failure(idx({2, 4}, counted(8)), labels) == failure("no such thing", labels));
  CHECK(failure(good + "x", labels) ==
        name + ": says that 8 bytes follow its header of 16, but 9 do: it is cut off or damaged");
  // The product of these is 0 in 64 bits.
  CHECK(failure(idx({1u << 31, 1u << 31, 4}, ""), labels).find("more than can be bytes follow") != std::string::npos);
  CHECK(failure(idx({0, 2, 2}, ""), idx({0}, "")) == name + ": has no images");
  CHECK(failure(zipped.substr(0, zipped.size() / 2), labels).find(": is cut off: its compressed data ends after") !=
        std::string::npos);
  std::string broken = zipped;
  for (std::size_t i = 40; i < 80; ++i) broken[i] = '\xff';
  CHECK(failure(broken, labels).find(": is damaged: what gzip made of it") != std::string::npos);
  CHECK(failure(good, idx({3}, counted(3))) == name + ": has 2 images, and " + label_name + " has 3 labels");
  CHECK(failure(good, idx({2}, std::string{'\x01', '\x07'})) ==
        label_name + ": image 1 has the label 7, but there are 2 classes");
  fs::remove(folder.path() / "train-images-idx3-ubyte");
  fs::create_symlink(folder.path() / "loop", folder.path() / "loop");
  CHECK(failure_of([&] { read_mnist(folder.path() / "loop", ImagePart::training, classes(2)); }) ==
        (folder.path() / "loop/train-images-idx3-ubyte").string() +
            ": cannot be examined: Too many levels of symbolic links");
  CHECK(failure_of([&] { read_mnist(folder.path(), ImagePart::training, classes(2)); }) ==
        name + ": there is no such file, nor one with .gz");
  fs::create_directory(folder.path() / "train-images-idx3-ubyte");
  CHECK(failure_of([&] { read_mnist(folder.path(), ImagePart::training, classes(2)); }) ==
        name + ": is a directory, not a file of images");
}

std::string cifar_record(const std::string& labels, std::size_t first) { return labels + counted(3072, first); }

TEST_CASE("cifar_files_become_pixels_with_their_channels_side_by_side") {
  const Folder folder;
  folder.write("data_batch_1.bin", cifar_record("\x03", 0) + cifar_record("\x09", 7));
  folder.write("data_batch_2.bin", cifar_record(std::string(1, '\0'), 1));
  folder.write("test_batch.bin", cifar_record("\x01", 0));
  const ImageSet training = read_cifar10(folder.path(), ImagePart::training);
  CHECK(training.size() == 3);
  CHECK(training.extents() == ImageExtents{32, 32, 3});
  CHECK(training.classes()[9] == "9");
  const Image second = image_of(training, 1);
  CHECK(second.label == 9);
  for (const std::size_t pixel : {std::size_t{0}, std::size_t{40}, std::size_t{1023}}) {
    for (std::size_t c = 0; c < 3; ++c) CHECK(second.pixels[3 * pixel + c] == (7 + 1024 * c + pixel) % 256);
  }
  CHECK(image_of(training, 2).label == 0);
  folder.write("batches.meta.txt", "airplane\nautomobile\r\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  CHECK(read_cifar10(folder.path(), ImagePart::held_out).classes()[1] == "automobile");

  folder.write("train.bin", cifar_record("\x05\x63", 0));
  folder.write("test.bin", cifar_record("\x05\x62", 0));
  CHECK(image_of(read_cifar100(folder.path(), ImagePart::training), 0).label == 99);
  CHECK(image_of(read_cifar100(folder.path(), ImagePart::held_out), 0).label == 98);
}

TEST_CASE("cifar_files_that_are_damaged_are_named") {
  const Folder folder;
  const std::string name = (folder.path() / "data_batch_1.bin").string();
  const auto failure = [&] { return failure_of([&] { read_cifar10(folder.path(), ImagePart::training); }); };
  CHECK(failure() == name + ": there is no such file");
  folder.write("data_batch_1.bin", "");
  CHECK(failure() == name + ": is empty");
  folder.write("data_batch_1.bin", cifar_record("\x03", 0) + "xyz");
  CHECK(failure().find(": ends in the middle of image 1: 3076 bytes are no multiple of 3073") != std::string::npos);
  folder.write("data_batch_1.bin", cifar_record("\x03", 0) + cifar_record("\x0a", 0));
  CHECK(failure() == name + ": image 1 has the label 10, but there are 10 classes");
  folder.write("data_batch_1.bin", cifar_record("\x03", 0));
  folder.write("batches.meta.txt", "cat\ndog\n");
  CHECK(failure().find("batches.meta.txt: names 2 classes, but there are 10") != std::string::npos);
}

TEST_CASE("an_image_set_refuses_what_does_not_fit") {
  CHECK_THROWS_AS(ImageSet({2, 2, 1}, classes(2), std::vector<std::uint8_t>(7), {0, 1}), UsageError);
  CHECK_THROWS_AS(ImageSet({2, 2, 1}, classes(2), std::vector<std::uint8_t>(8), {0, 2}), UsageError);
  const ImageSet set({2, 2, 1}, classes(2), std::vector<std::uint8_t>(8), {0, 1});
  CHECK_THROWS_AS(image_of(set, 2), UsageError);
  std::vector<std::uint8_t> small(3);
  std::int32_t label = 0;
  CHECK_THROWS_AS(set.read_image(0, small, label), UsageError);
}

// ---- batches ----

std::shared_ptr<const ImageSet> some_images(std::size_t count, const ImageExtents& extents) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t i = 0; i < count * extents.elements(); ++i) {
    pixels.push_back(static_cast<std::uint8_t>((i * 2654435761u) >> 7));
  }
  return std::make_shared<ImageSet>(extents, classes(1), pixels, std::vector<std::int32_t>(count, 0));
}

LabelledBatch batch_of(const ImageBatches& batches, std::vector<std::size_t> indices, std::uint64_t epoch) {
  LabelledBatch batch;
  SampleBatch chosen;
  chosen.weights.assign(indices.size(), 1.0f);
  chosen.indices = std::move(indices);
  chosen.epoch = epoch;
  batches.read(chosen, batch);
  return batch;
}

TEST_CASE("channel_moments_are_those_of_all_pixels_and_normalise_them") {
  const auto source = some_images(50, {5, 4, 3});
  const ChannelMoments moments = channel_moments(*source);
  for (std::size_t c = 0; c < 3; ++c) {
    double sum = 0.0, squares = 0.0;
    for (std::size_t i = c; i < 50 * 60; i += 3) {
      const double value = source->pixels()[i] / 255.0;
      sum += value, squares += value * value;
    }
    CHECK(static_cast<double>(moments.mean[c]) == doctest::Approx(sum / 1000));
    const double variance = squares / 1000 - sum / 1000 * sum / 1000;
    CHECK(static_cast<double>(moments.deviation[c]) == doctest::Approx(std::sqrt(variance)));
  }
  const ImageBatches batches(source, moments);
  const LabelledBatch batch = batch_of(batches, {7}, 0);
  CHECK(batch.columns == 60);
  for (std::size_t i = 0; i < 60; ++i) {
    const float expected =
        (static_cast<float>(source->pixels()[7 * 60 + i]) / 255.0f - moments.mean[i % 3]) / moments.deviation[i % 3];
    CHECK(static_cast<double>(batch.features[i]) == doctest::Approx(static_cast<double>(expected)).epsilon(1e-5));
  }
  const ImageSet white({2, 2, 1}, classes(1), std::vector<std::uint8_t>(4, 255), {0});
  CHECK(channel_moments(white).deviation == std::vector<float>{1.0f});
}

// Where a pixel of the result comes from: its place in the image, or none.
std::vector<int> places_of(const std::vector<float>& features) {
  std::vector<int> places;
  for (const float value : features) places.push_back(static_cast<int>(std::lround(value * 255.0f)) - 1);
  return places;
}

// One image whose pixels are 1, 2, …, so that each place of a result says where it came from; 0 is outside.
ImageBatches tracing(std::size_t height, std::size_t width, const Augmentation& augmentation) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t i = 0; i < height * width; ++i) pixels.push_back(static_cast<std::uint8_t>(i + 1));
  auto set =
      std::make_shared<ImageSet>(ImageExtents{height, width, 1}, classes(1), pixels, std::vector<std::int32_t>{0});
  return {std::move(set), {.mean = {0.0f}, .deviation = {1.0f}}, augmentation};
}

TEST_CASE("an_image_is_moved_to_every_place_and_what_comes_in_is_the_mean") {
  const ImageBatches batches = tracing(5, 6, {.shift = 2, .seed = 3});
  std::set<std::pair<int, int>> seen;
  for (std::uint64_t epoch = 0; epoch < 400; ++epoch) {
    const std::vector<int> places = places_of(batch_of(batches, {0}, epoch).features);
    // The first pixel that is there says how far it was moved.
    std::size_t first = 0;
    while (places[first] < 0) ++first;
    const int down = places[first] / 6 - static_cast<int>(first / 6);
    const int right = places[first] % 6 - static_cast<int>(first % 6);
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 6; ++x) {
        const bool inside = y + down >= 0 && y + down < 5 && x + right >= 0 && x + right < 6;
        REQUIRE(places[static_cast<std::size_t>(6 * y + x)] == (inside ? 6 * (y + down) + x + right : -1));
      }
    }
    seen.emplace(down, right);
  }
  CHECK(seen.size() == 25);
}

TEST_CASE("an_image_is_flipped_every_second_time") {
  const ImageBatches batches = tracing(3, 4, {.flip = true, .seed = 1});
  int flipped = 0;
  for (std::uint64_t epoch = 0; epoch < 300; ++epoch) {
    const std::vector<int> places = places_of(batch_of(batches, {0}, epoch).features);
    const bool turned = places[0] == 3;
    for (int i = 0; i < 12; ++i) REQUIRE(places[static_cast<std::size_t>(i)] == (turned ? i / 4 * 4 + 3 - i % 4 : i));
    flipped += turned ? 1 : 0;
  }
  CHECK(flipped > 110);
  CHECK(flipped < 190);
}

TEST_CASE("a_square_around_any_pixel_is_cut_out") {
  const ImageBatches batches = tracing(6, 5, {.cutout = 3, .seed = 9});
  std::set<std::size_t> sizes;
  for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
    const std::vector<int> places = places_of(batch_of(batches, {0}, epoch).features);
    std::size_t cut = 0;
    for (std::size_t i = 0; i < 30; ++i) {
      REQUIRE((places[i] == -1 || places[i] == static_cast<int>(i)));
      cut += places[i] == -1 ? 1 : 0;
    }
    sizes.insert(cut);
  }
  CHECK(sizes == std::set<std::size_t>{4, 6, 9});  // in a corner, at a border, inside
}

TEST_CASE("what_chance_makes_of_a_sample_depends_on_seed_epoch_and_sample_alone") {
  const auto source = some_images(20, {8, 8, 3});
  const ChannelMoments moments = channel_moments(*source);
  const Augmentation augmentation{.shift = 3, .flip = true, .cutout = 4, .seed = 7};
  const ImageBatches batches(source, moments, augmentation);
  const LabelledBatch together = batch_of(batches, {3, 11, 3}, 5);
  const LabelledBatch alone = batch_of(batches, {11}, 5);
  const std::size_t columns = together.columns;
  const auto row = [&](std::size_t at) {
    return std::vector<float>(together.features.begin() + static_cast<std::ptrdiff_t>(at * columns),
                              together.features.begin() + static_cast<std::ptrdiff_t>((at + 1) * columns));
  };
  CHECK(row(1) == alone.features);
  CHECK(row(0) == row(2));
  CHECK(batch_of(batches, {11}, 6).features != alone.features);
  Augmentation other = augmentation;
  other.seed = 8;
  CHECK(batch_of(ImageBatches(source, moments, other), {11}, 5).features != alone.features);
}

TEST_CASE("image_batches_refuse_moments_that_do_not_fit") {
  const auto source = some_images(1, {2, 2, 3});
  CHECK_THROWS_AS(ImageBatches(source, {.mean = {0.0f}, .deviation = {1.0f}}), UsageError);
  CHECK_THROWS_AS(ImageBatches(source, {.mean = {0, 0, 0}, .deviation = {1, 0, 1}}), UsageError);
}

}  // namespace images_test
