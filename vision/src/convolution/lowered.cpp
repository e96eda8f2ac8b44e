// Weights are turned around first, so that the channels of a pixel, which stand side by side in images, do so in the
// depth of the products, too. Everything is in the type of arithmetic, 16-bit elements widened on the way.
#include "vision/src/convolution/lowered.hpp"

#include <algorithm>

#include "nn/src/gemm.hpp"
#include "nn/src/operation.hpp"
#include "nn/src/panel.hpp"
#include "nn/src/rows/active_rows.hpp"
#include "nn/src/shared_rows.hpp"

namespace tessera::vision::convolutions::lowered {

namespace {

// Elements of the matrix of what the kernel sees: 2 MiB of floats.
constexpr std::size_t most_seen = std::size_t{1} << 19;

// A line is a row of a result's pixels; those of all images follow each other.
struct Lines {
  std::size_t first;
  std::size_t count;
};

std::size_t lines_of(const ConvolutionGeometry& of) { return std::size_t{of.images} * of.result.height; }

// Those of whole images, or a part of one image's.
std::size_t lines_at_once(const ConvolutionGeometry& of) {
  const std::size_t line = std::max<std::size_t>(1, of.result.width * of.depth());
  const std::size_t lines = std::max<std::size_t>(1, most_seen / line);
  const std::size_t height = std::max<std::size_t>(1, of.result.height);
  return lines < height ? lines : std::min(lines / height * height, std::max<std::size_t>(1, lines_of(of)));
}

std::size_t images_at_once(const ConvolutionGeometry& of) {
  return (lines_at_once(of) + of.result.height - 1) / std::max<std::size_t>(1, of.result.height);
}

// Where in the scratch memory what stands.
template <typename T>
struct Room {
  using Real = Arithmetic<T>;

  explicit Room(const ConvolutionGeometry& of)
      : weights(of.weights()),
        pixels(lines_at_once(of) * of.result.width),
        seen(pixels * of.depth()),
        results(has_panels<T> ? pixels * of.group_out() : 0),
        image_gradients(has_panels<T> ? images_at_once(of) * of.image.height * of.image.width * of.group_in() : 0) {}
  std::size_t elements() const { return 2 * weights + seen + results + image_gradients; }

  Real* weight_at(Real* room) const { return room; }
  Real* dweight_at(Real* room) const { return room + weights; }
  Real* seen_at(Real* room) const { return room + 2 * weights; }
  Real* results_at(Real* room) const { return room + 2 * weights + seen; }
  Real* image_gradients_at(Real* room) const { return results_at(room) + results; }

  std::size_t weights;
  std::size_t pixels;
  std::size_t seen;
  std::size_t results;  // 16-bit ones, widened; and likewise
  std::size_t image_gradients;
};

// function(index in [out, channel, kernel], index in [out, kernel, channel]) for each weight.
template <typename Function>
void for_each_weight(const ConvolutionGeometry& of, const Function& function) {
  const std::size_t channels = of.group_in();
  const std::size_t places = std::size_t{of.kernel.height} * of.kernel.width;
  for (std::size_t out = 0; out < of.out; ++out) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      for (std::size_t place = 0; place < places; ++place) {
        function((out * channels + channel) * places + place, (out * places + place) * channels + channel);
      }
    }
  }
}

template <typename T>
void turn_weights(const ConvolutionGeometry& of, const T* weight, Arithmetic<T>* turned) {
  for_each_weight(of, [&](std::size_t from, std::size_t to) { turned[to] = load(weight[from]); });
}

template <typename T>
void turn_back(const ConvolutionGeometry& of, const Arithmetic<T>* turned, T* dweight, bool accumulate) {
  for_each_weight(of, [&](std::size_t to, std::size_t from) {
    dweight[to] = store<T>(accumulate ? load(dweight[to]) + turned[from] : turned[from]);
  });
}

// Calls function(seen, pixel) for each place of the kernel over a line of the result: where in the matrix its channels
// stand, and which pixel of all images that is; or, beyond the image, `outside`.
constexpr std::size_t outside = ~std::size_t{0};

template <typename Function>
void for_each_place(const ConvolutionGeometry& of, std::size_t line, const Function& function) {
  const std::size_t image = line / of.result.height;
  const std::size_t y = line % of.result.height;
  std::size_t seen = 0;
  for (std::size_t x = 0; x < of.result.width; ++x) {
    for (std::size_t i = 0; i < of.kernel.height; ++i) {
      const std::size_t at_y = y * of.stride.height + i * of.dilation.height - of.padding.height;  // may wrap around
      for (std::size_t j = 0; j < of.kernel.width; ++j, seen += of.group_in()) {
        const std::size_t at_x = x * of.stride.width + j * of.dilation.width - of.padding.width;
        const bool inside = at_y < of.image.height && at_x < of.image.width;
        function(seen, inside ? (image * of.image.height + at_y) * of.image.width + at_x : outside);
      }
    }
  }
}

