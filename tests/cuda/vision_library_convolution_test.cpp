// Convolutions by a library on the emulated device: what it is asked for, and when products compute.
#include "../emulated_cuda/emulated_convolution.hpp"
#include "convolution_case.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;
using namespace tessera::test;
using vision::cuda::ConvolutionDirection;
using vision::cuda::emulated_convolutions;

namespace vision_library_convolution_test {

// The library as it is by itself, and its calls forgotten.
class ConvolutionsOfTests {
 public:
  ConvolutionsOfTests() { emulated_convolutions() = {}; }
  ~ConvolutionsOfTests() { emulated_convolutions() = {}; }
  ConvolutionsOfTests(const ConvolutionsOfTests&) = delete;
  ConvolutionsOfTests& operator=(const ConvolutionsOfTests&) = delete;

 private:
  WithConvolutions now_{vision::cuda::convolutions::Set::cudnn};
};

constexpr ConvolutionShape some_shape{.in = 6, .out = 4, .kernel = 3, .stride = 2, .padding = 1, .groups = 2};

void check_near_the_cpu() {
  compare_convolutions<bf16>({some_shape, 2, {5, 5}}, false, [](Stream& on, const ConvolutionMemory<bf16>& memory) {
    both_passes(on, memory, true, true);
  });
}

TEST_CASE("each direction of a convolution is one call of the library") {
  const ConvolutionsOfTests library;
  check_near_the_cpu();
  const std::vector<ConvolutionDirection> wanted{ConvolutionDirection::forward, ConvolutionDirection::weight_gradient,
                                                 ConvolutionDirection::image_gradient};
  CHECK(emulated_convolutions().calls == wanted);
}

TEST_CASE("where the library has no kernel, or no room for one, products compute") {
  const ConvolutionsOfTests library;
  emulated_convolutions().has_kernels = false;
  check_near_the_cpu();
  emulated_convolutions() = {.workspace_bytes = std::size_t{1} << 30};
  check_near_the_cpu();
  CHECK(emulated_convolutions().calls.empty());
}

TEST_CASE("what a library does not take is not asked of it") {
  const ConvolutionsOfTests library;
  alignas(16) std::byte memory[32];
  ConvolutionGeometry of{.images = 1,
                         .image = {1, 1},
                         .result = {1, 1},
                         .in = 1,
                         .out = 1,
                         .kernel = {1, 1},
                         .stride = {1, 1},
                         .padding = {0, 0},
                         .dilation = {1, 1},
                         .groups = 1};
  const auto asked = [&](const void* images) {
    return vision::cuda::convolutions::by_library(nullptr, {.format = Format::fp32,
                                                            .tf32 = false,
                                                            .direction = ConvolutionDirection::forward,
                                                            .of = of,
                                                            .images = images,
                                                            .weights = memory,
                                                            .results = memory,
                                                            .workspace = {}});
  };
  CHECK_FALSE(asked(memory + 4));
  of.images = 1u << 31;
  CHECK_FALSE(asked(memory));
  of.images = 0;
  CHECK_FALSE(asked(memory));
  CHECK(emulated_convolutions().calls.empty());
}

TEST_CASE("a library has scratch memory that the plan counts, and products have as much as without it") {
  const auto bytes = [](std::size_t images) {
    return convolution_scratch<bf16>(some_shape, images, {32, 32}, DeviceKind::cuda) * sizeof(float);
  };
  const WithConvolutions without(vision::cuda::convolutions::Set::products);
  const std::size_t few = bytes(1);
  const std::size_t many = bytes(10'000);
  REQUIRE(few < std::size_t{32} << 20);
  REQUIRE(many > std::size_t{33} << 20);
  const ConvolutionsOfTests library;
  CHECK(bytes(1) > std::size_t{32} << 20);
  CHECK(bytes(1) < std::size_t{33} << 20);
  CHECK(bytes(10'000) == many);
}

TEST_CASE("what computes convolutions is said") {
  const ConvolutionsOfTests library;
  CHECK(convolutions_in_words(DeviceKind::cuda) == "by the tests' convolutions");
}

}  // namespace vision_library_convolution_test
