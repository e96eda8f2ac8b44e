// Convolutions on CUDA devices: a library's (convolution_choice.hpp); or kernels of our own make the matrix of what the
// kernel sees, and cuBLASLt multiplies. Of the sums of several products only the last is rounded to 16 bits: what is
// summed up on the way is in fp32.
#include <algorithm>

#include "nn/src/cuda/cuda_layers.hpp"
#include "vision/src/cuda/convolution_choice.hpp"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision::cuda {

namespace {

constexpr std::size_t most_seen = std::size_t{1} << 24;  // elements: 64 MiB of what is summed up in fp32
constexpr std::uint32_t most_images = 65535;             // of a grid's second dimension

constexpr std::size_t element_bytes(Format format) { return format == Format::fp32 ? 4 : 2; }
constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::size_t pixels_of_image(const ConvolutionGeometry& of) { return std::size_t{of.result.height} * of.result.width; }

// Where in the scratch memory what stands.
struct ConvolutionRoom {
  ConvolutionRoom(Format format, const ConvolutionGeometry& of, std::uint32_t images_at_once)
      : turned(rounded(of.weights() * element_bytes(format))), sums(rounded(of.weights() * sizeof(float))) {
    const std::size_t pixels = pixels_of_image(of) * std::min(images_at_once, of.images);
    if (!of.sees_the_image()) seen = rounded(pixels * of.depth() * sizeof(float));
    workspace = std::max(linear_scratch_bytes(pixels, of.depth(), of.group_out()),
                         column_sums_scratch(pixels_of_image(of) * of.images, of.out) * sizeof(float));
    for_library = std::max(seen + rounded(workspace), convolutions::library_workspace_bytes());
  }
  std::size_t bytes() const { return turned + sums + for_library; }

  void* turned_at(void* room) const { return room; }
  float* sums_at(void* room) const { return reinterpret_cast<float*>(static_cast<std::byte*>(room) + turned); }
  void* seen_at(void* room) const { return static_cast<std::byte*>(room) + turned + sums; }
  Workspace workspace_at(void* room) const { return {static_cast<std::byte*>(seen_at(room)) + seen, workspace}; }
  Workspace for_library_at(void* room) const { return {seen_at(room), for_library}; }  // in place of the two before

  std::size_t turned;
  std::size_t sums;
  std::size_t seen = 0;
  std::size_t workspace;
  std::size_t for_library;
};

// One direction of a convolution: what both share.
class ConvolutionRun {
 public:
  ConvolutionRun(void* native, const ConvolutionTask& task, void* scratch)
      : native_(native), task_(task), room_(task.format, task.of, task.images_at_once), scratch_(scratch) {}

  const ConvolutionGeometry& of() const { return task_.of; }
  WeightOrder order() const { return {of().out, of().group_in(), std::size_t{of().kernel.height} * of().kernel.width}; }
  float* sums() const { return room_.sums_at(scratch_); }
  float* dseen() const { return static_cast<float*>(room_.seen_at(scratch_)); }
  Workspace workspace() const { return room_.workspace_at(scratch_); }

  void turn(const void* weight) const {
    turn_weights(native_, task_.format, order(), weight, room_.turned_at(scratch_));
  }
  // Whether a library has done a direction, with weights, or sums of their gradient in the format of all, turned.
  bool by_library(ConvolutionDirection direction, const void* images, const void* results) const {
    void* const sums_at = room_.sums_at(scratch_);
    return convolutions::by_library(
        native_, {.format = task_.format,
                  .tf32 = task_.tf32,
                  .direction = direction,
                  .of = of(),
                  .images = images,
                  .weights = direction == ConvolutionDirection::weight_gradient ? sums_at : turned(0),
                  .results = results,
                  .workspace = room_.for_library_at(scratch_)});
  }
  const void* turned(std::size_t group) const {
    return at(room_.turned_at(scratch_), group * of().group_out() * of().depth());
  }

  // function(part) for all images and groups.
  template <typename Function>
  void for_each_part(const Function& function) const {
    for (std::uint32_t first = 0; first < of().images; first += task_.images_at_once) {
      const std::uint32_t images = std::min(task_.images_at_once, of().images - first);
      for (std::uint32_t group = 0; group < of().groups; ++group) {
        function(ConvolutionPart{task_.format, of(), first, images, group});
      }
    }
  }

  std::size_t pixels(const ConvolutionPart& part) const { return pixels_of_image(of()) * part.images; }
  // Returns the rows that a part has of a matrix [pixels, channels] of the whole batch.
  RowMajor columns(const ConvolutionPart& part, const void* images, std::size_t channels) const {
    const std::size_t first = part.first_image * pixels_of_image(of()) * channels;
    return {.data = at(images, first + part.group * (channels / of().groups)), .stride = channels};
  }
  // Returns what the kernel sees of x.
  RowMajor see(const ConvolutionPart& part, const void* x) const {
    if (of().sees_the_image()) return columns(part, x, of().in);
    see_pixels(native_, part, x, room_.seen_at(scratch_));
    return {.data = room_.seen_at(scratch_)};
  }

  Product product(const RowMajorProduct& shape) const {
    Product product = column_major(shape);
    product.tf32 = task_.tf32;
    product.workspace = workspace();
    return product;
  }

 private:
  const void* at(const void* data, std::size_t elements) const {
    return static_cast<const std::byte*>(data) + elements * element_bytes(task_.format);
  }