// The part of an operation that one group and some lines have.
template <typename T>
struct Part {
  ConvolutionGeometry of;
  std::size_t group;
  Lines lines;

  std::size_t end() const { return lines.first + lines.count; }
  bool begins_images() const { return lines.first % of.result.height == 0; }
  bool ends_images() const { return end() % of.result.height == 0; }
  std::size_t first_image_pixel() const { return lines.first / of.result.height * of.image.height * of.image.width; }
  std::size_t image_pixels() const {  // of all images that it touches
    const std::size_t images = (lines.count + of.result.height - 1) / of.result.height;
    return images * of.image.height * of.image.width;
  }
  std::size_t first_in() const { return group * of.group_in(); }
  std::size_t pixels() const { return lines.count * of.result.width; }
  std::size_t first_pixel() const { return lines.first * of.result.width; }
  std::size_t first_out() const { return group * of.group_out(); }
};

// Returns what the kernel sees at the part's pixels: [pixels, depth].
template <typename T>
Operand<Arithmetic<T>> see(const Part<T>& part, const T* x, Arithmetic<T>* room) {
  const ConvolutionGeometry& of = part.of;
  if constexpr (std::is_same_v<T, Arithmetic<T>>) {
    if (of.sees_the_image()) {
      return {.data = x + part.first_pixel() * of.in + part.first_in(), .stride = of.in};
    }
  }
  const std::size_t channels = of.group_in();
  const std::size_t line_elements = of.result.width * of.depth();
  parallel::in_shares(shares_of_rows(part.lines.count, line_elements),
                      [&](std::size_t begin, std::size_t end, std::size_t) {
                        for (std::size_t line = begin; line < end; ++line) {
                          Arithmetic<T>* const to = room + line * line_elements;
                          for_each_place(of, part.lines.first + line, [&](std::size_t seen, std::size_t pixel) {
                            if (pixel == outside) {
                              std::fill_n(to + seen, channels, Arithmetic<T>{});
                            } else {
                              const T* const from = x + pixel * of.in + part.first_in();
                              std::transform(from, from + channels, to + seen, [](T element) { return load(element); });
                            }
                          });
                        }
                      });
  return {.data = room};
}

// The gradient of what the kernel saw goes back to the pixels, `to` being the part's first image. Threads take
// channels, so that no two add to one number and each is a sum in the same order.
template <typename T>
void give_back(const Part<T>& part, const Arithmetic<T>* gradient, Panel<Arithmetic<T>> to) {
  const ConvolutionGeometry& of = part.of;
  const std::size_t line_elements = of.result.width * of.depth();
  const parallel::Shares channels{.count = of.group_in(),
                                  .least = (std::size_t{1} << 14) / std::max<std::size_t>(1, part.pixels()) + 1,
                                  .unit = 16};
  parallel::in_shares(channels, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t line = 0; line < part.lines.count; ++line) {
      const Arithmetic<T>* const from = gradient + line * line_elements;
      for_each_place(of, part.lines.first + line, [&](std::size_t seen, std::size_t pixel) {
        if (pixel == outside) return;
        Arithmetic<T>* const sums = to.data + (pixel - part.first_image_pixel()) * to.stride;
        for (std::size_t c = begin; c < end; ++c) sums[c] += from[seen + c];
      });
    }
  });
}

template <typename T>
void add_image_gradients(const Part<T>& part, const Arithmetic<T>* gradient, T* dx, Arithmetic<T>* room) {
  const ConvolutionGeometry& of = part.of;
  const Columns<T> images{dx + part.first_image_pixel() * of.in + part.first_in(), of.in, part.image_pixels(),
                          of.group_in()};
  const Panel<Arithmetic<T>> sums = panel_for(images, room);
  if (part.begins_images()) fill_zero(sums, images.rows, images.count);
  give_back(part, gradient, sums);
  if constexpr (has_panels<T>) {
    if (part.ends_images()) store_panel<T>(active_rows(), sums, images, nullptr);
  }
}

// function(part) for all groups and lines, those of a group in order.
template <typename T, typename Function>
void for_each_part(const ConvolutionGeometry& of, const Function& function) {
  const std::size_t step = lines_at_once(of);
  const std::size_t border = step < of.result.height ? of.result.height : lines_of(of);  // which no part crosses
  for (std::size_t group = 0; group < of.groups; ++group) {
    for (std::size_t first = 0; first < lines_of(of);) {
      const std::size_t count = std::min({step, border - first % border, lines_of(of) - first});
      function(Part<T>{of, group, {first, count}});
      first += count;
    }
  }
}

