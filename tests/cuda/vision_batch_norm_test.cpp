// Batch normalisation on CUDA devices against the CPU's: alone, with what follows in one pass, and synchronised.
#include "nn_device.hpp"
#include "tessera/vision/batch_norm.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;
using namespace tessera::test;

namespace vision_batch_norm_test {

struct Form {
  std::size_t rows;
  std::size_t channels;
};
// Rows of one part and of several, channels that are packs, pairs and neither.
const std::vector<Form> forms = {{0, 4}, {5, 0}, {1, 3}, {7, 16}, {67, 33}, {700, 6}, {150, 72}};

enum class Then { nothing, relu, residual };

// The memory that the passes read and write, on either device.
template <typename T>
struct Norm {
  Form form;
  T *x, *weight, *bias, *residual, *dy, *y, *dx, *dweight, *dbias;
  float *mean, *inverse, *running_mean, *running_variance, *scratch;
  double* brought;  // by the ranks of a synchronised norm

  MatrixView<T> rows(T* of) const { return {of, form.rows, form.channels}; }

  BatchNormForward<T> forward(Then then, bool evaluate, const Contributions& moments = {}) const {
    return {.x = rows(x),
            .weight = weight,
            .bias = bias,
            .y = rows(y),
            .residual = then == Then::residual ? residual : nullptr,
            .relu = then != Then::nothing,
            .mean = mean,
            .inverse = inverse,
            .running_mean = running_mean,
            .running_variance = running_variance,
            .evaluate = evaluate,
            .moments = moments,
            .scratch = scratch};
  }
  BatchNormBackward<T> backward(Then then, bool accumulate, const Contributions& sums = {},
                                const double* own = nullptr) const {
    return {.x = rows(x),
            .weight = weight,
            .mean = mean,
            .inverse = inverse,
            .dy = rows(dy),
            .relu_y = then == Then::relu ? y : nullptr,
            .dx = rows(dx),
            .dweight = dweight,
            .dbias = dbias,
            .accumulate = accumulate,
            .sums = sums,
            .own_sums = own,
            .scratch = scratch};
  }
};

// passes(stream, norm)
template <typename T, typename Passes>
void compare_norms(Comparison comparison, const Form& form, const Passes& passes) {
  const std::size_t count = form.rows * form.channels, channels = form.channels;
  const double around_0 = 1e-5;  // dx of one row is 0 where the inverse deviation is 316
  compare(
      comparison,
      [&](Stream& on, auto*... memory) {
        passes(on, Norm<T>{form, memory...});
      },
      same(random_elements<T>(count, 1)), same(random_elements<T>(channels, 2)), same(random_elements<T>(channels, 3)),
      same(random_elements<T>(count, 5)), same(random_elements<T>(count, 4)), near(std::vector<T>(count)),
      near(std::vector<T>(count), around_0), near(std::vector<T>(channels, T(0.5f)), around_0),
      near(std::vector<T>(channels, T(0.25f))), near(std::vector<float>(channels)), near(std::vector<float>(channels)),
      near(std::vector<float>(channels, 0.5f)), near(std::vector<float>(channels, 2.0f)),
      Scratch{batch_norm_scratch<T>(form.rows, channels, DeviceKind::cpu),
              batch_norm_scratch<T>(form.rows, channels, DeviceKind::cuda)},
      near(std::vector<double>(3 * batch_norm_values(channels))));
}

template <typename T>
void both_passes(Stream& on, const Norm<T>& norm, Then then, bool evaluate) {
  batch_norm_forward<T>(on, norm.forward(then, evaluate));
  if (!evaluate) batch_norm_backward<T>(on, norm.backward(then, then == Then::relu));
}

TEST_CASE_TEMPLATE("cuda: batch norm and its gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    for (const Then then : {Then::nothing, Then::relu, Then::residual}) {
      for (const bool evaluate : {false, true}) {
        if (evaluate && form.channels == 0) continue;  // which needs running moments
        CAPTURE(form.rows);
        CAPTURE(form.channels);
        CAPTURE(static_cast<int>(then));
        CAPTURE(evaluate);
        compare_norms<T>(Comparison::with_the_cpu, form,
                         [&](Stream& on, const Norm<T>& norm) { both_passes(on, norm, then, evaluate); });
      }
    }
  }
}