  void* native_;
  ConvolutionTask task_;
  ConvolutionRoom room_;
  void* scratch_;
};

bool multiply_with_bias(void* native, Product product, const void* bias) {
  product.epilogue = Epilogue::bias;
  product.vector = const_cast<void*>(bias);
  return multiply(native, product);
}

void results_of_part(void* native, const ConvolutionForwardRows& a, const ConvolutionRun& run,
                     const ConvolutionPart& part) {
  const ConvolutionGeometry& of = run.of();
  const RowMajor y = run.columns(part, a.y, of.out);
  Product product = run.product({.format = part.format,
                                 .a = run.see(part, a.x),
                                 .b = {run.turned(part.group), true},
                                 .c = y,
                                 .m = run.pixels(part),
                                 .n = of.group_out(),
                                 .k = of.depth()});
  if (a.bias != nullptr && of.groups == 1 && multiply_with_bias(native, product, a.bias)) return;
  if (a.bias != nullptr && part.group == 0) {
    spread_row(native, {part.format, a.bias, const_cast<void*>(y.data), run.pixels(part), of.out});
  }
  if (a.bias != nullptr) product.added = product.d;
  multiply(native, product);
}

void weight_gradient_of_part(void* native, const ConvolutionBackwardRows& a, const ConvolutionRun& run,
                             const ConvolutionPart& part) {
  const ConvolutionGeometry& of = run.of();
  RowMajor dy = run.columns(part, a.dy, of.out);
  dy.transposed = true;
  Product product = run.product({.format = part.format,
                                 .a = dy,
                                 .b = run.see(part, a.x),
                                 .c = {run.sums() + part.group * of.group_out() * of.depth()},
                                 .m = of.group_out(),
                                 .n = of.depth(),
                                 .k = run.pixels(part)});
  product.d_in_fp32 = true;
  if (part.first_image > 0) product.added = product.d;
  multiply(native, product);
}

void image_gradient_of_part(void* native, const ConvolutionBackwardRows& a, const ConvolutionRun& run,
                            const ConvolutionPart& part) {
  const ConvolutionGeometry& of = run.of();
  const bool at_once = of.sees_the_image();
  Product product = run.product({.format = part.format,
                                 .a = run.columns(part, a.dy, of.out),
                                 .b = {run.turned(part.group)},
                                 .c = at_once ? run.columns(part, a.dx, of.in) : RowMajor{.data = run.dseen()},
                                 .m = run.pixels(part),
                                 .n = of.depth(),
                                 .k = of.group_out()});
  product.d_in_fp32 = !at_once;
  multiply(native, product);
  if (!at_once) give_pixels_back(native, part, run.dseen(), a.dx);
}

}  // namespace

std::uint32_t images_at_once(const ConvolutionGeometry& of) {
  if (of.sees_the_image()) return std::max(1u, of.images);
  const std::size_t seen = std::max<std::size_t>(1, pixels_of_image(of) * of.depth());
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(most_seen / seen, 1, most_images));
}

std::size_t convolution_scratch_bytes(Format format, const ConvolutionGeometry& of, std::uint32_t images_at_once) {
  return ConvolutionRoom(format, of, images_at_once).bytes();
}

void convolution_forward(void* native, const ConvolutionForwardRows& a) {
  const ConvolutionRun run(native, a.task, a.scratch);
  if (run.of().images == 0) return;
  run.turn(a.weight);
  if (!run.by_library(ConvolutionDirection::forward, a.x, a.y)) {
    return run.for_each_part([&](const ConvolutionPart& part) { results_of_part(native, a, run, part); });
  }
  if (a.bias != nullptr) {
    add_to_rows(native, {a.task.format, a.bias, a.y, pixels_of_image(run.of()) * run.of().images, run.of().out});
  }
}

void convolution_backward(void* native, const ConvolutionBackwardRows& a) {
  const ConvolutionRun run(native, a.task, a.scratch);
  const ConvolutionGeometry& of = run.of();
  if (a.dbias != nullptr) {
    column_sums(native, {.format = a.task.format,
                         .from = a.dy,
                         .to = a.dbias,
                         .rows = pixels_of_image(of) * of.images,
                         .columns = of.out,
                         .accumulate = a.accumulate,
                         .scratch = static_cast<float*>(run.workspace().data)});
  }
  if (a.dx != nullptr && of.images > 0) run.turn(a.weight);
  if (of.images == 0) spread_row(native, {Format::fp32, nullptr, run.sums(), 1, of.weights()});
  const bool weights_done = a.dweight != nullptr && run.by_library(ConvolutionDirection::weight_gradient, a.x, a.dy);
  const bool images_done = a.dx != nullptr && run.by_library(ConvolutionDirection::image_gradient, a.dx, a.dy);
  run.for_each_part([&](const ConvolutionPart& part) {
    if (a.dweight != nullptr && !weights_done) weight_gradient_of_part(native, a, run, part);
    if (a.dx != nullptr && !images_done) image_gradient_of_part(native, a, run, part);
  });
  if (a.dweight == nullptr) return;
  turn_back(native, {.format = a.task.format,
                     .sums_format = weights_done ? a.task.format : Format::fp32,
                     .of = run.order(),
                     .sums = run.sums(),
                     .dweight = a.dweight,
                     .accumulate = a.accumulate});
}

}  // namespace tessera::vision::cuda
