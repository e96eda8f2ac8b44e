// Pooling. Gradients are gathered: each pixel of x looks for the windows over it, so that threads may take any pixels
// and each sum has one order.
#include "tessera/vision/pooling.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nn/src/exported.hpp"
#include "nn/src/operation.hpp"
#include "nn/src/rows/active_rows.hpp"
#include "nn/src/shared_rows.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/cuda/kernels.hpp"
#include "vision/src/pool_sides.hpp"
#include "vision/src/rows/image_rows.hpp"

namespace tessera::vision {

namespace {

template <typename T>
T* pixel_of(ImageView<T> view, std::size_t image, std::size_t y, std::size_t x) {
  return view.data + ((image * view.height + y) * view.width + x) * view.channels;
}

// A row of one image's pixels.
struct ImageLine {
  std::size_t image;
  std::size_t y;
};

// function(line) for each line of the images, on the rank's threads.
template <typename T, typename Function>
void in_shares_of_lines(ImageView<T> view, const Function& function) {
  parallel::in_shares(shares_of_rows(view.images * view.height, view.width * view.channels),
                      [&](std::size_t begin, std::size_t end, std::size_t) {
                        for (std::size_t line = begin; line < end; ++line) {
                          function(ImageLine{line / view.height, line % view.height});
                        }
                      });
}

constexpr std::size_t most_places = 256;  // of a kernel with which the largest is looked for

// The windows of a line of results, as many at a time as see the same places of their kernels.
template <typename T>
void max_pool_line(const PoolSides& sides, ConstImageView<T> x, ImageView<T> y, std::uint8_t* all_places,
                   const ImageLine& line) {
  const PoolRange rows = sides.y.seen_by(line.y);
  const void* pixels[most_places];
  std::uint8_t places[most_places];
  for (std::size_t ox = 0; ox < y.width;) {
    const PoolRange columns = sides.x.seen_by(ox);
    const std::size_t windows = sides.x.alike_from_window(ox);
    std::size_t count = 0;
    for (std::size_t iy = rows.begin; iy < rows.end; ++iy) {
      for (std::size_t ix = columns.begin; ix < columns.end; ++ix, ++count) {
        pixels[count] = pixel_of(x, line.image, iy, ix);
        places[count] = static_cast<std::uint8_t>(sides.y.place(line.y, iy) * sides.x.kernel + sides.x.place(ox, ix));
      }
    }
    T* const results = pixel_of(y, line.image, line.y, ox);
    active_image_rows().max_pool({.format = format_of<T>,
                                  .pixels = pixels,
                                  .places = places,
                                  .count = count,
                                  .step = sides.x.stride * x.channels,
                                  .windows = windows,
                                  .to = results,
                                  .place = all_places + (results - y.data),
                                  .channels = x.channels});
    ox += windows;
  }
}

// Each pixel of a line of dx looks for the windows that see it: first those that see a kernel's first place of a
// stride, then those of the next one, as many pixels at a time as are seen alike.
template <typename T>
void max_pool_gradient_line(const PoolSides& sides, ConstImageView<T> dy, const std::uint8_t* all_places,
                            ImageView<T> dx, const ImageLine& line) {
  const std::size_t stride = sides.x.stride;
  const PoolRange rows = sides.y.that_see(line.y);
  const void* gradients[most_places];
  const std::uint8_t* places[most_places];
  std::uint8_t here[most_places];
  for (std::size_t first = 0; first < std::min(stride, dx.width); ++first) {
    for (std::size_t ix = first; ix < dx.width;) {
      const PoolRange columns = sides.x.that_see(ix);
      const std::size_t pixels = sides.x.alike_from_pixel(ix);
      std::size_t count = 0;
      for (std::size_t oy = rows.begin; oy < rows.end; ++oy) {
        for (std::size_t ox = columns.begin; ox < columns.end; ++ox, ++count) {
          const T* const from = pixel_of(dy, line.image, oy, ox);
          gradients[count] = from;
          places[count] = all_places + (from - dy.data);
          here[count] = static_cast<std::uint8_t>(sides.y.place(oy, line.y) * sides.x.kernel + sides.x.place(ox, ix));
        }
      }
      active_image_rows().max_pool_gradients({.format = format_of<T>,
                                              .dy = gradients,
                                              .places = places,
                                              .here = here,
                                              .count = count,
                                              .step = stride * dx.channels,
                                              .pixels = pixels,
                                              .to = pixel_of(dx, line.image, line.y, ix),
                                              .channels = dx.channels});
      ix += pixels * stride;
    }
  }
}

// to = the sum of from's pixels in a range of rows and columns, each divided by `before`, and the whole by `after`.
template <typename T>
struct PixelSum {
  ConstImageView<T> from;
  std::size_t image;
  PoolRange rows;
  PoolRange columns;
  Arithmetic<T> before;
  Arithmetic<T> after;

