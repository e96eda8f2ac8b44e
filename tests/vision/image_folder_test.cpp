// Images in folders of JPEG and PNG files: decoded, scaled, and what is wrong with them.
#include "tessera/vision/image_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "image_test_files.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/images/image_decoder.hpp"
#include "vision/src/images/image_scaling.hpp"

#if TESSERA_DECODES_IMAGES
#include <png.h>

#include <cstdio>
// clang-format off
#include <jpeglib.h>
// clang-format on
#endif

using namespace tessera;
using namespace tessera::vision;
using test::failure_of;
using test::Folder;
using test::Image;
using test::image_of;

namespace image_folder_test {

namespace fs = std::filesystem;

// ---- scaling: of pictures in memory ----

Picture picture(std::size_t height, std::size_t width, const std::function<int(std::size_t, std::size_t)>& value) {
  Picture result{height, width, {}};
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) result.pixels.push_back(static_cast<std::uint8_t>(value(y, x) + c));
    }
  }
  return result;
}

std::vector<int> covered(const Picture& from, std::size_t height, std::size_t width) {
  std::vector<std::uint8_t> to(3 * height * width);
  cover(from, height, width, to);
  return {to.begin(), to.end()};
}

TEST_CASE("a_picture_of_the_size_stays_as_it_is") {
  const Picture from = picture(5, 4, [](std::size_t y, std::size_t x) { return static_cast<int>(10 * y + x); });
  CHECK(covered(from, 5, 4) == std::vector<int>(from.pixels.begin(), from.pixels.end()));
}

TEST_CASE("what_is_longer_is_cut_off_on_both_sides") {
  const Picture from = picture(3, 7, [](std::size_t, std::size_t x) { return static_cast<int>(10 * x); });
  const std::vector<int> to = covered(from, 3, 3);
  for (std::size_t i = 0; i < to.size(); i += 3) CHECK(to[i] == static_cast<int>(10 * (2 + i / 3 % 3)));
}

TEST_CASE("a_picture_that_shrinks_is_a_mean_of_all_its_pixels") {
  // A pattern of single lines has its mean at half the size, where each second line alone would be all dark or bright.
  const Picture from = picture(64, 64, [](std::size_t y, std::size_t) { return y % 2 == 0 ? 0 : 200; });
  const std::vector<int> to = covered(from, 16, 16);
  for (std::size_t y = 1; y < 15; ++y) CHECK(std::abs(to[(y * 16 + 8) * 3] - 100) <= 2);
  // A ramp stays one, at the centres of the pixels.
  const Picture ramp = picture(8, 240, [](std::size_t, std::size_t x) { return static_cast<int>(x); });
  const std::vector<int> shrunk = covered(ramp, 2, 60);
  for (std::size_t x = 2; x < 58; ++x)
    CHECK(std::abs(static_cast<double>(shrunk[3 * x]) - (4.0 * static_cast<double>(x) + 1.5)) <= 0.51);
}

TEST_CASE("a_picture_that_grows_is_interpolated") {
  const Picture from = picture(1, 2, [](std::size_t, std::size_t x) { return x == 0 ? 10 : 110; });
  const std::vector<int> to = covered(from, 4, 8);
  const std::vector<int> expected = {10, 10, 23, 48, 73, 98, 110, 110};
  for (std::size_t x = 0; x < 8; ++x) CHECK(std::abs(to[3 * x] - expected[x]) <= 1);
}

#if TESSERA_DECODES_IMAGES

// ---- files ----

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_png(const fs::path& path, std::size_t height, std::size_t width, std::uint32_t format,
               const std::vector<std::uint8_t>& pixels) {
  fs::create_directories(path.parent_path());
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(height);
  image.width = static_cast<png_uint_32>(width);
  image.format = format;
  REQUIRE(png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr) != 0);
}