// Returns what two other ranks brought, one of them nothing.
std::vector<double> of_others(std::size_t channels, unsigned seed) {
  const std::vector<float> some = random_floats(2 * channels, seed);
  std::vector<double> all(2 * batch_norm_values(channels), 0.0);
  all[0] = 9.0;
  for (std::size_t i = 0; i < 2 * channels; ++i) all[1 + i] = std::abs(static_cast<double>(some[i]));
  return all;
}

void bring(Stream& stream, double* to, const std::vector<double>& values) {
  kernels::copy(stream, to, values.data(), Bytes(values.size() * sizeof(double)));
  stream.synchronize();
}

// Runs as the middle of three ranks, on a mesh of three replicas.
template <typename T>
void synchronised_passes(Stream& stream, const Norm<T>& norm) {
  const std::size_t values = batch_norm_values(norm.form.channels);
  const Contributions all{
      .first = norm.brought, .values = values, .stride = values, .replicas = 3, .ranks_of_replica = 1};
  double* const own = norm.brought + values;
  const auto others = [&](unsigned seed) {
    const std::vector<double> of = of_others(norm.form.channels, seed);
    const auto middle = of.begin() + static_cast<std::ptrdiff_t>(values);
    bring(stream, norm.brought, {of.begin(), middle});
    bring(stream, norm.brought + 2 * values, {middle, of.end()});
  };
  others(6);
  batch_norm_moments<T>(stream, {.x = norm.rows(norm.x), .moments = own, .scratch = norm.scratch});
  batch_norm_forward<T>(stream, norm.forward(Then::nothing, false, all));
  batch_norm_follow(stream, {.channels = norm.form.channels,
                             .running_mean = norm.running_mean,
                             .running_variance = norm.running_variance,
                             .moments = all});
  others(7);
  batch_norm_gradient_sums<T>(stream, {.x = norm.rows(norm.x),
                                       .mean = norm.mean,
                                       .inverse = norm.inverse,
                                       .dy = norm.rows(norm.dy),
                                       .sums = own,
                                       .scratch = norm.scratch});
  batch_norm_backward<T>(stream, norm.backward(Then::nothing, false, all, own));
}

TEST_CASE_TEMPLATE("cuda: synchronised batch norm is near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    CAPTURE(form.rows);
    CAPTURE(form.channels);
    compare_norms<T>(Comparison::with_the_cpu, form, synchronised_passes<T>);
  }
}

// Four granules, one of them empty, as two replicas of two ranks bring them.
TEST_CASE("cuda: running moments that move by one granule after the other have the CPU's bits") {
  for (const std::size_t channels : {1, 5, 130}) {
    const std::size_t values = batch_norm_values(channels);
    const std::vector<float> some = random_floats(4 * values, 9);
    std::vector<double> brought(some.begin(), some.end());
    for (double& value : brought) value = std::abs(value);
    for (std::size_t place = 0; place < 4; ++place) brought[place * values] = static_cast<double>(place % 3 * 5);
    compare_with_the_cpu(
        [&](Stream& on, float* mean, float* variance, const double* moments) {
          batch_norm_follow(on, {.channels = channels,
                                 .running_mean = mean,
                                 .running_variance = variance,
                                 .moments = {moments, values, values, 2, 2},
                                 .granules = true});
        },
        same(std::vector<float>(channels, 0.5f)), same(std::vector<float>(channels, 2)), same(brought));
  }
}

TEST_CASE("cuda: batch norm has the same bits each time") {
  compare_norms<bf16>(Comparison::with_itself, {700, 34},
                      [](Stream& on, const Norm<bf16>& norm) { both_passes(on, norm, Then::relu, false); });
}

}  // namespace vision_batch_norm_test
