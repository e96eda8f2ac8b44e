// The runtime against a plain training loop that knows nothing of it: one rank is exact, several ranks average.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "toy_model.hpp"

namespace {

using toy::Values;

// Flat reference network with the arithmetic of toy::Layer, AdamW as kernels/optimizer.hpp states it.
struct Reference {
  explicit Reference(const toy::Run& run) : widths(run.widths), clip(run.clip) {
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      for (const bool weight : {true, false}) {
        const std::size_t count = weight ? widths[l] * widths[l + 1] : widths[l + 1];
        const std::string name = "units." + std::to_string(l) + (weight ? ".weight" : ".bias");
        Values values(count);
        tessera::Initial::fan_in(widths[l]).fill(values, run.options.seed, name, 0);
        names.push_back(name);
        parameters.push_back(values);
        gradients.emplace_back(count);
        m.emplace_back(count);
        v.emplace_back(count);
      }
    }
  }

  // Writes the gradients of one micro-batch; returns its loss.
  float micro_batch(const Values& input, const Values& target) {
    const std::size_t rows = input.size() / widths.front();
    std::vector<Values> y = {input};
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      Values out(rows * widths[l + 1]);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t o = 0; o < widths[l + 1]; ++o) {
          float sum = parameters[2 * l + 1][o];
          for (std::size_t i = 0; i < widths[l]; ++i)
            sum += parameters[2 * l][o * widths[l] + i] * y[l][r * widths[l] + i];
          out[r * widths[l + 1] + o] = std::tanh(sum);
        }
      }
      y.push_back(out);
    }
    float loss = 0.0f;
    Values dy(target.size());
    for (std::size_t i = 0; i < target.size(); ++i) {
      const float error = y.back()[i] - target[i];
      loss += error * error;
      dy[i] = 2.0f * error;
    }
    for (std::size_t l = widths.size() - 1; l-- > 0;) dy = layer_backward(l, rows, y[l], y[l + 1], dy);
    return loss;
  }

  Values layer_backward(std::size_t l, std::size_t rows, const Values& x, const Values& y, const Values& dy) {
    const std::size_t in = widths[l], out = widths[l + 1];
    Values dx(rows * in, 0.0f);
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t i = 0; i < in; ++i) {
        float sum = 0.0f;
        for (std::size_t r = 0; r < rows; ++r) {
          const float d = dy[r * out + o] * (1.0f - y[r * out + o] * y[r * out + o]);
          sum += d * x[r * in + i];
          dx[r * in + i] += d * parameters[2 * l][o * in + i];
        }
        gradients[2 * l][o * in + i] = sum;
      }
      float bias = 0.0f;
      for (std::size_t r = 0; r < rows; ++r) bias += dy[r * out + o] * (1.0f - y[r * out + o] * y[r * out + o]);
      gradients[2 * l + 1][o] = bias;
    }
    return dx;
  }

  // `sums` are sums over ranks and micro-batches.
  double update(const std::vector<Values>& sums, float divisor, int step) {
    std::vector<Values> averages = sums;
    double squares = 0.0;
    for (Values& values : averages) {
      for (float& value : values) {
        value /= divisor;
        squares += double(value) * value;
      }
    }
    const double norm = std::sqrt(squares);
    const float factor = norm > clip ? float(clip / norm) : 1.0f;
    const float lr = 0.01f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, decay = 0.1f;
    const double power1 = std::pow(double(beta1), step), power2 = std::pow(double(beta2), step);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      for (std::size_t i = 0; i < parameters[p].size(); ++i) {
        const float g = averages[p][i] * factor;
        m[p][i] = beta1 * m[p][i] + (1.0f - beta1) * g;
        v[p][i] = beta2 * v[p][i] + (1.0f - beta2) * g * g;
        const float m_hat = m[p][i] / float(1.0 - power1), v_hat = v[p][i] / float(1.0 - power2);
        parameters[p][i] -= lr * decay * parameters[p][i];
        parameters[p][i] -= lr * m_hat / (std::sqrt(v_hat) + epsilon);
      }
    }
    return norm;
  }

  std::vector<std::size_t> widths;
  float clip;
  std::vector<std::string> names;
  std::vector<Values> parameters, gradients, m, v;
};

struct ReferenceResult {
  Values losses;
  Values norms;
};

ReferenceResult train_reference(Reference& reference, const toy::Run& run) {
  constexpr std::size_t rows = 3;
  ReferenceResult result;
  for (int step = 0; step < run.steps; ++step) {
    std::vector<Values> sums;
    for (const Values& gradient : reference.gradients) sums.emplace_back(gradient.size(), 0.0f);
    float loss = 0.0f;
    for (std::size_t micro = 0; micro < run.options.micro_batches; ++micro) {
      for (int rank = 0; rank < run.ranks; ++rank) {
        loss += reference.micro_batch(toy::sample(rows * run.widths.front(), step, micro, rank, 0),
                                      toy::sample(rows * run.widths.back(), step, micro, rank, 1));
        for (std::size_t p = 0; p < sums.size(); ++p) {
          for (std::size_t i = 0; i < sums[p].size(); ++i) sums[p][i] += reference.gradients[p][i];
        }
      }
    }
    const float divisor = static_cast<float>(std::size_t(run.ranks) * run.options.micro_batches);
    result.norms.push_back(static_cast<float>(reference.update(sums, divisor, step + 1)));
    result.losses.push_back(loss / divisor);
  }
  return result;
}

// Sums are formed in another order here, so this is a tolerance; a lost factor of ranks or micro-batches is far outside
// of it.
TEST_CASE("every_strategy_follows_a_plain_training_loop") {
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t micro_batches : {1, 3}) {
      for (const auto strategy : tessera::flat_strategies) {
        for (const auto mode : {tessera::AccumulationMode::reduced, tessera::AccumulationMode::local}) {
          toy::Run run;
          run.ranks = ranks;
          run.steps = 6;
          run.options.strategy = strategy;
          run.options.micro_batches = micro_batches;
          run.options.accumulation = mode;
          CAPTURE(toy::describe(run));
          Reference reference(run);
          const ReferenceResult expected = train_reference(reference, run);
          const toy::Result actual = toy::train(run);
          for (std::size_t step = 0; step < expected.losses.size(); ++step) {
            CHECK(std::bit_cast<float>(actual.losses[step]) == doctest::Approx(expected.losses[step]).epsilon(2e-5));
            CHECK(actual.norms[step] == doctest::Approx(expected.norms[step]).epsilon(2e-5));
          }
          for (std::size_t p = 0; p < reference.names.size(); ++p) {
            const Values& weights = actual.weights.at(reference.names[p]);
            REQUIRE(weights.size() == reference.parameters[p].size());
            for (std::size_t i = 0; i < weights.size(); ++i) {
              CHECK(weights[i] == doctest::Approx(reference.parameters[p][i]).epsilon(1e-3).scale(0.1));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the_first_loss_of_one_rank_is_exact") {
  toy::Run run;
  run.steps = 1;
  Reference reference(run);
  const ReferenceResult expected = train_reference(reference, run);
  for (const auto strategy : tessera::flat_strategies) {
    run.options.strategy = strategy;
    CHECK(toy::train(run).losses.front() == std::bit_cast<std::uint32_t>(expected.losses.front()));
  }
}

}  // namespace
