// Softmax cross entropy and the count of right answers on CUDA devices against the CPU.
#include "nn_device.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/cross_entropy.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;

namespace nn_cross_entropy_test {

struct Form {
  std::size_t batch;
  std::size_t classes;
  float smoothing = 0.0f;
  std::size_t among = 1;
};
const std::vector<Form> forms = {
    {0, 3}, {1, 1}, {5, 2}, {3, 257}, {7, 64}, {2, 2056}, {3, 257, 0.1f, 5}, {5, 2, 1.0f, 2}, {7, 64, 0.25f, 3}};

template <typename T>
struct Case {
  explicit Case(const Form& of)
      : form(of), logits(random_elements<T>(of.batch * of.classes, 1)), gradient(logits.size()) {
    for (T& logit : logits) logit = T(9.0f * static_cast<float>(logit));
    for (std::size_t row = 0; row < form.batch; ++row) {
      labels.push_back(static_cast<std::int32_t>(row * 7 % form.classes));
      weights.push_back(row % 3 == 1 ? 0.0f : 1.25f + static_cast<float>(row % 5));
    }
    if (form.classes > 4) logits[2] = logits[1] = T(20.0f);  // equals
  }

  Form form;
  std::vector<T> logits, gradient;
  std::vector<std::int32_t> labels;
  std::vector<float> weights;
  float loss = -1.0f;
  double correct = -1.0;
};

enum class Passes { separate, at_once };

// The gradient replaces the logits.
template <typename T>
void run(DeviceKind kind, Case<T>& c, Passes passes = Passes::separate) {
  Stream stream = stream_on(kind);
  const std::size_t room = passes == Passes::separate
                               ? cross_entropy_statistics(c.form.batch, c.form.smoothing)
                               : cross_entropy_at_once_statistics(c.form.batch, c.form.smoothing, kind);
  DeviceMatrix<T> logits(kind, c.logits, c.form.batch, c.form.classes);
  DeviceBuffer<std::int32_t> labels(kind, c.labels);
  DeviceBuffer<float> weights(kind, c.weights), statistics(kind, room), loss(kind, 1),
      scale(kind, std::vector<float>{4.0f}), marks(kind, c.form.batch);
  DeviceBuffer<double> correct(kind, 1);
  const CrossEntropyRows<T> rows{.logits = logits.view(),
                                 .labels = labels.data(),
                                 .weights = weights.data(),
                                 .denominator = 3.0f,
                                 .statistics = statistics.data(),
                                 .smoothing = c.form.smoothing,
                                 .marks = marks.data()};
  if (passes == Passes::separate) cross_entropy_forward<T>(stream, rows, loss.data());
  count_correct<T>(stream, rows, correct.data(), c.form.among);
  if (passes == Passes::separate) cross_entropy_backward<T>(stream, rows, scale.data(), logits.view());
  if (passes == Passes::at_once) cross_entropy_at_once<T>(stream, rows, loss.data(), scale.data(), logits.view());
  stream.synchronize();
  CHECK((statistics.guards_intact() && marks.guards_intact()));
  c.loss = loss.values()[0], c.correct = correct.values()[0], c.gradient = logits.values();
}

TEST_CASE_TEMPLATE("cuda: cross entropy, its gradient and the count are near the CPU's", T, TESSERA_CUDA_ELEMENTS) {
  for (const Form& form : forms) {
    CAPTURE(form.batch);
    CAPTURE(form.classes);
    Case<T> expected(form), computed(form), again(form), at_once(form);
    run(DeviceKind::cpu, expected);
    run(DeviceKind::cuda, computed);
    run(DeviceKind::cuda, again);
    run(DeviceKind::cuda, at_once, Passes::at_once);
    check_near(std::vector<float>{computed.loss}, std::vector<float>{expected.loss});
    check_near(computed.gradient, expected.gradient);
    CHECK(computed.correct == expected.correct);
    check_same(std::vector<float>{again.loss}, std::vector<float>{computed.loss});
    check_same(again.gradient, computed.gradient);
    check_same(std::vector<float>{at_once.loss}, std::vector<float>{computed.loss});
    check_same(at_once.gradient, computed.gradient);
  }
}

TEST_CASE_TEMPLATE("cuda: rows of logits may be apart, and what is between them stays", T, TESSERA_CUDA_ELEMENTS) {
  const Form form{3, 21};
  Case<T> expected(form);
  run(DeviceKind::cpu, expected);
  Stream stream = cuda_stream();
  std::vector<T> apart(3 * 24, T(-5.0f)), wanted = apart;
  for (std::size_t i = 0; i < 3 * 21; ++i) {
    apart[i / 21 * 24 + i % 21] = expected.logits[i];
    wanted[i / 21 * 24 + i % 21] = expected.gradient[i];
  }
  DeviceMatrix<T> logits(DeviceKind::cuda, apart, 3, 24);
  DeviceBuffer<std::int32_t> labels(expected.labels);
  DeviceBuffer<float> weights(expected.weights), statistics(6), loss(1), scale(std::vector<float>{4.0f}), marks(3);
  DeviceBuffer<double> correct(1);
  const MatrixView<T> view{logits.data(), 3, 21};
  const CrossEntropyRows<T> rows{.logits = view,
                                 .labels = labels.data(),
                                 .weights = weights.data(),
                                 .denominator = 3.0f,
                                 .statistics = statistics.data(),
                                 .stride = 24,
                                 .marks = marks.data()};
  cross_entropy_forward<T>(stream, rows, loss.data());
  count_correct<T>(stream, rows, correct.data());
  cross_entropy_backward<T>(stream, rows, scale.data(), view);
  stream.synchronize();
  check_near(loss.values(), std::vector<float>{expected.loss});
  check_near(logits.values(), wanted);
  CHECK(correct.values()[0] == expected.correct);
  Stream host = host_stream();
  CHECK_THROWS_AS(cross_entropy_forward<T>(host, rows, loss.data()), UsageError);
  CrossEntropyRows<T> without = rows;
  without.marks = nullptr;
  CHECK_THROWS_WITH_AS(count_correct<T>(stream, without, correct.data()), doctest::Contains("needs `marks`"),
                       UsageError);
}

TEST_CASE("cuda: the loss of more rows than a block has threads is near the CPU's") {
  Case<float> expected({1030, 3}), computed({1030, 3});
  run(DeviceKind::cpu, expected);
  run(DeviceKind::cuda, computed);
  check_near(std::vector<float>{computed.loss}, std::vector<float>{expected.loss});
  CHECK(computed.correct == doctest::Approx(expected.correct).epsilon(1e-12));
}

TEST_CASE("cuda: infinite logits are no probability, as on the CPU") {
  Case<float> expected({2, 5}), computed({2, 5});
  for (Case<float>* c : {&expected, &computed}) {
    c->logits[1] = c->logits[3] = -std::numeric_limits<float>::infinity();
    c->weights = {1.0f, 1.0f};
  }
  run(DeviceKind::cpu, expected);
  run(DeviceKind::cuda, computed);
  check_near(std::vector<float>{computed.loss}, std::vector<float>{expected.loss});
  check_near(computed.gradient, expected.gradient);
}

TEST_CASE("cuda: a label out of range makes the loss, its row's gradient and the count NaN") {
  for (const std::int32_t label : {-1, 3}) {
    for (const Passes passes : {Passes::separate, Passes::at_once}) {
      Case<float> computed({4, 3});
      computed.labels[2] = label;
      run(DeviceKind::cuda, computed, passes);
      CHECK(std::isnan(computed.loss));
      CHECK(std::isnan(computed.correct));
      for (std::size_t i = 0; i < 12; ++i) CHECK(std::isnan(computed.gradient[i]) == (i / 3 == 2));
    }
  }
}

TEST_CASE("cuda: a label of a row of weight 0 is not looked at") {
  Case<float> computed({4, 3});
  computed.labels[1] = 99;
  run(DeviceKind::cuda, computed);
  CHECK_FALSE(std::isnan(computed.loss));
  CHECK_FALSE(std::isnan(computed.correct));
}

}  // namespace nn_cross_entropy_test
