// The same without the runtime: layers in double precision, plain loops, and the rules of two optimizers.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
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

  std::size_t in, out;
  Numbers weight, bias;
  Numbers dweight, dbias;
  Numbers first, second;  // of the optimizer, weight and then bias
};

// Without weight decay; `step` counts from 1.
inline Rule adamw(double rate, int step) {
  return [rate, step](double& weight, double gradient, double& first, double& second) {
    first = 0.9 * first + 0.1 * gradient;
    second = 0.999 * second + 0.001 * gradient * gradient;
    const double mean = first / (1.0 - std::pow(0.9, step));
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
