// Bytes become floats by a table, and where they come from is an offset and a direction: an augmented image costs what
// a plain one does.
#include "tessera/vision/image_batches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/base/philox.hpp"

namespace tessera::vision {

namespace {

constexpr std::size_t octets = 256;

// Chance makes this of one sample in one epoch.
struct Chance {
  std::ptrdiff_t down = 0;   // the line that comes first, and
  std::ptrdiff_t right = 0;  // the column
  bool flipped = false;
  std::ptrdiff_t cut_y = 0;  // the middle of what is cut out
  std::ptrdiff_t cut_x = 0;
};

// A number below `count` from 32 random bits; their unevenness is below 2^-20 for any image's side.
std::ptrdiff_t below(std::uint32_t word, std::size_t count) {
  return static_cast<std::ptrdiff_t>((std::uint64_t{word} * count) >> 32);
}

std::ptrdiff_t within(std::uint32_t word, std::size_t shift) {
  return below(word, 2 * shift + 1) - static_cast<std::ptrdiff_t>(shift);
}

Chance chance_of(const Augmentation& of, std::size_t index, std::uint64_t epoch, const ImageExtents& extents) {
  const PhiloxKey key{static_cast<std::uint32_t>(of.seed), static_cast<std::uint32_t>(of.seed >> 32)};
  const auto words = [&](std::uint32_t part) {
    return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(std::uint64_t{index} >> 32),
                   static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32) << 1 | part},
                  key);
  };
  const PhiloxCounter first = words(0);
  const PhiloxCounter second = words(1);
  return {.down = within(first[0], of.shift),
          .right = within(first[1], of.shift),
          .flipped = of.flip && (first[2] & 1) != 0,
          .cut_y = below(second[0], extents.height),
          .cut_x = below(second[1], extents.width)};
}

struct Span {
  std::size_t begin;
  std::size_t end;
};

// `length` pixels around the middle, within the side.
Span around(std::ptrdiff_t middle, std::size_t length, std::size_t side) {
  const std::ptrdiff_t begin = middle - static_cast<std::ptrdiff_t>(length / 2);
  const auto limited = [&](std::ptrdiff_t at) {
    return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(at, 0, static_cast<std::ptrdiff_t>(side)));
  };
  return {limited(begin), limited(begin + static_cast<std::ptrdiff_t>(length))};
}

}  // namespace

ChannelMoments channel_moments(const ImageSource& source, std::size_t samples) {
  const ImageExtents extents = source.extents();
  const std::size_t count = samples == 0 ? source.size() : std::min(samples, source.size());
  std::vector<std::uint64_t> seen(extents.channels * octets, 0);  // how often each byte, which makes the sums exact
  std::vector<std::uint8_t> pixels(extents.elements());
  std::int32_t label = 0;
  for (std::size_t i = 0; i < count; ++i) {
    source.read_image(i, pixels, label);
    for (std::size_t at = 0; at < pixels.size(); ++at) ++seen[at % extents.channels * octets + pixels[at]];
  }
  const double all = std::max(1.0, static_cast<double>(count * extents.height * extents.width));
  ChannelMoments moments;
  for (std::size_t c = 0; c < extents.channels; ++c) {
    double sum = 0.0;
    double squares = 0.0;
    for (std::size_t octet = 0; octet < octets; ++octet) {
      const double value = static_cast<double>(octet) / 255.0;
      const auto times = static_cast<double>(seen[c * octets + octet]);
      sum += times * value;
      squares += times * value * value;
    }
    const double mean = sum / all;
    const double variance = squares / all - mean * mean;
    moments.mean.push_back(static_cast<float>(mean));
    moments.deviation.push_back(variance > 1e-12 ? static_cast<float>(std::sqrt(variance)) : 1.0f);
  }
  return moments;
}

ImageBatches::ImageBatches(std::shared_ptr<const ImageSource> source, ChannelMoments moments, Augmentation augmentation)
    : source_(std::move(source)), augmentation_(augmentation) {
  const std::size_t channels = source_->extents().channels;
  if (moments.mean.size() != channels || moments.deviation.size() != channels) {
    throw UsageError(fmt::format("ImageBatches: images have {} channels, but there are {} means and {} deviations",
                                 channels, moments.mean.size(), moments.deviation.size()));
  }
  for (std::size_t c = 0; c < channels; ++c) {
    if (!(moments.deviation[c] > 0.0f)) {
      throw UsageError(
          fmt::format("ImageBatches: the deviation of channel {} must be above 0, but is {}", c, moments.deviation[c]));
    }
    for (std::size_t octet = 0; octet < octets; ++octet) {
      const double value = static_cast<double>(octet) / 255.0 - static_cast<double>(moments.mean[c]);
      values_.push_back(static_cast<float>(value / static_cast<double>(moments.deviation[c])));
    }
  }
}

void ImageBatches::read_sample(std::size_t index, std::uint64_t epoch, float* features, std::int32_t& label) const {
  const ImageExtents extents = source_->extents();
  thread_local std::vector<std::uint8_t> pixels;  // keeps its memory for the next sample
  pixels.resize(extents.elements());
  source_->read_image(index, pixels, label);
  const Chance chance = chance_of(augmentation_, index, epoch, extents);
  const Span cut_y = around(chance.cut_y, augmentation_.cutout, extents.height);
  const Span cut_x = around(chance.cut_x, augmentation_.cutout, extents.width);
  for (std::size_t y = 0; y < extents.height; ++y) {
    const std::size_t from_y = y + static_cast<std::size_t>(chance.down);  // wraps around where it is outside
    const bool cut_line = y >= cut_y.begin && y < cut_y.end;
    for (std::size_t x = 0; x < extents.width; ++x, features += extents.channels) {
      const std::size_t at_x = chance.flipped ? extents.width - 1 - x : x;
      const std::size_t from_x = at_x + static_cast<std::size_t>(chance.right);
      if (from_y >= extents.height || from_x >= extents.width || (cut_line && x >= cut_x.begin && x < cut_x.end)) {
        std::fill_n(features, extents.channels, 0.0f);
        continue;
      }
      const std::uint8_t* const pixel = pixels.data() + (from_y * extents.width + from_x) * extents.channels;
      for (std::size_t c = 0; c < extents.channels; ++c) features[c] = values_[c * octets + pixel[c]];
    }
  }
}

}  // namespace tessera::vision
