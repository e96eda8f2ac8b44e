// Labelled images as bytes: the interface of where they come from, those held in memory, and readers of the files that
// data sets of small images are published in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera::vision {

// Every image of a source has these extents.
struct ImageExtents {
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t channels = 0;  // 1: grey, 3: red, green, blue

  std::size_t elements() const { return height * width * channels; }
  friend bool operator==(const ImageExtents&, const ImageExtents&) = default;
};

class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual std::size_t size() const = 0;  // images
  virtual ImageExtents extents() const = 0;
  virtual const std::vector<std::string>& classes() const = 0;  // their names; labels are places in this list

  // Writes image `index`, the channels of a pixel side by side, line by line, and its label. May be called from any
  // thread. Throws UsageError for an index >= size() and for pixels that are not extents().elements(); DataError where
  // the image cannot be read.
  virtual void read_image(std::size_t index, std::span<std::uint8_t> pixels, std::int32_t& label) const = 0;
};

class ImageSet final : public ImageSource {
 public:
  // pixels: of all images, one after the other. Throws UsageError when sizes do not fit or a label is no class.
  ImageSet(ImageExtents extents, std::vector<std::string> classes, std::vector<std::uint8_t> pixels,
           std::vector<std::int32_t> labels);

  std::size_t size() const final { return labels_.size(); }
  ImageExtents extents() const final { return extents_; }
  const std::vector<std::string>& classes() const final { return classes_; }
  void read_image(std::size_t index, std::span<std::uint8_t> pixels, std::int32_t& label) const final;

  std::span<const std::uint8_t> pixels() const { return pixels_; }
  std::span<const std::int32_t> labels() const { return labels_; }

 private:
  ImageExtents extents_;
  std::vector<std::string> classes_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int32_t> labels_;
};

// Which files of a published data set.
enum class ImagePart { training, held_out };

// A folder with the files of MNIST (http://yann.lecun.com/exdb/mnist) or Fashion-MNIST: train- and t10k-, images-idx3-
// and labels-idx1-ubyte, as they are or, with .gz, compressed by gzip. `classes` names the labels 0, 1, …
// Throws DataError, which begins with the path and says where, for files that are missing, damaged or cut off, of other
// sizes than they say, or with labels that are no class.
ImageSet read_mnist(const std::filesystem::path& directory, ImagePart part, std::vector<std::string> classes);
std::vector<std::string> digit_classes();    // "0" … "9"
std::vector<std::string> fashion_classes();  // "T-shirt/top" … "Ankle boot"

// A folder with CIFAR-10's binary files (https://www.cs.toronto.edu/~kriz/cifar.html): data_batch_1.bin and those that
// follow it, or test_batch.bin; with CIFAR-100's: train.bin or test.bin, of which the fine labels are taken. Class
// names come from batches.meta.txt or fine_label_names.txt where they are, else they are numbers. Throws as
// read_mnist().
ImageSet read_cifar10(const std::filesystem::path& directory, ImagePart part);
ImageSet read_cifar100(const std::filesystem::path& directory, ImagePart part);

}  // namespace tessera::vision

#pragma GCC visibility pop