void write_jpeg(const fs::path& path, std::size_t height, std::size_t width, J_COLOR_SPACE space, int channels,
                const std::vector<std::uint8_t>& pixels) {
  fs::create_directories(path.parent_path());
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  jpeg_stdio_dest(&info, file);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = channels;
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  jpeg_start_compress(&info, TRUE);
  for (std::size_t y = 0; y < height; ++y) {
    auto* row = const_cast<JSAMPROW>(pixels.data() + y * width * static_cast<std::size_t>(channels));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

std::vector<std::uint8_t> repeated(std::size_t pixels, const std::vector<std::uint8_t>& pixel) {
  std::vector<std::uint8_t> result;
  for (std::size_t i = 0; i < pixels; ++i) result.insert(result.end(), pixel.begin(), pixel.end());
  return result;
}

void check_colour(const Image& image, const std::vector<int>& colour, int distance) {
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    REQUIRE(std::abs(static_cast<int>(image.pixels[i]) - colour[i % 3]) <= distance);
  }
}

TEST_CASE("folders_are_classes_and_files_their_images_in_the_order_of_names") {
  const Folder folder;
  write_png(folder.path() / "dog/b.png", 6, 8, PNG_FORMAT_RGB, repeated(48, {10, 20, 30}));
  write_png(folder.path() / "cat/x.PNG", 9, 7, PNG_FORMAT_GRAY, repeated(63, {77}));
  write_jpeg(folder.path() / "dog/a.jpeg", 16, 16, JCS_RGB, 3, repeated(256, {200, 100, 50}));
  write_jpeg(folder.path() / "dog/c.jpg", 16, 16, JCS_GRAYSCALE, 1, repeated(256, {140}));
  write_jpeg(folder.path() / "eel/d.jpg", 16, 16, JCS_CMYK, 4, repeated(256, {255, 128, 64, 200}));
  folder.write("dog/.hidden", "no image");
  const ImageFolder images(folder.path(), {.height = 4, .width = 5});
  CHECK(images.classes() == std::vector<std::string>{"cat", "dog", "eel"});
  CHECK(images.size() == 5);
  CHECK(images.extents() == ImageExtents{4, 5, 3});
  CHECK(images.path(1) == folder.path() / "dog/a.jpeg");
  const std::vector<std::int32_t> labels = {0, 1, 1, 1, 2};
  for (std::size_t i = 0; i < 5; ++i) CHECK(image_of(images, i).label == labels[i]);
  check_colour(image_of(images, 0), {77, 77, 77}, 0);
  check_colour(image_of(images, 1), {200, 100, 50}, 3);
  check_colour(image_of(images, 2), {10, 20, 30}, 0);
  check_colour(image_of(images, 3), {140, 140, 140}, 2);
  check_colour(image_of(images, 4), {200, 100, 50}, 3);
}

TEST_CASE("what_is_transparent_becomes_black") {
  const Folder folder;
  write_png(folder.path() / "a/a.png", 4, 4, PNG_FORMAT_RGBA, repeated(16, {250, 250, 250, 0}));
  check_colour(image_of(ImageFolder(folder.path(), {.height = 4, .width = 4}), 0), {0, 0, 0}, 0);
}

TEST_CASE("held_out_images_have_the_labels_of_the_classes_that_are_trained") {
  const Folder folder;
  write_png(folder.path() / "b/a.png", 2, 2, PNG_FORMAT_GRAY, repeated(4, {1}));
  const ImageFolder images(folder.path(), {.height = 2, .width = 2, .classes = {"a", "b"}});
  CHECK(image_of(images, 0).label == 1);
  CHECK(failure_of([&] {
          ImageFolder(folder.path(), {.classes = {"a", "c"}});
        }) == (folder.path() / "b").string() + ": is a class that is not among those that are trained");
}

TEST_CASE("folders_that_are_no_classes_are_named") {
  const Folder folder;
  const std::string name = folder.path().string();
  const auto failure = [&] { return failure_of([&] { ImageFolder(folder.path(), {.height = 2, .width = 2}); }); };
  CHECK(failure_of([&] { ImageFolder(folder.path() / "none"); }) == name + "/none: is no directory");
  CHECK(failure() == name + ": has no folders: images are looked for in one folder for each class");
  write_png(folder.path() / "cat/a.png", 2, 2, PNG_FORMAT_GRAY, repeated(4, {1}));
  fs::create_directory(folder.path() / "dog");
  CHECK(failure() == name + "/dog: is a class without images");
  folder.write("dog/notes.txt", "of no use");
  CHECK(failure().find(name + "/dog/notes.txt: ends in none of .jpg, .jpeg and .png") == 0);
  fs::create_symlink(folder.path() / "loop", folder.path() / "loop");
  CHECK(failure() == name + "/loop: cannot be examined: Too many levels of symbolic links");
  CHECK(failure_of([&] { ImageFolder(folder.path() / "loop"); }) ==
        name + "/loop: cannot be examined: Too many levels of symbolic links");
}

TEST_CASE("images_that_are_damaged_or_change_are_named") {
  const Folder folder;
  const fs::path jpeg = folder.path() / "a/a.jpg", png = folder.path() / "a/b.png";
  std::vector<std::uint8_t> noise;
  for (std::uint32_t i = 0; i < 3 * 64 * 64; ++i) noise.push_back(static_cast<std::uint8_t>((i * 2654435761u) >> 24));
  write_jpeg(jpeg, 64, 64, JCS_RGB, 3, noise);
  write_png(png, 64, 64, PNG_FORMAT_RGB, noise);
  const std::string good_jpeg = content_of(jpeg), good_png = content_of(png);
  const auto failure = [&](std::size_t index) {
    return failure_of([&] { image_of(ImageFolder(folder.path(), {.height = 8, .width = 8}), index); });
  };
  CHECK(failure(0) == "none");
  CHECK(failure(1) == "none");
  for (const double part : {0.02, 0.3, 0.7, 0.95}) {
    CAPTURE(part);
    const auto cut = [&](const std::string& whole) {
      return whole.substr(0, static_cast<std::size_t>(part * static_cast<double>(whole.size())));
    };
    folder.write("a/a.jpg", cut(good_jpeg));
    CHECK(failure(0).find(jpeg.string() + ": is ") == 0);
    folder.write("a/b.png", cut(good_png));
    CHECK(failure(1).find(png.string() + ": is ") == 0);
  }
  // Some bits that are turned over make another picture, and some no code.
  std::size_t without_code = 0;
  for (std::size_t at = good_jpeg.size() / 4; at < good_jpeg.size() - 100; at += 7) {
    std::string turned = good_jpeg;
    for (std::size_t i = at; i < at + 8; ++i) turned[i] = static_cast<char>(~turned[i]);
    folder.write("a/a.jpg", turned);
    without_code += failure(0) == jpeg.string() + ": is a damaged JPEG: Corrupt JPEG data: bad Huffman code";
  }
  CHECK(without_code > 20);
  folder.write("a/a.jpg", "");
  CHECK(failure(0) == jpeg.string() + ": is empty");
  folder.write("a/a.jpg", "GIF89a and more");
  CHECK(failure(0) == jpeg.string() + ": is neither a JPEG nor a PNG file");
  std::string wrong = good_png;
  for (std::size_t i = 60; i < 90; ++i) wrong[i] = static_cast<char>(~wrong[i]);
  folder.write("a/b.png", wrong);
  CHECK(failure(1).find(png.string() + ": is a damaged PNG") == 0);

  folder.write("a/a.jpg", good_jpeg);
  const ImageFolder images(folder.path(), {.height = 8, .width = 8});
  folder.write("a/a.jpg", good_jpeg + "more");
  CHECK(failure_of([&] { image_of(images, 0); }) ==
        fmt::format("{}: has changed since the folder was listed: it had {} bytes then, and has {}", jpeg.string(),
                    good_jpeg.size(), good_jpeg.size() + 4));
  fs::remove(jpeg);
  CHECK(failure_of([&] { image_of(images, 0); }) == jpeg.string() + ": there is no such file");
}

#else

TEST_CASE("a_build_without_libjpeg_and_libpng_says_what_to_install") {
  const Folder folder;
  CHECK_THROWS_WITH_AS(ImageFolder(folder.path()), doctest::Contains("libjpeg62-turbo-dev libpng-dev"),
                       UnavailableError);
}

#endif

}  // namespace image_folder_test
