// Pooling: a thread has one channel of one result, or of one pixel whose gradient it gathers from the windows over it,
// in the CPU's order.
#include "nn/src/cuda/elements.cuh"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision::cuda {

namespace {

// Which element of images of `height` × `width` a number is.
struct Element {
  std::size_t image;
  std::size_t y;
  std::size_t x;
  std::size_t channel;
};

struct Images {
  std::size_t height;
  std::size_t width;
  std::size_t channels;

  __device__ Element element(std::size_t i) const {
    const std::size_t pixel = i / channels;
    return {pixel / width / height, pixel / width % height, pixel % width, i % channels};
  }
  __device__ std::size_t at(const Element& of, std::size_t y, std::size_t x) const {
    return ((of.image * height + y) * width + x) * channels + of.channel;
  }
};

struct Pooling {
  PoolSides sides;
  Images pixels;
  Images results;

  // function(index of x, its place in the kernel) for the pixels that a window sees.
  template <typename Function>
  __device__ void for_each_pixel(const Element& result, const Function& function) const {
    const PoolRange rows = sides.y.seen_by(result.y);
    const PoolRange columns = sides.x.seen_by(result.x);
    for (std::size_t y = rows.begin; y < rows.end; ++y) {
      for (std::size_t x = columns.begin; x < columns.end; ++x) {
        function(pixels.at(result, y, x),
                 sides.y.place(result.y, y) * sides.x.kernel + sides.x.place(result.x, x));
      }
    }
  }
  // function(index of y, the pixel's place in its kernel) for the windows that see a pixel.
  template <typename Function>
  __device__ void for_each_window(const Element& pixel, const Function& function) const {
    const PoolRange rows = sides.y.that_see(pixel.y);
    const PoolRange columns = sides.x.that_see(pixel.x);
    for (std::size_t y = rows.begin; y < rows.end; ++y) {
      for (std::size_t x = columns.begin; x < columns.end; ++x) {
        function(results.at(pixel, y, x), sides.y.place(y, pixel.y) * sides.x.kernel + sides.x.place(x, pixel.x));
      }
    }
  }
  __device__ float kernel_pixels() const { return static_cast<float>(sides.y.kernel * sides.x.kernel); }
};

__device__ inline bool is_number(float value) { return value == value; }

// The first of the largest; a NaN is larger than everything.
template <typename T>
__global__ void take_largest(const Pooling of, const T* x, T* y, std::uint8_t* places, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    bool first = true;
    float largest = 0.0f;
    std::size_t at = 0;
    of.for_each_pixel(of.results.element(i), [&](std::size_t from, std::size_t place) {
      const float value = to_float(x[from]);
      if (first || (is_number(largest) && !(value <= largest))) {
        largest = value;
        at = place;
      }
      first = false;
    });
    y[i] = to_element<T>(largest);
    places[i] = static_cast<std::uint8_t>(at);
  }
}

template <typename T>
__global__ void gather_from_largest(const Pooling of, const T* dy, const std::uint8_t* places, T* dx,
                                    std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    float sum = 0.0f;
    of.for_each_window(of.pixels.element(i), [&](std::size_t from, std::size_t place) {
      if (places[from] == place) sum = sum + to_float(dy[from]);
    });
    dx[i] = to_element<T>(sum);
  }
}

template <typename T>
__global__ void take_average(const Pooling of, const T* x, T* y, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    float sum = 0.0f;
    of.for_each_pixel(of.results.element(i),
                      [&](std::size_t from, std::size_t) { sum = sum + to_float(x[from]); });
    y[i] = to_element<T>(sum / of.kernel_pixels());
  }
}

template <typename T>
__global__ void gather_from_averages(const Pooling of, const T* dy, T* dx, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    float sum = 0.0f;
    of.for_each_window(of.pixels.element(i), [&](std::size_t from, std::size_t) {
      sum = sum + to_float(dy[from]) / of.kernel_pixels();
    });
    dx[i] = to_element<T>(sum);
  }
}

Pooling pooling_of(const PooledImages& of) {
  return {of.sides,
          {of.sides.y.image, of.sides.x.image, of.channels},
          {of.sides.y.result, of.sides.x.result, of.channels}};
}

// function(Type<T>, its pooling, elements) where there are any: of x or of y.
template <typename Function>
void with_images(const PooledImages& of, Images Pooling::*which, const Function& function) {
  const Pooling pooling = pooling_of(of);
  const Images& images = pooling.*which;
  const std::size_t count = of.images * images.height * images.width * images.channels;
  if (count == 0) return;
  for_element(of.format, [&](auto type) { function(type, pooling, count); });
}

}  // namespace

void max_pool(void* native, const PooledImages& of, const void* x, void* y, std::uint8_t* places) {
  with_images(of, &Pooling::results, [&](auto type, const Pooling& pooling, std::size_t count) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(count), take_largest<T>, pooling, static_cast<const T*>(x), static_cast<T*>(y), places,
           count);
  });
}

void max_pool_gradient(void* native, const PooledImages& of, const void* dy, const std::uint8_t* places, void* dx) {
  with_images(of, &Pooling::pixels, [&](auto type, const Pooling& pooling, std::size_t count) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(count), gather_from_largest<T>, pooling, static_cast<const T*>(dy), places,
           static_cast<T*>(dx), count);
  });
}

void average_pool(void* native, const PooledImages& of, const void* x, void* y) {
  with_images(of, &Pooling::results, [&](auto type, const Pooling& pooling, std::size_t count) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(count), take_average<T>, pooling, static_cast<const T*>(x), static_cast<T*>(y), count);
  });
}

void average_pool_gradient(void* native, const PooledImages& of, const void* dy, void* dx) {
  with_images(of, &Pooling::pixels, [&](auto type, const Pooling& pooling, std::size_t count) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(count), gather_from_averages<T>, pooling, static_cast<const T*>(dy), static_cast<T*>(dx),
           count);
  });
}

}  // namespace tessera::vision::cuda
