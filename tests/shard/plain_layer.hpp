// The same without the runtime: layers in double precision, plain loops, and the rules of two optimizers.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/shard/initial.hpp"

namespace plain {

using Numbers = std::vector<double>;
using Rule = std::function<void(double& weight, double gradient, double& first, double& second)>;

inline Numbers numbers(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// y = tanh(W x + b) for any number of rows; with the initial values of a toy::Layer of this name.
struct Layer {
  Layer(const std::string& name, std::size_t from, std::size_t to) : in(from), out(to) {
    const auto initial = [&](const char* what, std::size_t count) {
      std::vector<float> values(count);
      tessera::Initial::fan_in(in).fill(values, 0, name + "." + what, 0);
      return numbers(values);
    };
    weight = initial("weight", in * out);
    bias = initial("bias", out);
    first.assign(weight.size() + bias.size(), 0.0);
    second = first;
    clear();
  }

  Numbers forward(const Numbers& x) const {
    const std::size_t rows = x.size() / in;
    Numbers y(rows * out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        double sum = bias[o];
        for (std::size_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[r * in + i];
        y[r * out + o] = std::tanh(sum);
      }
    }
    return y;
  }

  // The gradient of x; those of the weights add up where they are trained.
  Numbers backward(const Numbers& x, const Numbers& y, const Numbers& dy, bool trains = true) {
    const std::size_t rows = x.size() / in;
    Numbers dx(x.size(), 0.0);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        const double d = dy[r * out + o] * (1.0 - y[r * out + o] * y[r * out + o]);
        if (trains) dbias[o] += d;
        for (std::size_t i = 0; i < in; ++i) {
          if (trains) dweight[o * in + i] += d * x[r * in + i];
          dx[r * in + i] += d * weight[o * in + i];
        }
      }
    }
    return dx;
  }

  void clear() {
    dweight.assign(weight.size(), 0.0);
    dbias.assign(bias.size(), 0.0);
  }
  void update(double divisor, const Rule& rule) {
    for (std::size_t i = 0; i < weight.size(); ++i) rule(weight[i], dweight[i] / divisor, first[i], second[i]);
    for (std::size_t i = 0; i < bias.size(); ++i) {
      const std::size_t place = weight.size() + i;
      rule(bias[i], dbias[i] / divisor, first[place], second[place]);
    }
  }

  // The sum of the squares of the mean gradient.
  double squares(double divisor) const {
    double sum = 0.0;
    for (const Numbers* gradient : {&dweight, &dbias}) {
      for (const double value : *gradient) sum += value / divisor * value / divisor;
    }
    return sum;
  }

  std::size_t in, out;
  Numbers weight, bias;
  Numbers dweight, dbias;
  Numbers first, second;  // of the optimizer, weight and then bias
};

// Layers one behind the other, whose names end with their numbers.
struct Chain {
  Chain(const std::string& prefix, std::span<const std::size_t> widths) : name(prefix) {
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      layers.emplace_back(name + std::to_string(l), widths[l], widths[l + 1]);
    }
  }

  const Numbers& forward(const Numbers& x) {
    values = {x};
    for (const Layer& layer : layers) values.push_back(layer.forward(values.back()));
    return values.back();
  }
  // The gradient of what the last forward() got.
  Numbers backward(Numbers dy, bool trains = true) {
    for (std::size_t l = layers.size(); l-- > 0;) dy = layers[l].backward(values[l], values[l + 1], dy, trains);
    return dy;
  }
  void clear() {
    for (Layer& layer : layers) layer.clear();
  }
  void update(double divisor, const Rule& rule) {
    for (Layer& layer : layers) layer.update(divisor, rule);
  }

  std::string name;
  std::vector<Layer> layers;
  std::vector<Numbers> values;  // of the last forward(): its input and what came of each layer
};

// Half the squared difference to half of the input: its gradient, with the loss scale.
template <typename Number>
std::vector<Number> error(const std::vector<Number>& y, const std::vector<float>& x, Number scale) {
  std::vector<Number> dy(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) dy[i] = (y[i] - Number(0.5f) * Number(x[i % x.size()])) * scale;
  return dy;
}

// Weights that the runtime has trained, by name.
using Weights = std::map<std::string, std::vector<float>>;

inline void check_near(const Weights& weights, const std::string& name, const Numbers& expected, double tolerance) {
  INFO(name);
  const std::vector<float>& values = weights.at(name);
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(expected[i]).epsilon(tolerance));
}
inline void check_near(const Weights& weights, const std::string& name, const Layer& expected,
                       double tolerance = 1e-5) {
  check_near(weights, name + ".weight", expected.weight, tolerance);
  check_near(weights, name + ".bias", expected.bias, tolerance);
}
inline void check_near(const Weights& weights, const Chain& expected, double tolerance = 1e-5) {
  for (std::size_t l = 0; l < expected.layers.size(); ++l) {
    check_near(weights, expected.name + std::to_string(l), expected.layers[l], tolerance);
  }
}

struct Decays {
  double beta1 = 0.9, weight = 0.0;
};
// Counts steps from 1.
inline Rule adamw(double rate, int step, Decays decays = {}) {
  return [=](double& weight, double gradient, double& first, double& second) {
    first = decays.beta1 * first + (1.0 - decays.beta1) * gradient;
    second = 0.999 * second + 0.001 * gradient * gradient;
    const double mean = first / (1.0 - std::pow(decays.beta1, step));
    weight -= rate * decays.weight * weight;
    weight -= rate * mean / (std::sqrt(second / (1.0 - std::pow(0.999, step))) + 1e-8);
  };
}
inline Rule sgd(double rate, double momentum) {
  return [rate, momentum](double& weight, double gradient, double& first, double&) {
    first = momentum * first + gradient;
    weight -= rate * first;
  };
}

}  // namespace plain
