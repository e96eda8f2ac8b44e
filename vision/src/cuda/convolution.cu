// Around the products of a convolution: weights turned so that a pixel's channels stay side by side, the matrix of what
// the kernel sees, and its gradient's way back, which each pixel gathers, so that no two threads add to one number.
#include "nn/src/cuda/elements.cuh"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision::cuda {

namespace {

template <typename T>
__global__ void turn_elements(const WeightOrder of, const T* weight, T* turned) {
  const std::size_t count = of.out * of.channels * of.places;
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const std::size_t channel = i % of.channels;
    const std::size_t place = i / of.channels % of.places;
    const std::size_t out = i / of.channels / of.places;
    turned[i] = weight[(out * of.channels + channel) * of.places + place];
  }
}

template <typename Sum, typename T>
__global__ void turn_sums(const WeightOrder of, const Sum* sums, T* dweight, bool accumulate) {
  const std::size_t count = of.out * of.channels * of.places;
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const std::size_t place = i % of.places;
    const std::size_t channel = i / of.places % of.channels;
    const std::size_t out = i / of.places / of.channels;
    const float sum = to_float(sums[(out * of.places + place) * of.channels + channel]);
    dweight[i] = to_element<T>(accumulate ? to_float(dweight[i]) + sum : sum);
  }
}

template <typename T>
__global__ void add_row_to_rows(const T* row, T* y, std::size_t rows, std::size_t columns) {
  for (std::size_t i = thread_of_grid(); i < rows * columns; i += threads_of_grid()) {
    y[i] = to_element<T>(to_float(y[i]) + to_float(row[i % columns]));
  }
}

// A part's images in numbers of 32 bits, which a device divides several times as fast.
struct PartExtents {
  Pair32 image, result, kernel, stride, padding, dilation;
  std::uint32_t channels;        // of the group
  std::uint32_t image_channels;  // of all groups
  std::uint32_t first_channel;
  std::uint32_t first_image;
};

PartExtents extents_of(const ConvolutionPart& part) {
  const ConvolutionGeometry& of = part.of;
  const std::uint32_t channels = of.in / of.groups;
  return {of.image,     of.result, of.kernel, of.stride,           of.padding,
          of.dilation,  channels,  of.in,     part.group * channels, part.first_image};
}

// A thread has a pack of one pixel's channels at one place of the kernel.
template <std::size_t width, typename T>
__global__ void see(const PartExtents e, const T* x, T* seen) {
  const std::uint32_t packs = e.channels / static_cast<std::uint32_t>(width);
  const std::uint32_t count = e.result.height * e.result.width * e.kernel.height * e.kernel.width * packs;
  const std::size_t pixels = std::size_t{e.image.height} * e.image.width;
  const T* const image = x + (e.first_image + blockIdx.y) * pixels * e.image_channels;
  T* const to = seen + blockIdx.y * std::size_t{count} * width;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    std::uint32_t rest = i / packs;
    const std::uint32_t channel = (i - rest * packs) * static_cast<std::uint32_t>(width);
    const std::uint32_t kx = rest % e.kernel.width;
    rest /= e.kernel.width;
    const std::uint32_t ky = rest % e.kernel.height;
    rest /= e.kernel.height;
    const std::uint32_t ox = rest % e.result.width;
    const std::uint32_t oy = rest / e.result.width;
    const std::uint32_t iy = oy * e.stride.height + ky * e.dilation.height - e.padding.height;  // may wrap around
    const std::uint32_t ix = ox * e.stride.width + kx * e.dilation.width - e.padding.width;
    float values[width] = {};
    if (iy < e.image.height && ix < e.image.width) {
      const std::size_t pixel = std::size_t{iy} * e.image.width + ix;
      load<width>(image + pixel * e.image_channels + e.first_channel + channel, values);
    }
    store<width>(to + std::size_t{i} * width, values);
  }
}

// Along one side: whether the kernel's place k of some result's pixel is the image's pixel at `padded` - padding.
struct Seer {
  bool found;
  std::uint32_t at;
};
__device__ inline Seer seer_of(std::uint32_t padded, std::uint32_t k, std::uint32_t stride, std::uint32_t results) {
  const std::uint32_t from = padded - k;  // may wrap around
  const std::uint32_t at = from / stride;
  return {k <= padded && at * stride == from && at < results, at};
}

