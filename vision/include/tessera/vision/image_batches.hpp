// Images as batches of floats: normalised, and augmented by functions of (seed, epoch, sample) alone, so that a sample
// looks the same however many ranks and loader threads there are, and another way in each epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/labelled_source.hpp"
#include "tessera/vision/images.hpp"

#pragma GCC visibility push(default)

namespace tessera::vision {

// A pixel's byte b becomes (b / 255 - mean) / deviation, channel by channel.
struct ChannelMoments {
  std::vector<float> mean;
  std::vector<float> deviation;  // above 0
};

// Returns the moments of the first `samples` images, which are read once; 0: of all. A channel that never changes has a
// deviation of 1.
ChannelMoments channel_moments(const ImageSource& source, std::size_t samples = 0);

struct Augmentation {
  // The image is moved by up to so many pixels up, down, left and right; what comes in from outside is the mean (0 when
  // normalised): a random crop of the padded image.
  std::size_t shift = 0;
  bool flip = false;       // left and right, every second time
  std::size_t cutout = 0;  // side of a square with the mean in it, around any pixel (DeVries & Taylor 2017); 0: none
  std::uint64_t seed = 0;
};

// Features of a sample are its pixels, [height, width, channels].
class ImageBatches final : public LabelledSource {
 public:
  // Throws UsageError when the moments are not one for each channel, or a deviation is not above 0.
  ImageBatches(std::shared_ptr<const ImageSource> source, ChannelMoments moments, Augmentation augmentation = {});

  std::size_t size() const final { return source_->size(); }
  std::size_t columns() const final { return source_->extents().elements(); }
  std::size_t classes() const final { return source_->classes().size(); }
  const ImageSource& source() const { return *source_; }

 protected:
  void read_sample(std::size_t index, std::uint64_t epoch, float* features, std::int32_t& label) const final;

 private:
  std::shared_ptr<const ImageSource> source_;
  Augmentation augmentation_;
  std::vector<float> values_;  // [channels, 256]: of each byte
};

}  // namespace tessera::vision

#pragma GCC visibility pop
