// AdamW and Sgd through the Optimizer interface: settings reach the kernels, and what is out of range is refused.
#include "tessera/shard/optimizer.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/optim/adagrad.hpp"
#include "tessera/optim/adam.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/rmsprop.hpp"
#include "tessera/optim/sgd.hpp"

using namespace tessera;

namespace {

constexpr std::size_t count = 37;

std::vector<float> numbers(double frequency) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = static_cast<float>(std::sin(frequency * (1.0 + static_cast<double>(i))));
  return result;
}

// Masters, states and scalars of one run, on an immediate stream.
class Run {
 public:
  explicit Run(std::unique_ptr<Optimizer> optimizer)
      : optimizer_(std::move(optimizer)), states_(optimizer_->states().size(), std::vector<float>(count)) {}

  void step(const std::vector<float>& gradient, OptimizerGroup group, bool skip = false) {
    const kernels::StepSettings settings = optimizer_->step_settings();
    if (!skip) {
      ++scalars_.step;
      for (int i = 0; i < 2; ++i) scalars_.decay_power[i] *= settings.decay[i];
    }
    scalars_.skip = skip ? 1 : 0;
    scalars_.gradient_factor = 0.5f;
    std::vector<float*> states;
    for (std::vector<float>& state : states_) states.push_back(state.data());
    optimizer_->update(stream_,
                       {.master = master.data(), .states = states, .gradient = gradient.data(), .count = count}, group,
                       &scalars_);
    stream_.synchronize();
  }

  std::vector<float> master = numbers(0.7);

 private:
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::vector<float>> states_;
  kernels::StepScalars scalars_;
  Stream stream_{Device::cpu(), {.mode = StreamMode::immediate}};
};

// Adam with decoupled weight decay, in double, straight from the papers.
std::vector<double> adamw_reference(const std::vector<std::vector<float>>& gradients, const AdamW& s,
                                    OptimizerGroup group) {
  const std::vector<float> start = numbers(0.7);
  std::vector<double> w(start.begin(), start.end());
  std::vector<double> m(count, 0.0);
  std::vector<double> v(count, 0.0);
  for (std::size_t t = 1; t <= gradients.size(); ++t) {
    for (std::size_t i = 0; i < count; ++i) {
      const double g = 0.5 * static_cast<double>(gradients[t - 1][i]);
      const double b1 = static_cast<double>(s.beta1);
      const double b2 = static_cast<double>(s.beta2);
      const double lr = static_cast<double>(group.learning_rate);
      m[i] = b1 * m[i] + (1.0 - b1) * g;
      v[i] = b2 * v[i] + (1.0 - b2) * g * g;
      const double m_hat = m[i] / (1.0 - std::pow(b1, static_cast<double>(t)));
      const double v_hat = v[i] / (1.0 - std::pow(b2, static_cast<double>(t)));
      w[i] -= lr * (m_hat / (std::sqrt(v_hat) + static_cast<double>(s.epsilon)) +
                    static_cast<double>(group.weight_decay) * w[i]);
    }
  }
  return w;
}

std::vector<double> sgd_reference(const std::vector<std::vector<float>>& gradients, const Sgd& s,
                                  OptimizerGroup group) {
  const std::vector<float> start = numbers(0.7);
  std::vector<double> w(start.begin(), start.end());
  std::vector<double> velocity(count, 0.0);
  for (const std::vector<float>& gradient : gradients) {
    for (std::size_t i = 0; i < count; ++i) {
      const double momentum = static_cast<double>(s.momentum);
      const double g = 0.5 * static_cast<double>(gradient[i]) + static_cast<double>(group.weight_decay) * w[i];
      velocity[i] = momentum * velocity[i] + g;
      w[i] -= static_cast<double>(group.learning_rate) * (s.nesterov ? g + momentum * velocity[i] : velocity[i]);
    }
  }
  return w;
}

const std::vector<std::vector<float>> three_gradients = {numbers(1.3), numbers(2.1), numbers(0.2)};
constexpr OptimizerGroup group{.learning_rate = 0.05f, .weight_decay = 0.2f};

template <typename Settings>
void check_against(const std::vector<double>& expected, const Settings& settings) {
  Run run(settings);
  for (const std::vector<float>& gradient : three_gradients) run.step(gradient, group);
  for (std::size_t i = 0; i < count; ++i)
    CHECK(static_cast<double>(run.master[i]) == doctest::Approx(expected[i]).epsilon(1e-5));
}

template <typename Settings>
std::string refusal(const Settings& settings) {
  return tests::error_text<UsageError>([&] { const std::unique_ptr<Optimizer> optimizer = settings; }, "accepted");
}