template <typename T>
Columns<T> results_of(const Part<T>& part, T* y) {
  return {y + part.first_pixel() * part.of.out + part.first_out(), part.of.out, part.pixels(), part.of.group_out()};
}

template <typename T>
void start_with(const T* bias, const Part<T>& part, Panel<Arithmetic<T>> results) {
  for (std::size_t row = 0; row < part.pixels(); ++row) {
    std::transform(bias + part.first_out(), bias + part.first_out() + part.of.group_out(),
                   results.data + row * results.stride, [](T element) { return load(element); });
  }
}

template <typename T>
void forward_part(const ConvolutionForwardWork<T>& work, const Part<T>& part, const Room<T>& places) {
  using Real = Arithmetic<T>;
  Real* const room = reinterpret_cast<Real*>(work.scratch);
  const Columns<T> y = results_of(part, work.y);
  const Panel<Real> results = panel_for(y, places.results_at(room));
  if (work.bias != nullptr) start_with(work.bias, part, results);
  gemm<Real>({.a = see(part, work.x, places.seen_at(room)),
              .b = {.data = places.weight_at(room) + part.first_out() * part.of.depth(), .transposed = true},
              .c = results.data,
              .m = part.pixels(),
              .n = part.of.group_out(),
              .k = part.of.depth(),
              .add = work.bias != nullptr,
              .c_stride = results.stride});
  if constexpr (has_panels<T>) store_panel<T>(active_rows(), results, y, nullptr);
}

template <typename T>
void backward_part(const ConvolutionBackwardWork<T>& work, const Part<T>& part, const Room<T>& places) {
  using Real = Arithmetic<T>;
  Real* const room = reinterpret_cast<Real*>(work.scratch);
  const std::size_t depth = part.of.depth();
  const Columns<const T> dy{results_of<const T>({part.of, part.group, part.lines}, work.dy)};
  const Panel<const Real> results = load_panel<T>(active_rows(), dy, places.results_at(room));
  if (work.dweight != nullptr) {
    gemm<Real>({.a = {.data = results.data, .transposed = true, .stride = results.stride},
                .b = see(part, work.x, places.seen_at(room)),
                .c = places.dweight_at(room) + part.first_out() * depth,
                .m = part.of.group_out(),
                .n = depth,
                .k = part.pixels(),
                .add = part.lines.first > 0});
  }
  if (work.dx == nullptr) return;
  gemm<Real>({.a = {.data = results.data, .stride = results.stride},
              .b = {.data = places.weight_at(room) + part.first_out() * depth},
              .c = places.seen_at(room),
              .m = part.pixels(),
              .n = depth,
              .k = part.of.group_out()});
  add_image_gradients<T>(part, places.seen_at(room), work.dx, places.image_gradients_at(room));
}

}  // namespace

template <Element T>
void forward(const ConvolutionForwardWork<T>& work) {
  const Room<T> places(work.of);
  turn_weights(work.of, work.weight, places.weight_at(reinterpret_cast<Arithmetic<T>*>(work.scratch)));
  for_each_part<T>(work.of, [&](const Part<T>& part) { forward_part(work, part, places); });
}

template <Element T>
void backward(const ConvolutionBackwardWork<T>& work) {
  using Real = Arithmetic<T>;
  const Room<T> places(work.of);
  Real* const room = reinterpret_cast<Real*>(work.scratch);
  if (work.dx != nullptr) turn_weights(work.of, work.weight, places.weight_at(room));
  if (lines_of(work.of) == 0) std::fill_n(places.dweight_at(room), places.weights, Real{});
  for_each_part<T>(work.of, [&](const Part<T>& part) { backward_part(work, part, places); });
  if (work.dweight != nullptr) turn_back(work.of, places.dweight_at(room), work.dweight, work.accumulate);
}

template <Element T>
std::size_t scratch(const ConvolutionGeometry& of) {
  return Room<T>(of).elements() * (sizeof(Arithmetic<T>) / sizeof(float));
}

#define TESSERA_LOWERED(T)                                   \
  template void forward(const ConvolutionForwardWork<T>&);   \
  template void backward(const ConvolutionBackwardWork<T>&); \
  template std::size_t scratch<T>(const ConvolutionGeometry&);
TESSERA_FOR_EACH_ELEMENT(TESSERA_LOWERED)

}  // namespace tessera::vision::convolutions::lowered
