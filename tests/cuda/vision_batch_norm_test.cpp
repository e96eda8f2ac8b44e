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

template <typename T>
struct Case {
  explicit Case(const Form& of)
      : form(of),
        x(random_elements<T>(of.rows * of.channels, 1)),
        weight(random_elements<T>(of.channels, 2)),
        bias(random_elements<T>(of.channels, 3)),
        residual(random_elements<T>(of.rows * of.channels, 5)),
        dy(random_elements<T>(of.rows * of.channels, 4)),
        y(x.size()),
        dx(x.size()),
        dweight(of.channels, T(0.5f)),
        dbias(of.channels, T(0.25f)),
        mean(of.channels),
        inverse(of.channels),
        running_mean(of.channels, 0.5f),
        running_variance(of.channels, 2.0f) {}

  Form form;
  std::vector<T> x, weight, bias, residual, dy, y, dx, dweight, dbias;
  std::vector<float> mean, inverse, running_mean, running_variance;
  std::vector<double> moments, sums;  // what a synchronised norm brings
};

// The same calls for either device.
template <typename T>
struct Operands {
  Operands(DeviceKind kind, Case<T>& c)
      : form(c.form),
        x(kind, c.x),
        weight(kind, c.weight),
        bias(kind, c.bias),
        residual(kind, c.residual),
        dy(kind, c.dy),
        y(kind, c.y),
        dx(kind, c.dx),
        dweight(kind, c.dweight),
        dbias(kind, c.dbias),
        mean(kind, c.mean),
        inverse(kind, c.inverse),
        running_mean(kind, c.running_mean),
        running_variance(kind, c.running_variance),
        scratch(kind, std::vector<float>(batch_norm_scratch<T>(c.form.rows, c.form.channels, kind))),
        brought(kind, std::vector<double>(3 * batch_norm_values(c.form.channels))) {}

  MatrixView<T> rows(DeviceBuffer<T>& of) { return {of.data(), form.rows, form.channels}; }

  BatchNormForward<T> forward(Then then, bool evaluate, const Contributions& moments = {}) {
    return {.x = rows(x),
            .weight = weight.data(),
            .bias = bias.data(),
            .y = rows(y),
            .residual = then == Then::residual ? residual.data() : nullptr,
            .relu = then != Then::nothing,
            .mean = mean.data(),
            .inverse = inverse.data(),
            .running_mean = running_mean.data(),
            .running_variance = running_variance.data(),
            .evaluate = evaluate,
            .moments = moments,
            .scratch = scratch.data()};
  }
  BatchNormBackward<T> backward(Then then, bool accumulate, const Contributions& sums = {},
                                const double* own = nullptr) {
    return {.x = rows(x),
            .weight = weight.data(),
            .mean = mean.data(),
            .inverse = inverse.data(),
            .dy = rows(dy),
            .relu_y = then == Then::relu ? y.data() : nullptr,
            .dx = rows(dx),
            .dweight = dweight.data(),
            .dbias = dbias.data(),
            .accumulate = accumulate,
            .sums = sums,
            .own_sums = own,
            .scratch = scratch.data()};
  }

  Form form;
  DeviceBuffer<T> x, weight, bias, residual, dy, y, dx, dweight, dbias;
  DeviceBuffer<float> mean, inverse, running_mean, running_variance, scratch;
  DeviceBuffer<double> brought;
};

template <typename T>
void take(Case<T>& c, Operands<T>& on) {
  for (const bool intact : {on.y.guards_intact(), on.dx.guards_intact(), on.scratch.guards_intact(),
                            on.mean.guards_intact(), on.inverse.guards_intact(), on.brought.guards_intact()}) {
    CHECK(intact);
  }
  c.y = on.y.values(), c.dx = on.dx.values(), c.dweight = on.dweight.values(), c.dbias = on.dbias.values();
  c.mean = on.mean.values(), c.inverse = on.inverse.values();
  c.running_mean = on.running_mean.values(), c.running_variance = on.running_variance.values();
}

template <typename T>
void check_all(const Case<T>& computed, const Case<T>& expected) {
  check_near(computed.mean, expected.mean);
  check_near(computed.inverse, expected.inverse);
  check_near(computed.running_mean, expected.running_mean);
  check_near(computed.running_variance, expected.running_variance);
  check_near(computed.y, expected.y);
  check_near(computed.dx, expected.dx, 1e-5);  // of one row it is 0 where the inverse deviation is 316
  check_near(computed.dweight, expected.dweight, 1e-5);
  check_near(computed.dbias, expected.dbias);
}

template <typename T>
void run(Stream& stream, Operands<T>& on, Then then, bool evaluate) {
  batch_norm_forward<T>(stream, on.forward(then, evaluate));
  if (!evaluate) batch_norm_backward<T>(stream, on.backward(then, then == Then::relu));
  stream.synchronize();
}

