// Pooling and the tokens of vision transformers on CUDA devices: the CPU's bits.
#include "nn_device.hpp"
#include "src/rows/active_rows.hpp"
#include "tessera/vision/patch_embedding.hpp"
#include "tessera/vision/pooling.hpp"
#include "vision/src/cuda/kernels.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;
using namespace tessera::test;

namespace vision_pooling_test {

struct Form {
  PoolShape shape;
  std::size_t images;
  HeightWidth image;
  std::size_t channels;
};
const std::vector<Form> forms = {
    {{.kernel = 2}, 2, {4, 6}, 3},
    {{.kernel = 2}, 1, {5, 7}, 2},  // a line and a column are seen by nobody
    {{.kernel = 3, .stride = 2, .padding = 1}, 2, {7, 8}, 17},
    {{.kernel = {2, 3}, .stride = 1, .padding = {0, 1}}, 3, {3, 5}, 1},
    {{.kernel = 1, .stride = 2}, 1, {3, 3}, 4},
    {{.kernel = {4, 5}}, 2, {4, 5}, 6},
    {{.kernel = 2}, 0, {4, 4}, 3},
};

// The four passes of a form make these.
template <typename T>
struct Results {
  std::vector<T> largest, dlargest, average, daverage;
  std::vector<std::int8_t> places;
};

template <typename T>
std::vector<T> pixels(const Form& form) {
  std::vector<T> x = random_elements<T>(form.images * form.image.height * form.image.width * form.channels, 1);
  // Equals, and numbers that are none.
  if (x.size() > 8) x[0] = x[1] = x[7] = T(2.0f), x[3] = x[8] = T(std::numeric_limits<float>::quiet_NaN());
  return x;
}

// `buffer(values)` is memory of the stream's device.
template <typename T, typename MakeBuffer, typename MakePlaces>
Results<T> run(Stream& stream, const Form& form, const MakeBuffer& buffer, const MakePlaces& places_buffer) {
  const HeightWidth size = form.shape.output(form.image);
  const std::size_t count = form.images * size.height * size.width * form.channels;
  const std::vector<T> x_values = pixels<T>(form);
  auto x = buffer(x_values), dy = buffer(random_elements<T>(count, 2));
  auto largest = buffer(std::vector<T>(count)), average = buffer(std::vector<T>(count));
  auto dlargest = buffer(std::vector<T>(x_values.size())), daverage = buffer(std::vector<T>(x_values.size()));
  auto places = places_buffer(std::vector<std::int8_t>(count));
  auto* const which = reinterpret_cast<std::uint8_t*>(places.data());
  const auto in = [&](auto& of) {
    return ImageView<T>{of.data(), form.images, form.image.height, form.image.width, form.channels};
  };
  const auto out = [&](auto& of) {
    return ImageView<T>{of.data(), form.images, size.height, size.width, form.channels};
  };
  max_pool_forward<T>(stream, form.shape, in(x), out(largest), which);
  max_pool_backward<T>(stream, form.shape, out(dy), which, in(dlargest));
  average_pool_forward<T>(stream, form.shape, in(x), out(average));
  average_pool_backward<T>(stream, form.shape, out(dy), in(daverage));
  stream.synchronize();
  return {largest.values(), dlargest.values(), average.values(), daverage.values(), places.values()};
}

template <typename T>
struct OnHost {
  std::vector<T> all;
  T* data() { return all.data(); }
  std::vector<T> values() { return all; }
};

TEST_CASE_TEMPLATE("cuda: pooling has the CPU's bits", T, TESSERA_CUDA_ELEMENTS) {
  Stream host = host_stream(), stream = cuda_stream();
  for (std::size_t i = 0; i < forms.size(); ++i) {
    CAPTURE(i);
    const auto expected = run<T>(
        host, forms[i], [](const std::vector<T>& of) { return OnHost<T>{of}; },
        [](const std::vector<std::int8_t>& of) { return OnHost<std::int8_t>{of}; });
    const auto computed = run<T>(
        stream, forms[i], [](const std::vector<T>& of) { return DeviceMatrix<T>(of, 1, of.size()); },
        [](const std::vector<std::int8_t>& of) { return DeviceBuffer<std::int8_t>(of); });
    check_same(computed.largest, expected.largest);
    check_same(computed.dlargest, expected.dlargest);
    check_same(computed.average, expected.average);
    check_same(computed.daverage, expected.daverage);
    CHECK(computed.places == expected.places);
  }
}

TEST_CASE_TEMPLATE("cuda: class tokens are taken and given back", T, TESSERA_CUDA_ELEMENTS) {
  Stream host = host_stream(), stream = cuda_stream();
  constexpr std::size_t sequences = 3, tokens = 5, dim = 7;
  std::vector<T> x = random_elements<T>(sequences * tokens * dim, 1), taken(sequences * dim), given(x.size());
  take_class_tokens<T>(host, tokens, matrix(x, sequences * tokens, dim), matrix(taken, sequences, dim));
  give_class_tokens<T>(host, tokens, matrix(taken, sequences, dim), matrix(given, sequences * tokens, dim));
  DeviceMatrix<T> device_x(x, sequences * tokens, dim), device_taken(sequences, dim);
  DeviceMatrix<T> device_given(sequences * tokens, dim);
  take_class_tokens<T>(stream, tokens, device_x.view(), device_taken.view());
  give_class_tokens<T>(stream, tokens, device_taken.view(), device_given.view());
  stream.synchronize();
  check_same(device_taken.values(), taken);
  check_same(device_given.values(), given);
}

// Sums of images in their order, as the CPU forms them.
TEST_CASE_TEMPLATE("cuda: tokens are placed with their positions, and their gradients summed over images", T,
                   TESSERA_CUDA_ELEMENTS) {
  constexpr std::size_t images = 3, tokens = 5, dim = 7, row = tokens * dim;
  const std::vector<T> patches = random_elements<T>(images * (row - dim), 1), cls = random_elements<T>(dim, 2);
  const std::vector<T> positions = random_elements<T>(row, 3), dy = random_elements<T>(images * row, 4);
  std::vector<T> y, dpatches, dposition;
  for (std::size_t i = 0; i < images * row; ++i) {
    const std::size_t at = i % row;
    const T from = at < dim ? cls[at] : patches[i - (i / row + 1) * dim];
    y.push_back(T(static_cast<float>(from) + static_cast<float>(positions[at])));
    if (at >= dim) dpatches.push_back(dy[i]);
  }
  for (std::size_t at = 0; at < row; ++at) {
    float sum = 0.0f;
    for (std::size_t image = 0; image < images; ++image) sum += static_cast<float>(dy[image * row + at]);
    dposition.push_back(T(sum));
  }
  DeviceMatrix<T> on_patches(patches, 1, patches.size()), on_cls(cls, 1, dim), on_positions(positions, 1, row);
  DeviceMatrix<T> on_dy(dy, images, row), on_y(images, row), on_dpatches(images, row - dim);
  DeviceMatrix<T> on_dcls(1, dim), on_dposition(1, row);
  Stream stream = cuda_stream();
  const vision::cuda::TokenRows place{format_of<T>,        images,     tokens, dim, on_patches.data(), on_cls.data(),
                                      on_positions.data(), on_y.data()};
  const vision::cuda::TokenGradientRows gradients{
      format_of<T>, images, tokens, dim, on_dy.data(), on_dpatches.data(), on_dcls.data(), on_dposition.data()};
  stream.submit([native = native_stream(stream), place] { vision::cuda::place_tokens(native, place); });
  stream.submit([native = native_stream(stream), gradients] { vision::cuda::token_gradients(native, gradients); });
  stream.synchronize();
  check_same(on_y.values(), y);
  check_same(on_dpatches.values(), dpatches);
  check_same(on_dposition.values(), dposition);
  check_same(on_dcls.values(), std::vector<T>(dposition.begin(), dposition.begin() + dim));
}

}  // namespace vision_pooling_test
