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

template <typename T>
Results<T> run(DeviceKind kind, const Form& form) {
  Stream stream = stream_on(kind);
  const HeightWidth size = form.shape.output(form.image);
  const std::size_t count = form.images * size.height * size.width * form.channels;
  const std::vector<T> x_values = pixels<T>(form);
  DeviceBuffer<T> x(kind, x_values), dy(kind, random_elements<T>(count, 2));
  DeviceBuffer<T> largest(kind, count), average(kind, count);
  DeviceBuffer<T> dlargest(kind, x_values.size()), daverage(kind, x_values.size());
  DeviceBuffer<std::int8_t> places(kind, count);
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
  for (DeviceBuffer<T>* of : {&largest, &average, &dlargest, &daverage}) CHECK(of->guards_intact());
  CHECK(places.guards_intact());
  return {largest.values(), dlargest.values(), average.values(), daverage.values(), places.values()};
}

TEST_CASE_TEMPLATE("cuda: pooling has the CPU's bits", T, TESSERA_CUDA_ELEMENTS) {
  for (std::size_t i = 0; i < forms.size(); ++i) {
    CAPTURE(i);
    const Results<T> expected = run<T>(DeviceKind::cpu, forms[i]), computed = run<T>(DeviceKind::cuda, forms[i]);
    check_same(computed.largest, expected.largest);
    check_same(computed.dlargest, expected.dlargest);
    check_same(computed.average, expected.average);
    check_same(computed.daverage, expected.daverage);
    CHECK(computed.places == expected.places);
  }
}

template <typename T>
std::pair<std::vector<T>, std::vector<T>> taken_and_given(DeviceKind kind) {
  Stream stream = stream_on(kind);
  constexpr std::size_t sequences = 3, tokens = 5, dim = 7;
  DeviceMatrix<T> x(kind, random_elements<T>(sequences * tokens * dim, 1), sequences * tokens, dim);
  DeviceMatrix<T> taken(kind, sequences, dim), given(kind, sequences * tokens, dim);
  take_class_tokens<T>(stream, tokens, x.view(), taken.view());
  give_class_tokens<T>(stream, tokens, taken.view(), given.view());
  stream.synchronize();
  return {taken.values(), given.values()};
}

TEST_CASE_TEMPLATE("cuda: class tokens are taken and given back", T, TESSERA_CUDA_ELEMENTS) {
  const auto expected = taken_and_given<T>(DeviceKind::cpu), computed = taken_and_given<T>(DeviceKind::cuda);
  check_same(computed.first, expected.first);
  check_same(computed.second, expected.second);
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
  DeviceBuffer<T> on_patches(patches), on_cls(cls), on_positions(positions), on_dy(dy), on_y(images * row);
  DeviceBuffer<T> on_dpatches(images * (row - dim)), on_dcls(dim), on_dposition(row);
  Stream stream = cuda_stream();
  const vision::cuda::TokenRows place{format_of<T>,        images,     tokens, dim, on_patches.data(), on_cls.data(),
                                      on_positions.data(), on_y.data()};
  const vision::cuda::TokenGradientRows gradients{
      format_of<T>, images, tokens, dim, on_dy.data(), on_dpatches.data(), on_dcls.data(), on_dposition.data()};
  stream.submit([native = native_stream(stream), place] { vision::cuda::place_tokens(native, place); });
  stream.submit([native = native_stream(stream), gradients] { vision::cuda::token_gradients(native, gradients); });
  stream.synchronize();
  for (DeviceBuffer<T>* of : {&on_y, &on_dpatches, &on_dcls, &on_dposition}) CHECK(of->guards_intact());
  check_same(on_y.values(), y);
  check_same(on_dpatches.values(), dpatches);
  check_same(on_dposition.values(), dposition);
  check_same(on_dcls.values(), std::vector<T>(dposition.begin(), dposition.begin() + dim));
}

}  // namespace vision_pooling_test