TEST_CASE_TEMPLATE("cuda: batch norm and its gradients are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  Stream host = host_stream(), stream = cuda_stream();
  for (const Form& form : forms) {
    for (const Then then : {Then::nothing, Then::relu, Then::residual}) {
      for (const bool evaluate : {false, true}) {
        if (evaluate && form.channels == 0) continue;  // which needs running moments
        CAPTURE(form.rows);
        CAPTURE(form.channels);
        CAPTURE(static_cast<int>(then));
        CAPTURE(evaluate);
        Case<T> expected(form), computed(form);
        Operands<T> on_host(DeviceKind::cpu, expected), on_device(DeviceKind::cuda, computed);
        run(host, on_host, then, evaluate);
        run(stream, on_device, then, evaluate);
        take(expected, on_host);
        take(computed, on_device);
        check_all(computed, expected);
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
void run_synchronised(Stream& stream, Operands<T>& on) {
  const std::size_t values = batch_norm_values(on.form.channels);
  const Contributions all{
      .first = on.brought.data(), .values = values, .stride = values, .replicas = 3, .ranks_of_replica = 1};
  double* const own = on.brought.data() + values;
  const auto others = [&](unsigned seed) {
    const std::vector<double> of = of_others(on.form.channels, seed);
    const auto middle = of.begin() + static_cast<std::ptrdiff_t>(values);
    bring(stream, on.brought.data(), {of.begin(), middle});
    bring(stream, on.brought.data() + 2 * values, {middle, of.end()});
  };
  others(6);
  batch_norm_moments<T>(stream, {.x = on.rows(on.x), .moments = own, .scratch = on.scratch.data()});
  batch_norm_forward<T>(stream, on.forward(Then::nothing, false, all));
  batch_norm_follow(stream, {.channels = on.form.channels,
                             .running_mean = on.running_mean.data(),
                             .running_variance = on.running_variance.data(),
                             .moments = all});
  others(7);
  batch_norm_gradient_sums<T>(stream, {.x = on.rows(on.x),
                                       .mean = on.mean.data(),
                                       .inverse = on.inverse.data(),
                                       .dy = on.rows(on.dy),
                                       .sums = own,
                                       .scratch = on.scratch.data()});
  batch_norm_backward<T>(stream, on.backward(Then::nothing, false, all, own));
  stream.synchronize();
}

TEST_CASE_TEMPLATE("cuda: synchronised batch norm is near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  Stream host = host_stream(), stream = cuda_stream();
  for (const Form& form : forms) {
    CAPTURE(form.rows);
    CAPTURE(form.channels);
    Case<T> expected(form), computed(form);
    Operands<T> on_host(DeviceKind::cpu, expected), on_device(DeviceKind::cuda, computed);
    run_synchronised(host, on_host);
    run_synchronised(stream, on_device);
    take(expected, on_host);
    take(computed, on_device);
    check_all(computed, expected);
    check_near(on_device.brought.values(), on_host.brought.values());
  }
}

// Four granules, one of them empty, as two replicas of two ranks bring them.
TEST_CASE("cuda: running moments that move by one granule after the other have the CPU's bits") {
  Stream host = host_stream(), stream = cuda_stream();
  for (const std::size_t channels : {1, 5, 130}) {
    const std::size_t values = batch_norm_values(channels);
    const std::vector<float> some = random_floats(4 * values, 9);
    std::vector<double> brought(some.begin(), some.end());
    for (double& value : brought) value = std::abs(value);
    for (std::size_t place = 0; place < 4; ++place) brought[place * values] = static_cast<double>(place % 3 * 5);
    const auto follow = [&](DeviceKind kind, Stream& on) {
      DeviceBuffer<double> moments(kind, brought);
      DeviceBuffer<float> mean(kind, std::vector<float>(channels, 0.5f)),
          variance(kind, std::vector<float>(channels, 2));
      batch_norm_follow(on, {.channels = channels,
                             .running_mean = mean.data(),
                             .running_variance = variance.data(),
                             .moments = {moments.data(), values, values, 2, 2},
                             .granules = true});
      on.synchronize();
      CHECK(mean.guards_intact());
      CHECK(variance.guards_intact());
      return std::pair{mean.values(), variance.values()};
    };
    CHECK(follow(DeviceKind::cuda, stream) == follow(DeviceKind::cpu, host));
  }
}

TEST_CASE("cuda: batch norm has the same bits each time") {
  Stream stream = cuda_stream();
  Case<bf16> first({700, 34}), second({700, 34});
  for (Case<bf16>* each : {&first, &second}) {
    Operands<bf16> on(DeviceKind::cuda, *each);
    run(stream, on, Then::relu, false);
    take(*each, on);
  }
  check_same(first.y, second.y);
  check_same(first.dx, second.dx);
  check_same(first.dweight, second.dweight);
}

}  // namespace vision_batch_norm_test