void check_runs_at_once(const Optimizer& optimizer) {
  std::vector<OptimizerRun> runs = {{.first = 1, .count = 9, .learning_rate_scale = 1.0f, .group = group},
                                    {.first = 10, .count = 0, .learning_rate_scale = 1.0f, .group = group},
                                    {.first = 12, .count = 25, .learning_rate_scale = 0.3f, .group = group}};
  runs[2].group.weight_decay = 0.0f;
  if (optimizer.name() == "adamw") runs[2].group.beta1 = 0.7f;
  const kernels::StepScalars scalars{.decay_power = {0.64, 0.9025}, .step = 2, .gradient_factor = 0.5f};
  Stream stream(Device::cpu(), {.mode = StreamMode::immediate});
  using Halves = std::vector<bf16>;
  const auto updated = [&](const std::function<void(const OptimizerSpans&)>& update) {
    std::vector<float> master = numbers(0.7), m(count, 1.5f), v(count, 0.5f), gradient = numbers(1.3);
    Halves halves(count);
    const std::vector<float*> states = {m.data(), v.data()};
    update({master.data(), states, gradient.data(), count, {halves.data(), DType::bf16}});
    stream.synchronize();
    for (const bf16 half : halves) master.push_back(float(half));
    return std::vector{master, m, v};
  };
  const auto at_once = updated([&](const OptimizerSpans& all) {
    optimizer.prepare(runs)->update(stream, all, 0.05f, &scalars);
    stream.synchronize();
  });
  const auto one_by_one = updated([&](const OptimizerSpans& all) {
    for (const OptimizerRun& run : runs) {
      const std::vector<float*> states = {all.states[0] + run.first, all.states[1] + run.first};
      OptimizerGroup now = run.group;
      now.learning_rate = 0.05f * run.learning_rate_scale;
      optimizer.update(stream,
                       {all.master + run.first,
                        states,
                        static_cast<const float*>(all.gradient.data) + run.first,
                        run.count,
                        {static_cast<bf16*>(all.parameters.data) + run.first, DType::bf16}},
                       now, &scalars);
      stream.synchronize();
    }
  });
  CHECK(at_once == one_by_one);
  CHECK(at_once[0][0] == numbers(0.7)[0]);    // before the first run
  CHECK(at_once[0][11] == numbers(0.7)[11]);  // between two
  CHECK(at_once[0][12] != numbers(0.7)[12]);
}

}  // namespace

TEST_CASE("adamw_follows_the_papers") {
  const AdamW settings{.beta1 = 0.8f, .beta2 = 0.95f, .epsilon = 1e-3f};
  check_against(adamw_reference(three_gradients, settings, group), settings);
}

TEST_CASE("a_group_with_betas_and_epsilon_of_its_own_follows_the_papers_with_them") {
  const AdamW own{.beta1 = 0.7f, .beta2 = 0.9f, .epsilon = 1e-2f};
  Run run(AdamW{.beta1 = 0.8f, .beta2 = 0.95f, .epsilon = 1e-3f});
  OptimizerGroup with_own = group;
  with_own.beta1 = own.beta1;
  with_own.beta2 = own.beta2;
  with_own.epsilon = own.epsilon;
  for (const std::vector<float>& gradient : three_gradients) run.step(gradient, with_own);
  const std::vector<double> expected = adamw_reference(three_gradients, own, group);
  for (std::size_t i = 0; i < count; ++i)
    CHECK(static_cast<double>(run.master[i]) == doctest::Approx(expected[i]).epsilon(1e-5));
}

// Each with as many states as AdamW, which are not negative.
TEST_CASE("runs_that_are_updated_at_once_have_the_bits_of_runs_that_are_updated_one_by_one") {
  const std::unique_ptr<Optimizer> optimizers[] = {AdamW{.beta1 = 0.8f, .beta2 = 0.95f}, RmsProp{.momentum = 0.9f},
                                                   RmsProp{.centered = true}};
  for (const std::unique_ptr<Optimizer>& optimizer : optimizers) check_runs_at_once(*optimizer);
}

// Settings that equal the optimizer's own change no bit.
TEST_CASE("a_group_that_repeats_the_optimizers_settings_changes_no_bit") {
  const AdamW settings{.beta1 = 0.8f, .beta2 = 0.95f, .epsilon = 1e-3f};
  Run plain(settings), repeated(settings);
  OptimizerGroup same = group;
  same.beta1 = settings.beta1;
  same.beta2 = settings.beta2;
  same.epsilon = settings.epsilon;
  for (const std::vector<float>& gradient : three_gradients) plain.step(gradient, group), repeated.step(gradient, same);
  CHECK(plain.master == repeated.master);
}

TEST_CASE("sgd_follows_its_formula_with_and_without_momentum") {
  for (const Sgd& settings : {Sgd{}, Sgd{.momentum = 0.9f}, Sgd{.momentum = 0.9f, .nesterov = true}}) {
    check_against(sgd_reference(three_gradients, settings, group), settings);
  }
}

TEST_CASE("a_skipped_step_changes_nothing") {
  Run run(AdamW{});
  run.step(three_gradients[0], group);
  const std::vector<float> before = run.master;
  run.step(std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()), group, true);
  CHECK(run.master == before);
}