// Results' pixels in ascending order, which the kernel's places have in descending order.
template <std::size_t width, typename T>
__global__ void gather_gradient(const PartExtents e, const float* dseen, T* dx) {
  const std::uint32_t packs = e.channels / static_cast<std::uint32_t>(width);
  const std::uint32_t count = e.image.height * e.image.width * packs;
  const std::size_t places = std::size_t{e.kernel.height} * e.kernel.width;
  const float* const from = dseen + blockIdx.y * std::size_t{e.result.height} * e.result.width * places * e.channels;
  const std::size_t pixels = std::size_t{e.image.height} * e.image.width;
  T* const image = dx + (e.first_image + blockIdx.y) * pixels * e.image_channels;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const std::uint32_t pixel = i / packs;
    const std::uint32_t channel = (i - pixel * packs) * static_cast<std::uint32_t>(width);
    const std::uint32_t iy = pixel / e.image.width + e.padding.height;
    const std::uint32_t ix = pixel % e.image.width + e.padding.width;
    float sums[width] = {};
    for (std::uint32_t ky = e.kernel.height; ky-- > 0;) {
      const Seer y = seer_of(iy, ky * e.dilation.height, e.stride.height, e.result.height);
      if (!y.found) continue;
      for (std::uint32_t kx = e.kernel.width; kx-- > 0;) {
        const Seer x = seer_of(ix, kx * e.dilation.width, e.stride.width, e.result.width);
        if (!x.found) continue;
        const std::size_t row = std::size_t{y.at} * e.result.width + x.at;
        float values[width];
        load<width>(from + (row * places + ky * e.kernel.width + kx) * e.channels + channel, values);
#pragma unroll
        for (std::size_t k = 0; k < width; ++k) sums[k] = sums[k] + values[k];
      }
    }
    store<width>(image + std::size_t{pixel} * e.image_channels + e.first_channel + channel, sums);
  }
}

// Blocks for one image's items, once for each image.
tessera::cuda::Launch blocks_of_images(std::size_t items, std::uint32_t images) {
  tessera::cuda::Launch how = blocks_for(items);
  how.blocks.y = images;
  return how;
}

// Whether pixels consist of whole packs in each of these matrices.
template <typename T>
bool packs_of_pixels(const PartExtents& e, const void* image) {
  constexpr std::size_t width = pack_width<T>;
  return e.channels % width == 0 && e.image_channels % width == 0 && packed<T>(image);
}

}  // namespace

void turn_weights(void* native, Format format, const WeightOrder& of, const void* weight, void* turned) {
  for_element(format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(of.out * of.channels * of.places), turn_elements<T>, of,
           static_cast<const T*>(weight), static_cast<T*>(turned));
  });
}

void turn_back(void* native, const TurnedGradient& a) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const auto blocks = blocks_for(a.of.out * a.of.channels * a.of.places);
    T* const dweight = static_cast<T*>(a.dweight);
    if (a.sums_format == Format::fp32) {
      launch(native, blocks, turn_sums<float, T>, a.of, static_cast<const float*>(a.sums), dweight, a.accumulate);
    } else {
      launch(native, blocks, turn_sums<T, T>, a.of, static_cast<const T*>(a.sums), dweight, a.accumulate);
    }
  });
}

void add_to_rows(void* native, const SpreadRow& a) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(a.rows * a.columns), add_row_to_rows<T>, static_cast<const T*>(a.row),
           static_cast<T*>(a.y), a.rows, a.columns);
  });
}

void see_pixels(void* native, const ConvolutionPart& part, const void* x, void* seen) {
  const PartExtents e = extents_of(part);
  const std::size_t elements = std::size_t{e.result.height} * e.result.width * part.of.depth();
  for_element(part.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const bool packs = packs_of_pixels<T>(e, x);
    launch(native, blocks_of_images(packs ? elements / pack_width<T> : elements, part.images),
           packs ? see<pack_width<T>, T> : see<1, T>, e, static_cast<const T*>(x), static_cast<T*>(seen));
  });
}

void give_pixels_back(void* native, const ConvolutionPart& part, const float* dseen, void* dx) {
  const PartExtents e = extents_of(part);
  const std::size_t elements = std::size_t{e.image.height} * e.image.width * e.channels;
  for_element(part.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const bool packs = packs_of_pixels<T>(e, dx);
    launch(native, blocks_of_images(packs ? elements / pack_width<T> : elements, part.images),
           packs ? gather_gradient<pack_width<T>, T> : gather_gradient<1, T>, e, dseen, static_cast<T*>(dx));
  });
}

}  // namespace tessera::vision::cuda
