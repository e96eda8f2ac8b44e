// The images of a data set in the files that MNIST is published in (http://yann.lecun.com/exdb/mnist): two magic bytes
// of zero, the type of an element, the number of dimensions, their sizes as big-endian 32-bit numbers, the elements.
// Compressed by gzip, as Debian's dataset-fashion-mnist has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace train_cnn {

struct LabelledImages {
  at::Tensor images;  // [samples, rows, columns], bytes
  at::Tensor labels;  // [samples], bytes
};

// `set` is "train" or "t10k". Throws tessera::DataError, which begins with the path, for files that are missing or
// are not what they must be.
LabelledImages read_images(const std::filesystem::path& directory, const char* set);

}  // namespace train_cnn