TEST_CASE("optimizers_say_what_they_keep_and_how_they_clip") {
  const std::unique_ptr<Optimizer> adamw = AdamW{.beta1 = 0.5f, .beta2 = 0.25f, .clip_norm = 1.5f};
  CHECK(adamw->name() == "adamw");
  CHECK(adamw->states() == std::vector<std::string>{"m", "v"});
  CHECK(adamw->step_settings().clip_norm == 1.5f);
  CHECK(adamw->step_settings().decay[0] == 0.5);
  CHECK(adamw->step_settings().decay[1] == 0.25);
  const std::unique_ptr<Optimizer> plain = Sgd{.learning_rate = 0.25f, .weight_decay = 0.5f};
  CHECK(plain->name() == "sgd");
  CHECK(plain->states().empty());
  CHECK(plain->learning_rate() == 0.25f);
  CHECK(plain->weight_decay() == 0.5f);
  const std::unique_ptr<Optimizer> momentum = Sgd{.momentum = 0.9f};
  CHECK(momentum->states() == std::vector<std::string>{"velocity"});
  const std::unique_ptr<Optimizer> rmsprop = RmsProp{.momentum = 0.9f, .centered = true}, adagrad = Adagrad{};
  CHECK(rmsprop->states() == std::vector<std::string>{"v", "mean", "velocity"});
  CHECK(adagrad->states() == std::vector<std::string>{"v"});
}

TEST_CASE("groups_reach_the_runtime") {
  const std::unique_ptr<Optimizer> optimizer = AdamW{.groups = {{.patterns = {"*.bias"}, .weight_decay = 0.0f},
                                                                {.patterns = {"head.*"}, .learning_rate_scale = 0.5f}}};
  REQUIRE(optimizer->groups().size() == 2);
  CHECK(optimizer->groups()[1].learning_rate_scale == 0.5f);
  CHECK_FALSE(optimizer->groups()[1].weight_decay.has_value());
}

TEST_CASE("settings_out_of_range_are_named_with_their_value") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(refusal(AdamW{}) == "accepted");
  CHECK(refusal(AdamW{.learning_rate = -1.0f}) == "AdamW: learning_rate must be at least 0 and finite, but is -1");
  CHECK(refusal(AdamW{.learning_rate = nan}) != "accepted");
  CHECK(refusal(AdamW{.beta1 = 1.0f}) == "AdamW: beta1 must be at least 0 and below 1, but is 1");
  CHECK(refusal(AdamW{.beta2 = -0.5f}) == "AdamW: beta2 must be at least 0 and below 1, but is -0.5");
  CHECK(refusal(AdamW{.beta2 = nan}) != "accepted");
  CHECK(refusal(AdamW{.epsilon = 0.0f}) == "AdamW: epsilon must be above 0 and finite, but is 0");
  CHECK(refusal(AdamW{.weight_decay = -0.5f}) == "AdamW: weight_decay must be at least 0 and finite, but is -0.5");
  CHECK(refusal(AdamW{.clip_norm = -2.0f}) == "AdamW: clip_norm must be at least 0 and finite, but is -2");
  CHECK(refusal(AdamW{.groups = {{.patterns = {}}}}).find("groups[0].patterns") != std::string::npos);
  CHECK(refusal(AdamW{.groups = {{.patterns = {"*"}}, {.patterns = {"*"}, .weight_decay = -1.0f}}}) ==
        "AdamW: groups[1].weight_decay must be at least 0 and finite, but is -1");
  CHECK(refusal(AdamW{.groups = {{.patterns = {"*"}, .beta2 = 1.5f}}}) ==
        "AdamW: groups[0].beta2 must be at least 0 and below 1, but is 1.5");
  CHECK(refusal(AdamW{.groups = {{.patterns = {"*"}, .epsilon = 0.0f}}}) ==
        "AdamW: groups[0].epsilon must be above 0 and finite, but is 0");
  CHECK(refusal(Sgd{.groups = {{.patterns = {"*"}, .beta1 = 0.5f}}}) ==
        "Sgd: groups[0] sets beta1, beta2 or epsilon, which are Adam's and AdamW's");
  CHECK(refusal(Sgd{}) == "accepted");
  CHECK(refusal(Sgd{.momentum = 1.0f}) == "Sgd: momentum must be at least 0 and below 1, but is 1");
  CHECK(refusal(Sgd{.nesterov = true}) == "Sgd: nesterov needs momentum above 0, but it is 0");
  CHECK(refusal(Sgd{.dampening = 0.5f}) == "Sgd: dampening needs momentum above 0, but it is 0");
  CHECK(refusal(Sgd{.momentum = 0.5f, .nesterov = true, .dampening = 0.5f}) ==
        "Sgd: nesterov needs a dampening of 0, but it is 0.5");
  CHECK(refusal(Adam{.beta1 = 1.0f}) == "Adam: beta1 must be at least 0 and below 1, but is 1");
  CHECK(refusal(RmsProp{.alpha = 1.0f}) == "RmsProp: alpha must be at least 0 and below 1, but is 1");
  CHECK(refusal(RmsProp{.groups = {{.patterns = {"*"}, .epsilon = 0.5f}}}).find("which are Adam's") !=
        std::string::npos);
  CHECK(refusal(Adagrad{.initial = -1.0f}) == "Adagrad: initial must be at least 0 and finite, but is -1");
}
