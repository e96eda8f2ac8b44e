// Convolutions on CUDA devices against the CPU's.
#include "convolution_case.hpp"
#include "src/rows/active_rows.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/cuda/kernels.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;
using namespace tessera::test;

namespace vision_convolution_test {

template <typename T>
void check_near_the_cpu(const ConvolutionForm& form, bool with) {
  CAPTURE(with);
  compare_convolutions<T>(form, with,
                          [&](Stream& on, const ConvolutionMemory<T>& memory) { both_passes(on, memory, with, with); });
}

// On a GPU cuDNN is among the sets, where it can be opened.
TEST_CASE_TEMPLATE("cuda: convolutions and their gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const vision::cuda::convolutions::Set set : vision::cuda::convolutions::available()) {
    const WithConvolutions now(set);
    CAPTURE(to_string(set));
    for (std::size_t i = 0; i < convolution_forms.size(); ++i) {
      CAPTURE(i);
      check_near_the_cpu<T>(convolution_forms[i], true);
      if (set == vision::cuda::convolutions::Set::products) check_near_the_cpu<T>(convolution_forms[i], false);
    }
  }
}

ConvolutionGeometry geometry_of(const ConvolutionForm& form) {
  const auto pair = [](HeightWidth of) {
    return Pair32{static_cast<std::uint32_t>(of.height), static_cast<std::uint32_t>(of.width)};
  };
  const ConvolutionShape& s = form.shape;
  return {.images = static_cast<std::uint32_t>(form.images),
          .image = pair(form.image),
          .result = pair(s.output(form.image)),
          .in = static_cast<std::uint32_t>(s.in),
          .out = static_cast<std::uint32_t>(s.out),
          .kernel = pair(s.kernel),
          .stride = pair(s.stride),
          .padding = pair(s.padding),
          .dilation = pair(s.dilation),
          .groups = static_cast<std::uint32_t>(s.groups)};
}

// Runs in parts, which happens where the kernel sees more of a batch than fits.
template <typename T>
void both_passes_in_parts(Stream& stream, const ConvolutionMemory<T>& memory, std::uint32_t images_at_once) {
  const vision::cuda::ConvolutionTask task{
      .format = format_of<T>, .tf32 = false, .images_at_once = images_at_once, .of = geometry_of(memory.form)};
  const vision::cuda::ConvolutionForwardRows forward{.task = task,
                                                     .x = memory.x,
                                                     .weight = memory.weight,
                                                     .bias = memory.bias,
                                                     .y = memory.y,
                                                     .scratch = memory.scratch};
  const vision::cuda::ConvolutionBackwardRows backward{.task = task,
                                                       .x = memory.x,
                                                       .weight = memory.weight,
                                                       .dy = memory.dy,
                                                       .dx = memory.dx,
                                                       .dweight = memory.dweight,
                                                       .dbias = memory.dbias,
                                                       .accumulate = true,
                                                       .scratch = memory.scratch};
  stream.submit([native = native_stream(stream), forward] { vision::cuda::convolution_forward(native, forward); });
  stream.submit([native = native_stream(stream), backward] { vision::cuda::convolution_backward(native, backward); });
}

TEST_CASE_TEMPLATE("cuda: some images at a time make the convolution of all", T, TESSERA_CUDA_ELEMENTS) {
  const WithConvolutions now(vision::cuda::convolutions::Set::products);
  for (const ConvolutionForm& form : {ConvolutionForm{{.in = 8, .out = 5, .kernel = 3, .padding = 1}, 5, {4, 5}},
                                      ConvolutionForm{{.in = 6, .out = 4, .kernel = 2, .groups = 2}, 5, {3, 4}}}) {
    for (const std::uint32_t at_once : {1u, 2u, 5u}) {
      CAPTURE(at_once);
      compare_convolutions<T>(form, false, [&](Stream& on, const ConvolutionMemory<T>& memory) {
        if (on.device().kind() == DeviceKind::cpu) return both_passes(on, memory, true, true);
        both_passes_in_parts(on, memory, at_once);
      });
    }
  }
}

TEST_CASE("cuda: convolutions of double, and of images that are too large, are refused") {
  Stream stream = cuda_stream();
  std::vector<double> some(9);
  CHECK_THROWS_WITH_AS(convolution_forward<double>(stream, {.shape = {.in = 1, .out = 1, .kernel = 1},
                                                            .x = {some.data(), 1, 3, 3, 1},
                                                            .weight = some.data(),
                                                            .y = {some.data(), 1, 3, 3, 1},
                                                            .scratch = nullptr}),
                       doctest::Contains("convolution: elements of type double are for the CPU alone"),
                       UnavailableError);
  CHECK_THROWS_WITH_AS(convolution_forward<float>(stream, {.shape = {.in = 64, .out = 1, .kernel = 3, .padding = 1},
                                                           .x = {nullptr, 1, 2000, 2000, 64},
                                                           .weight = nullptr,
                                                           .y = {nullptr, 1, 2000, 2000, 1},
                                                           .scratch = nullptr}),
                       doctest::Contains("fewer than 2^31"), UsageError);
}

}  // namespace vision_convolution_test