  void operator()(T* to) const {
    constexpr std::size_t lanes = 64;
    for (std::size_t first = 0; first < from.channels; first += lanes) {
      const std::size_t count = std::min(lanes, from.channels - first);
      Arithmetic<T> sums[lanes] = {};
      for (std::size_t y = rows.begin; y < rows.end; ++y) {
        for (std::size_t x = columns.begin; x < columns.end; ++x) {
          const T* const pixel = pixel_of(from, image, y, x) + first;
          for (std::size_t c = 0; c < count; ++c) sums[c] += load(pixel[c]) / before;
        }
      }
      for (std::size_t c = 0; c < count; ++c) to[first + c] = store<T>(sums[c] / after);
    }
  }
};

// Each pixel of `to` becomes the sum of those that range_of(side, its place) has, along both sides.
template <typename T>
void sum_pixels(const PoolSides& sides, ConstImageView<T> from, ImageView<T> to,
                PoolRange (PoolSide::*range_of)(std::size_t) const, bool divide_first) {
  const auto size = static_cast<Arithmetic<T>>(sides.y.kernel * sides.x.kernel);
  const Arithmetic<T> one{1};
  in_shares_of_lines(to, [&](const ImageLine& line) {
    for (std::size_t x = 0; x < to.width; ++x) {
      const PixelSum<T> sum{from,
                            line.image,
                            (sides.y.*range_of)(line.y),
                            (sides.x.*range_of)(x),
                            divide_first ? size : one,
                            divide_first ? one : size};
      sum(pixel_of(to, line.image, line.y, x));
    }
  });
}

template <typename A, typename B>
void require_pooled(const PoolShape& shape, ImageView<A> x, ImageView<B> y) {
  const HeightWidth size = shape.output(x.size());
  if (y.images == x.images && y.size() == size && y.channels == x.channels) return;
  throw UsageError(fmt::format(
      "pooling: {} images of {} x {} with {} channels become as many of {} x {}, but {} of {} x "
      "{} with {} channels were given",
      x.images, x.height, x.width, x.channels, size.height, size.width, y.images, y.height, y.width, y.channels));
}

std::size_t pooled_along(std::size_t image, std::size_t kernel, std::size_t stride, std::size_t padding) {
  if (kernel == 0 || stride == 0 || padding > kernel / 2) {
    throw UsageError(
        fmt::format("pooling: a kernel of {}, a stride of {} and a padding of {}: kernel and stride must be "
                    "above 0, and padding at most half of the kernel",
                    kernel, stride, padding));
  }
  const std::size_t padded = image + 2 * padding;
  if (padded < kernel) {
    throw UsageError(
        fmt::format("pooling: {} pixels, padded by {}, are fewer than the kernel's {}", image, padding, kernel));
  }
  return (padded - kernel) / stride + 1;
}

template <typename T>
cuda::PooledImages on_device(const PoolShape& shape, ConstImageView<T> x, ConstImageView<T> y) {
  return {format_of<T>, PoolSides(shape, x.size(), y.size()), x.images, x.channels};
}

}  // namespace

PoolSides::PoolSides(const PoolShape& shape, HeightWidth image, HeightWidth result)
    : y{shape.kernel.height, shape.stride.height, shape.padding.height, image.height, result.height},
      x{shape.kernel.width, shape.stride.width, shape.padding.width, image.width, result.width} {}

HeightWidth PoolShape::output(HeightWidth image) const {
  return {pooled_along(image.height, kernel.height, stride.height, padding.height),
          pooled_along(image.width, kernel.width, stride.width, padding.width)};
}

template <Element T>
void max_pool_forward(Stream& stream, const PoolShape& shape, ConstImageView<T> x, ImageView<T> y,
                      std::uint8_t* places) {
  require_pooled(shape, x, y);
  if (shape.kernel.height * shape.kernel.width > most_places) {
    throw UsageError(fmt::format("max pooling: a kernel of {} x {} has more than 256 pixels", shape.kernel.height,
                                 shape.kernel.width));
  }
  if (on_cuda(stream)) {
    return issue<T>(stream, "pooling", [of = on_device<T>(shape, x, y), x = x.data, y = y.data, places](void* native) {
      cuda::max_pool(native, of, x, y, places);
    });
  }
  stream.submit([sides = PoolSides(shape, x.size(), y.size()), x, y, places] {
    in_shares_of_lines(y, [&](const ImageLine& line) { max_pool_line<T>(sides, x, y, places, line); });
  });
}

template <Element T>
void max_pool_backward(Stream& stream, const PoolShape& shape, ConstImageView<T> dy, const std::uint8_t* places,
                       ImageView<T> dx) {
  require_pooled(shape, dx, dy);
  if (on_cuda(stream)) {
    return issue<T>(stream, "pooling",
                    [of = on_device<T>(shape, dx, dy), dy = dy.data, places, dx = dx.data](void* native) {
                      cuda::max_pool_gradient(native, of, dy, places, dx);
                    });
  }
  stream.submit([sides = PoolSides(shape, dx.size(), dy.size()), dy, places, dx] {
    in_shares_of_lines(dx, [&](const ImageLine& line) { max_pool_gradient_line<T>(sides, dy, places, dx, line); });
  });
}

template <Element T>
void average_pool_forward(Stream& stream, const PoolShape& shape, ConstImageView<T> x, ImageView<T> y) {
  require_pooled(shape, x, y);
  if (on_cuda(stream)) {
    return issue<T>(stream, "pooling", [of = on_device<T>(shape, x, y), x = x.data, y = y.data](void* native) {
      cuda::average_pool(native, of, x, y);
    });
  }
  stream.submit(
      [sides = PoolSides(shape, x.size(), y.size()), x, y] { sum_pixels<T>(sides, x, y, &PoolSide::seen_by, false); });
}

template <Element T>
void average_pool_backward(Stream& stream, const PoolShape& shape, ConstImageView<T> dy, ImageView<T> dx) {
  require_pooled(shape, dx, dy);
  if (on_cuda(stream)) {
    return issue<T>(stream, "pooling", [of = on_device<T>(shape, dx, dy), dy = dy.data, dx = dx.data](void* native) {
      cuda::average_pool_gradient(native, of, dy, dx);
    });
  }
  stream.submit([sides = PoolSides(shape, dx.size(), dy.size()), dy, dx] {
    sum_pixels<T>(sides, dy, dx, &PoolSide::that_see, true);
  });
}

template <Element T>
void global_average_forward(Stream& stream, ConstImageView<T> x, MatrixView<T> y) {
  require_shape("global average: y", y, x.images, x.channels);
  if (x.height * x.width == 0 && x.images > 0) throw UsageError("global average: images must have a pixel");
  const HeightWidth all = x.size();
  average_pool_forward<T>(stream, {.kernel = all}, x, {y.data, x.images, 1, 1, x.channels});
}

template <Element T>
void global_average_backward(Stream& stream, ConstMatrixView<T> dy, ImageView<T> dx) {
  require_shape("global average: dy", dy, dx.images, dx.channels);
  const HeightWidth all = dx.size();
  average_pool_backward<T>(stream, {.kernel = all}, ConstImageView<T>{dy.data, dx.images, 1, 1, dx.channels}, dx);
}

namespace {

template <typename T>
ImageView<T> push_pooled(ActivationStack& stack, const PoolShape& shape, ConstImageView<T> x) {
  const HeightWidth size = shape.output(x.size());
  return {stack.push<T>(x.images * size.height * size.width * x.channels).data(), x.images, size.height, size.width,
          x.channels};
}

}  // namespace

template <Element T>
ImageView<T> MaxPool<T>::push_result(ActivationStack& stack, ConstImageView<T> x) const {
  return push_pooled<T>(stack, shape_, x);
}

template <Element T>
typename MaxPool<T>::Saved MaxPool<T>::forward(Window& window, ActivationStack& stack, ImageView<const T> x,
                                               ImageView<T> y) {
  const Saved saved{stack.push<std::uint8_t>(y.elements())};
  enqueue(window, max_pool_forward<T>, shape_, x, y, saved.places.data());
  return saved;
}

template <Element T>
void MaxPool<T>::backward(Window& window, ActivationStack&, const Saved& saved, ImageView<const T> dy,
                          ImageView<T> dx) {
  enqueue(window, max_pool_backward<T>, shape_, dy, saved.places.data(), dx);
}

template <Element T>
ImageView<T> AveragePool<T>::push_result(ActivationStack& stack, ConstImageView<T> x) const {
  return push_pooled<T>(stack, shape_, x);
}

template <Element T>
typename AveragePool<T>::Saved AveragePool<T>::forward(Window& window, ActivationStack&, ImageView<const T> x,
                                                       ImageView<T> y) {
  enqueue(window, average_pool_forward<T>, shape_, x, y);
  return {};
}

template <Element T>
void AveragePool<T>::backward(Window& window, ActivationStack&, const Saved&, ImageView<const T> dy, ImageView<T> dx) {
  enqueue(window, average_pool_backward<T>, shape_, dy, dx);
}

template <Element T>
typename GlobalAverage<T>::Saved GlobalAverage<T>::forward(Window& window, ActivationStack&, ImageView<const T> x,
                                                           MatrixView<T> y) {
  enqueue(window, global_average_forward<T>, x, y);
  return {};
}

template <Element T>
void GlobalAverage<T>::backward(Window& window, ActivationStack&, const Saved&, MatrixView<const T> dy,
                                ImageView<T> dx) {
  enqueue(window, global_average_backward<T>, dy, dx);
}

#define TESSERA_POOLING(T)                                                                                            \
  template TESSERA_EXPORTED void max_pool_forward(Stream&, const PoolShape&, ConstImageView<T>, ImageView<T>,         \
                                                  std::uint8_t*);                                                     \
  template TESSERA_EXPORTED void max_pool_backward(Stream&, const PoolShape&, ConstImageView<T>, const std::uint8_t*, \
                                                   ImageView<T>);                                                     \
  template TESSERA_EXPORTED void average_pool_forward(Stream&, const PoolShape&, ConstImageView<T>, ImageView<T>);    \
  template TESSERA_EXPORTED void average_pool_backward(Stream&, const PoolShape&, ConstImageView<T>, ImageView<T>);   \
  template TESSERA_EXPORTED void global_average_forward(Stream&, ConstImageView<T>, MatrixView<T>);                   \
  template TESSERA_EXPORTED void global_average_backward(Stream&, ConstMatrixView<T>, ImageView<T>);                  \
  template class MaxPool<T>;                                                                                          \
  template class AveragePool<T>;                                                                                      \
  template class GlobalAverage<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_POOLING)

}  // namespace tessera::vision
