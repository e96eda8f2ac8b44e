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

template <typename T>
std::vector<T> pixels(const Form& form) {
  std::vector<T> x = random_elements<T>(form.images * form.image.height * form.image.width * form.channels, 1);
  // Equals, and numbers that are none.
  if (x.size() > 8) x[0] = x[1] = x[7] = T(2.0f), x[3] = x[8] = T(std::numeric_limits<float>::quiet_NaN());
  return x;
}

TEST_CASE_TEMPLATE("cuda: pooling has the CPU's bits", T, TESSERA_CUDA_ELEMENTS) {
  for (std::size_t i = 0; i < forms.size(); ++i) {
    CAPTURE(i);
    const Form& form = forms[i];
    const HeightWidth size = form.shape.output(form.image);
    const std::size_t count = form.images * size.height * size.width * form.channels;
    const std::vector<T> x_values = pixels<T>(form);
    compare_with_the_cpu(
        [&](Stream& on, T* x, T* dy, T* largest, T* dlargest, T* average, T* daverage, std::int8_t* places) {
          const auto in = [&](T* of) {
            return ImageView<T>{of, form.images, form.image.height, form.image.width, form.channels};
          };
          const auto out = [&](T* of) { return ImageView<T>{of, form.images, size.height, size.width, form.channels}; };
          auto* const which = reinterpret_cast<std::uint8_t*>(places);
          max_pool_forward<T>(on, form.shape, in(x), out(largest), which);
          max_pool_backward<T>(on, form.shape, out(dy), which, in(dlargest));
          average_pool_forward<T>(on, form.shape, in(x), out(average));
          average_pool_backward<T>(on, form.shape, out(dy), in(daverage));
        },
        same(x_values), same(random_elements<T>(count, 2)), same(unset<T>(count)), same(unset<T>(x_values.size())),
        same(unset<T>(count)), same(unset<T>(x_values.size())), same(std::vector<std::int8_t>(count)));
  }
}

TEST_CASE_TEMPLATE("cuda: class tokens are taken and given back", T, TESSERA_CUDA_ELEMENTS) {
  constexpr std::size_t sequences = 3, tokens = 5, dim = 7;
  compare_with_the_cpu(
      [&](Stream& on, T* x, T* taken, T* given) {
        const MatrixView<T> of_class{taken, sequences, dim};
        take_class_tokens<T>(on, tokens, MatrixView<T>{x, sequences * tokens, dim}, of_class);
        give_class_tokens<T>(on, tokens, of_class, MatrixView<T>{given, sequences * tokens, dim});
      },
      same(random_elements<T>(sequences * tokens * dim, 1)), same(unset<T>(sequences * dim)),
      same(unset<T>(sequences * tokens * dim)));
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
